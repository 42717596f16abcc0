"""From logits to the law that a request asks for, row by row."""

import enum
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from jspec import native
from jspec.tree import pytree

__all__ = [
    "Sampling",
    "Stream",
    "draw",
    "draw_each",
    "greedy",
    "inverse_cdf",
    "law",
    "row_keys",
    "seek",
    "step_keys",
]

GROUP = 256
"""Neighbours whose weights are summed first when a token is drawn."""


class Stream(enum.IntEnum):
    """What a random number is for; each purpose has a stream of its own.

    `verify` splits its key once more: for accepting, for recovering, for the bonus.
    """

    DRAFT = 0
    VERIFY = 1


@pytree
class Sampling:
    """How each row turns logits into a law.

    Attributes:
      temperature: 0: the likeliest token, the lowest id among equals.
      top_k: only the `top_k` likeliest tokens, and their equals; 0: all.
      top_p: the smallest set of likeliest tokens that holds `top_p`, and the equals
        of its last; 1: all.
      min_p: only tokens at least `min_p` times as likely as the likeliest; 0: all.
      seed: the request's seed, as the words of a key.
    """

    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    min_p: Float[Array, " B"]
    seed: UInt32[Array, "B 2"]

    @property
    def sampled(self) -> Bool[Array, " B"]:
        """Rows that draw; the others take the likeliest token."""
        return self.temperature > 0


def row_keys(
    sampling: Sampling, position: Int[Array, " B"], stream: Stream
) -> Key[Array, " B"]:
    """One key per row for the round whose anchor stands at `position`.

    It depends on the request's seed and on what was emitted so far; not on the row,
    its neighbours, or how many tokens were drafted and thrown away.
    """
    keys = jax.random.wrap_key_data(sampling.seed, impl="threefry2x32")
    fold = jax.vmap(jax.random.fold_in)
    return fold(fold(keys, position), jnp.full_like(position, int(stream)))


def greedy(logits: Float[Array, "*S V"]) -> Int[Array, "*S"]:
    """The likeliest token; the lowest id among equals, NaN before all."""
    if not native.ready() or logits.dtype != jnp.float32:
        return _argmax(logits)
    return jax.lax.platform_dependent(logits, cpu=native.argmax, default=_argmax)


def _argmax(logits: Float[Array, "*S V"]) -> Int[Array, "*S"]:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def law(logits: Float[Array, "B N V"], sampling: Sampling) -> Float[Array, "B N V"]:
    """The law of each node's successor: temperature, then top-k, top-p and min-p.

    A temperature of 0 gives a point mass. The filters cut at a probability, so that
    tokens of equal probability are kept or dropped together; they are applied one
    after the other to the renormalised law, as transformers' processors are.
    """
    hot = sampling.temperature[:, None, None]
    point = jax.nn.one_hot(greedy(logits), logits.shape[-1], dtype=jnp.float32)
    scaled = logits.astype(jnp.float32) / jnp.where(hot > 0, hot, 1)
    p = jax.nn.softmax(scaled, axis=-1)
    filters: tuple[tuple[Array, Callable[..., Array]], ...] = (
        (sampling.top_k > 0, _likeliest),
        (sampling.top_p < 1, _nucleus),
        (sampling.min_p > 0, _not_below),
    )
    for wanted, change in filters:
        p = _where(wanted & sampling.sampled, change, p, sampling)
    return jnp.where(hot > 0, p, point)


def _where(
    wanted: Bool[Array, " B"],
    change: Callable[[Array, Sampling], Array],
    p: Float[Array, "B N V"],
    sampling: Sampling,
) -> Float[Array, "B N V"]:
    """Changes the rows that want it; nothing is computed where none does."""
    return jax.lax.cond(
        jnp.any(wanted),
        lambda p: jnp.where(wanted[:, None, None], change(p, sampling), p),
        lambda p: p,
        p,
    )


def _likeliest(p: Array, sampling: Sampling) -> Array:
    k = jnp.minimum(sampling.top_k, p.shape[-1])[:, None, None]
    return _above(p, lambda at: (p >= at).sum(-1, keepdims=True) >= k)


