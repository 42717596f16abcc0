"""Arithmetic of the Gemma family: its norm, its gated MLP, its mixture of experts."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec.models import layers

__all__ = ["capped", "expert_shares", "gelu_gated", "mixture", "norm"]

type Product = Callable[..., tuple[Array, ...]]
"""`layers.linears`, or its faster form for prompts."""


def norm(
    x: Float[Array, "*S E"],
    weight: Float[Array, " E"] | None,
    eps: float,
    *,
    offset: float = 0.0,
) -> Float[Array, "*S E"]:
    """RMSNorm with the weight in float32 too, cast back at the end.

    Args:
      x: the rows.
      weight: `None`: none.
      eps: added to the mean square.
      offset: added to the weight; 1 in Gemma 2 and 3.
    """
    if weight is None:
        gain = jnp.ones(x.shape[-1:], jnp.float32)
    else:
        gain = weight.astype(jnp.float32) + offset
    return layers.norm(x.astype(jnp.float32), gain, eps).astype(x.dtype)


def gelu_gated(
    gate: Float[Array, "*S F"], up: Float[Array, "*S F"]
) -> Float[Array, "*S F"]:
    """`gelu(gate) * up`, by the tanh approximation, which is taken in float32."""
    x = gate.astype(jnp.float32)
    bent = _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))
    return (x * (0.5 * (1 + bent))).astype(gate.dtype) * up


def capped(x: Float[Array, "*S V"], cap: float | None) -> Float[Array, "*S V"]:
    """`cap * tanh(x / cap)`; `None`: as it is."""
    return x if cap is None else cap * _tanh(x / cap)


def _tanh(x: Float[Array, "*S E"]) -> Float[Array, "*S E"]:
    """`tanh`, computed apart from what is done before and after.

    In one loop with its neighbours a compiler rounds its polynomial in one way where
    there are few elements and in another where there are many: a token's last bits
    would depend on how many are verified beside it.
    """
    return jax.lax.optimization_barrier(jnp.tanh(jax.lax.optimization_barrier(x)))


def expert_shares(
    scores: Float[Array, "B N X"], scale: Float[Array, " X"], top: int
) -> Float[Array, "B N X"]:
    """What each expert's output counts: zero for all but the `top` likeliest.

    The law over all experts, cut to the likeliest and made to sum to 1, times a
    learned number of each expert.
    """
    law = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
    likeliest, which = jax.lax.top_k(law, top)
    likeliest /= likeliest.sum(-1, keepdims=True)
    chosen = jax.nn.one_hot(which, law.shape[-1], dtype=law.dtype)
    shares = (chosen * likeliest[..., None]).sum(-2)
    return shares * scale.astype(jnp.float32)[None, None]


def mixture(
    y: Float[Array, "B N E"],
    shares: Float[Array, "B N X"],
    gate_up: Float[Array, "X E G"],
    down: Float[Array, "X F E"],
    product: Product,
) -> Float[Array, "B N E"]:
    """The experts' outputs by their shares: every expert computes every token.

    That reads all experts' weights for any number of tokens, so it is right and not
    fast: a mixture that reads the chosen ones alone would need a grouped product.
    """
    total = jnp.zeros(y.shape, jnp.float32)
    for x in range(gate_up.shape[0]):
        gate, up = jnp.split(product(y, (gate_up[x],))[0], 2, axis=-1)
        (out,) = product(gelu_gated(gate, up), (down[x],))
        share = shares[..., x, None]
        total += jax.lax.optimization_barrier(out.astype(jnp.float32) * share)
    return total.astype(y.dtype)
