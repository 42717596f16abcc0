"""The call: queries, pages and who sees whom in; the mix of values out."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

__all__ = ["DEPTHS", "attention", "supports"]

DEPTHS = (64, 128, 256, 96, 16, 32, 512)
"""Head widths there are kernels for on every processor."""


def supports(q: Array, k_pages: Array) -> bool:
    """Whether `attention` has a kernel for these shapes and dtypes."""
    dtypes = {q.dtype, k_pages.dtype}
    return q.shape[-1] in DEPTHS and dtypes in (
        {jnp.dtype(jnp.float32)},
        {jnp.dtype(jnp.bfloat16)},
    )


def attention(
    q: Float[Array, "B N H D"],
    k_pages: Float[Array, "P K S D"],
    v_pages: Float[Array, "P K S D"],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    *,
    ancestors: Bool[Array, "B N N"] | None,
    window: int | None,
    scale: float,
) -> Float[Array, "B N H D"]:
    """What `jspec.pallas.paged_attention` says, up to the last bits of its sums.

    A node's bits depend neither on the other nodes nor on the other rows. Weights are
    kept in float32 whatever the dtype of the values.

    Args:
      q: queries, rotated.
      k_pages: keys, rotated.
      v_pages: values.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      ancestors: `None`: a chain.
      window: how many positions back a node sees, itself included; `None`: all.
      scale: of the scores.
    """
    b, n = q.shape[:2]
    if ancestors is None:
        nodes = jnp.arange(n, dtype=jnp.int32)
        depths = jnp.broadcast_to(nodes, (b, n))
        related = jnp.ones((1, 1, 1), bool)
    else:
        depths = ancestors.sum(-1, dtype=jnp.int32) - 1
        related = ancestors
    call = jax.ffi.ffi_call(
        "jspec_attention",
        jax.ShapeDtypeStruct(q.shape, q.dtype),
        vmap_method="sequential",
    )
    return call(
        q,
        k_pages,
        v_pages,
        table,
        length,
        depths,
        related,
        branching=ancestors is not None,
        window=np.int64(window or 0),
        scale=np.float32(scale),
    )
