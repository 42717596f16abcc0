// What the kernels of this folder share: vectors, numbers, threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jspec {

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

inline Floats LoadWide(const float* from) { return Load(from); }

inline Floats LoadWide(const Brain* from) {
  typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));
  Halves narrow;
  std::memcpy(&narrow, from, kBytes / 2);
  return (Floats)(__builtin_convertvector(narrow, Words) << 16);
}

inline void StoreNarrow(float* to, Floats v) { Store(to, v); }

// As `Narrow`, lane by lane.
inline void StoreNarrow(Brain* to, Floats v) {
  typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));
  Words word = (Words)v;
  Words nan = (Words)((word & 0x7fffffffu) > 0x7f800000u);
  Words near = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  Halves narrow = __builtin_convertvector((nan & ((word >> 16) | 0x40u)) | (~nan & near), Halves);
  std::memcpy(to, &narrow, kBytes / 2);
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

// The largest of `many` numbers and `top`; NaN if one is.
inline float Largest(const float* row, int64_t many, float top) {
  Floats most = Floats{} + top;
  int64_t whole = many / kLanes * kLanes;
  for (int64_t t = 0; t < whole; t += kLanes) {
    Floats x = Load(row + t);
    most = (x > most) | (x != x) ? x : most;
  }
  for (int64_t t = whole; t < many; ++t) top = row[t] > top || row[t] != row[t] ? row[t] : top;
  for (int j = 0; j < int(kLanes); ++j)
    top = most[j] > top || most[j] != most[j] ? most[j] : top;
  return top;
}

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The threads of this process that work for kernels. They look for work for some tens of
// microseconds before they sleep, so the phases of a layer cost no waking.
class Crew {
 public:
  static Crew& Get() {
    static Crew* crew = new Crew;  // its threads outlive every destructor
    return *crew;
  }

  int64_t hands() const { return int64_t(ranges_.size()); }

  // Runs f(0) ... f(count - 1) on whoever is free; the caller works too, and returns when
  // all are done. Each hand begins with a range of its own, then helps with the others'.
  // Where another call has the crew, the caller works alone.
  template <typename F>
  void Run(int64_t count, const F& f) {
    if (count < 2 || hands() < 2 || !one_.try_lock()) {
      for (int64_t task = 0; task < count; ++task) f(task);
      return;
    }
    for (int64_t h = 0; h < hands(); ++h) {
      ranges_[h].next.store(count * h / hands(), std::memory_order_relaxed);
      ranges_[h].end = count * (h + 1) / hands();
    }
    what_ = &f;
    call_ = [](const void* what, int64_t task) { (*static_cast<const F*>(what))(task); };
    job_.store(job_.load() + 1);  // odd: open
    if (asleep_.load() > 0) job_.notify_all();
    Work(0);
    job_.store(job_.load() + 1);  // even: closed
    while (inside_.load() > 0) Pause();
    one_.unlock();
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  static constexpr int kLooks = 2000;

  Crew() : ranges_(std::clamp(std::thread::hardware_concurrency(), 1u, 64u)) {
    for (int64_t h = 1; h < hands(); ++h) std::thread([this, h] { Wait(h); }).detach();
  }

  void Work(int64_t hand) {
    for (int64_t i = 0; i < hands(); ++i) {
      Range& range = ranges_[(hand + i) % hands()];
      for (int64_t task; (task = range.next.fetch_add(1)) < range.end;) call_(what_, task);
    }
  }

  void Wait(int64_t hand) {
    uint32_t seen = 0;
    while (true) {
      uint32_t job = job_.load();
      for (int look = 0; look < kLooks && (job == seen || job % 2 == 0); ++look) {
        Pause();
        job = job_.load();
      }
      if (job == seen || job % 2 == 0) {
        asleep_.fetch_add(1);
        job_.wait(job);
        asleep_.fetch_sub(1);
        continue;
      }
      inside_.fetch_add(1);
      if (job_.load() == job) Work(hand);  // else it was closed: its data may be gone
      seen = job;
      inside_.fetch_sub(1);
    }
  }

  std::vector<Range> ranges_;
  std::mutex one_;
  std::atomic<uint32_t> job_{0};  // counts for ever, so it wraps
  std::atomic<int32_t> inside_{0}, asleep_{0};
  const void* what_ = nullptr;
  void (*call_)(const void*, int64_t) = nullptr;
};

template <typename F>
void Share(int64_t count, const F& f) {
  Crew::Get().Run(count, f);
}

// Memory that a thread keeps between calls; each `Use` has its own.
enum class Use { kRows, kSums, kLayer };

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

}  // namespace jspec
