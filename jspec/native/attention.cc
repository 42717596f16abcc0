// Attention of a few nodes over a paged cache; keys and values are read once a chunk.
//
// A query's softmax runs over fixed blocks of slots, in the order of the text: its bits
// depend neither on the other nodes nor on the other rows.
#include <cmath>
#include <limits>

#include "common.h"

namespace {

constexpr int64_t kBlock = 256;    // slots between two looks at the largest score
constexpr int64_t kRange = 1024;   // slots of one task; its share is merged in order
constexpr int64_t kQueries = 24;   // queries of one task
constexpr float kLowest = -1e30f;  // a score no token has, and finite

inline Floats LoadWide(const float* from) { return Load(from); }

inline Floats LoadWide(const Brain* from) {
  typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));
  Halves narrow;
  std::memcpy(&narrow, from, kBytes / 2);
  return (Floats)(__builtin_convertvector(narrow, Words) << 16);
}

// exp of numbers that are not positive (Cody and Waite 1980, §6), to 2 units in the last
// place; 0 below -87.
inline Floats Exp(Floats x) {
  typedef int32_t Integers __attribute__((vector_size(kBytes)));
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  Floats n = (x * 1.44269504f + magic) - magic;
  Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  Floats y = p * (Floats)power;
  return (Floats)((Integers)y & ~(Integers)(x <= -87.0f));  // NaN stays
}

struct Shape {
  int64_t rows, nodes, heads, keys, depth, pages, size, table, window;
  float scale;
  int64_t group() const { return heads / keys; }
};

template <typename T>
struct Inputs {
  const T *q, *k, *v;
  const int32_t *table, *length;
  const bool* ancestors;  // [rows, nodes, nodes], or null: a chain
  const int32_t* depths;  // [rows, nodes]
};

// What a task found for one query: the largest score, the sum of weights, the mix.
constexpr int64_t Found(int64_t depth) { return depth + 2; }

// Whether node `n` of row `b` sees slot `t`.
template <typename T>
inline bool Sees(const Shape& s, const Inputs<T>& in, int64_t b, int64_t n, int64_t t) {
  int64_t length = in.length[b], here = length + in.depths[b * s.nodes + n], where = t;
  if (t >= length) {
    int64_t m = t - length;
    if (m >= s.nodes) return false;
    if (in.ancestors ? !in.ancestors[(b * s.nodes + n) * s.nodes + m] : m > n) return false;
    where = length + in.depths[b * s.nodes + m];
  }
  return s.window == 0 || here - where < s.window;
}

