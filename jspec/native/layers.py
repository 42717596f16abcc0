"""The call of whole decoder layers, on packed weights."""

from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from jspec.native.attention import DEPTHS
from jspec.native.panels import pack, packable
from jspec.native.room import held, room

__all__ = ["MATRICES", "WEIGHTS", "fusable", "layers", "stack"]

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
"""Those of a layer's weights that are packed."""

WEIGHTS = (
    *("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"),
    *("q_bias", "k_bias", "v_bias", "o_bias"),
    *("gate_bias", "up_bias", "down_bias"),
    *("q_norm", "k_norm"),
)
"""In the order in which they lie."""

LINE = 64
"""Bytes at whose multiples each of them begins."""

type Pages = tuple[Float[Array, "P K S D"], ...] | Float[Array, "L P K S D"]


def fusable(weights: Mapping[str, Array | None], head_dim: int) -> bool:
    """Whether `layers` can be made of these weights, once their matrices are packed."""
    matrices = [weights[name] for name in MATRICES]
    return (
        head_dim in DEPTHS
        and len({w.dtype for w in weights.values() if w is not None}) == 1
        and all(w is not None and packable(w) for w in matrices)
    )


def stack(
    weights: Iterator[Mapping[str, Array | None]],
    count: int,
    sizes: Sequence[int],
    dtype: DTypeLike,
) -> Float[Array, "L W"]:
    """The weights of all layers in one array, in the order they are read.

    A round with one array instead of ten a layer begins sooner: what the host looks up
    of each is no longer in its caches when the weights have gone through them.

    Args:
      weights: of each layer by the names of `WEIGHTS`, asked for one after the other.
      count: of the layers.
      sizes: numbers of each weight; 0: the model has none.
      dtype: of all of them.
    """
    line = LINE // np.dtype(dtype).itemsize
    places = np.cumsum([0, *(-(-size // line) * line for size in sizes)]).tolist()
    filled = room((count, places[-1]), np.dtype(dtype))
    for row, layer in zip(filled, weights, strict=True):
        for name, place, size in zip(WEIGHTS, places, sizes, strict=False):
            if size:
                w = np.asarray(layer[name])
                w = pack(w) if name in MATRICES else w
                row[place : place + size].reshape(w.shape)[...] = w
    return held(filled)


def layers(
    x: Float[Array, "B N E"],
    turn: tuple[Float[Array, "B N 1 D"], Float[Array, "B N 1 D"]],
    k_pages: Pages,
    v_pages: Pages,
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    weights: Float[Array, "L W"],
    *,
    sizes: Sequence[int],
    first: int,
    windows: Sequence[int | None],
    ancestors: Bool[Array, "B N N"] | None,
    scale: float,
    eps: float,
) -> tuple[Float[Array, "B N E"], Pages, Pages]:
    """Attention and a gated MLP, each on the normed stream and added to it.

    What `models/llama.py` says in plain operations, up to the last bits of sums. The
    nodes' keys and values are appended behind `length`, in place where XLA can.

    Args:
      x: the stream.
      turn: cosine and sine of every node's angles.
      k_pages: keys of all layers, rotated.
      v_pages: values.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      weights: what `stack` makes.
      sizes: numbers of each weight of a layer.
      first: the layer to begin with.
      windows: of each layer from there on, as far as they are asked for: how many
        positions back a node sees, itself included; `None`: all.
      ancestors: `None`: a chain.
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
    angles = (
        jnp.broadcast_to(a, (b, n, 1, a.shape[-1])).reshape(b * n, -1) for a in turn
    )
    pages, kind = jax.tree.flatten((k_pages, v_pages))
    before = 8
    call = jax.ffi.ffi_call(
        "jspec_layers",
        [
            jax.ShapeDtypeStruct((b * n, width), x.dtype),
            *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in pages),
        ],
        input_output_aliases={before + i: 1 + i for i in range(len(pages))},
    )
    y, *pages = call(
        x.reshape(b * n, width),
        *angles,
        table,
        length,
        depths,
        related,
        weights,
        *pages,
        branching=ancestors is not None,
        first=np.int64(first),
        sizes=np.array(sizes, np.int64),
        windows=np.array([window or 0 for window in windows], np.int64),
        scale=np.float32(scale),
        eps=np.float32(eps),
    )
    return y.reshape(b, n, width), *jax.tree.unflatten(kind, pages)
