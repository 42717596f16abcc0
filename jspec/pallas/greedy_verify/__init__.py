"""Greedy verification of a token tree: argmax in one read, then a walk."""

from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.choice import choose
from jspec.pallas.greedy_verify import reference

__all__ = ["greedy_verify"]


def greedy_verify(
    logits: Float[Array, "B N V"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    *,
    implementation: str | None = None,
) -> tuple[Bool[Array, "B N"], Int[Array, " B"], Bool[Array, " B"]]:
    """What `reference.greedy_verify` says, by the implementation chosen.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes.
    """
    run = reference.greedy_verify
    if choose("greedy_verify", implementation) == "gpu":
        # Mosaic takes a third of a second to import, and few processes need it.
        from jspec.pallas.greedy_verify import gpu

        run = gpu.greedy_verify
    return run(logits, tokens, parent)