// Queries `first ... first + count` of one key head over slots `from ... until`.
template <typename T, int V>
void Attend(const Shape& s, const Inputs<T>& in, int64_t b, int64_t key, int64_t first,
            int64_t count, int64_t from, int64_t until, float* found) {
  constexpr int64_t D = V * kLanes;
  int64_t length = in.length[b], group = s.group();
  const int32_t* pages = in.table + b * s.table;
  float* queries = Scratch<Use::kRows, float>(count * D + kLanes * D + count * kBlock);
  float *wide = queries + count * D, *scores = wide + kLanes * D;
  for (int64_t i = 0; i < count; ++i) {
    int64_t n = (first + i) / group, h = key * group + (first + i) % group;
    const T* q = in.q + ((b * s.nodes + n) * s.heads + h) * D;
    for (int v = 0; v < V; ++v) Store(queries + i * D + v * kLanes, LoadWide(q + v * kLanes) * s.scale);
    float* to = found + i * Found(D);
    to[0] = kLowest;
    std::fill(to + 1, to + Found(D), 0.0f);
  }
  auto place = [&](const T* from, int64_t t) -> const T* {
    int64_t page = pages[t / s.size];
    if (page < 0 || page >= s.pages) return nullptr;
    return from + ((page * s.keys + key) * s.size + t % s.size) * D;
  };
  for (int64_t block = from; block < until; block += kBlock) {
    int64_t many = std::min(kBlock, until - block);
    for (int64_t t = 0; t < many; t += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) {
        const T* k = t + j < many ? place(in.k, block + t + j) : nullptr;
        for (int v = 0; v < V; ++v)
          Store(wide + j * D + v * kLanes, k ? LoadWide(k + v * kLanes) : Floats{});
      }
      for (int64_t i = 0; i < count; ++i) {
        Floats q[V], sums[kLanes];
        for (int v = 0; v < V; ++v) q[v] = Load(queries + i * D + v * kLanes);
        for (int j = 0; j < int(kLanes); ++j) {
          sums[j] = q[0] * Load(wide + j * D);
          for (int v = 1; v < V; ++v) sums[j] += q[v] * Load(wide + j * D + v * kLanes);
        }
        Store(scores + i * kBlock + t, Gather<2>(sums));
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t n = (first + i) / group;
      int64_t here = length + in.depths[b * s.nodes + n];
      int64_t low = s.window ? std::max<int64_t>(0, here - s.window + 1) : 0;
      float* row = scores + i * kBlock;
      float* to = found + i * Found(D);
      for (int64_t t = 0; t < std::min(many, low - block); ++t) row[t] = kLowest;
      for (int64_t t = std::max<int64_t>(0, length - block); t < many; ++t)
        if (!Sees(s, in, b, n, block + t)) row[t] = kLowest;
      for (int64_t t = many; t % kLanes; ++t) row[t] = kLowest;
      float top = to[0];
      for (int64_t t = 0; t < many; ++t) top = row[t] > top || row[t] != row[t] ? row[t] : top;
      if (top == kLowest) {
        std::fill(row, row + many, 0.0f);
        continue;
      }
      Floats sum = {};
      for (int64_t t = 0; t < many; t += kLanes) {
        Floats w = Exp(Load(row + t) - top);
        Store(row + t, w);
        sum += w;
      }
      Floats lanes[kLanes] = {sum};
      float fade = std::exp(to[0] - top);
      to[1] = to[1] * fade + Gather<2>(lanes)[0];
      to[0] = top;
      for (int v = 0; v < V; ++v) {
        float* mixed = to + 2 + v * kLanes;
        Store(mixed, Load(mixed) * fade);
      }
    }
    for (int64_t t = 0; t < many; ++t) {
      const T* value = place(in.v, block + t);
      if (!value) continue;
      Floats v[V];
      for (int j = 0; j < V; ++j) v[j] = LoadWide(value + j * kLanes);
      for (int64_t i = 0; i < count; ++i) {
        float w = scores[i * kBlock + t];
        if (w == 0) continue;
        float* mixed = found + i * Found(D) + 2;
        for (int j = 0; j < V; ++j) Store(mixed + j * kLanes, Load(mixed + j * kLanes) + w * v[j]);
      }
    }
  }
}

