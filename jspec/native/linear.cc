// Products of a few rows with large matrices, at the speed of memory.
//
// y[r, o] = sum_i x[r, i] w[i, o]. Every output is a sum in one order that depends on
// the matrix and the number of threads alone: how many rows are beside a row never
// changes its bits. Weights are read once, front to back, while the next block of them
// is on its way from memory.
#include "panels.h"

namespace jspec {
namespace {

constexpr int64_t kPanel = 2 * kLanes;  // columns that one step down a matrix sums

// How a dtype's weights meet its rows. `kDeep` rows of the matrix are taken at a time;
// a row of x is kept as `X`, in the order that `Prepare` gives it.
struct Wide {
  using W = float;
  using X = float;
  static constexpr int64_t kDeep = 1;
  static void Prepare(const W* x, int64_t n, X* to) { std::copy(x, x + n, to); }
  struct Pair {
    Floats first, second;
  };
  static Pair Panel(const W* w, int64_t, bool) { return {Load(w), Load(w + kLanes)}; }
  static void Add(Pair& sum, const X* x, const Pair& w) {
    sum.first += x[0] * w.first;
    sum.second += x[0] * w.second;
  }
  static constexpr int64_t kStride = kLanes;
  static Floats Along(Floats sum, const X* x, const W* w) { return sum + Load(x) * Load(w); }
  // Column `c` of a panel lies in the pair at `Place(c)`.
  static int64_t Place(int64_t c) { return c; }
};

#if defined(__AVX512BF16__)
// Two rows of the matrix, interleaved in the register, in one instruction.
struct Half {
  using W = Brain;
  using X = Brain;
  static constexpr int64_t kDeep = 2;
  static void Prepare(const W* x, int64_t n, X* to) {
    std::copy(x, x + n, to);
    if (n % 2) to[n] = Brain{0};
  }
  struct Pair {
    __m512 first, second;
  };
  struct Weights {
    __m512bh first, second;
  };
  static Weights Panel(const W* w, int64_t ld, bool both) {
    __m512i top = _mm512_loadu_si512(w);
    __m512i low = both ? _mm512_loadu_si512(w + ld) : _mm512_setzero_si512();
    return {(__m512bh)_mm512_unpacklo_epi16(top, low), (__m512bh)_mm512_unpackhi_epi16(top, low)};
  }
  static void Add(Pair& sum, const X* x, const Weights& w) {
    uint32_t two;
    std::memcpy(&two, x, 4);
    __m512bh both = (__m512bh)_mm512_set1_epi32(int(two));
    sum.first = _mm512_dpbf16_ps(sum.first, both, w.first);
    sum.second = _mm512_dpbf16_ps(sum.second, both, w.second);
  }
  static constexpr int64_t kStride = kPanel;
  static Floats Along(Floats sum, const X* x, const W* w) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(x),
                                    (__m512bh)_mm512_loadu_si512(w));
  }
  static int64_t Place(int64_t c) {
    return (c / 8 * 4) + c % 4 + (c / 4 % 2) * kLanes;
  }
};
#else
// A vector of bfloat16 is two of float32: the even columns and the odd ones.
struct Half {
  using W = Brain;
  using X = float;
  static constexpr int64_t kDeep = 1;
  static void Prepare(const W* x, int64_t n, X* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = Widen(x[i]);
  }
  struct Pair {
    Floats first, second;
  };
  static Pair Panel(const W* w, int64_t, bool) {
    Words v;
    std::memcpy(&v, w, kBytes);
    return {(Floats)(v << 16), (Floats)(v & 0xffff0000u)};
  }
  static void Add(Pair& sum, const X* x, const Pair& w) {
    sum.first += x[0] * w.first;
    sum.second += x[0] * w.second;
  }
  static constexpr int64_t kStride = kLanes;
  static Floats Along(Floats sum, const X* x, const W* w) {
    typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));
    Halves narrow;
    std::memcpy(&narrow, w, kBytes / 2);
    return sum + Load(x) * (Floats)(__builtin_convertvector(narrow, Words) << 16);
  }
  static int64_t Place(int64_t c) { return c / 2 + (c % 2) * kLanes; }
};
#endif

