"""A draw from what two laws leave, by inverse CDF."""

from jaxtyping import Array, Float, Int

from jspec.pallas.choice import choose
from jspec.pallas.residual_draw import reference

__all__ = ["residual_draw"]


def residual_draw(
    p: Float[Array, "B V"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B V"] | None = None,
    token: Int[Array, " B"] | None = None,
    lse: Float[Array, " B"] | None = None,
    temperature: Float[Array, " B"] | None = None,
    implementation: str | None = None,
) -> Int[Array, " B"]:
    """What `reference.residual_draw` says, by the implementation chosen.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes.
    """
    run = reference.residual_draw
    if choose("residual_draw", implementation) == "gpu":
        # Mosaic takes a third of a second to import, and few processes need it.
        from jspec.pallas.residual_draw import gpu

        run = gpu.residual_draw
    return run(p, uniform, q=q, token=token, lse=lse, temperature=temperature)
