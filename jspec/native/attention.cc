// Attention of a few nodes over a paged cache; keys and values are read once a chunk.
//
// A query's softmax runs over fixed blocks of slots, in the order of the text: its bits
// depend neither on the other nodes nor on the other rows.
#include <cmath>
#include <limits>

#include "attention.h"

namespace jspec {
namespace {

constexpr int64_t kBlock = 256;    // slots between two looks at the largest score
constexpr int64_t kRange = 1024;   // slots of one task; its share is merged in order
constexpr int64_t kQueries = 24;   // queries of one task
constexpr float kLowest = -1e30f;  // a score no token has, and finite

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
struct Task {
  static constexpr int64_t D = V * kLanes;
  static constexpr int kTogether = V <= 4 ? 4 : V <= 8 ? 2 : 1;  // mixes in registers

  const Shape& s;
  const Inputs<T>& in;
  int64_t b, key, first, count;
  float* found;
  const int32_t* pages = in.table + b * s.table;
  int64_t length = in.length[b], group = s.group();
  float* queries = Scratch<Use::kRows, float>(count * (D + kBlock));
  float* scores = queries + count * D;

  // Slot `t` of the row, or null: it has no page there.
  const T* Place(const T* from, int64_t t) const {
    int64_t page = pages[t / s.size];
    if (page < 0 || page >= s.pages) return nullptr;
    return from + ((page * s.keys + key) * s.size + t % s.size) * D;
  }

  // Where slots `t ... t + many` lie.
  void Places(const T* from, int64_t t, int64_t many, const T** to) const {
    for (int64_t j = 0; j < many;) {
      const T* place = Place(from, t + j);
      int64_t run = std::min(many - j, s.size - (t + j) % s.size);
      for (int64_t end = j + run; j < end; ++j, place += place ? D : 0) to[j] = place;
    }
  }

  static void Fetch(const T* const* places, int64_t many) {
    for (int64_t j = 0; j < many; ++j)
      if (places[j])
        for (int64_t byte = 0; byte < D * int64_t{sizeof(T)}; byte += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(places[j]) + byte);
  }

  void Begin() {
    for (int64_t i = 0; i < count; ++i) {
      int64_t n = (first + i) / group, h = key * group + (first + i) % group;
      const T* q = in.q + ((b * s.nodes + n) * s.heads + h) * D;
      for (int v = 0; v < V; ++v)
        Store(queries + i * D + v * kLanes, LoadWide(q + v * kLanes) * s.scale);
      float* to = found + i * Found(D);
      to[0] = kLowest;
      std::fill(to + 1, to + Found(D), 0.0f);
    }
  }

  // Scores of queries `i ... i + Q` and up to `kLanes` keys; the first queries fetch the
  // next keys.
  template <int Q>
  void ScoreTile(int64_t i, const T* const* k, int64_t tile, int64_t next, float* to) {
    Floats q[Q][V], sums[Q][kLanes] = {};
    for (int g = 0; g < Q; ++g)
      for (int v = 0; v < V; ++v) q[g][v] = Load(queries + (i + g) * D + v * kLanes);
    for (int64_t j = 0; j < tile; ++j) {
      if (i == 0 && j < next) Fetch(k + kLanes + j, 1);
      if (!k[j]) continue;
      Floats wide[V];
      for (int v = 0; v < V; ++v) wide[v] = LoadWide(k[j] + v * kLanes);
      for (int g = 0; g < Q; ++g) {
        Floats sum = q[g][0] * wide[0];
        for (int v = 1; v < V; ++v) sum += q[g][v] * wide[v];
        sums[g][j] = sum;
      }
    }
    for (int g = 0; g < Q; ++g) Store(to + g * kBlock, Gather<2>(sums[g]));
  }

  // The scores of `many` keys, a tile of `kLanes` at a time.
  void Score(const T* const* k, int64_t many) {
    for (int64_t t = 0; t < many; t += kLanes) {
      int64_t tile = std::min(kLanes, many - t), next = std::min(kLanes, many - t - tile);
      Together([&]<int Q>(int64_t i) { ScoreTile<Q>(i, k + t, tile, next, scores + i * kBlock + t); });
    }
  }

  // Calls f<Q>(i) for queries `i ... i + Q` until all were named.
  template <typename F>
  void Together(const F& f) const {
    int64_t i = 0;
    for (; i + kTogether <= count; i += kTogether) f.template operator()<kTogether>(i);
    if constexpr (kTogether > 2) {
      if (count - i == 3) f.template operator()<3>(i), i += 3;
      if (count - i == 2) f.template operator()<2>(i), i += 2;
    }
    for (; i < count; ++i) f.template operator()<1>(i);
  }