constexpr int64_t kGroup = 64;         // rows that share one pass over the matrix
constexpr int64_t kTask = 64 << 10;    // bytes below which a task is not worth its start

// sum[r, c] += x[r, i] w[i, c] over `n` rows of the matrix and one panel of its columns.
template <typename H, int R>
inline void SumPanel(const typename H::X* x, int64_t ldx, const typename H::W* w, int64_t ldw,
                     int64_t n, float* sum, int64_t lds, const typename H::W* soon) {
  typename H::Pair sums[R];
  for (int r = 0; r < R; ++r) std::memcpy(&sums[r], sum + r * lds, 2 * kBytes);
  for (int64_t i = 0; i < n; i += H::kDeep) {
    auto panel = H::Panel(w + i * ldw, ldw, i + 1 < n);
    for (int64_t deep = 0; deep < H::kDeep; ++deep) {
      const char* next = reinterpret_cast<const char*>(soon + (i + deep) * ldw);
      for (int64_t byte = 0; byte < kPanel * int64_t{sizeof(typename H::W)}; byte += 64)
        __builtin_prefetch(next + byte);
    }
    for (int r = 0; r < R; ++r) H::Add(sums[r], x + r * ldx + i, panel);
  }
  for (int r = 0; r < R; ++r) std::memcpy(sum + r * lds, &sums[r], 2 * kBytes);
}