template <typename T, int V>
void Run(ffi::ThreadPool& pool, const Shape& s, const Inputs<T>& in, T* out) {
  constexpr int64_t D = V * kLanes;
  int64_t all = s.nodes * s.group();
  int64_t chunks = (all + kQueries - 1) / kQueries, longest = 0;
  auto end = [&](int64_t b) {
    bool none = in.table[b * s.table] < 0 || in.table[b * s.table] >= s.pages;
    return none ? 0 : std::min<int64_t>(in.length[b] + s.nodes, s.table * s.size);
  };
  for (int64_t b = 0; b < s.rows; ++b) longest = std::max(longest, end(b));
  int64_t ranges = std::max<int64_t>(1, (longest + kRange - 1) / kRange);
  int64_t heads = s.rows * s.keys;
  // [row, key head, chunk, range, query]: only what a task wrote is read.
  float* found = Scratch<Use::kSums, float>(heads * chunks * ranges * kQueries * Found(D));
  auto at = [&](int64_t head, int64_t chunk, int64_t range) {
    return found + ((head * chunks + chunk) * ranges + range) * kQueries * Found(D);
  };
  Share(pool, heads * chunks * ranges, [&](int64_t task) {
    int64_t head = task / (chunks * ranges), chunk = task / ranges % chunks, range = task % ranges;
    int64_t b = head / s.keys, first = chunk * kQueries, from = range * kRange;
    int64_t until = std::min(end(b), from + kRange), count = std::min(kQueries, all - first);
    if (from < until || range == 0)
      Attend<T, V>(s, in, b, head % s.keys, first, count, from, until, at(head, chunk, range));
  });
  auto merge = [&](int64_t head) {
    int64_t b = head / s.keys, parts = std::max<int64_t>(1, (end(b) + kRange - 1) / kRange);
    for (int64_t i = 0; i < all; ++i) {
      float total = 0, top = kLowest, mixed[D] = {};
      for (int64_t range = 0; range < parts; ++range) {
        const float* part = at(head, i / kQueries, range) + i % kQueries * Found(D);
        float higher = part[0] > top || part[0] != part[0] ? part[0] : top;
        float fade = std::exp(top - higher), scale = std::exp(part[0] - higher);
        total = total * fade + part[1] * scale;
        for (int64_t d = 0; d < D; ++d) mixed[d] = mixed[d] * fade + part[2 + d] * scale;
        top = higher;
      }
      int64_t n = i / s.group(), h = head % s.keys * s.group() + i % s.group();
      T* to = out + ((b * s.nodes + n) * s.heads + h) * D;
      float share = total > 0 || total != total ? 1 / total : 0;
      for (int64_t d = 0; d < D; ++d) Narrow(mixed[d] * share, to + d);
    }
  };
  if (all > kQueries) {
    Share(pool, heads, merge);
  } else {
    for (int64_t head = 0; head < heads; ++head) merge(head);
  }
}

template <typename T>
ffi::Error Pick(ffi::ThreadPool& pool, const Shape& s, ffi::AnyBuffer q, ffi::AnyBuffer k,
                ffi::AnyBuffer v, const int32_t* table, const int32_t* length,
                const int32_t* depths, const bool* ancestors, ffi::Result<ffi::AnyBuffer> out) {
  Inputs<T> in{static_cast<const T*>(q.untyped_data()), static_cast<const T*>(k.untyped_data()),
               static_cast<const T*>(v.untyped_data()), table, length, ancestors, depths};
  T* to = static_cast<T*>(out->untyped_data());
  switch (s.depth / kLanes) {
#define DEPTH(V)             \
  case V:                    \
    Run<T, V>(pool, s, in, to); \
    return ffi::Error::Success();
    DEPTH(1) DEPTH(2) DEPTH(4) DEPTH(6) DEPTH(8) DEPTH(12) DEPTH(16) DEPTH(24) DEPTH(32) DEPTH(64) DEPTH(128)
#undef DEPTH
  }
  return ffi::Error::InvalidArgument("no kernel for this head width");
}

ffi::Error Attention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                     ffi::Buffer<ffi::S32> table, ffi::Buffer<ffi::S32> length,
                     ffi::Buffer<ffi::S32> depths, ffi::Buffer<ffi::PRED> ancestors,
                     ffi::Result<ffi::AnyBuffer> out, bool branching, int64_t window, float scale) {
  auto at = q.dimensions();
  auto page = k.dimensions();
  Shape s{at[0], at[1], at[2], page[1], at[3], page[0], page[2], table.dimensions()[1], window, scale};
  const bool* related = branching ? ancestors.typed_data() : nullptr;
  if (q.element_type() == ffi::F32)
    return Pick<float>(pool, s, q, k, v, table.typed_data(), length.typed_data(),
                       depths.typed_data(), related, out);
  return Pick<Brain>(pool, s, q, k, v, table.typed_data(), length.typed_data(),
                     depths.typed_data(), related, out);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_attention, Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("branching")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("scale"));
