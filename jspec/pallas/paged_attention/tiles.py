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

MOST_WARPGROUPS: Mapping[int, int] = MappingProxyType({64: 2, 128: 2})
"""Of a block, by the width of a head in two bytes a number; of others one."""

MOST_TOGETHER = 8
"""Blocks of a cluster that every device has room for."""

STAGES = (0, 2, 3)
"""Steps on their way, by warpgroups."""

STRIP = 64
"""Columns that are changed at once, so that few registers hold them."""

GROUP = 4
"""Stretches that are added up before their sum is added to the row's."""


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
      cluster: blocks with the same keys that bring each other shares of them.
      split: tokens of a stretch, whose sums are taken apart from those of others.
      gather: stretches that a block adds up, 1 or all of a group: where a block leaves
        the sums of each, another kernel adds them up in the same order.
    """

    block: int = 64
    stages: int = 2
    warpgroups: int = 1
    cluster: int = 1
    split: int = 512
    gather: int = 1


def tiles_for(
    *, rows: int, width: int, room: int, size: int, pairs: int, dtype: DTypeLike
) -> Tiles:
    """A rule of thumb, not measured.

    A multiprocessor has 227 KiB for its blocks: two steps of keys and values let two
    blocks share it up to a width of 128, where one's arithmetic hides the other's
    waiting. Two warpgroups read the same keys and values once, where there are rows
    for them and registers for their sums: with 255 a thread nothing is spilled, with
    the 168 of three it is. Where two are not enough, blocks of a cluster bring each
    its share of a page to all of them.

    A stretch's sums, written and read, are as many bytes as the keys and values of
    `2 * rows` tokens, in two bytes a number. Where that is more than a quarter of the
    stretch, blocks add up groups of stretches, if that leaves enough of them for three
    quarters of the multiprocessors. (In float32 they have no registers to do so.)

    Args:
      rows: query rows of a key head, nodes times its group of query heads.
      width: of a head.
      room: tokens that a row's page table can hold.
      size: tokens of a page.
      pairs: of rows of the batch and key heads.
      dtype: of keys and values.
    """
    block, itemsize = 64, jnp.dtype(dtype).itemsize
    narrow = itemsize == 2
    most = MOST_WARPGROUPS.get(width, 1) if narrow else 1
    needed = -(-rows // ROWS)
    # As few blocks as hold them, and no more warpgroups than these need.
    blocks = -(-needed // most)
    # The copy engine's tiles are 8 tokens of 128 bytes; a share is whole tiles.
    tiles = min(size, block) // 8 * (width * itemsize // 128)
    cluster = 1
    while cluster < min(blocks, tiles, MOST_TOGETHER):
        cluster *= 2
    blocks = -(-blocks // cluster) * cluster
    warpgroups = -(-needed // blocks)
    split = 512
    while split * 16 < room:
        split *= 2
    much = narrow and 8 * rows > split
    many = 4 * pairs * blocks * -(-room // (GROUP * split)) >= 3 * MULTIPROCESSORS
    return Tiles(
        block=block,
        stages=STAGES[warpgroups] if narrow else 1,
        warpgroups=warpgroups,
        cluster=cluster,
        split=split,
        gather=GROUP if much and many else 1,
    )
