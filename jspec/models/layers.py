"""Arithmetic that decoders and drafters share."""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec import native
from jspec.models.base import Rope

__all__ = [
    "embed",
    "inverse_frequencies",
    "linear",
    "linears",
    "norm",
    "only_tokens",
    "rotate",
    "turns",
    "vocabulary_logits",
]


def linear(
    x: Float[Array, "B N I"],
    w: Array,
    bias: Array | None = None,
    *,
    transposed: bool = False,
    out: jax.typing.DTypeLike | None = None,
) -> Float[Array, "B N O"]:
    """`x @ w + bias`, all rows of all texts in one product.

    Matrices are `[in, out]`; a tied head is read as `[V, E]`.

    Args:
      x: the rows.
      w: `[in, out]`, or `[out, in]` if `transposed`.
      bias: added in the result's dtype.
      transposed: whether `w` is the transpose.
      out: the result's dtype; sums are float32 whatever it is.
    """
    return linears(x, (w,), (bias,), transposed=transposed, out=out)[0]


def linears(
    x: Float[Array, "B N I"],
    weights: Sequence[Array],
    biases: Sequence[Array | None] | None = None,
    *,
    transposed: bool = False,
    out: jax.typing.DTypeLike | None = None,
    implementation: Literal["xla"] | None = None,
) -> tuple[Float[Array, "B N O"], ...]:
    """`linear` of the same rows with several matrices, read in one go.

    Args:
      x: the rows.
      weights: `[in, out]`, or `[out, in]` if `transposed`; or packed, all or none.
      biases: one a matrix, or `None`.
      transposed: whether the weights are transposes.
      out: the results' dtype.
      implementation: `None`: `jspec.native` on a CPU where it could be built, since a
        row's bits must not depend on how many are verified beside it; "xla" is the
        faster one for hundreds of rows.
    """
    b, n, width = x.shape
    rows = x.reshape(b * n, width)
    if any(native.packed(w) for w in weights):
        ys = tuple(_packed_product(rows, w, out or x.dtype) for w in weights)
        return _biased(ys, biases, (b, n))
    product = _product
    alike = implementation != "xla" and native.ready()
    if alike and {x.dtype, *(w.dtype for w in weights)} in DTYPES:
        product = _native_product
    ys = product(transposed, jnp.dtype(out or x.dtype), rows, tuple(weights))
    return _biased(ys, biases, (b, n))


def _biased(
    ys: Sequence[Array],
    biases: Sequence[Array | None] | None,
    leading: tuple[int, int],
) -> tuple[Array, ...]:
    if biases is not None:
        ys = [
            y if bias is None else y + bias[None].astype(y.dtype)
            for y, bias in zip(ys, biases, strict=True)
        ]
    return tuple(y.reshape(*leading, y.shape[-1]) for y in ys)


def _packed_product(x: Array, w: Array, out: jax.typing.DTypeLike) -> Array:
    if x.dtype == w.dtype:
        return native.panel_product(x, w, out=out)
    return _product(False, jnp.dtype(out), x, (native.unpack(w),))[0]


DTYPES = ({jnp.dtype(jnp.float32)}, {jnp.dtype(jnp.bfloat16)})
"""What `jspec.native` multiplies."""


