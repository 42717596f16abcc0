"""Chains of drafted tokens judged by a rule, one block of a GPU a row.

After `scan` has read the logits, a rule walks the chain: at each node it is told the
chance that the target gives the drafted successor and the chance with which that was
drafted, and answers whether the walk goes on. Works on NVIDIA GPUs from Hopper on.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.lanes import LANES
from jspec.pallas.residual_draw.gpu import Residual
from jspec.pallas.tiles import Tiles
from jspec.pallas.vocabulary import (
    NONE,
    Chunked,
    buffers,
    look_into,
    merge,
    scaled,
    scan,
    wide,
)

__all__ = ["Judged", "Rule", "Step", "chain_offers", "judge_certain", "judge_dense"]


class Step(NamedTuple):
    """In a kernel: what a rule sees of a node whose successor was drafted.

    Attributes:
      node: where the walk stands.
      p: the target's chance of the drafted successor.
      rest: the target's chance of all others.
      q: the chance with which it was drafted; 1 if that was certain.
      coin: the node's own uniform; undefined at the anchor.
      next_coin: its successor's.
    """

    node: Array
    p: Array
    rest: Array
    q: Array
    coin: Array
    next_coin: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """In a kernel: how a chain is judged.

    Attributes:
      visit: `(step, weight, accepted) -> (weight, accepted, going)`. The weight, 1 at
        first, is what the target's law is multiplied by in the node's residual.
      close: `(node, weight, accepted, coin) -> accepted` at the end of the chain.
      every: whether the residual of every node is wanted, or that of the last
        accepted one.
    """

    visit: Callable[[Step, Array, Array], tuple[Array, Array, Array]]
    close: Callable[[Array, Array, Array, Array], Array]
    every: bool


class Judged(NamedTuple):
    """Of a chain with a dense draft law.

    Attributes:
      accepted: drafted tokens kept, if the rule knows by now.
      residual: to draw from, of one node or of every node.
      forced: the token that follows for certain, at temperature 0; else -1.
      sound: whether the node has a law.
    """

    accepted: Int[Array, " B"]
    residual: Residual
    forced: Int[Array, "B M"]
    sound: Int[Array, "B M"]


def chain_offers(
    tokens: Int[Array, "B N"], parent: Int[Array, "B N"]
) -> Int[Array, "B N"]:
    """The drafted successor of each node of a chain; -1 where none is offered."""
    n = tokens.shape[1]
    offered = parent[:, 1:] == jnp.arange(n - 1, dtype=parent.dtype)[None]
    offers = jnp.where(offered, tokens[:, 1:], NONE)
    return jnp.pad(offers, ((0, 0), (0, 1)), constant_values=NONE)


def _walk(
    rule: Rule,
    step_at: Callable[[Array], tuple[Step, Array]],
    offered: Callable[[Array], Array],
    coin: Callable[[Array], Array],
    leave: Callable[[Array, Array, Array], None],
) -> tuple[Array, Array, Array]:
    """In a kernel: applies a rule. `leave(node, weight, lse)` is told where it was."""

    def body(carry):
        node, weight, accepted, _ = carry
        step, lse = step_at(node)
        leave(node, weight, lse)
        weight, accepted, going = rule.visit(step, weight, accepted)
        node = node + 1
        return node, weight, accepted, going & offered(node)

    zero = jnp.int32(0)
    start = (zero, jnp.float32(1), zero, offered(zero))
    node, weight, accepted, _ = lax.while_loop(lambda carry: carry[3], body, start)
    return node, weight, rule.close(node, weight, accepted, coin(node))


def _own(x_ref: Any, row: Array, token: Array, hot: Array) -> Array:
    """In a kernel: one token's logit."""
    return scaled(x_ref[row, lax.div(token, LANES), lax.rem(token, LANES)], hot)


