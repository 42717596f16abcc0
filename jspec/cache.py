"""Paged keys and values of committed tokens, and the text they belong to.

Longer than a file should be: pages, the rows' view of them and its three variants are
one idea, and what a cache does is its methods.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from jspec import native
from jspec.pallas.keep_path import keep_path
from jspec.pallas.paged_attention import paged_attention
from jspec.pallas.tree_mask import tree_ancestors
from jspec.tree import pytree

__all__ = [
    "CACHES",
    "CacheLayout",
    "KVCache",
    "Pages",
    "empty_pages",
    "layer_pages",
]

type Layers = tuple[Float[Array, "P _ S _"], ...] | Float[Array, "L P _ S _"]

BLOCK = 256
"""Tokens that one step of attention reads; a row's table holds whole blocks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """How much a cache holds: `rows` texts of at most `room` tokens, in `pages`."""

    rows: int
    room: int
    pages: int
    page_size: int = 16

    def __post_init__(self) -> None:
        """Refuses sizes below one."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"{field.name} must be at least 1, not {getattr(self, field.name)}"
                )

    @property
    def block_pages(self) -> int:
        """Pages in one block of attention."""
        needed = -(-self.room // self.page_size)
        return max(1, min(BLOCK // self.page_size, needed))

    @property
    def row_pages(self) -> int:
        """Entries of a row's page table, whole blocks."""
        needed = -(-self.room // self.page_size)
        return -(-needed // self.block_pages) * self.block_pages


@pytree
class Pages:
    """Memory shared by all rows, in pages of `S` tokens.

    Attributes:
      k: keys, `[P, K, S, D]`, one array a stored layer: layers may differ in key heads
        and width, and a layer that reads another's keys stores none. Or one array of
        all layers, see `layer_pages`.
      v: values, like `k`.
      text: ids of the committed tokens.
    """

    k: Layers
    v: Layers
    text: Int[Array, "P S"]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes, in all layers."""
        arrays = jax.tree.leaves((self.k, self.v))
        return sum(a.nbytes for a in arrays) // math.prod(self.text.shape)


def empty_pages(
    layout: CacheLayout,
    *,
    layers: int,
    key_heads: int,
    head_dim: int,
    dtype: DTypeLike,
) -> Pages:
    """Pages that hold nothing yet, of layers that are all alike."""
    return layer_pages(layout, ((key_heads, head_dim),) * layers, dtype)


def layer_pages(
    layout: CacheLayout,
    heads: Sequence[tuple[int, int]],
    dtype: DTypeLike,
    *,
    in_one: bool = False,
) -> Pages:
    """Pages that hold nothing yet.

    Args:
      layout: how many.
      heads: key heads and their width of each stored layer: a target's `cache_heads`.
      dtype: of keys and values.
      in_one: layers, all alike, share one array for keys and one for values. A step
        with two arrays begins sooner than one with two a layer, if it is
        `native.layers` that reads them; elsewhere a layer's part would be copied.
    """
    shapes = [(layout.pages, count, layout.page_size, width) for count, width in heads]

    def zeros() -> Layers:
        if in_one:
            return jnp.zeros((len(shapes), *shapes[0]), dtype)
        return tuple(jnp.zeros(shape, dtype) for shape in shapes)

    text = jnp.zeros((layout.pages, layout.page_size), jnp.int32)
    return Pages(k=zeros(), v=zeros(), text=text)


@pytree
class KVCache:
    """The rows' view of the pages.

    A pass of the target appends its nodes behind `length`, node `i` in slot
    `length + i`; `keep` makes the kept path permanent. What lies beyond `length`
    is overwritten by the next pass, so a rejected token needs no undoing.

    Attributes:
      kernels: the implementation of attention, of moving a kept path and of who
        descends from whom, unless a call names another; `None`: by platform.
      table: pages of each row in the order of its text; an entry `P` is no page,
        and what would be written there is dropped.
      length: committed tokens.
    """

    kernels: ClassVar[str | None] = None

    pages: Pages
    table: Int[Array, "B M"]
    length: Int[Array, " B"]

    def ancestors(self, parent: Int[Array, "B N"]) -> Bool[Array, "B N N"]:
        """`[b, n, m]`: node `n` descends from node `m`, or is it."""
        return tree_ancestors(parent, implementation=self.kernels)

    def _places(
        self, slots: Int[Array, "B N"]
    ) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
        none, size = self.pages.text.shape
        column = slots // size
        inside = (slots >= 0) & (column < self.table.shape[1])
        page = jnp.take_along_axis(
            self.table, jnp.clip(column, 0, self.table.shape[1] - 1), axis=1
        )
        return jnp.where(inside, page, none), slots % size

    @property
    def block_pages(self) -> int:
        """Pages that one step of attention reads."""
        size = self.pages.text.shape[1]
        return max(1, min(BLOCK // size, self.table.shape[1]))

    def append(
        self, layer: int, k: Float[Array, "B N K D"], v: Float[Array, "B N K D"]
    ) -> "KVCache":
        """Writes the nodes' keys and values of a stored layer behind the committed."""
        page, slot = self._places(self.length[:, None] + jnp.arange(k.shape[1])[None])

        def swap(layers: Layers, new: Array) -> Layers:
            a = layers[layer]
            a = a.at[page, :, slot].set(new.astype(a.dtype), mode="drop")
            if not isinstance(layers, tuple):
                return layers.at[layer].set(a)
            return (*layers[:layer], a, *layers[layer + 1 :])

        pages = self.pages
        return dataclasses.replace(
            self,
            pages=dataclasses.replace(pages, k=swap(pages.k, k), v=swap(pages.v, v)),
        )

    def attend(
        self,
        layer: int,
        q: Float[Array, "B N H D"],
        *,
        ancestors: Bool[Array, "B N N"] | None,
        window: int | None,
        scale: float,
        block_pages: int,
        cap: float | None = None,
        implementation: str | None = None,
    ) -> Float[Array, "B N H D"]:
        """Attention of appended nodes to committed tokens and to their ancestors.

        Args:
          layer: the stored layer whose keys and values are read.
          q: one query a node, rotated.
          ancestors: `[b, n, m]`: node `n` descends from node `m` or is it. `None`:
            the nodes are a chain.
          window: how many positions back a node sees, itself included.
          scale: of the scores.
          block_pages: pages read in one step; divides the table's width.
          cap: scores are `cap * tanh(score / cap)`; `None`: as they are.
          implementation: of `jspec.pallas.paged_attention`: `"gpu"`, its kernel for
            NVIDIA GPUs, which has not run on one yet; `"reference"`, its twin. `None`:
            the cache's `kernels`; if that is `None`, the native kernel on a CPU that
            has it, and elsewhere what `paged_attention` chooses.

        Raises:
          ValueError: the implementation asked for does not take these shapes, or
            there is none of that name.
        """
        implementation = implementation or self.kernels
        asked = {"ancestors": ancestors, "window": window, "scale": scale}
        cached = (self.pages.k[layer], self.pages.v[layer], self.table, self.length)
        anywhere = functools.partial(
            paged_attention,
            block_pages=block_pages,
            cap=cap,
            implementation=implementation,
            **asked,
        )
        by_hand = implementation is not None or cap is not None
        if by_hand or not (native.ready() and native.supports(q, cached[0])):
            return anywhere(q, *cached)
        by_cpu = functools.partial(native.attention, **asked)
        return jax.lax.platform_dependent(q, *cached, cpu=by_cpu, default=anywhere)

    def keep(
        self,
        path: Int[Array, "B N"],
        tokens: Int[Array, "B N"],
        count: Int[Array, " B"],
        *,
        branching: bool,
    ) -> "KVCache":
        """Makes the first `count` nodes of `path` permanent.

        Args:
          path: nodes in the order of the text; node 0 first.
          tokens: their ids, in the same order.
          count: how many of them, per row.
          branching: whether a path may skip nodes. If it may, the kept slots are
            moved together; on a chain they already lie in place.
        """
        steps = jnp.arange(path.shape[1])[None]
        kept = steps < count[:, None]
        beyond = self.table.shape[1] * self.pages.text.shape[1]
        page, slot = self._places(jnp.where(kept, self.length[:, None] + steps, beyond))
        pages = self.pages
        text = pages.text.at[page, slot].set(tokens, mode="drop")
        if branching:
            pages = self._moved(path, count)
        return dataclasses.replace(
            self,
            pages=dataclasses.replace(pages, text=text),
            length=self.length + count,
        )

    def _moved(self, path: Int[Array, "B N"], count: Int[Array, " B"]) -> Pages:
        """The pages with the kept nodes of each row behind its text."""
        pages = self.pages
        arrays, kind = jax.tree.flatten((pages.k, pages.v))
        places = (self.table, self.length, path, count)
        if isinstance(pages.k, tuple):
            moved = keep_path(tuple(arrays), *places, implementation=self.kernels)
        else:
            # The pages of all layers in one row; every layer's rows are rows of it.
            layers, none = pages.k.shape[:2]
            begin = none * jnp.arange(layers, dtype=jnp.int32)[:, None, None]
            inside = (self.table < none)[None]
            table = jnp.where(inside, self.table[None] + begin, layers * none)
            table = table.reshape(-1, self.table.shape[1])
            rest = (jnp.concatenate([a] * layers) for a in places[1:])
            flat = tuple(a.reshape(-1, *a.shape[2:]) for a in arrays)
            moved = keep_path(flat, table, *rest, implementation=self.kernels)
            moved = tuple(a.reshape(layers, none, *a.shape[1:]) for a in moved)
        k, v = jax.tree.unflatten(kind, moved)
        return dataclasses.replace(pages, k=k, v=v)

    def last(self, count: int) -> Int[Array, "B R"]:
        """The last `count` committed ids of each row; -1 where there are fewer."""
        slots = self.length[:, None] + jnp.arange(-count, 0)[None]
        page, slot = self._places(slots)
        text = self.pages.text.at[page, slot].get(mode="fill", fill_value=-1)
        return jnp.where(slots >= 0, text, -1)

    @property
    def text(self) -> Int[Array, "B room"]:
        """Each row's committed ids; what stands at and beyond `length` is undefined."""
        pages = self.pages.text.at[self.table].get(mode="clip")
        return pages.reshape(self.table.shape[0], -1)


@pytree
class TwinCache(KVCache):
    """A cache whose operations are the kernels' twins, on every platform."""

    kernels: ClassVar[str | None] = "reference"


@pytree
class KernelCache(KVCache):
    """A cache whose operations are the kernels for NVIDIA GPUs."""

    kernels: ClassVar[str | None] = "gpu"


CACHES: Mapping[str | None, type[KVCache]] = MappingProxyType(
    {kind.kernels: kind for kind in (KVCache, TwinCache, KernelCache)}
)
"""The cache of each implementation. The word is a type, since nothing static stands
beside arrays."""
