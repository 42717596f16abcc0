"""A language model read in the open: whole texts, and masks behind their anchors."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.layers import Attend, LayerSizes, draft_layer
from jspec.models.base import ModelConfig
from jspec.models.layers import embed, linear, norm
from jspec.training.attention import Seen, causal, mix, near
from jspec.training.lessons import Words
from jspec.training.recipe import Frame

__all__ = ["fill_in", "heads", "read", "small"]


def small(frame: Frame, part: float, layers: int) -> ModelConfig:
    """A narrow model of the Llama family with the target's vocabulary and rotation."""
    width = frame.share(part, 16)
    return ModelConfig(
        family="llama",
        vocab_size=frame.target.vocab_size,
        hidden_size=width,
        intermediate_size=3 * width,
        num_layers=layers,
        num_heads=max(2, width // 32),
        num_key_heads=max(1, width // 64),
        head_dim=32,
        norm_eps=frame.target.norm_eps,
        rope=frame.rope,
        max_position=frame.target.max_position,
        tie_embeddings=True,
        eos_token_ids=frame.target.eos_token_ids,
        bos_token_id=frame.target.bos_token_id,
        token_count=frame.target.token_count,
    )


def heads(
    config: ModelConfig,
    weights: Mapping[str, Array],
    hidden: Float[Array, "B N E"],
    words: Words | None,
) -> Float[Array, "B N V"]:
    """Logits over the words, or over all tokens."""
    if config.tie_embeddings:
        table = weights["embed"] if words is None else weights["embed"][words.ids]
        logits = linear(hidden, table, transposed=True, out=jnp.float32)
    else:
        table = weights["head"] if words is None else weights["head"][:, words.ids]
        logits = linear(hidden, table, out=jnp.float32)
    if words is None and config.tokens < config.vocab_size:
        real = jnp.arange(config.vocab_size) < config.tokens
        logits = jnp.where(real[None, None], logits, -jnp.inf)
    return logits


def _forward(
    config: ModelConfig,
    weights: Mapping[str, Array],
    tokens: Int[Array, "B N"],
    position: Int[Array, "B N"],
    attend: Attend,
) -> Float[Array, "B N E"]:
    heads = config.num_heads, config.num_key_heads, config.head_dim
    sizes = LayerSizes(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=heads[0],
        num_key_heads=heads[1],
        head_dim=heads[2],
        norm_eps=config.norm_eps,
        rope=config.rope,
        qk_norm=config.qk_norm,
    )
    x = embed(weights["embed"], tokens)
    for l in range(config.num_layers):
        y = norm(x, weights[f"layers.{l}.attention_norm"], config.norm_eps)
        x = draft_layer(sizes, weights, l, y, x, position, attend)
    return norm(x, weights["norm"], config.norm_eps)


def read(
    config: ModelConfig,
    weights: Mapping[str, Array],
    tokens: Int[Array, "B T"],
    keys: list[tuple[Array, Array]] | None = None,
) -> Float[Array, "B T E"]:
    """Final hidden states at every position of whole texts.

    Args:
      config: of the model.
      weights: by dotted name.
      tokens: the texts.
      keys: is given every layer's keys and values.
    """
    b, t = tokens.shape
    slots = jnp.broadcast_to(jnp.arange(t)[None], (b, t))

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        if keys is not None:
            keys.append((k, v))
        seen = causal(slots, jnp.array([0]), t, own=True, window=config.window(layer))
        return mix(q[:, :, None], (Seen(k=k, v=v, seen=seen),))[:, :, 0]

    return _forward(config, weights, tokens, slots, attend)


def fill_in(
    config: ModelConfig,
    weights: Mapping[str, Array],
    keys: list[tuple[Array, Array]],
    anchors: Int[Array, "B A"],
    mask_token_id: int,
    masks: int,
) -> Float[Array, "B A M E"]:
    """Final hidden states of masks behind each anchor.

    Args:
      config: of the model.
      weights: by dotted name.
      keys: what `read` gave of the texts.
      anchors: positions of the anchors.
      mask_token_id: what stands for a token not known yet.
      masks: how many.
    """
    b, a = anchors.shape
    depth = jnp.arange(1, masks + 1)
    t = keys[0][0].shape[1]

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        window = config.window(layer)
        q, k, v = (x.reshape(b, a, masks, *x.shape[2:]) for x in (q, k, v))
        kinds = (
            Seen(
                k=keys[layer][0],
                v=keys[layer][1],
                seen=causal(anchors, depth, t, own=True, window=window),
            ),
            Seen(k=k, v=v, seen=near(depth, depth, window=window)),
        )
        return mix(q, kinds).reshape(b, a * masks, *q.shape[3:])

    position = (anchors[:, :, None] + depth[None, None]).reshape(b, a * masks)
    tokens = jnp.full((b, a * masks), mask_token_id, jnp.int32)
    hidden = _forward(config, weights, tokens, position, attend)
    return hidden.reshape(b, a, masks, -1)
