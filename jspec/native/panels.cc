// x @ w for a packed matrix: a head, or any product outside a layer.
#include "panels.h"

namespace jspec {
namespace {

template <typename P, typename Y>
ffi::Error Run(ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> y) {
  int64_t rows = x.dimensions()[0], n = x.dimensions()[1], panels = w.dimensions()[0];
  auto from = static_cast<const typename P::T*>(x.untyped_data());
  auto weights = static_cast<const typename P::T*>(w.untyped_data());
  Y* to = static_cast<Y*>(y->untyped_data());
  Share(panels, [&](int64_t panel) {
    EachBlock<P>(from, rows, n, weights, panel, [&](int64_t r, int64_t many, const float* sums) {
      for (int64_t i = 0; i < many; ++i)
        for (int64_t c = 0; c < kColumns; c += kLanes)
          StoreNarrow(to + ((r + i) * panels + panel) * kColumns + c,
                      Load(sums + i * kColumns + c));
    });
  });
  return ffi::Error::Success();
}

ffi::Error Panels(ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> y) {
  if (x.element_type() == ffi::F32) return Run<WidePanel, float>(x, w, y);
  if (y->element_type() == ffi::F32) return Run<HalfPanel, float>(x, w, y);
  return Run<HalfPanel, Brain>(x, w, y);
}

}  // namespace
}  // namespace jspec

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jspec_panels, jspec::Panels,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