  // Scores of slots `block ... block + many` to weights, and what was mixed fades.
  void Weigh(int64_t block, int64_t many) {
    for (int64_t i = 0; i < count; ++i) {
      int64_t n = (first + i) / group;
      int64_t here = length + in.depths[b * s.nodes + n];
      int64_t low = s.window ? std::max<int64_t>(0, here - s.window + 1) : 0;
      float* row = scores + i * kBlock;
      float* to = found + i * Found(D);
      for (int64_t t = 0; t < std::min(many, low - block); ++t) row[t] = kLowest;
      // Of a chain a node sees the nodes up to itself; a tree is asked slot by slot.
      int64_t new_ones = std::max<int64_t>(0, in.ancestors ? length - block : here + 1 - block);
      for (int64_t t = new_ones; t < many; ++t)
        if (!in.ancestors || !Sees(s, in, b, n, block + t)) row[t] = kLowest;
      for (int64_t t = many; t % kLanes; ++t) row[t] = kLowest;
      float top = Largest(row, many, to[0]);
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
  }

  // Queries `i ... i + Q` mix `many` values; what has no weight is not looked at.
  template <int Q>
  void Mix(int64_t i, const T* const* values, int64_t many) {
    Floats mixed[Q][V];
    for (int q = 0; q < Q; ++q)
      for (int v = 0; v < V; ++v) mixed[q][v] = Load(found + (i + q) * Found(D) + 2 + v * kLanes);
    for (int64_t t = 0; t < many; ++t) {
      const T* value = values[t];
      if (!value) continue;
      if (t + kLanes < many) Fetch(values + t + kLanes, 1);
      Floats wide[V];
      for (int v = 0; v < V; ++v) wide[v] = LoadWide(value + v * kLanes);
      for (int q = 0; q < Q; ++q) {
        float w = scores[(i + q) * kBlock + t];
        if (w == 0) continue;
        for (int v = 0; v < V; ++v) mixed[q][v] += w * wide[v];
      }
    }
    for (int q = 0; q < Q; ++q)
      for (int v = 0; v < V; ++v) Store(found + (i + q) * Found(D) + 2 + v * kLanes, mixed[q][v]);
  }

  void Run(int64_t from, int64_t until) {
    const T *k[kBlock], *v[kBlock];
    Begin();
    // Of a chain no query looks beyond the last one's own slot.
    if (!in.ancestors) until = std::min(until, length + (first + count - 1) / group + 1);
    for (int64_t block = from; block < until; block += kBlock) {
      int64_t many = std::min(kBlock, until - block);
      Places(in.k, block, many, k);
      Places(in.v, block, many, v);
      Score(k, many);
      Fetch(v, std::min(kLanes, many));
      Weigh(block, many);
      Together([&]<int Q>(int64_t i) { Mix<Q>(i, v, many); });
    }
  }
};

template <typename T, int V>
void Run(const Shape& s, const Inputs<T>& in, T* out) {
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
  auto merge = [&](int64_t head, int64_t chunk) {
    int64_t b = head / s.keys, parts = std::max<int64_t>(1, (end(b) + kRange - 1) / kRange);
    for (int64_t i = chunk * kQueries; i < std::min(all, (chunk + 1) * kQueries); ++i) {
      float total = 0, top = kLowest, mixed[D] = {};
      for (int64_t range = 0; range < parts; ++range) {
        const float* part = at(head, chunk, range) + i % kQueries * Found(D);
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
  Share(heads * chunks * ranges, [&](int64_t task) {
    int64_t head = task / (chunks * ranges), chunk = task / ranges % chunks, range = task % ranges;
    int64_t b = head / s.keys, first = chunk * kQueries, from = range * kRange;
    int64_t until = std::min(end(b), from + kRange), count = std::min(kQueries, all - first);
    if (from < until || range == 0)
      Task<T, V>{s, in, b, head % s.keys, first, count, at(head, chunk, range)}.Run(from, until);
    if (ranges == 1) merge(head, chunk);
  });
  if (ranges > 1)
    Share(heads * chunks, [&](int64_t task) { merge(task / chunks, task % chunks); });
}

template <typename T>
bool Pick(const Shape& s, const Inputs<T>& in, T* out) {
  switch (s.depth) {
#define DEPTH(D)                       \
  case D:                              \
    Run<T, D / kLanes>(s, in, out);    \
    return true;
    DEPTH(16) DEPTH(32) DEPTH(64) DEPTH(96) DEPTH(128) DEPTH(256) DEPTH(512)
#undef DEPTH
  }
  return false;
}

template <typename T>
ffi::Error Call(const Shape& s, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                const int32_t* table, const int32_t* length, const int32_t* depths,
                const bool* ancestors, ffi::Result<ffi::AnyBuffer> out) {
  Inputs<T> in{static_cast<const T*>(q.untyped_data()), static_cast<const T*>(k.untyped_data()),
               static_cast<const T*>(v.untyped_data()), table, length, ancestors, depths};
  if (Attend(s, in, static_cast<T*>(out->untyped_data()))) return ffi::Error::Success();
  return ffi::Error::InvalidArgument("no kernel for this head width");
}

ffi::Error Attention(ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                     ffi::Buffer<ffi::S32> table, ffi::Buffer<ffi::S32> length,
                     ffi::Buffer<ffi::S32> depths, ffi::Buffer<ffi::PRED> ancestors,
                     ffi::Result<ffi::AnyBuffer> out, bool branching, int64_t window, float scale) {
  auto at = q.dimensions();
  auto page = k.dimensions();
  Shape s{at[0], at[1], at[2], page[1], at[3], page[0], page[2], table.dimensions()[1], window, scale};
  const bool* related = branching ? ancestors.typed_data() : nullptr;
  auto call = q.element_type() == ffi::F32 ? Call<float> : Call<Brain>;
  return call(s, q, k, v, table.typed_data(), length.typed_data(), depths.typed_data(), related,
              out);
}

}  // namespace

bool Attend(const Shape& s, const Inputs<float>& in, float* out) { return Pick(s, in, out); }
bool Attend(const Shape& s, const Inputs<Brain>& in, Brain* out) { return Pick(s, in, out); }

}  // namespace jspec

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_attention, jspec::Attention,
                              ffi::Ffi::Bind()
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
