"""In the attention kernel: which blocks of a row's tokens a worker visits."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

__all__ = ["share_of"]


def share_of(
    first: Int[Array, ""],
    last: Int[Array, ""],
    *,
    reach: int,
    worker: Int[Array, ""],
    workers: int,
) -> tuple[Array, Array, Array, Array]:
    """A worker takes every `workers`-th unit of a row, and a step for each block.

    Steps are counted from the start of the worker's first unit, which a row with a
    window may enter in its middle.

    Args:
      first: block of the row.
      last: the block behind the row's last.
      reach: blocks of a unit.
      worker: which one.
      workers: of the row.

    Returns:
      its first unit, how many it has, its first step and the one behind its last.
    """
    first_unit = lax.div(first, reach) + worker
    count = lax.div(last + reach - 1, reach) - first_unit
    mine = lax.div(jnp.maximum(count + workers - 1, 0), workers)
    start = jnp.where(worker == 0, lax.rem(first, reach), 0)
    rest = last - (first_unit + (mine - 1) * workers) * reach
    end = jnp.where(mine > 0, (mine - 1) * reach + jnp.minimum(rest, reach), start)
    return first_unit, mine, start, end
