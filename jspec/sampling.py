"""From logits to the law that a request asks for, row by row."""

import enum

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
    "law",
    "row_keys",
    "step_keys",
]


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
    filtered = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
    p = jax.lax.cond(
        jnp.any(filtered & sampling.sampled),
        lambda p: jnp.where(filtered[:, None, None], _filter(p, sampling), p),
        lambda p: p,
        p,
    )
    return jnp.where(hot > 0, p, point)


def _filter(p: Array, sampling: Sampling) -> Array:
    def by_row(a: Array) -> Array:
        return a[:, None, None]

    def short(at: Array) -> Array:
        return jnp.where(p > at, p, 0).sum(-1, keepdims=True) < top

    k = jnp.where(sampling.top_k > 0, sampling.top_k, p.shape[-1])
    k = by_row(jnp.minimum(k, p.shape[-1]))
    p = _above(p, lambda at: (p >= at).sum(-1, keepdims=True) >= k)
    top = by_row(sampling.top_p)
    full = top >= 1
    p = jnp.where(full, p, _above(p, lambda at: ~short(at), strict=True))
    p = jnp.where(p >= by_row(sampling.min_p) * p.max(-1, keepdims=True), p, 0)
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
    """One token per row from a law, by the Gumbel-max trick; it need not sum to 1."""

    def pick(key: Array, row: Array) -> Array:
        return jax.random.categorical(key, jnp.log(row))

    return jax.vmap(pick)(keys, p).astype(jnp.int32)


def step_keys(keys: Key[Array, " B"], step: Int[Array, ""] | int) -> Key[Array, " B"]:
    """The rows' keys for one of several draws of a round."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)


def draw_each(keys: Key[Array, " B"], q: Float[Array, "B N V"]) -> Int[Array, "B N"]:
    """A token of every law, each with a key of its own."""
    steps = jnp.arange(q.shape[1], dtype=jnp.int32)
    each = jax.vmap(step_keys, in_axes=(None, 0))(keys, steps)
    return jax.vmap(draw, in_axes=(0, 1), out_axes=1)(each, q)
