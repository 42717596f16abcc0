"""The Llama family: Llama, SmolLM2, Mistral, Qwen2, Qwen3; one pre-norm decoder."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jspec import native
from jspec.cache import KVCache
from jspec.models.base import ModelConfig, Seen, Target, by_layer, check_weights
from jspec.models.layers import (
    embed,
    linears,
    norm,
    only_tokens,
    rotate,
    turns,
    vocabulary_logits,
)
from jspec.rounds import ancestors_of

__all__ = ["Decoder", "beside_another"]

type Product = Callable[..., tuple[Array, ...]]

_VERIFY: Product = linears
_PROMPT: Product = functools.partial(linears, implementation="xla")


class Layer(nnx.Module):
    """Attention and a gated MLP, each on the normed stream and added to it."""

    attention_norm: nnx.Param[Array]
    q: nnx.Param[Array]
    k: nnx.Param[Array]
    v: nnx.Param[Array]
    o: nnx.Param[Array]
    q_bias: nnx.Param[Array] | None
    k_bias: nnx.Param[Array] | None
    v_bias: nnx.Param[Array] | None
    o_bias: nnx.Param[Array] | None
    q_norm: nnx.Param[Array] | None
    k_norm: nnx.Param[Array] | None
    mlp_norm: nnx.Param[Array]
    gate: nnx.Param[Array]
    up: nnx.Param[Array]
    down: nnx.Param[Array]
    gate_bias: nnx.Param[Array] | None
    up_bias: nnx.Param[Array] | None
    down_bias: nnx.Param[Array] | None

    def __init__(self, weights: Mapping[str, Array]) -> None:
        for name in (
            *("attention_norm", "q", "k", "v", "o"),
            *("q_bias", "k_bias", "v_bias", "o_bias", "q_norm", "k_norm"),
            *("mlp_norm", "gate", "up", "down"),
            *("gate_bias", "up_bias", "down_bias"),
        ):
            value = weights.get(name)
            setattr(self, name, None if value is None else nnx.Param(value))

    def weights(self) -> dict[str, Array | None]:
        """By name; `None`: the model has none."""
        return {name: _of(getattr(self, name)) for name in native.WEIGHTS}


def _alone_differs(dtype: jnp.dtype) -> bool:
    return dtype == jnp.bfloat16 or native.ready()


def _of(parameter: nnx.Param | None) -> Array | None:
    return None if parameter is None else parameter[...]


class Decoder(nnx.Module):
    """A causal language model: `ModelConfig` says which options it has.

    Parameters are named as `weight_shapes` lists them and are never mutated. Once they
    are packed, those of all layers are one array, `stack`.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Array]) -> None:
        check_weights(config, weights)
        self.config = config
        self.embed = nnx.Param(weights["embed"])
        self.layers = nnx.List(map(Layer, by_layer(config, weights)))
        self.stack: nnx.Param[Array] | None = nnx.data(None)
        self.norm = nnx.Param(weights["norm"])
        self.head = None if config.tie_embeddings else nnx.Param(weights["head"])

    @property
    def dtype(self) -> jnp.dtype:
        """Of the weights, the stream and the cache."""
        return self.embed[...].dtype

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        parent: Int[Array, "B N"],
        cache: KVCache,
        *,
        branching: bool = False,
        feature_layers: tuple[int, ...] = (),
        logits: bool = True,
    ) -> Seen:
        """Reads the nodes behind what the cache holds.

        Args:
          tokens: ids of the nodes.
          parent: the node each follows; only read if `branching`.
          cache: committed keys and values.
          branching: whether the nodes may be a tree; else they are a chain.
          feature_layers: residual-stream indices to tap: `j` is after `j` layers.
          logits: whether the successors' logits are wanted.
        """
        config = self.config
        fused = self.stack is not None
        if tokens.size == 1 and not fused and _alone_differs(self.dtype):
            return beside_another(
                self, tokens, parent, cache, feature_layers, logits=logits
            )
        ancestors = ancestors_of(parent) if branching else None
        nodes = jnp.arange(tokens.shape[1])[None]
        depth = nodes if ancestors is None else ancestors.sum(-1, dtype=jnp.int32) - 1
        position = cache.length[:, None] + depth
        turn = turns(config.rope, config.head_dim, position)
        x = self.embed_tokens(tokens)
        taps = {0: x} if 0 in feature_layers else {}
        product = _VERIFY if logits else _PROMPT
        if fused:
            x, cache = self._fused(x, turn, ancestors, cache, taps, feature_layers)
        for l, layer in enumerate(self.layers):
            x, cache = self._attend(l, layer, x, turn, ancestors, cache, product)
            x = self._mlp(layer, x, product)
            if l + 1 in feature_layers:
                taps[l + 1] = x
        features = None
        if feature_layers:
            features = jnp.concatenate([taps[j] for j in feature_layers], axis=-1)
        seen = self.logits(x) if logits else None
        return Seen(logits=seen, features=features, cache=cache)

    def pack(self) -> None:
        """Turns the matrices into what the fused layers of `jspec.native` read.

        For who owns the weights and is about to serve: they move into one array, layer
        by layer. Nothing changes where a layer cannot be fused: elsewhere than on a
        CPU, or with a width that has no kernel.
        """
        fusable = all(
            native.fusable(layer.weights(), self.config.head_dim)
            for layer in self.layers
        )
        if self.stack is not None or not native.ready() or not fusable:
            return
        stack = native.stack(self._moved(), len(self.layers), self._sizes(), self.dtype)
        self.layers = nnx.List([])
        self.stack = nnx.Param(stack)
        if self.head is not None and native.packable(self.head[...]):
            self.head = nnx.Param(native.repack(self.head[...]))
        elif self.head is None and native.packable(self.embed[...].T):
            self.embed = nnx.Param(native.repack(self.embed[...].T))

    def _moved(self) -> Iterator[dict[str, Array | None]]:
        """The weights of each layer; those that were asked for before are gone."""
        for l in range(len(self.layers)):
            yield self.layers[l].weights()
            self.layers[l] = Layer({})

    def _sizes(self) -> tuple[int, ...]:
        """Numbers of each weight of a layer."""
        shapes = by_layer(self.config, self.config.weight_shapes())[0]
        return tuple(
            math.prod(shapes[name]) if name in shapes else 0 for name in native.WEIGHTS
        )

    def embed_tokens(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N E"]:
        """The stream before the first layer."""
        return embed(self.embed[...], tokens)

    def normed(self, x: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
        """The final norm."""
        return norm(x, self.norm[...], self.config.norm_eps)

    def logits(self, x: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """The final norm and the head; rows of padding tokens are minus infinity."""
        y = vocabulary_logits(self.normed(x), self.embed[...], _of(self.head))
        return only_tokens(y, self.config.tokens)

    def _attend(
        self,
        l: int,
        layer: Layer,
        x: Float[Array, "B N E"],
        turn: tuple[Array, Array],
        ancestors: Bool[Array, "B N N"] | None,
        cache: KVCache,
        product: Product,
    ) -> tuple[Float[Array, "B N E"], KVCache]:
        config = self.config
        b, n, _ = x.shape
        y = norm(x, layer.attention_norm[...], config.norm_eps)

        weights = (layer.q[...], layer.k[...], layer.v[...])
        biases = (_of(layer.q_bias), _of(layer.k_bias), _of(layer.v_bias))
        q, k, v = (
            heads.reshape(b, n, -1, config.head_dim)
            for heads in product(y, weights, biases)
        )
        if layer.q_norm is not None and layer.k_norm is not None:
            q = norm(q, layer.q_norm[...], config.norm_eps)
            k = norm(k, layer.k_norm[...], config.norm_eps)
        cache = cache.append(l, rotate(k, turn), v)
        mixed = cache.attend(
            l,
            rotate(q, turn),
            ancestors=ancestors,
            window=config.window(l),
            scale=config.head_dim**-0.5,
            block_pages=cache.block_pages,
        )
        (out,) = product(mixed.reshape(b, n, -1), (layer.o[...],), (_of(layer.o_bias),))
        return x + out, cache

    def _fused(
        self,
        x: Float[Array, "B N E"],
        turn: tuple[Array, Array],
        ancestors: Bool[Array, "B N N"] | None,
        cache: KVCache,
        taps: dict[int, Array],
        feature_layers: tuple[int, ...],
    ) -> tuple[Float[Array, "B N E"], KVCache]:
        """All layers on packed weights, in one call from tap to tap."""
        pages, config, stack = cache.pages, self.config, self.stack
        assert stack is not None
        first = 0
        for last in sorted({*feature_layers, config.num_layers} - {0}):
            x, k, v = native.layers(
                x,
                turn,
                pages.k,
                pages.v,
                cache.table,
                cache.length,
                stack[...],
                sizes=self._sizes(),
                first=first,
                windows=tuple(map(config.window, range(first, last))),
                ancestors=ancestors,
                scale=config.head_dim**-0.5,
                eps=config.norm_eps,
            )
            pages = dataclasses.replace(pages, k=k, v=v)
            taps[last], first = x, last
        return x, dataclasses.replace(cache, pages=pages)

    def _mlp(
        self, layer: Layer, x: Float[Array, "B N E"], product: Product
    ) -> Float[Array, "B N E"]:
        y = norm(x, layer.mlp_norm[...], self.config.norm_eps)
        weights = (layer.gate[...], layer.up[...])
        gate, up = product(y, weights, (_of(layer.gate_bias), _of(layer.up_bias)))
        gated = jax.nn.silu(gate) * up
        return x + product(gated, (layer.down[...],), (_of(layer.down_bias),))[0]


def beside_another(
    model: Target,
    tokens: Int[Array, "1 1"],
    parent: Int[Array, "1 1"],
    cache: KVCache,
    feature_layers: tuple[int, ...],
    *,
    logits: bool,
) -> Seen:
    """One token beside a second that nobody reads.

    XLA computes one row in another order than the same row among several (and a
    bfloat16 product of one row on a CPU 20 times slower than of two); with never
    fewer than two, a token has the same bits whatever is verified beside it.
    """
    seen = model(
        jnp.concatenate([tokens, tokens], axis=1),
        jnp.concatenate([parent, jnp.zeros_like(parent)], axis=1),
        cache,
        feature_layers=feature_layers,
        logits=logits,
    )
    first = jax.tree.map(lambda a: a[:, :1], (seen.logits, seen.features))
    return Seen(logits=first[0], features=first[1], cache=seen.cache)
