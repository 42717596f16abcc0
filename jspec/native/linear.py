"""The call: rows and matrices in, their products out."""

from collections.abc import Sequence

import jax
from jaxtyping import Array, DTypeLike, Float

__all__ = ["linear"]


def linear(
    x: Float[Array, "R I"],
    weights: Sequence[Array],
    *,
    transposed: bool = False,
    out: DTypeLike | None = None,
) -> tuple[Float[Array, "R O"], ...]:
    """`x @ w` for every `w`, all read in one go.

    Each sum has one order, whatever `R` is: a row's bits do not depend on the rows
    beside it. Sums are float32. On a processor with AVX512-BF16 its dot product is
    used for bfloat16.

    Args:
      x: float32 or bfloat16.
      weights: `[I, O]`, or `[O, I]` if `transposed`; of the dtype of `x`.
      transposed: whether the weights are transposes.
      out: the dtype of the results: that of `x`, or float32.
    """
    axis = 0 if transposed else 1
    shapes = [
        jax.ShapeDtypeStruct((x.shape[0], w.shape[axis]), out or x.dtype)
        for w in weights
    ]
    call = jax.ffi.ffi_call("jspec_linear", shapes, vmap_method="sequential")
    return tuple(call(x, *weights, transposed=transposed))
