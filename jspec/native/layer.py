"""The call of a whole decoder layer, on packed weights."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec.native.attention import DEPTHS
from jspec.native.panels import packable

__all__ = ["MATRICES", "WEIGHTS", "fusable", "layer"]

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
"""Those of a layer's weights that are packed."""

WEIGHTS = (
    *("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"),
    *("q_bias", "k_bias", "v_bias", "o_bias"),
    *("gate_bias", "up_bias", "down_bias"),
    *("q_norm", "k_norm"),
)
"""In the order of the call."""


def fusable(weights: Mapping[str, Array | None], head_dim: int) -> bool:
    """Whether `layer` can be made of these weights, once their matrices are packed."""
    matrices = [weights[name] for name in MATRICES]
    return (
        head_dim in DEPTHS
        and len({w.dtype for w in weights.values() if w is not None}) == 1
        and all(w is not None and packable(w) for w in matrices)
    )


def layer(
    x: Float[Array, "B N E"],
    turn: tuple[Float[Array, "B N 1 D"], Float[Array, "B N 1 D"]],
    k_pages: Float[Array, "P K S D"],
    v_pages: Float[Array, "P K S D"],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    weights: Mapping[str, Array | None],
    *,
    ancestors: Bool[Array, "B N N"] | None,
    window: int | None,
    scale: float,
    eps: float,
) -> tuple[Float[Array, "B N E"], Array, Array]:
    """Attention and a gated MLP, each on the normed stream and added to it.

    What `models/llama.py` says in plain operations, up to the last bits of sums. The
    nodes' keys and values are appended behind `length`, in place where XLA can.

    Args:
      x: the stream.
      turn: cosine and sine of every node's angles.
      k_pages: keys, rotated.
      v_pages: values.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      weights: by the names of `WEIGHTS`; those of `MATRICES` are packed.
      ancestors: `None`: a chain.
      window: how many positions back a node sees, itself included; `None`: all.
      scale: of the scores.
      eps: of the norms.

    Returns:
      the stream, keys and values.
    """
    b, n, width = x.shape
    nodes = jnp.arange(n, dtype=jnp.int32)
    depths, related = jnp.broadcast_to(nodes, (b, n)), jnp.ones((1, 1, 1), bool)
    if ancestors is not None:
        depths, related = ancestors.sum(-1, dtype=jnp.int32) - 1, ancestors
    none = jnp.zeros((0,), x.dtype)
    given = (weights[name] for name in WEIGHTS)
    angles = (
        jnp.broadcast_to(a, (b, n, 1, a.shape[-1])).reshape(b * n, -1) for a in turn
    )
    results = [
        jax.ShapeDtypeStruct((b * n, width), x.dtype),
        jax.ShapeDtypeStruct(k_pages.shape, k_pages.dtype),
        jax.ShapeDtypeStruct(v_pages.shape, v_pages.dtype),
    ]
    call = jax.ffi.ffi_call("jspec_layer", results, input_output_aliases={3: 1, 4: 2})
    y, k_pages, v_pages = call(
        x.reshape(b * n, width),
        *angles,
        k_pages,
        v_pages,
        table,
        length,
        depths,
        related,
        *(none if w is None else w for w in given),
        branching=ancestors is not None,
        window=np.int64(window or 0),
        scale=np.float32(scale),
        eps=np.float32(eps),
    )
    return y.reshape(b, n, width), k_pages, v_pages
