"""Block verification of a chain, on an NVIDIA GPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.chain import (
    Judged,
    Rule,
    Step,
    chain_offers,
    judge_certain,
    judge_dense,
)
from jspec.pallas.lanes import load_entries
from jspec.pallas.residual_draw.gpu import draw_residual, sum_residual
from jspec.pallas.tiles import Tiles
from jspec.pallas.vocabulary import check_vocabulary

__all__ = ["block_verify"]


def _grow(step: Step, weight: Array) -> Array:
    """The next weight. A token that `q` never draws ends the growth."""
    ratio = step.p / jnp.where(step.q > 0, step.q, 1.0)
    grown = jnp.minimum(weight * jnp.where(step.q > 0, ratio, 0.0), 1.0)
    # The smaller of one and what is not a number is one on some machines.
    return jnp.where(ratio != ratio, ratio, grown)


def _bar(mass: Array, weight: Array) -> Array:
    """How likely a prefix passes of which `mass` is left."""
    room = mass + 1 - weight
    bar = jnp.where(room > 0, mass / jnp.where(room > 0, room, 1.0), 1.0)
    return jnp.where((mass != mass) | (weight != weight), jnp.nan, bar)


def _visit_certain(
    step: Step, weight: Array, accepted: Array
) -> tuple[Array, Array, Array]:
    passed = (step.node > 0) & (step.coin < _bar(weight * step.rest, weight))
    accepted = jnp.where(passed, step.node, accepted)
    return _grow(step, weight), accepted, jnp.bool_(True)


def _visit_dense(
    step: Step, weight: Array, accepted: Array
) -> tuple[Array, Array, Array]:
    return _grow(step, weight), accepted, jnp.bool_(True)


def _close(node: Array, weight: Array, accepted: Array, coin: Array) -> Array:
    return jnp.where((node > 0) & (coin < weight), node, accepted)


CERTAIN = Rule(visit=_visit_certain, close=_close, every=False)
DENSE = Rule(visit=_visit_dense, close=_close, every=True)


def block_verify(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    coins: Float[Array, "B G"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B N V"] | None = None,
    tiles: Tiles | None = None,
    interpret: Any = None,
) -> tuple[Int[Array, " B"], Int[Array, " B"], Bool[Array, " B"]]:
    """The twin's meaning: two kernels where drafting was certain, else five.

    Floor, certain: the logits once, `B N V` of their dtype; so much is moved, with 12
    bytes a chunk of 2048, written and read, and one chunk again. Floor, dense: logits
    and `q` once. Moved: the logits twice, since what is left of a node needs the
    weights before it and those need normalisers, and `q` once; no row for the draw,
    whose sums are at hand. Plain `jnp` with `summarise` reads the logits as often, `q`
    once, and a row of each for the draw, in more kernels.
    """
    check_vocabulary("block_verify", logits, *([] if q is None else [q]))
    tiles = tiles or Tiles()
    offers = chain_offers(tokens, parent)
    # A block of nothing cannot be passed to a kernel.
    coins = coins if coins.shape[1] else jnp.zeros((len(coins), 1), coins.dtype)
    options = {"tiles": tiles, "interpret": interpret}
    if q is None:
        return judge_certain(
            CERTAIN, logits, temperature, offers, coins, uniform, **options
        )
    judged = judge_dense(DENSE, logits, temperature, q, offers, coins, **options)
    inputs = (logits, q, temperature, judged.residual)
    sums = sum_residual(*inputs, **options)
    accepted = longest_passing(
        judged, sums[0], coins, chunks=tiles.chunks(q.shape[-1]), interpret=interpret
    )
    bonus = draw_residual(*inputs, sums, accepted, uniform, judged.forced, **options)
    sound = jnp.take_along_axis(judged.sound, accepted[:, None], axis=1)[:, 0]
    return accepted, bonus, sound.astype(bool)


def longest_passing(
    judged: Judged,
    sums: Float[Array, "B N C"],
    coins: Float[Array, "B G"],
    *,
    chunks: int,
    interpret: Any = None,
) -> Int[Array, " B"]:
    """Drafts kept: all of them if the judge says so, else the longest that passes."""
    b, n, _ = sums.shape

    def block_choice(accepted_ref, against_ref, weight_ref, sum_ref, coin_ref, out_ref):
        r = lax.axis_index("row")

        def visit(node: Array, accepted: Array) -> Array:
            mass = jnp.sum(load_entries(sum_ref.at[r, node], chunks, 0.0))
            passed = coin_ref[r, node - 1] < _bar(mass, weight_ref[r, node])
            return jnp.where(passed, node, accepted)

        def ends(node: Array) -> Array:
            return against_ref[r, jnp.minimum(node, n - 1)] < 0

        whole = accepted_ref[r]
        _, accepted = lax.while_loop(
            lambda carry: ~ends(carry[0]),
            lambda carry: (carry[0] + 1, visit(*carry)),
            (jnp.int32(1), jnp.int32(0)),
        )
        out_ref[r] = jnp.where(whole > 0, whole, accepted)

    return plgpu.kernel(
        block_choice,
        out_type=jax.ShapeDtypeStruct((b,), jnp.int32),
        grid=(b,),
        grid_names=("row",),
        interpret=interpret,
    )(judged.accepted, judged.residual.against, judged.residual.weight, sums, coins)
