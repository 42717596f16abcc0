"""Attention of a tree of tokens over a paged cache."""

import functools

from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.choice import choose
from jspec.pallas.paged_attention import reference

__all__ = ["paged_attention"]


def paged_attention(
    q: Float[Array, "B N H D"],
    k_pages: Float[Array, "P K S D"],
    v_pages: Float[Array, "P K S D"],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    *,
    ancestors: Bool[Array, "B N N"] | None,
    window: int | None,
    scale: float,
    block_pages: int,
    cap: float | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H D"]:
    """Attention as `reference.paged_attention` says, by the implementation chosen.

    A cap is the twin's alone.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes, or a cap.
    """
    run = functools.partial(reference.paged_attention, cap=cap)
    if cap is not None and implementation is None:
        implementation = "reference"
    if choose("paged_attention", implementation) == "gpu":
        if cap is not None:
            raise ValueError(
                f"the gpu kernel of paged_attention has no cap of scores, {cap} here; "
                "implementation='reference' has"
            )
        # Mosaic takes a third of a second to import, and few processes need it.
        from jspec.pallas.paged_attention import gpu

        run = gpu.paged_attention
    return run(
        q,
        k_pages,
        v_pages,
        table,
        length,
        ancestors=ancestors,
        window=window,
        scale=scale,
        block_pages=block_pages,
    )
