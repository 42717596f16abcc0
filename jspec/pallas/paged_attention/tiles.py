"""How the attention kernel cuts its work: what fits a streaming multiprocessor."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import jax.numpy as jnp
from jaxtyping import DTypeLike

__all__ = ["Tiles", "tiles_for"]

MULTIPROCESSORS = 132
"""Of an H100 or H200; the number of blocks follows it, no result does."""

NODES = 64
"""Ancestors of a node are the bits of one integer of 64."""

ROWS = 64
"""Query rows of a warpgroup: the height of a tensor core's tile."""

COLUMNS = 128
"""Columns of a head whose sums fit a warpgroup's registers."""

MOST_WARPGROUPS: Mapping[int, int] = MappingProxyType({64: 4, 128: 3})
"""Of a block, by the width of a head in two bytes a number; of others one."""

STAGES = (0, 2, 3, 2, 3)
"""Steps on their way, by warpgroups."""

STRIP = 64
"""Columns that are changed at once, so that few registers hold them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """Sizes that change how fast the kernel is.

    `split` also says in which order a row is summed up. It follows from the room of
    the cache and from nothing that a round brings, so a row's numbers stay the same
    bits in any batch and beside any number of nodes.

    Attributes:
      block: tokens of one step, as wide as a tensor core's tile is high.
      stages: steps whose keys and values are on their way at once.
      warpgroups: of a block; each has 64 query rows.
      split: tokens whose sums are merged with those of others at the end.
    """

    block: int = 64
    stages: int = 2
    warpgroups: int = 1
    split: int = 512


def tiles_for(*, rows: int, width: int, room: int, dtype: DTypeLike) -> Tiles:
    """A rule of thumb, not measured.

    A multiprocessor has 227 KiB for its blocks: two steps of keys and values let two
    blocks share it up to a width of 128, where one's arithmetic hides the other's
    waiting. Several warpgroups read the same keys and values once, where there are
    rows for them and registers for their sums: 512 threads have 128 registers each,
    enough for 64 columns, 384 have 168, enough for 128.

    Args:
      rows: query rows of a key head, nodes times its group of query heads.
      width: of a head.
      room: tokens that a row's page table can hold.
      dtype: of keys and values.
    """
    narrow = jnp.dtype(dtype).itemsize == 2
    most = MOST_WARPGROUPS.get(width, 1) if narrow else 1
    needed = -(-rows // ROWS)
    # As few blocks as hold them, and no more warpgroups than these need.
    blocks = -(-needed // most)
    warpgroups = -(-needed // blocks)
    split = 512
    while split * 16 < room:
        split *= 2
    return Tiles(
        stages=STAGES[warpgroups] if narrow else 1,
        warpgroups=warpgroups,
        split=split,
    )
