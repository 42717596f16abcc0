"""What two rules keep of drafts in law, block and standard: all blocks enumerated."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec.verify.block import judge_block

__all__ = ["RULES", "enumerated", "kept_in_law"]

RULES = ("standard", "block")
EXAMPLE = ((1 / 3, 2 / 3), (2 / 3, 1 / 3))
"""The target's law and the draft's of every token (Sun et al. 2024, section 2)."""


@jax.jit
def kept_in_law(
    p: Float[Array, " V"], q: Float[Array, " V"], drafts: Int[Array, "B T"]
) -> Float[Array, " 2"]:
    """Expected kept drafts of standard and of block verification, by enumeration.

    Every token follows `p` and is drafted by `q`, whatever came before.

    Args:
      p: the target's law.
      q: the draft's.
      drafts: all blocks of one length, a row each.
    """
    gamma = drafts.shape[1]
    weight = q[drafts].prod(axis=1)
    # The token-by-token rule keeps a prefix whose every token passes.
    passed = jnp.cumprod(jnp.minimum(1, p[drafts] / q[drafts]), axis=1)
    standard = (weight * passed.sum(axis=1)).sum()
    laws = (jnp.broadcast_to(law, (gamma + 1, p.shape[0])) for law in (p, q))
    p_rows, q_rows = laws
    parent = jnp.arange(gamma + 1) - 1

    def block(draft: Array) -> Array:
        tokens = jnp.pad(draft, (1, 0))
        u = jnp.zeros(gamma + 1, p.dtype)
        _, _, _, odds = judge_block(u, p_rows, q_rows, tokens, parent)
        # So many or more are kept if any prefix at least so long passes on its own.
        none = jnp.cumprod((1 - odds[1:])[::-1])[::-1]
        return (1 - none).sum()

    return jnp.stack([standard, (weight * jax.vmap(block)(drafts)).sum()])


def enumerated(laws: int, *, size: int = 3, gamma: int = 3) -> dict[str, Any]:
    """The paper's example, and the least gain of block over random laws."""
    example = kept_in_law(*jnp.array(EXAMPLE, jnp.float32), _blocks(2, 2))
    rng = np.random.default_rng(0)
    drawn = rng.dirichlet(np.ones(size), size=(laws, 2)).astype(np.float32)
    blocks = _blocks(size, gamma)
    kept = jax.device_get([kept_in_law(p, q, blocks) for p, q in drawn])
    gains = [float(block - standard) for standard, block in kept]
    return {
        "example": dict(zip(RULES, map(float, example), strict=True)),
        "laws": laws,
        "least_gain": min(gains),
        "mean_gain": sum(gains) / len(gains),
    }


def _blocks(size: int, gamma: int) -> np.ndarray:
    every = itertools.product(range(size), repeat=gamma)
    return np.array(list(every), np.int32)
