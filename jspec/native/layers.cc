// Decoder layers on packed weights, one after the other: norm, queries, keys and values,
// rotation, the append to the cache, attention, output, norm, gated MLP. Between these
// phases the threads only meet; nothing goes through XLA.
//
// A row's numbers are computed in one order, whatever rows are beside it.
#include <cmath>

#include "attention.h"
#include "panels.h"

namespace jspec {
namespace {

// In the order of the call; what a model lacks is empty.
enum Weight {
  kAttentionNorm, kQ, kK, kV, kO, kMlpNorm, kGate, kUp, kDown, kQBias, kKBias, kVBias,
  kOBias, kGateBias, kUpBias, kDownBias, kQNorm, kKNorm, kWeights
};

template <typename P>
struct Layer {
  using T = typename P::T;

  Shape s;
  Inputs<T> in;  // `q` is set when it is known
  const T* x;
  const float *cosine, *sine;  // [rows * nodes, depth]
  const T* w[kWeights];        // null: the model has none
  int64_t width, inner;        // of the stream, of the MLP
  float eps;
  T *k_pages, *v_pages, *out;

  int64_t rows() const { return s.rows * s.nodes; }
  int64_t queries() const { return s.heads * s.depth; }
  int64_t keys() const { return s.keys * s.depth; }

  void Norm(const T* from, const T* weight, int64_t n, T* to) const {
    Floats lanes[kLanes] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      Floats v = LoadWide(from + i);
      lanes[0] += v * v;
    }
    float scale = 1 / std::sqrt(Gather<2>(lanes)[0] / float(n) + eps);
    for (int64_t i = 0; i < n; i += kLanes) {
      StoreNarrow(to + i, LoadWide(from + i) * scale);
      StoreNarrow(to + i, LoadWide(to + i) * LoadWide(weight + i));
    }
  }

  void NormRows(const T* from, const T* weight, T* to) const {
    Share(rows() < 4 ? 1 : rows(), [&](int64_t task) {
      for (int64_t r = task; r < (rows() < 4 ? rows() : task + 1); ++r)
        Norm(from + r * width, weight, width, to + r * width);
    });
  }

  // Rounded as the product of its own that it is; then the bias, rounded again.
  static void Settle(const float* sums, const T* bias, T* to) {
    for (int64_t c = 0; c < kColumns; c += kLanes) {
      StoreNarrow(to + c, Load(sums + c));
      if (bias) StoreNarrow(to + c, LoadWide(to + c) + LoadWide(bias + c));
    }
  }

  // Of one head, in pairs (i, i + depth / 2); after the head's norm, if there is one.
  void Rotate(const T* from, const T* norm, int64_t r, T* to) const {
    const float *c = cosine + r * s.depth, *t = sine + r * s.depth;
    int64_t half = s.depth / 2;
    float wide[kDeepest], turned[kDeepest];
    T normed[kDeepest];
    if (norm) Norm(from, norm, s.depth, normed), from = normed;
    for (int64_t i = 0; i < s.depth; i += kLanes) Store(wide + i, LoadWide(from + i));
    for (int64_t i = 0; i < half; ++i) {
      turned[i] = wide[i] * c[i] - wide[i + half] * t[i];
      turned[i + half] = wide[i + half] * c[i + half] + wide[i] * t[i + half];
    }
    for (int64_t i = 0; i < s.depth; i += kLanes) StoreNarrow(to + i, Load(turned + i));
  }
  static constexpr int64_t kDeepest = 512;

  // Rotates the queries of row `r` in place; its keys and values go to their page.
  void Append(int64_t r, T* q, T* k, const T* v) const {
    int64_t b = r / s.nodes, slot = in.length[b] + r % s.nodes, column = slot / s.size;
    for (int64_t h = 0; h < s.heads; ++h) {
      T* head = q + r * queries() + h * s.depth;
      Rotate(head, w[kQNorm], r, head);
    }
    int64_t page = column < s.table ? in.table[b * s.table + column] : -1;
    if (page < 0 || page >= s.pages) return;
    for (int64_t h = 0; h < s.keys; ++h) {
      int64_t to = ((page * s.keys + h) * s.size + slot % s.size) * s.depth;
      int64_t from = r * keys() + h * s.depth;
      Rotate(k + from, w[kKNorm], r, k_pages + to);
      std::copy(v + from, v + from + s.depth, v_pages + to);
    }
  }

