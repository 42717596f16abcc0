// What the kernels of this folder share: vectors, numbers, threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kRows = 8;
#elif defined(__AVX2__)
constexpr int kBytes = 32, kRows = 4;
#else
constexpr int kBytes = 16, kRows = 8;
#endif
constexpr int64_t kLanes = kBytes / 4;

typedef float Floats __attribute__((vector_size(kBytes)));
typedef uint32_t Words __attribute__((vector_size(kBytes)));

struct Brain {
  uint16_t bits;
};

inline float Widen(float x) { return x; }

inline float Widen(Brain x) {
  uint32_t word = uint32_t{x.bits} << 16;
  float wide;
  std::memcpy(&wide, &word, 4);
  return wide;
}

inline void Narrow(float x, float* to) { *to = x; }

inline void Narrow(float x, Brain* to) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  bool nan = (word & 0x7fffffffu) > 0x7f800000u;
  to->bits = uint16_t(nan ? (word >> 16) | 0x40 : (word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

inline Floats Load(const float* from) {
  Floats v;
  std::memcpy(&v, from, kBytes);
  return v;
}

inline void Store(float* to, Floats v) { std::memcpy(to, &v, kBytes); }

// Runs f(0) ... f(count - 1) on whoever is free; the caller works too, and returns when
// all are done. A task that starts late finds nothing left.
template <typename F>
void Share(ffi::ThreadPool& pool, int64_t count, const F& f) {
  struct Left {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto left = std::make_shared<Left>();
  auto work = [left, count, &f] {
    for (int64_t task; (task = left->next.fetch_add(1)) < count;) {
      f(task);
      left->done.fetch_add(1, std::memory_order_release);
    }
  };
  int64_t hands = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < hands; ++i) pool.Schedule(std::function<void()>(work));
  work();
  while (left->done.load(std::memory_order_acquire) < count) {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

// Memory that a thread keeps between calls; each `Use` has its own.
enum class Use { kRows, kSums };

template <Use, typename T>
T* Scratch(int64_t count) {
  thread_local std::vector<T> memory;
  if (int64_t(memory.size()) < count) memory.resize(count);
  return memory.data();
}

// The lanes of two vectors, halved: block by block of `M` lanes, the first half of each
// block plus the second. From one vector per output to one lane per output.
template <int M>
inline Floats Halve(Floats a, Floats b) {
  Words low, high;
  for (int j = 0; j < int(kLanes); ++j) {
    int block = j / (M / 2), within = j % (M / 2);
    low[j] = block * M + within;
    high[j] = block * M + within + M / 2;
  }
  return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

template <int M>
inline Floats Gather(const Floats* v) {
  if constexpr (M == kLanes)
    return Halve<M>(v[0], v[1]);
  else
    return Halve<M>(Gather<2 * M>(v), Gather<2 * M>(v + kLanes / M));
}

}  // namespace
