"""Greedy verification on an NVIDIA GPU: one read of the logits, then a walk."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.lanes import LANES, LAST, lane_ids, load_lanes
from jspec.pallas.tiles import Tiles
from jspec.pallas.vocabulary import (
    NONE,
    Chunked,
    check_vocabulary,
    likeliest,
    scan,
)
from jspec.rounds import DEAD, ROOT

__all__ = ["greedy_verify"]


def greedy_verify(
    logits: Float[Array, "B N V"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    *,
    tiles: Tiles | None = None,
    interpret: Any = None,
) -> tuple[Bool[Array, "B N"], Int[Array, " B"], Bool[Array, " B"]]:
    """The twin's meaning, in two kernels.

    Floor: the logits once, `B N V` of their dtype. Moved: the same and 8 bytes a chunk
    of 2048, written and read: 1.004 of it. Plain `jnp` reads the logits once too, in
    more kernels; what is won here are launches.
    """
    check_vocabulary("greedy_verify", logits)
    tiles = tiles or Tiles()
    b, n, v = logits.shape
    chunked = scan(
        logits,
        jnp.zeros((b,), jnp.float32),
        jnp.full((b, n), NONE, jnp.int32),
        tiles=tiles,
        summed=False,
        interpret=interpret,
    )
    short = pl.cdiv(n, LANES) * LANES - n
    nodes = jnp.stack([tokens, parent], axis=1)
    nodes = jnp.pad(nodes, ((0, 0), (0, 0), (0, short)), constant_values=DEAD)
    kept, bonus, sound = walk_greedily(
        chunked, nodes, chunks=tiles.chunks(v), interpret=interpret
    )
    return kept[:, :n].astype(bool), bonus, sound.astype(bool)


def walk_greedily(
    chunked: Chunked,
    nodes: Int[Array, "B two lanes"],
    *,
    chunks: int,
    interpret: Any = None,
) -> tuple[Int[Array, "B lanes"], Int[Array, " B"], Int[Array, " B"]]:
    """One block a tree: a node a thread, a step a level of the kept path."""
    b, _, width = nodes.shape

    def greedy_walk(top_ref, best_ref, nodes_ref, kept_ref, bonus_ref, sound_ref):
        row = lax.axis_index("row")
        tokens, parent = (load_lanes(nodes_ref.at[row, i]) for i in (0, 1))
        at = lane_ids((width,))

        def step(carry):
            here, _, _, _, kept = carry
            _, top, choice = likeliest(Chunked(top_ref, best_ref), row, here, chunks)
            sound = jnp.abs(top) < jnp.inf
            child = (parent == here) & (tokens == choice)
            child = jnp.min(jnp.where(child, at, LAST))
            going = sound & (child < LAST)
            kept = jnp.where(going & (at == child), 1, kept)
            return jnp.where(going, child, here), going, choice, sound, kept

        root = jnp.where(at == ROOT, 1, 0)
        start = (jnp.int32(ROOT), jnp.bool_(True), jnp.int32(0), jnp.bool_(True), root)
        _, _, choice, sound, kept = lax.while_loop(lambda carry: carry[1], step, start)
        kept_ref[row] = kept
        bonus_ref[row] = choice
        sound_ref[row] = sound.astype(jnp.int32)

    one = jax.ShapeDtypeStruct((b,), jnp.int32)
    return plgpu.kernel(
        greedy_walk,
        out_type=(jax.ShapeDtypeStruct((b, width), jnp.int32), one, one),
        grid=(b,),
        grid_names=("row",),
        interpret=interpret,
    )(chunked.top, chunked.best, nodes)