def _nucleus(p: Array, sampling: Sampling) -> Array:
    top = sampling.top_p[:, None, None]

    def enough(at: Array) -> Array:
        return jnp.where(p > at, p, 0).sum(-1, keepdims=True) >= top

    return _above(p, enough, strict=True)


def _not_below(p: Array, sampling: Sampling) -> Array:
    least = sampling.min_p[:, None, None]
    p = jnp.where(p >= least * p.max(-1, keepdims=True), p, 0)
    return p / p.sum(-1, keepdims=True)


def _above(p: Array, wide, *, strict: bool = False) -> Array:
    """Drops what lies below the highest cut that `wide` still calls wide enough.

    `wide(at)` falls from true to false as `at` rises. The cut is found exactly, by
    halving over the bit patterns of a positive float32: 31 passes and no sort. With
    `strict`, `wide` speaks of what lies above the cut; the first value above the cut
    found is then kept as well.
    """
    low = jnp.zeros((*p.shape[:-1], 1), jnp.int32)
    high = jnp.full_like(low, 0x3F800001)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) // 2
        fits = wide(jax.lax.bitcast_convert_type(middle, jnp.float32))
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    low, high = jax.lax.fori_loop(0, 31, halve, (low, high))
    cut = jax.lax.bitcast_convert_type(high if strict else low, jnp.float32)
    kept = jnp.where(p >= cut, p, 0)
    return kept / kept.sum(-1, keepdims=True)


def draw(keys: Key[Array, " B"], p: Float[Array, "B V"]) -> Int[Array, " B"]:
    """One token per row from a law, one number each; it need not sum to 1."""
    return inverse_cdf(p, jax.vmap(jax.random.uniform)(keys))


def inverse_cdf(
    p: Float[Array, "B V"], uniform: Float[Array, " B"]
) -> Int[Array, " B"]:
    """The first token of each row up to which more than this share of `p` lies.

    Sums of neighbours first, then one group of them. A token without weight is never
    drawn.

    Args:
      p: weights; they need not sum to 1.
      uniform: in `[0, 1)`.
    """
    b, v = p.shape
    groups = jnp.pad(p, ((0, 0), (0, -v % GROUP))).reshape(b, -1, GROUP)
    sums = groups.sum(-1)
    place, share = seek(sums, uniform * sums.sum(-1))
    here = jnp.take_along_axis(groups, place[:, None, None], axis=1)[:, 0]
    column, _ = seek(here, share * here.sum(-1))
    return jnp.minimum(place * GROUP + column, v - 1)


def seek(
    weights: Float[Array, "B C"], target: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Where the running sum first exceeds the target, and how far in that weight."""
    n = weights.shape[-1]
    running = jnp.cumsum(weights, axis=-1)
    possible = weights > 0
    beyond = possible & (running > target[:, None])
    last = n - 1 - jnp.argmax(possible[:, ::-1], axis=-1)
    place = jnp.where(beyond.any(-1), jnp.argmax(beyond, axis=-1), last)
    place = place.astype(jnp.int32)
    before = jnp.where(jnp.arange(n)[None] < place[:, None], weights, 0).sum(-1)
    weight = jnp.take_along_axis(weights, place[:, None], axis=1)[:, 0]
    share = (target - before) / jnp.where(weight > 0, weight, 1)
    return place, jnp.clip(share, 0, 1)


def step_keys(keys: Key[Array, " B"], step: Int[Array, ""] | int) -> Key[Array, " B"]:
    """The rows' keys for one of several draws of a round."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)


def draw_each(keys: Key[Array, " B"], q: Float[Array, "B N V"]) -> Int[Array, "B N"]:
    """A token of every law, each with a key of its own."""
    steps = jnp.arange(q.shape[1], dtype=jnp.int32)
    each = jax.vmap(step_keys, in_axes=(None, 0))(keys, steps)
    b, n, v = q.shape
    return draw(each.T.reshape(b * n), q.reshape(b * n, v)).reshape(b, n)
