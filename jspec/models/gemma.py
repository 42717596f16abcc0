"""The Gemma family: Gemma 2, Gemma 3 and Gemma 4, text only; one decoder.

What sets it apart: norms before and behind attention and MLP, layers that slide
between layers that see everything (two ropes, and in Gemma 4 two head widths), layers
that read the keys of earlier ones, an embedding of each layer's own, soft caps.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jspec import native
from jspec.cache import KVCache
from jspec.models.base import Kind, Seen, by_layer, check_weights
from jspec.models.gemma_config import GemmaConfig
from jspec.models.gemma_layers import (
    Product,
    capped,
    expert_shares,
    gelu_gated,
    mixture,
    norm,
)
from jspec.models.layers import (
    embed,
    linears,
    only_tokens,
    rotate,
    turns,
    vocabulary_logits,
)
from jspec.models.llama import beside_another
from jspec.rounds import ancestors_of

__all__ = ["Gemma"]

_VERIFY: Product = linears
_PROMPT: Product = functools.partial(linears, implementation="xla")

type Turn = tuple[Float[Array, "B N 1 D"], Float[Array, "B N 1 D"]]


class Layer(nnx.Module):
    """One decoder layer; which of its weights there are, the configuration says."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        for name, value in weights.items():
            setattr(self, name, nnx.Param(value))

    def __getitem__(self, name: str) -> Array:
        """A weight that it has."""
        return getattr(self, name)[...]

    def get(self, name: str) -> Array | None:
        """A weight, or `None` if it has none of that name."""
        return self[name] if hasattr(self, name) else None


