"""Tree attention over a paged cache on Hopper, keys and values read once."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.paged_attention.attend import attend
from jspec.pallas.paged_attention.merge import merge
from jspec.pallas.paged_attention.products import pieces_of, split
from jspec.pallas.paged_attention.sight import sight_of
from jspec.pallas.paged_attention.tiles import (
    GROUP,
    MULTIPROCESSORS,
    NODES,
    ROWS,
    Tiles,
    tiles_for,
)

__all__ = ["paged_attention"]

WIDTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"bfloat16": (64, 128, 256), "float16": (64, 128, 256), "float32": (64, 128)}
)
"""Widths of a head for which shared memory and registers suffice."""


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
    tiles: Tiles | None = None,
    interpret: Any = None,
) -> Float[Array, "B N H D"]:
    """Softmax attention by blocks of tokens (Dao et al. 2022), split over the context.

    What it means is said by its twin in `reference.py`. A block of the grid, or a
    cluster of blocks that bring each other the keys and values, serves one row and
    one key head: all query heads and nodes at once. The text is cut into stretches of
    `split` tokens and groups of 4 stretches. A block takes some of the one or of the
    other, brings pages to shared memory ahead of their use and leaves the maximum,
    weight and mix of values of each; `merge` puts them together in the order of the
    text (Flash-Decoding; Dao et al. 2023).

    A row's pages come first in its table: what follows an entry `P` is not read. A
    chain longer than 64 nodes, a piece of a prompt, is cut into rows of 64.

    Args:
      q: queries, rotated.
      k_pages: keys, rotated.
      v_pages: values.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      ancestors: `None`: a chain, where node `n` descends from all nodes before it.
      window: how many positions back a node sees, itself included; `None`: all.
      scale: of the scores.
      block_pages: of the twin; the kernel's steps are `tiles.block` tokens.
      tiles: `None`: a rule of thumb.
      interpret: `plgpu.InterpretGPUParams()` runs it on a CPU, with plain products.
    """
    del block_pages
    check(q, k_pages, chain=ancestors is None)
    many, nodes = q.shape[:2]
    written = length + nodes
    if ancestors is None and nodes > NODES:
        q, table, length, written = _cut(q, table, length)
    b, n, h, d = q.shape
    pages, heads, size = k_pages.shape[:3]
    tokens = table.shape[1] * size
    group = h // heads
    if tiles is None:
        tiles = tiles_for(
            rows=n * group,
            width=d,
            room=tokens,
            size=size,
            pairs=b * heads,
            dtype=k_pages.dtype,
        )
    check_pages(size, tiles)
    height = ROWS * tiles.warpgroups
    over = pl.cdiv(n * group, height * tiles.cluster) * tiles.cluster
    # One tile's results are stored in whole rows of 8, more tiles' in whole tiles.
    rows = min(ROWS, pl.cdiv(n * group, 8) * 8) if over * height == ROWS else ROWS
    total = rows if rows < ROWS else over * height

    queries = q.reshape(b, n, heads, group, d).transpose(0, 2, 1, 3, 4)
    queries = queries.reshape(b * heads, n * group, d).astype(k_pages.dtype)
    queries = jnp.pad(queries, ((0, 0), (0, total - n * group), (0, 0)))
    pieces = pieces_of(k_pages.dtype)
    pieces = [queries] if pieces == 1 else split(queries, pieces)
    sight = jnp.repeat(sight_of(length, ancestors, (b, n), window), group, axis=2)
    sight = jnp.pad(sight, ((0, 0), (0, 0), (0, over * height - n * group)))
    sight = sight.reshape(b, 3, -1, ROWS).transpose(0, 2, 1, 3)
    written = jnp.minimum(
        written, size * jnp.cumprod(table < pages, axis=1).sum(1, dtype=jnp.int32)
    )
    first = jnp.zeros_like(length) if window is None else length - (window - 1)
    first = jnp.maximum(first, 0) // tiles.block
    last = jnp.maximum(pl.cdiv(written, tiles.block), first)
    bounds = jnp.stack([length, written, first, last], axis=1)

    reach = tiles.split * tiles.gather
    units = pl.cdiv(tokens, reach)
    workers = pl.cdiv(2 * MULTIPROCESSORS, b * heads * over)
    parts = attend(
        jnp.stack(pieces, axis=1),
        k_pages.reshape(pages * heads, size, d),
        v_pages.reshape(pages * heads, size, d),
        jnp.minimum(table, pages - 1),
        sight,
        bounds,
        heads=heads,
        units=units,
        workers=min(workers, units),
        scale=scale,
        tiles=tiles,
        interpret=interpret,
    )
    each = reach // tiles.block
    out = merge(
        *parts,
        jnp.stack([first // each, pl.cdiv(last, each)], axis=1),
        heads=heads,
        group=GROUP // tiles.gather,
        dtype=q.dtype,
        interpret=interpret,
    )
    out = out[:, : n * group].reshape(b, heads, n, group, d)
    out = out.transpose(0, 2, 1, 3, 4).reshape(many, -1, h, d)
    return out[:, :nodes]


def _cut(
    q: Float[Array, "B N H D"], table: Int[Array, "B M"], length: Int[Array, " B"]
) -> tuple[Array, Array, Array, Array]:
    """A chain of many nodes as rows of 64, of which each has those before it committed.

    Returns:
      queries, tables, lengths, and the tokens written, of which the last row of a
      chain may have fewer than its nodes.
    """
    b, n, h, d = q.shape
    pieces = pl.cdiv(n, NODES)
    q = jnp.pad(q, ((0, 0), (0, pieces * NODES - n), (0, 0), (0, 0)))
    start = length[:, None] + NODES * jnp.arange(pieces, dtype=length.dtype)[None]
    written = jnp.minimum(start + NODES, length[:, None] + n)
    table = jnp.repeat(table, pieces, axis=0)
    q = q.reshape(b * pieces, NODES, h, d)
    return q, table, start.reshape(-1), written.reshape(-1)


def check(
    q: Float[Array, "B N H D"], k_pages: Float[Array, "P K S D"], *, chain: bool
) -> None:
    """Refuses what the kernel was not written for.

    Raises:
      ValueError: which size or dtype, and what it would have to be.
    """
    _, n, h, d = q.shape
    heads = k_pages.shape[1]
    widths = WIDTHS.get(k_pages.dtype.name)
    if widths is None:
        raise ValueError(
            f"the attention kernel takes keys in {', '.join(WIDTHS)}, not in "
            f"{k_pages.dtype.name}"
        )
    if d not in widths:
        raise ValueError(
            f"the attention kernel takes heads of {' or '.join(map(str, widths))} "
            f"numbers in {k_pages.dtype.name}, not of {d}"
        )
    if n < 1 or (n > NODES and not chain):
        raise ValueError(
            f"the attention kernel takes 1 to {NODES} nodes of a tree, not {n}"
        )
    if h % heads:
        raise ValueError(f"{h} query heads are not whole groups of {heads} key heads")


def check_pages(size: int, tiles: Tiles) -> None:
    """Refuses pages that do not fit the kernel's steps.

    Raises:
      ValueError: which size, and what it would have to be.
    """
    if size % 8 or (size % tiles.block and tiles.block % size):
        raise ValueError(
            f"the attention kernel takes pages of a multiple of 8 tokens that divides "
            f"or is divided by {tiles.block}, not of {size}"
        )