  // to = stream + from @ weights, the product rounded before the addition.
  void AddProduct(const T* from, int64_t n, Weight weights, Weight bias, const T* stream,
                  T* to) const {
    Share(width / kColumns, [&](int64_t panel) {
      auto add = [&](int64_t r, int64_t many, const float* sums) {
        for (int64_t i = 0; i < many; ++i) {
          T y[kColumns];
          int64_t at = (r + i) * width + panel * kColumns;
          Settle(sums + i * kColumns, w[bias] ? w[bias] + panel * kColumns : nullptr, y);
          for (int64_t c = 0; c < kColumns; c += kLanes)
            StoreNarrow(to + at + c, LoadWide(stream + at + c) + LoadWide(y + c));
        }
      };
      EachBlock<P>(from, rows(), n, w[weights], panel, add);
    });
  }

  void Project(const T* normed, T* q, T* k, T* v) const {
    int64_t some = queries() / kColumns, few = keys() / kColumns;
    Share(some + 2 * few, [&](int64_t task) {
      int64_t which = task < some ? 0 : task < some + few ? 1 : 2;
      int64_t panel = which ? (task - some) % few : task;
      int64_t columns = which ? keys() : queries();
      T* to = which == 0 ? q : which == 1 ? k : v;
      const T* bias = w[kQBias + which];
      auto put = [&](int64_t r, int64_t many, const float* sums) {
        for (int64_t i = 0; i < many; ++i)
          Settle(sums + i * kColumns, bias ? bias + panel * kColumns : nullptr,
                 to + (r + i) * columns + panel * kColumns);
      };
      EachBlock<P>(normed, rows(), width, w[kQ + which], panel, put);
    });
  }

  // silu(gate) * up
  void Gate(const T* normed, T* gated) const {
    Share(inner / kColumns, [&](int64_t panel) {
      alignas(64) float up[kRows * kColumns];
      int64_t at = panel * kColumns;
      auto put = [&](int64_t r, int64_t many, const float* sums) {
        SumPanel<P>(many, normed + r * width, w[kUp] + at * width, width, up);
        for (int64_t i = 0; i < many; ++i) {
          T g[kColumns], u[kColumns];
          Settle(sums + i * kColumns, w[kGateBias] ? w[kGateBias] + at : nullptr, g);
          Settle(up + i * kColumns, w[kUpBias] ? w[kUpBias] + at : nullptr, u);
          for (int64_t c = 0; c < kColumns; c += kLanes) {
            Floats wide = LoadWide(g + c), e = Exp(wide < 0 ? wide : -wide);
            Floats share = (wide < 0 ? e : Floats{} + 1) / (1 + e);
            StoreNarrow(gated + (r + i) * inner + at + c, wide * share * LoadWide(u + c));
          }
        }
      };
      EachBlock<P>(normed, rows(), width, w[kGate], panel, put);
    });
  }

  bool Run() {
    int64_t r = rows();
    int64_t most = std::max(inner, 2 * queries() + 2 * keys());
    T* normed = Scratch<Use::kLayer, T>(r * (2 * width + most));
    T *middle = normed + r * width, *q = middle + r * width, *gated = q;
    T *mixed = q + r * queries(), *k = mixed + r * queries(), *v = k + r * keys();
    NormRows(x, w[kAttentionNorm], normed);
    Project(normed, q, k, v);
    Share(r, [&](int64_t task) { Append(task, q, k, v); });
    in.q = q;
    if (!Attend(s, in, mixed)) return false;
    AddProduct(mixed, queries(), kO, kOBias, x, middle);
    NormRows(middle, w[kMlpNorm], normed);
    Gate(normed, gated);
    AddProduct(gated, inner, kDown, kDownBias, middle, out);
    return true;
  }
};

// The layers of one call: where the weights and the pages of each lie.
//
// A row of the stack holds one layer's weights in the order of `Weight`, each beginning at
// a multiple of `kLine` bytes. Pages are two arrays [layers, P, K, S, D], keys and values,
// or an array a layer: first all keys, then all values.
struct Stack {
  static constexpr int64_t kLine = 64;

  ffi::AnyBuffer rows;
  ffi::Span<const int64_t> sizes;  // numbers of each weight; 0: the model has none
  ffi::RemainingRets pages;
  int64_t first;

