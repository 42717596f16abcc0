"""The cache of a pass that holds some nodes of many chains, and no others."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.cache import KVCache
from jspec.tree import pytree

__all__ = ["PackedCache", "pack"]


@pytree
class PackedCache(KVCache):
    """A cache for nodes of many chains in one line, each a row of its own.

    What a target computes node by node (projections, MLPs, the head) runs over the
    packed line alone. Keys, values and queries are taken apart again where they meet
    the pages: there the rows are what they always are. A target that appends all nodes
    of a layer before it attends may as well read the line as rows of one node each:
    their lengths count the nodes before them, and padding has no pages.

    Attributes:
      rows: the rows' own view, with the pages as they were before the pass.
      node: which of the rows' nodes stands where in the line.
      place: where in the line each node stands; `T`: it does not.
    """

    rows: KVCache
    node: Int[Array, " T"]
    place: Int[Array, "R N"]

    @property
    def whole(self) -> KVCache:
        """The rows' own view of the pages."""
        return dataclasses.replace(self.rows, pages=self.pages)

    def apart(self, line: Array) -> Array:
        """`[T, 1, ...]` as `[R, N, ...]`, zero for nodes that are not in the line."""
        return line[:, 0].at[self.place].get(mode="fill", fill_value=0)

    def append(
        self, layer: int, k: Float[Array, "T 1 K D"], v: Float[Array, "T 1 K D"]
    ) -> "PackedCache":
        """Writes the nodes' keys and values where their rows have them."""
        written = self.whole.append(layer, self.apart(k), self.apart(v))
        return dataclasses.replace(self, pages=written.pages)

    def attend(
        self,
        layer: int,
        q: Float[Array, "T 1 H D"],
        *,
        ancestors: Bool[Array, "T 1 1"] | None,
        window: int | None,
        scale: float,
        block_pages: int,
        cap: float | None = None,
        implementation: str | None = None,
    ) -> Float[Array, "T 1 H D"]:
        """Attention of every node to its own row."""
        mixed = self.whole.attend(
            layer,
            self.apart(q),
            ancestors=None,
            window=window,
            scale=scale,
            block_pages=block_pages,
            cap=cap,
            implementation=implementation,
        )
        flat = mixed.reshape(-1, *mixed.shape[2:])
        return flat.at[self.node].get(mode="clip")[:, None]


def pack(cache: KVCache, verified: Bool[Array, "B N"], total: int) -> PackedCache:
    """The cache of a line of so many nodes, of which the verified ones are real."""
    b, n = verified.shape
    flat = verified.reshape(-1)
    place = jnp.where(flat, jnp.cumsum(flat) - 1, total).astype(jnp.int32)
    node = jnp.full((total,), b * n, jnp.int32)
    node = node.at[place].set(jnp.arange(b * n, dtype=jnp.int32), mode="drop")
    row = jnp.minimum(node // n, b - 1)
    none = cache.pages.text.shape[0]
    return PackedCache(
        pages=cache.pages,
        table=jnp.where((node < b * n)[:, None], cache.table[row], none),
        length=cache.length[row] + node % n,
        rows=cache,
        node=node,
        place=place.reshape(b, n),
    )
