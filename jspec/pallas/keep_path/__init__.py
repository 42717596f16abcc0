"""Moving a kept path together in the pages."""

from jaxtyping import Array, Float, Int

from jspec.pallas.choice import choose
from jspec.pallas.keep_path import reference

__all__ = ["keep_path"]


def keep_path(
    pages: tuple[Float[Array, "P _ S _"], ...],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    path: Int[Array, "B N"],
    count: Int[Array, " B"],
    *,
    implementation: str | None = None,
) -> tuple[Float[Array, "P _ S _"], ...]:
    """What `reference.keep_path` says, by the implementation chosen.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes.
    """
    if not pages:
        return pages  # A target without layers keeps nothing.
    run = reference.keep_path
    if choose("keep_path", implementation) == "gpu":
        # Mosaic takes a third of a second to import, and few processes need it.
        from jspec.pallas.keep_path import gpu

        run = gpu.keep_path
    return run(pages, table, length, path, count)