class Gemma(nnx.Module):
    """A causal language model: `GemmaConfig` says which options it has.

    Parameters are named as `weight_shapes` lists them and are never mutated.
    """

    def __init__(self, config: GemmaConfig, weights: Mapping[str, Array]) -> None:
        check_weights(config, weights)
        self.config = config
        self.embed = nnx.Param(weights["embed"])
        self.layers = nnx.List(map(Layer, by_layer(config, weights)))
        self.norm = nnx.Param(weights["norm"])
        self.head = None if config.tie_embeddings else nnx.Param(weights["head"])
        if config.layer_input_size:
            self.layer_embed = nnx.Param(weights["layer_embed"])
            self.layer_project = nnx.Param(weights["layer_project"])
            self.layer_project_norm = nnx.Param(weights["layer_project_norm"])

    @property
    def dtype(self) -> jnp.dtype:
        """Of the weights, the stream and the cache."""
        return self.embed[...].dtype

    def pack(self) -> None:
        """Nothing: `jspec.native` fuses no layer of this family."""

    def embed_tokens(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N E"]:
        """The stream before the first layer: embeddings times the root of its width."""
        scale = jnp.asarray(self.config.hidden_size**0.5, self.dtype)
        return embed(self.embed[...], tokens) * scale

    def normed(self, x: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
        """The final norm."""
        return self._norm(x, self.norm[...])

    def logits(self, x: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """Final norm, head and cap; rows of padding tokens are minus infinity."""
        config = self.config
        head = None if self.head is None else self.head[...]
        y = vocabulary_logits(self.normed(x), self.embed[...], head)
        y = capped(y, config.final_cap)
        return only_tokens(y, config.tokens)

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
        if tokens.size == 1 and (self.dtype == jnp.bfloat16 or native.ready()):
            return beside_another(
                self, tokens, parent, cache, feature_layers, logits=logits
            )
        ancestors = ancestors_of(parent) if branching else None
        nodes = jnp.arange(tokens.shape[1])[None]
        depth = nodes if ancestors is None else ancestors.sum(-1, dtype=jnp.int32) - 1
        position = cache.length[:, None] + depth
        ropes = {
            kind: turns(config.keys(kind).rope, config.keys(kind).head_dim, position)
            for kind in sorted(set(config.kinds))
        }
        product = _VERIFY if logits else _PROMPT
        x = self.embed_tokens(tokens)
        inputs = self._layer_inputs(tokens, x, product)
        taps = {0: x} if 0 in feature_layers else {}
        for l, layer in enumerate(self.layers):
            turn = ropes[config.layer_kind(l)]
            x, cache = self._attend(l, layer, x, turn, ancestors, cache, product)
            x = self._mlp(layer, x, product)
            if inputs is not None:
                x = self._add_input(layer, x, inputs[:, :, l], product)
            if config.layer_scalar:
                x = x * layer["scalar"][None, None]
            if l + 1 in feature_layers:
                taps[l + 1] = x
        features = None
        if feature_layers:
            features = jnp.concatenate([taps[j] for j in feature_layers], axis=-1)
        seen = self.logits(x) if logits else None
        return Seen(logits=seen, features=features, cache=cache)

    def _norm(self, x: Array, weight: Array | None) -> Array:
        offset = float(self.config.unit_offset)
        return norm(x, weight, self.config.norm_eps, offset=offset)

    def _attend(
        self,
        l: int,
        layer: Layer,
        x: Float[Array, "B N E"],
        turn: Turn,
        ancestors: Bool[Array, "B N N"] | None,
        cache: KVCache,
        product: Product,
    ) -> tuple[Float[Array, "B N E"], KVCache]:
        config, (b, n, _) = self.config, x.shape
        kind: Kind = config.layer_kind(l)
        width = config.keys(kind).head_dim
        y = self._norm(x, layer["attention_norm"])
        names = [name for name in ("q", "k", "v") if layer.get(name) is not None]
        made = product(
            y,
            tuple(layer[name] for name in names),
            tuple(layer.get(f"{name}_bias") for name in names),
        )
        heads = {
            name: rows.reshape(b, n, -1, width)
            for name, rows in zip(names, made, strict=True)
        }
        q = heads["q"]
        if config.qk_norm:
            q = self._norm(q, layer["q_norm"])
        if config.stores(l):
            k, v = heads["k"], heads.get("v", heads["k"])
            if config.qk_norm:
                k = self._norm(k, layer["k_norm"])
            if config.value_norm:
                v = norm(v, None, config.norm_eps)
            cache = cache.append(config.cache_layer(l), rotate(k, turn), v)
        mixed = cache.attend(
            config.cache_layer(l),
            rotate(q, turn),
            ancestors=ancestors,
            window=config.window(l),
            scale=config.score_scale,
            block_pages=cache.block_pages,
            cap=config.attention_cap,
        )
        (out,) = product(mixed.reshape(b, n, -1), (layer["o"],), (layer.get("o_bias"),))
        return _added(x, self._norm(out, layer["post_attention_norm"])), cache

    def _mlp(
        self, layer: Layer, x: Float[Array, "B N E"], product: Product
    ) -> Float[Array, "B N E"]:
        y = self._norm(x, layer["mlp_norm"])
        gate, up = product(y, (layer["gate"], layer["up"]))
        (out,) = product(gelu_gated(gate, up), (layer["down"],))
        if self.config.experts is not None:
            out = self._norm(out, layer["post_dense_norm"])
            out = _added(out, self._experts(layer, x, product))
        return _added(x, self._norm(out, layer["post_mlp_norm"]))

    def _experts(
        self, layer: Layer, x: Float[Array, "B N E"], product: Product
    ) -> Float[Array, "B N E"]:
        config = self.config
        assert config.experts is not None
        scale = layer["router_scale"][None, None] * config.hidden_size**-0.5
        routed = norm(x, None, config.norm_eps) * scale.astype(x.dtype)
        (scores,) = product(routed, (layer["router"],))
        shares = expert_shares(scores, layer["expert_scale"], config.experts.top)
        y = self._norm(x, layer["expert_norm"])
        out = mixture(y, shares, layer["expert_gate_up"], layer["expert_down"], product)
        return self._norm(out, layer["post_expert_norm"])

    def _layer_inputs(
        self, tokens: Int[Array, "B N"], x: Float[Array, "B N E"], product: Product
    ) -> Float[Array, "B N L P"] | None:
        """What each layer adds for itself: of the token, and of its embedding."""
        config, size = self.config, self.config.layer_input_size
        if not size:
            return None
        shape = (*tokens.shape, config.num_layers, size)
        of_token = embed(self.layer_embed[...], tokens).reshape(shape)
        of_token = of_token * jnp.asarray(size**0.5, self.dtype)
        (projected,) = product(x, (self.layer_project[...],))
        projected = projected * jnp.asarray(config.hidden_size**-0.5, self.dtype)
        projected = self._norm(projected.reshape(shape), self.layer_project_norm[...])
        return _added(projected, of_token) * jnp.asarray(2**-0.5, self.dtype)

    def _add_input(
        self,
        layer: Layer,
        x: Float[Array, "B N E"],
        own: Float[Array, "B N P"],
        product: Product,
    ) -> Float[Array, "B N E"]:
        (gate,) = product(x, (layer["input_gate"],))
        (out,) = product(gelu_gated(gate, own), (layer["input_project"],))
        return _added(x, self._norm(out, layer["input_norm"]))


def _added(x: Array, y: Array) -> Array:
    """`x + y`, where neither is a product that a compiler may fuse into the sum.

    It fuses differently for different numbers of nodes, so a token's last bits would
    depend on what is verified beside it.
    """
    x, y = jax.lax.optimization_barrier((x, y))
    return x + y
