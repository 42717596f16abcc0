"""Speculative sampling on a chain, on an NVIDIA GPU."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.chain import Rule, Step, chain_offers, judge_certain, judge_dense
from jspec.pallas.residual_draw.gpu import draw_residual, sum_residual
from jspec.pallas.tiles import Tiles
from jspec.pallas.vocabulary import check_vocabulary

__all__ = ["rejection_verify"]


def _visit(step: Step, weight: Array, accepted: Array) -> tuple[Array, Array, Array]:
    keep = step.next_coin * step.q < step.p
    return weight, jnp.where(keep, step.node + 1, accepted), keep


STANDARD = Rule(
    visit=_visit, close=lambda node, weight, accepted, coin: accepted, every=False
)


def rejection_verify(
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
    """The twin's meaning: two kernels where drafting was certain, else four.

    Floor, certain: the logits once, `B N V` of their dtype. Moved: the same, 12 bytes
    a chunk of 2048, written and read, and one chunk again. Floor, dense: the logits
    once and, of one node a row, logits and `q` again; `q` is a law, so that of the
    others one number each is read. Moved: the same, and chunks as above. Plain `jnp`
    with `summarise` reads as often, in more kernels.
    """
    check_vocabulary("rejection_verify", logits, *([] if q is None else [q]))
    tiles = tiles or Tiles()
    offers = chain_offers(tokens, parent)
    # A block of nothing cannot be passed to a kernel.
    coins = coins if coins.shape[1] else jnp.zeros((len(coins), 1), coins.dtype)
    options = {"tiles": tiles, "interpret": interpret}
    if q is None:
        return judge_certain(
            STANDARD, logits, temperature, offers, coins, uniform, **options
        )
    judged = judge_dense(STANDARD, logits, temperature, q, offers, coins, **options)
    inputs = (logits, q, temperature, judged.residual)
    sums = sum_residual(*inputs, **options)
    entry = jnp.zeros_like(judged.accepted)
    bonus = draw_residual(*inputs, sums, entry, uniform, judged.forced, **options)
    return judged.accepted, bonus, judged.sound[:, 0].astype(bool)