def judge_certain(
    rule: Rule,
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    offers: Int[Array, "B N"],
    coins: Float[Array, "B G"],
    uniform: Float[Array, " B"],
    *,
    tiles: Tiles,
    interpret: Any = None,
) -> tuple[Int[Array, " B"], Int[Array, " B"], Bool[Array, " B"]]:
    """Accepted tokens, the token after them, and whether that one has a law.

    The scan leaves the drafted token out of its sums, so that they are the residual's:
    no difference of nearly equal numbers, and one read of the logits in all.
    """
    b, n, v = logits.shape
    chunks = tiles.chunks(v)
    chunked = scan(logits, temperature, offers, tiles=tiles, interpret=interpret)

    def certain_judge(x_ref, hot_ref, offer_ref, coin_ref, uniform_ref, *refs):
        top_ref, best_ref, total_ref, accepted_ref, token_ref, sound_ref, x, at = refs
        r = lax.axis_index("row")
        hot, cold = hot_ref[r], ~(hot_ref[r] > 0)
        chunks_of = Chunked(top_ref, best_ref, total_ref)

        def own(node: Array) -> tuple[Array, Array]:
            offer = jnp.clip(offer_ref[r, node], 0, v - 1)
            return offer, _own(x_ref, r * n + node, offer, hot)

        def coin(node: Array) -> Array:
            return coin_ref[r, jnp.clip(node - 1, 0, coins.shape[1] - 1)]

        def step_at(node: Array) -> tuple[Step, Array]:
            others = merge(chunks_of, r, node, chunks)
            offer, logit = own(node)
            top = jnp.maximum(others.top, logit)
            mass = others.mass * jnp.exp(others.top - top)
            chance = jnp.exp(logit - top)
            first = (logit == others.top) & (offer < others.best)
            wins = jnp.where((logit > others.top) | first, 1.0, 0.0)
            # Where there is no law, no test passes.
            whole = jnp.where(jnp.abs(top) < jnp.inf, chance + mass, jnp.nan)
            one = whole / whole
            p = jnp.where(cold, wins * one, chance / whole)
            rest = jnp.where(cold, one - wins, mass / whole)
            certainty = jnp.float32(1)
            step = Step(node, p, rest, certainty, coin(node), coin(node + 1))
            return step, top

        def offered(node: Array) -> Array:
            return offer_ref[r, jnp.minimum(node, n - 1)] >= 0

        *_, accepted = _walk(rule, step_at, offered, coin, lambda *_: None)
        here = merge(chunks_of, r, accepted, chunks)
        refused = offered(accepted)
        offer, logit = own(accepted)
        highest = jnp.where(refused, jnp.maximum(here.top, logit), here.top)

        def weigh(ids: Array, chunk: Array) -> Array:
            chunk = scaled(chunk, hot)
            possible = (ids < v) & (ids != jnp.where(refused, offer, NONE))
            chunk = jnp.where(possible, chunk, -jnp.inf)
            top = jnp.max(chunk)
            return jnp.exp(chunk - jnp.where(top > -jnp.inf, top, 0.0))

        source = (x_ref, r * n + accepted, x, at)
        token = look_into(here.masses, uniform_ref[r], [source], weigh, tiles)
        token = jnp.where(here.mass > 0, token, jnp.where(refused, offer, token))
        accepted_ref[r] = accepted
        token_ref[r] = jnp.where(cold & (here.top > -jnp.inf), here.best, token)
        sound_ref[r] = (jnp.abs(highest) < jnp.inf).astype(jnp.int32)

    one = jax.ShapeDtypeStruct((b,), jnp.int32)
    accepted, token, sound = plgpu.kernel(
        certain_judge,
        out_type=(one, one, one),
        grid=(b,),
        grid_names=("row",),
        scratch_types=[*buffers(logits.dtype, tiles, stages=1)],
        interpret=interpret,
    )(wide(logits), temperature, offers, coins, uniform, *chunked)
    return accepted, token, sound.astype(bool)


