// Products with packed matrices.
//
// A matrix [in, out] is packed as panels of 32 columns, each of them contiguous: float32
// [out / 32, in, 32]; bfloat16 [out / 32, in / 2, 32, 2], two rows interleaved. A product
// reads it front to back as one stream per thread, with all its sums in registers. Every
// output is a sum in the order of the rows, whatever else is computed beside it.
#pragma once

#include "common.h"

namespace jspec {

constexpr int64_t kColumns = 32;         // of a panel
constexpr int64_t kAhead = 128 * 64;     // bytes between a load and what is fetched then

// How a panel of weights meets rows: `kDeep` rows of the matrix in one step, `kStep` bytes.
struct WidePanel {
  using T = float;
  static constexpr int64_t kDeep = 1;
  using Weights = Floats;
  static Weights Read(const char* from) { return Load(reinterpret_cast<const float*>(from)); }
  static Floats Add(Floats sum, const float* x, const Weights& w) { return sum + *x * w; }
};

#if defined(__AVX512BF16__)
struct HalfPanel {
  using T = Brain;
  static constexpr int64_t kDeep = 2;
  using Weights = __m512bh;
  static Weights Read(const char* from) { return (__m512bh)_mm512_loadu_si512(from); }
  static Floats Add(Floats sum, const Brain* x, const Weights& w) {
    int32_t two;
    std::memcpy(&two, x, 4);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(two), w);
  }
};
#else
struct HalfPanel {
  using T = Brain;
  static constexpr int64_t kDeep = 2;
  using Weights = Words;
  static Weights Read(const char* from) {
    Words two;
    std::memcpy(&two, from, kBytes);
    return two;
  }
  static Floats Add(Floats sum, const Brain* x, const Weights& w) {
    sum += Widen(x[0]) * (Floats)(w << 16);
    return sum + Widen(x[1]) * (Floats)(w & 0xffff0000u);
  }
};
#endif

// sums[r, c] = sum_i x[r, i] w[i, c] for `R` rows and one panel of a matrix of `n` rows.
template <typename P, int R>
inline void SumPanelOf(const typename P::T* x, const typename P::T* w, int64_t n, float* sums) {
  constexpr int64_t kStep = kColumns * 4;  // bytes of a panel that one step takes
  const typename P::T* row[R];
  for (int r = 0; r < R; ++r) row[r] = x + r * n;
  for (int64_t column = 0; column < kColumns; column += 2 * kLanes) {
    Floats first[R] = {}, second[R] = {};
    const char* from = reinterpret_cast<const char*>(w) + column * 4;
    for (int64_t i = 0; i < n; i += P::kDeep, from += kStep) {
      auto a = P::Read(from), b = P::Read(from + kBytes);
      for (int64_t byte = 0; byte < 2 * kBytes; byte += 64) __builtin_prefetch(from + kAhead + byte);
      for (int r = 0; r < R; ++r) {
        first[r] = P::Add(first[r], row[r] + i, a);
        second[r] = P::Add(second[r], row[r] + i, b);
      }
    }
    for (int r = 0; r < R; ++r) {
      Store(sums + r * kColumns + column, first[r]);
      Store(sums + r * kColumns + column + kLanes, second[r]);
    }
  }
}

template <typename P>
void SumPanel(int64_t rows, const typename P::T* x, const typename P::T* w, int64_t n,
              float* sums) {
  switch (rows) {
#define ROWS(R)                                                         \
  case R:                                                               \
    if constexpr (R <= kRows) return SumPanelOf<P, R>(x, w, n, sums);   \
    break;
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#undef ROWS
  }
}

// Panel `panel` of x @ w, some rows at a time: finish(first row, rows, sums [rows, 32]).
template <typename P, typename F>
void EachBlock(const typename P::T* x, int64_t rows, int64_t n, const typename P::T* w,
               int64_t panel, const F& finish) {
  alignas(64) float sums[kRows * kColumns];
  for (int64_t r = 0; r < rows; r += kRows) {
    int64_t many = std::min<int64_t>(kRows, rows - r);
    SumPanel<P>(many, x + r * n, w + panel * kColumns * n, n, sums);
    finish(r, many, sums);
  }
}

}  // namespace jspec
