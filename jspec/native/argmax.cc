// The place of the largest number of each row; of equals the first, and NaN before all.
#include "common.h"

namespace jspec {
namespace {

int32_t First(const float* row, int64_t many) {
  float top = Largest(row, many, row[0]);
  for (int64_t at = 0; at < many; at += kLanes) {
    int64_t until = std::min(many, at + kLanes);
    bool here = false;
    for (int64_t i = at; i < until; ++i) here |= !(row[i] < top);
    for (int64_t i = at; here && i < until; ++i)
      if (row[i] == top || row[i] != row[i]) return int32_t(i);
  }
  return 0;
}

ffi::Error Argmax(ffi::Buffer<ffi::F32> x, ffi::Result<ffi::Buffer<ffi::S32>> y) {
  int64_t rows = x.dimensions()[0], many = x.dimensions()[1];
  const float* from = x.typed_data();
  int32_t* to = y->typed_data();
  Share(rows, [&](int64_t r) { to[r] = First(from + r * many, many); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jspec

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jspec_argmax, jspec::Argmax,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::S32>>());
