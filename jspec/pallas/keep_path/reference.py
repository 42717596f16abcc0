"""What moving a kept path together means, in plain `jnp`."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["keep_path"]


def keep_path(
    pages: tuple[Float[Array, "P _ S _"], ...],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    path: Int[Array, "B N"],
    count: Int[Array, " B"],
) -> tuple[Float[Array, "P _ S _"], ...]:
    """Moves each row's kept nodes behind its text, in the order of their path.

    Node `i` of a pass stands in slot `length + i`; entry `j < count` of a path moves
    from slot `length + path[j]` to `length + j`. A path rises, so `path[j] >= j`. What
    has no page at either end stays where it is.

    Args:
      pages: keys or values of any number of layers, `[P, K, S, D]`, of one page size;
        layers may differ in key heads and width.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      path: the kept nodes first.
      count: how many are kept.
    """
    none, _, size, _ = pages[0].shape
    steps = jnp.arange(path.shape[1], dtype=path.dtype)[None]

    def places(slots: Array) -> tuple[Array, Array]:
        column = slots // size
        last = table.shape[1] - 1
        page = jnp.take_along_axis(table, jnp.clip(column, 0, last), axis=1)
        return jnp.where(column <= last, page, none), slots % size

    from_page, from_slot = places(length[:, None] + path)
    page, slot = places(length[:, None] + steps)
    moved = (steps < count[:, None]) & (from_page < none)
    page = jnp.where(moved, page, none)

    def move(a: Array) -> Array:
        taken = a.at[from_page, :, from_slot].get(mode="clip")
        return a.at[page, :, slot].set(taken, mode="drop")

    return tuple(map(move, pages))