def _product(
    transposed: bool, out: jnp.dtype, x: Array, weights: tuple[Array, ...]
) -> tuple[Array, ...]:
    return tuple(
        jax.lax.dot_general(
            x,
            w,
            (((1,), (1 if transposed else 0,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
            preferred_element_type=out,
        )
        for w in weights
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _native_product(
    transposed: bool, out: jnp.dtype, x: Array, weights: tuple[Array, ...]
) -> tuple[Array, ...]:
    def by_cpu(x: Array, weights: tuple[Array, ...]) -> tuple[Array, ...]:
        return native.linear(x, weights, transposed=transposed, out=out)

    return jax.lax.platform_dependent(
        x, weights, cpu=by_cpu, default=functools.partial(_product, transposed, out)
    )


@_native_product.defjvp
def _(transposed, out, primals, tangents):
    plain = functools.partial(_product, transposed, out)
    return _native_product(transposed, out, *primals), jax.jvp(
        plain, primals, tangents
    )[1]


def norm(
    x: Float[Array, "*S E"], weight: Float[Array, " E"], eps: float
) -> Float[Array, "*S E"]:
    """RMSNorm (Zhang and Sennrich 2019): float32 inside, cast back, then the weight."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(_sums(jnp.square(wide)) / x.shape[-1] + eps)
    weight = weight.reshape((1,) * (x.ndim - 1) + weight.shape)
    return (wide * scale).astype(x.dtype) * weight


def _sums(x: Float[Array, "*S E"]) -> Float[Array, "*S 1"]:
    """Of the last axis; on a CPU in one order, as `linears` sums."""
    if not native.ready():
        return x.sum(-1, keepdims=True)
    return _native_sums(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], 1)


def _row_sums(x: Float[Array, "R E"]) -> Float[Array, "R 1"]:
    return x.sum(-1, keepdims=True)


@jax.custom_jvp
def _native_sums(x: Float[Array, "R E"]) -> Float[Array, "R 1"]:
    def by_cpu(x: Array) -> Array:
        ones = jnp.ones((1, x.shape[1]), x.dtype)
        return native.linear(x, (ones,), transposed=True)[0]

    return jax.lax.platform_dependent(x, cpu=by_cpu, default=_row_sums)


@_native_sums.defjvp
def _(primals, tangents):
    return _native_sums(*primals), _row_sums(*tangents)


def vocabulary_logits(
    x: Float[Array, "B N E"], table: Array, head: Array | None
) -> Float[Array, "B N V"]:
    """Float32 logits by a head, or by the embedding's table where there is none."""
    if head is None:
        return linear(x, table, transposed=True, out=jnp.float32)
    return linear(x, head, out=jnp.float32)


def only_tokens(logits: Float[Array, "B N V"], tokens: int) -> Float[Array, "B N V"]:
    """Logits, minus infinity for rows of the vocabulary that are no token."""
    if logits.shape[-1] == tokens:
        return logits
    real = jnp.arange(logits.shape[-1]) < tokens
    return jnp.where(real[None, None], logits, -jnp.inf)


def embed(table: Array, tokens: Int[Array, "B N"]) -> Array:
    """The rows of `table`; an id outside it gives NaN, never another token's row.

    A table that is also a head may be packed: as the transpose that the head is.
    """
    if native.packed(table):
        panel, column = tokens // native.COLUMNS, tokens % native.COLUMNS
        taken = table.at[panel, :, column].get(mode="fill", fill_value=jnp.nan)
        return taken.reshape(*tokens.shape, -1)
    return table.at[tokens].get(
        mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
    )


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[np.ndarray, float]:
    """Angles per position of each pair of dimensions, and what scales sine and cosine.

    Llama 3.1's scaling is that of its model card; yarn's is Peng et al. 2023, §3.4;
    pairs that a proportional rope leaves alone have angle 0.

    Returns:
      float32 `[D / 2]`, and the attention factor.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    factor = 1.0
    if rope.kind == "linear":
        frequencies /= rope.factor
    elif rope.kind == "proportional":
        frequencies /= rope.factor
        frequencies[int(rope.fraction * head_dim // 2) :] = 0.0
    elif rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        length = rope.original_max_position
        smooth = (length / wavelengths - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        smooth = np.clip(smooth, 0.0, 1.0)
        frequencies *= smooth + (1 - smooth) / rope.factor
    elif rope.kind == "yarn":
        frequencies = _yarn(rope, head_dim, frequencies)
        factor = _yarn_attention_factor(rope)
    return frequencies.astype(np.float32), factor


def _yarn(rope: Rope, head_dim: int, frequencies: np.ndarray) -> np.ndarray:
    def dimension(rotations: float) -> float:
        turns = rope.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    return frequencies * (1 - ramp) + frequencies / rope.factor * ramp


def _yarn_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        if rope.factor <= 1:
            return 1.0
        return 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def turns(
    rope: Rope, head_dim: int, position: Int[Array, "B N"]
) -> tuple[Float[Array, "B N 1 D"], Float[Array, "B N 1 D"]]:
    """Cosine and sine of every position's angles, in float32, for `rotate`.

    A lone position stands beside a second: XLA rounds some cosines of one otherwise.
    """
    if position.size == 1:
        twice = turns(rope, head_dim, jnp.repeat(position, 2, axis=1))
        cosine, sine = jax.lax.optimization_barrier(twice)
        return cosine[:, :1], sine[:, :1]
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = position[..., None].astype(jnp.float32) * frequencies[None, None]
    angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None]
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(
    x: Float[Array, "B N H D"],
    turn: tuple[Float[Array, "B N 1 D"], Float[Array, "B N 1 D"]],
) -> Float[Array, "B N H D"]:
    """Rotates the pairs `(i, i + D / 2)` of each head (the half-split convention).

    Both products are rounded before they are added. A compiler that may fuse one of
    them into the addition picks either, differently for different numbers of nodes:
    then a token's last bits would depend on what is verified beside it.
    """
    cosine, sine = turn
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    half = jnp.concatenate([-second, first], axis=-1)
    wide = x.astype(jnp.float32)
    straight, crossed = jax.lax.optimization_barrier((wide * cosine, half * sine))
    return (straight + crossed).astype(x.dtype)