  template <typename T>
  void Weights(int64_t layer, const T** to) const {
    const T* from = static_cast<const T*>(rows.untyped_data());
    from += (first + layer) * rows.dimensions()[1];
    for (size_t i = 0; i < kWeights; ++i) {
      constexpr int64_t step = kLine / sizeof(T);
      to[i] = sizes[i] ? from : nullptr;
      from += (sizes[i] + step - 1) / step * step;
    }
  }

  ffi::Result<ffi::AnyBuffer> Page(int64_t at) const { return *pages.get<ffi::AnyBuffer>(at); }
  bool one() const { return Page(1)->dimensions().size() == 5; }
  ffi::Span<const int64_t> page() const {
    auto all = Page(1)->dimensions();
    return {all.end() - 4, 4};
  }

  template <typename T>
  T* Pages(int64_t layer, bool values) const {
    int64_t at = first + layer, many = int64_t(pages.size()) - 1, skip = 0;
    if (one()) {
      auto shape = page();
      skip = at * shape[0] * shape[1] * shape[2] * shape[3];
      at = 0, many = 2;
    }
    return static_cast<T*>(Page(1 + at + values * many / 2)->untyped_data()) + skip;
  }
};

template <typename P>
ffi::Error Call(ffi::AnyBuffer x, const float* cosine, const float* sine,
                ffi::Buffer<ffi::S32> table, ffi::Buffer<ffi::S32> length, const int32_t* depths,
                const bool* ancestors, const Stack& stack, ffi::Span<const int64_t> windows,
                float scale, float eps, ffi::AnyBuffer out) {
  using T = typename P::T;
  auto page = stack.page();
  int64_t width = x.dimensions()[1], nodes = x.dimensions()[0] / table.dimensions()[0];
  int64_t heads = stack.sizes[kQ] / width / page[3];
  Layer<P> layer{};
  layer.width = width;
  layer.inner = stack.sizes[kGate] / width;
  layer.s = {table.dimensions()[0], nodes,   heads, page[1], page[3], page[0], page[2],
             table.dimensions()[1], 0, scale};
  layer.cosine = cosine;
  layer.sine = sine;
  layer.eps = eps;
  layer.x = static_cast<const T*>(x.untyped_data());
  layer.out = static_cast<T*>(out.untyped_data());
  for (size_t l = 0; l < windows.size(); ++l) {
    stack.Weights(l, layer.w);
    layer.s.window = windows[l];
    layer.k_pages = stack.Pages<T>(l, false);
    layer.v_pages = stack.Pages<T>(l, true);
    layer.in = {nullptr, layer.k_pages, layer.v_pages, table.typed_data(), length.typed_data(),
                ancestors, depths};
    if (!layer.Run()) return ffi::Error::InvalidArgument("no kernel for this head width");
    layer.x = layer.out;
  }
  return ffi::Error::Success();
}

ffi::Error Pick(ffi::AnyBuffer x, ffi::Buffer<ffi::F32> cosine, ffi::Buffer<ffi::F32> sine,
                ffi::Buffer<ffi::S32> table, ffi::Buffer<ffi::S32> length,
                ffi::Buffer<ffi::S32> depths, ffi::Buffer<ffi::PRED> ancestors,
                ffi::AnyBuffer rows, ffi::RemainingArgs pages, ffi::RemainingRets results,
                bool branching, int64_t first, ffi::Span<const int64_t> sizes,
                ffi::Span<const int64_t> windows, float scale, float eps) {
  if (sizes.size() != kWeights || results.size() != pages.size() + 1)
    return ffi::Error::InvalidArgument("a weight or a page is missing");
  for (size_t i = 0; i < pages.size(); ++i)
    if (pages.get<ffi::AnyBuffer>(i)->untyped_data() !=
        (*results.get<ffi::AnyBuffer>(i + 1))->untyped_data())
      return ffi::Error::Internal("pages are not updated in place");
  auto call = x.element_type() == ffi::F32 ? Call<WidePanel> : Call<HalfPanel>;
  return call(x, cosine.typed_data(), sine.typed_data(), table, length, depths.typed_data(),
              branching ? ancestors.typed_data() : nullptr, {rows, sizes, results, first}, windows,
              scale, eps, **results.get<ffi::AnyBuffer>(0));
}

}  // namespace
}  // namespace jspec

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_layers, jspec::Pick,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("branching")
                                  .Attr<int64_t>("first")
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<ffi::Span<const int64_t>>("windows")
                                  .Attr<float>("scale")
                                  .Attr<float>("eps"));
