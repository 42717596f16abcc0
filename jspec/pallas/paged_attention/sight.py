"""What a query row of the attention kernel sees: three integers."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from jspec.pallas.paged_attention.tiles import NODES

__all__ = ["seen_from", "sight_of"]


def sight_of(
    length: Int[Array, " B"],
    ancestors: Bool[Array, "B N N"] | None,
    shape: tuple[int, int],
    window: int | None,
) -> Int[Array, "B 3 N"]:
    """What each node sees: from which committed token on, and which nodes, as bits.

    The distance of a node from its ancestor is that of their depths, so the window
    is part of the bits and the kernel need not know any node's depth.
    """
    b, n = shape
    seen = jnp.tri(n, dtype=bool)[None] if ancestors is None else ancestors
    seen = jnp.broadcast_to(seen, (b, n, n))
    depth = seen.sum(-1, dtype=jnp.int32) - 1
    first = jnp.zeros((b, n), jnp.int32)
    if window is not None:
        seen &= depth[:, :, None] - depth[:, None, :] < window
        first = length[:, None] + depth - (window - 1)
    bits = jnp.pad(seen, ((0, 0), (0, 0), (0, NODES - n))).reshape(b, n, 2, 32)
    place = jnp.left_shift(jnp.uint32(1), jnp.arange(32, dtype=jnp.uint32))
    words = jnp.where(bits, place[None, None, None], 0).sum(-1, dtype=jnp.uint32)
    words = lax.bitcast_convert_type(words, jnp.int32)
    return jnp.stack([first, words[..., 0], words[..., 1]], axis=1)


def seen_from(
    position: Array, length: Array, written: Array, sight: list[Array]
) -> Array:
    """In the kernel: which of a block's tokens each query row sees.

    Args:
      position: of each token, a row for every query row.
      length: committed tokens.
      written: tokens that have been written, nodes included.
      sight: of each query row: the first committed token it sees, and two words of
        nodes.
    """
    node = position - length

    def wide(a: Array) -> Array:
        return lax.broadcast_in_dim(a, position.shape, (0,))

    nearest, low, high = sight
    word = jnp.where(node < 32, wide(low), wide(high))
    bit = lax.shift_right_logical(word, jnp.bitwise_and(node, 31))
    kin = (node >= 0) & (node < NODES) & (jnp.bitwise_and(bit, 1) == 1)
    seen = kin | ((node < 0) & (position >= wide(nearest)))
    return seen & (position < written)