// The same over all columns; `sum` is in panel order, columns past the last panel plain.
template <typename H>
void SumColumns(const typename H::X* x, int64_t ldx, int64_t rows, const typename H::W* w,
                int64_t n, int64_t columns, float* sum) {
  int64_t whole = columns / kPanel * kPanel;
  // Rows of the matrix at a time, and how many panels before its use one is fetched.
  int64_t step = rows > kRows ? 64 : rows > 2 ? 16 : 8;
  int64_t ahead = (rows > kRows ? 4 : rows > 2 ? 8 : 24) * kPanel;
  std::fill(sum, sum + rows * columns, 0.0f);
  for (int64_t i = 0; i < n; i += step) {
    int64_t m = std::min(step, n - i);
    for (int64_t r = 0; r < rows; r += kRows) {
      const typename H::X* xs = x + r * ldx + i;
      for (int64_t c = 0; c < whole; c += kPanel) {
        const typename H::W* ws = w + i * columns + c;
        float* to = sum + r * columns + c;
        int64_t later = c + ahead;
        const typename H::W* soon =
            later < whole ? w + i * columns + later : w + (i + step) * columns + later - whole;
        switch (std::min<int64_t>(kRows, rows - r)) {
#define ROWS(R)                                                                         \
  case R:                                                                               \
    if constexpr (R <= kRows) SumPanel<H, R>(xs, ldx, ws, columns, m, to, columns, soon); \
    break;
          ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#undef ROWS
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = whole; c < columns; ++c) {
      float s = 0;
      for (int64_t i = 0; i < n; ++i) s += Widen(x[r * ldx + i]) * Widen(w[i * columns + c]);
      sum[r * columns + c] = s;
    }
}

template <typename H, typename Y>
void AddParts(const float* parts, int64_t count, int64_t stride, int64_t rows, int64_t columns,
              Y* y) {
  int64_t whole = columns / kPanel * kPanel;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      int64_t at = r * columns + (c < whole ? c / kPanel * kPanel + H::Place(c % kPanel) : c);
      float s = parts[at];
      for (int64_t k = 1; k < count; ++k) s += parts[k * stride + at];
      Narrow(s, y + r * columns + c);
    }
}

template <typename T>
struct Matrix {
  const T* w;
  void* y;
  int64_t columns, parts, first, offset;
};

// x @ w for each matrix [in, out]: the rows of a matrix are divided into `parts`.
template <typename H, typename Y>
void Products(const typename H::W* input, int64_t rows, int64_t n,
              std::vector<Matrix<typename H::W>>& matrices) {
  int64_t ldx = (n + 1) / 2 * 2;
  typename H::X* x = Scratch<Use::kRows, typename H::X>(rows * ldx);
  for (int64_t r = 0; r < rows; ++r) H::Prepare(input + r * n, n, x + r * ldx);
  int64_t hands = Crew::Get().hands(), tasks = 0, floats = 0;
  auto begin = [n](int64_t part, int64_t parts) {
    return part == parts ? n : n * part / parts / 32 * 32;
  };
  for (auto& m : matrices) {
    int64_t bytes = n * m.columns * int64_t{sizeof(typename H::W)};
    m.parts = std::max<int64_t>(1, std::min({hands, bytes / kTask, n / 64}));
    m.first = tasks;
    m.offset = floats;
    tasks += m.parts;
    floats += m.parts * m.columns;
  }
  auto sum = [&](const auto& m, int64_t part, int64_t row, int64_t many, float* to) {
    int64_t from = begin(part, m.parts), until = begin(part + 1, m.parts);
    SumColumns<H>(x + row * ldx + from, ldx, many, m.w + from * m.columns, until - from, m.columns,
                  to);
  };
  auto finish = [&](const auto& m, const float* parts, int64_t row, int64_t many) {
    AddParts<H, Y>(parts, m.parts, many * m.columns, many, m.columns,
                   static_cast<Y*>(m.y) + row * m.columns);
  };
  if (rows <= kGroup) {
    float* sums = Scratch<Use::kSums, float>(rows * floats);
    Share(tasks, [&](int64_t task) {
      auto m = std::upper_bound(matrices.begin(), matrices.end(), task,
                                [](int64_t t, const auto& m) { return t < m.first; }) - 1;
      int64_t part = task - m->first;
      sum(*m, part, 0, rows, sums + rows * (m->offset + part * m->columns));
    });
    for (auto& m : matrices) finish(m, sums + rows * m.offset, 0, rows);
    return;
  }
  int64_t groups = (rows + kGroup - 1) / kGroup;
  Share(groups * int64_t(matrices.size()), [&](int64_t task) {
    auto& m = matrices[task / groups];
    int64_t row = task % groups * kGroup, many = std::min(kGroup, rows - row);
    float* sums = Scratch<Use::kSums, float>(many * m.parts * m.columns);
    for (int64_t part = 0; part < m.parts; ++part)
      sum(m, part, row, many, sums + part * many * m.columns);
    finish(m, sums, row, many);
  });
}

// y[r, o] = sum_i x[r, i] w[o, i] for `R` rows and `S` outputs, `R * S == kLanes`.
template <typename H, int R, typename Y>
inline void SumRow(const typename H::X* x, int64_t ldx, const typename H::W* w, int64_t n, Y* y,
                   int64_t ldy) {
  constexpr int S = kLanes / R;
  Floats sums[R * S] = {};
  int64_t whole = n / H::kStride * H::kStride;
  for (int64_t i = 0; i < whole; i += H::kStride)
    for (int s = 0; s < S; ++s) {
      const typename H::W* from = w + s * n + i;
      __builtin_prefetch(from + S * n);
      for (int r = 0; r < R; ++r) sums[r * S + s] = H::Along(sums[r * S + s], x + r * ldx + i, from);
    }
  Floats totals = Gather<2>(sums);
  for (int r = 0; r < R; ++r)
    for (int s = 0; s < S; ++s) {
      float total = totals[r * S + s];
      for (int64_t i = whole; i < n; ++i) total += Widen(x[r * ldx + i]) * Widen(w[s * n + i]);
      Narrow(total, y + r * ldy + s);
    }
}

// The same for one output, in the same order.
template <typename H, typename Y>
inline void SumOne(const typename H::X* x, const typename H::W* w, int64_t n, Y* y) {
  Floats sum = {};
  int64_t whole = n / H::kStride * H::kStride;
  for (int64_t i = 0; i < whole; i += H::kStride) sum = H::Along(sum, x + i, w + i);
  float lanes[kLanes];
  std::memcpy(lanes, &sum, kBytes);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  float total = lanes[0];
  for (int64_t i = whole; i < n; ++i) total += Widen(x[i]) * Widen(w[i]);
  Narrow(total, y);
}

// `R` rows with a stretch of outputs.
template <typename H, int R, typename Y>
void SumStretch(const typename H::X* x, int64_t ldx, const typename H::W* w, int64_t n, int64_t outputs,
                Y* y, int64_t ldy) {
  int64_t o = 0;
  for (; o + kLanes / R <= outputs; o += kLanes / R)
    SumRow<H, R>(x, ldx, w + o * n, n, y + o, ldy);
  for (; o < outputs; ++o)
    for (int r = 0; r < R; ++r) SumOne<H>(x + r * ldx, w + o * n, n, y + r * ldy + o);
}

// x @ w^T for a matrix [out, in].
template <typename H, typename Y>
void Transposed(const typename H::W* input, int64_t rows, int64_t n,
                const typename H::W* w, int64_t outputs, Y* y) {
  int64_t ldx = (n + 1) / 2 * 2;
  typename H::X* x = Scratch<Use::kRows, typename H::X>(rows * ldx);
  for (int64_t r = 0; r < rows; ++r) H::Prepare(input + r * n, n, x + r * ldx);
  int64_t many = std::max<int64_t>(kLanes, kTask / (n * int64_t{sizeof(typename H::W)}));
  many = many / kLanes * kLanes;
  Share((outputs + many - 1) / many, [&](int64_t task) {
    int64_t o = task * many, wide = std::min(many, outputs - o), r = 0;
    auto stretch = [&]<int R>() {
      for (; r + R <= rows; r += R)
        SumStretch<H, R>(x + r * ldx, ldx, w + o * n, n, wide, y + r * outputs + o, outputs);
    };
    stretch.template operator()<4>();
    stretch.template operator()<2>();
    stretch.template operator()<1>();
  });
}

template <typename H, typename Y>
ffi::Error Run(ffi::AnyBuffer x, ffi::RemainingArgs weights,
               ffi::RemainingRets results, bool transposed) {
  using W = typename H::W;
  int64_t rows = x.dimensions()[0], n = x.dimensions()[1];
  const W* input = static_cast<const W*>(x.untyped_data());
  std::vector<Matrix<W>> matrices;
  for (size_t i = 0; i < weights.size(); ++i) {
    auto w = weights.get<ffi::AnyBuffer>(i);
    auto y = results.get<ffi::AnyBuffer>(i);
    if (!w.has_value() || !y.has_value()) return ffi::Error::InvalidArgument("no such buffer");
    const W* from = static_cast<const W*>(w->untyped_data());
    void* to = (*y)->untyped_data();
    if (transposed)
      Transposed<H, Y>(input, rows, n, from, w->dimensions()[0], static_cast<Y*>(to));
    else
      matrices.push_back({from, to, w->dimensions()[1], 0, 0, 0});
  }
  if (!transposed) Products<H, Y>(input, rows, n, matrices);
  return ffi::Error::Success();
}

ffi::Error Linear(ffi::AnyBuffer x, ffi::RemainingArgs weights,
                  ffi::RemainingRets results, bool transposed) {
  auto first = results.get<ffi::AnyBuffer>(0);
  if (!first.has_value()) return ffi::Error::InvalidArgument("no result was asked for");
  bool wide = (*first)->element_type() == ffi::F32;
  if (x.element_type() == ffi::F32) return Run<Wide, float>(x, weights, results, transposed);
  if (wide) return Run<Half, float>(x, weights, results, transposed);
  return Run<Half, Brain>(x, weights, results, transposed);
}

}  // namespace
}  // namespace jspec

XLA_FFI_DEFINE_HANDLER_SYMBOL(jspec_linear, jspec::Linear,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("transposed"));
