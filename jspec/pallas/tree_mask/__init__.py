"""The ancestors of a tree as integers."""

from jaxtyping import Array, Bool, Int, UInt32

from jspec.masks import unpack_words
from jspec.pallas.choice import choose
from jspec.pallas.tree_mask import reference
from jspec.rounds import ancestors_of

__all__ = ["tree_ancestors", "tree_mask"]


def tree_mask(
    parent: Int[Array, "B N"],
    *,
    implementation: str | None = None,
) -> UInt32[Array, "B N W"]:
    """What `reference.tree_mask` says, by the implementation chosen.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes.
    """
    run = reference.tree_mask
    if choose("tree_mask", implementation) == "gpu":
        # Mosaic takes a third of a second to import, and few processes need it.
        from jspec.pallas.tree_mask import gpu

        run = gpu.tree_mask
    return run(parent)


def tree_ancestors(
    parent: Int[Array, "B N"], *, implementation: str | None = None
) -> Bool[Array, "B N N"]:
    """`jspec.rounds.ancestors_of`, out of the integers where the kernel makes them.

    Raises:
      ValueError: the kernel was asked for and does not take these shapes.
    """
    if choose("tree_mask", implementation) == "gpu":
        return unpack_words(tree_mask(parent, implementation="gpu"))
    return ancestors_of(parent)