def judge_dense(
    rule: Rule,
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    q: Float[Array, "B N V"],
    offers: Int[Array, "B N"],
    coins: Float[Array, "B G"],
    *,
    tiles: Tiles,
    interpret: Any = None,
) -> Judged:
    """What a rule says when drafts were drawn from `q`: the logits are read once."""
    b, n, v = logits.shape
    chunks, m = tiles.chunks(v), n if rule.every else 1
    nothing = jnp.full((b, n), NONE, jnp.int32)
    chunked = scan(logits, temperature, nothing, tiles=tiles, interpret=interpret)

    def dense_judge(x_ref, hot_ref, q_ref, offer_ref, coin_ref, *refs):
        top_ref, best_ref, total_ref, accepted_ref, *refs = refs
        node_ref, against_ref, weight_ref, lse_ref, forced_ref, sound_ref = refs
        r = lax.axis_index("row")
        hot, cold = hot_ref[r], ~(hot_ref[r] > 0)
        chunks_of = Chunked(top_ref, best_ref, total_ref)

        def coin(node: Array) -> Array:
            return coin_ref[r, jnp.clip(node - 1, 0, coins.shape[1] - 1)]

        def step_at(node: Array) -> tuple[Step, Array]:
            here = merge(chunks_of, r, node, chunks)
            lse = here.top + jnp.log(here.mass)
            offer = jnp.clip(offer_ref[r, node], 0, v - 1)
            logit = _own(x_ref, r * n + node, offer, hot)
            wins = jnp.where(offer == here.best, 1.0, 0.0)
            p = jnp.where(cold, wins, jnp.exp(logit - lse))
            # Where there is no law, no test passes.
            p = jnp.where(jnp.abs(here.top) < jnp.inf, p, jnp.nan)
            drafted = q_ref[
                r * n + node + 1, lax.div(offer, LANES), lax.rem(offer, LANES)
            ].astype(jnp.float32)
            return Step(node, p, 1 - p, drafted, coin(node), coin(node + 1)), lse

        def offered(node: Array) -> Array:
            return offer_ref[r, jnp.minimum(node, n - 1)] >= 0

        def leave(entry: Array, node: Array, weight: Array) -> None:
            here = merge(chunks_of, r, node, chunks)
            node_ref[r, entry] = node
            against_ref[r, entry] = jnp.where(offered(node), node + 1, NONE)
            weight_ref[r, entry] = weight
            lse_ref[r, entry] = here.top + jnp.log(here.mass)
            forced_ref[r, entry] = jnp.where(cold, here.best, NONE)
            sound_ref[r, entry] = (jnp.abs(here.top) < jnp.inf).astype(jnp.int32)

        def leave_each(node: Array, weight: Array, lse: Array) -> None:
            if rule.every:
                leave(node, node, weight)

        end, weight, accepted = _walk(rule, step_at, offered, coin, leave_each)
        accepted_ref[r] = accepted
        if rule.every:
            leave(end, end, weight)

            def absent(node: Array, nothing: Array) -> Array:
                node_ref[r, node] = jnp.int32(NONE)
                return nothing

            lax.fori_loop(end + 1, n, absent, 0)
        else:
            leave(jnp.int32(0), accepted, jnp.float32(1))

    def stored(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((b, m), dtype)

    whole, real = stored(jnp.int32), stored(jnp.float32)
    accepted, node, against, weight, lse, forced, sound = plgpu.kernel(
        dense_judge,
        out_type=(
            jax.ShapeDtypeStruct((b,), jnp.int32),
            *(whole, whole, real, real, whole, whole),
        ),
        grid=(b,),
        grid_names=("row",),
        interpret=interpret,
    )(wide(logits), temperature, wide(q), offers, coins, *chunked)
    residual = Residual(node=node, against=against, weight=weight, lse=lse)
    return Judged(accepted, residual, forced, sound)
