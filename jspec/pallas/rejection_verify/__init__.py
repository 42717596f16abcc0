"""Speculative sampling on a chain, from logits, with given noise."""

from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.choice import choose
from jspec.pallas.rejection_verify import reference

__all__ = ["rejection_verify"]


def rejection_verify(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    coins: Float[Array, "B G"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B N V"] | None = None,
    implementation: str | None = None,
) -> tuple[Int[Array, " B"], Int[Array, " B"], Bool[Array, " B"]]:
    """What `reference.rejection_verify` says, by the implementation chosen.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes.
    """
    run = reference.rejection_verify
    if choose("rejection_verify", implementation) == "gpu":
        # Mosaic takes a third of a second to import, and few processes need it.
        from jspec.pallas.rejection_verify import gpu

        run = gpu.rejection_verify
    return run(logits, temperature, tokens, parent, coins, uniform, q=q)
