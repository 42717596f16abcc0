"""Tiny block drafters, and the same arithmetic written again in torch."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jspec.cache import KVCache, empty_pages
from jspec.drafters.base import View
from jspec.drafters.block_config import BlockConfig
from jspec.models.base import Rope
from jspec.params import SamplingParams
from jspec.testing import Loop

VOCABULARY, WIDTH, LAYERS = 64, 32, 2
TEXTS = ([3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 32], [1, 2], list(range(20, 49)), [11])
LAYER_NAMES = {
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "sinks": "self_attn.attention_sink_bias",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
NAMES = {
    "fc": "fc.weight",
    "context_norm": "hidden_norm.weight",
    "norm": "norm.weight",
    "embed": "embed_tokens.weight",
    "head": "lm_head.weight",
    "markov.before": "markov_head.markov_w1.weight",
    "markov.after": "markov_head.markov_w2.weight",
    "markov.gate": "markov_head.gate_proj.weight",
    "markov.gate_bias": "markov_head.gate_proj.bias",
    "markov.joint": "markov_head.joint_proj.weight",
    "markov.joint_bias": "markov_head.joint_proj.bias",
    "confidence.weight": "confidence_head.proj.weight",
    "confidence.bias": "confidence_head.proj.bias",
}
AS_THEY_ARE = ("embed", "markov.before")
"""Matrices that are looked up, not multiplied with."""


def block_config(**changes):
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 40,
        "num_layers": LAYERS,
        "num_heads": 4,
        "num_key_heads": 2,
        "head_dim": 8,
        "norm_eps": 1e-5,
        "rope": Rope(theta=100.0),
        "block_size": 5,
        "mask_token_id": 60,
        "taps": (0, 2),
        "target_hidden_size": WIDTH,
    }
    return BlockConfig(**fields | changes)


def random_weights(shapes, seed=0):
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        if name == "ids":
            chosen = rng.permutation(VOCABULARY)[: shape[0]]
            weights[name] = jnp.asarray(np.sort(chosen), jnp.int32)
            continue
        value = rng.standard_normal(shape).astype(np.float32)
        if name.endswith("norm"):
            value = 1 + 0.1 * value
        elif len(shape) == 2 and name not in AS_THEY_ARE:
            value *= shape[0] ** -0.5
        weights[name] = jnp.asarray(value)
    return weights


def torch_names(weights):
    """The weights under the names, and in the shapes, of published checkpoints."""
    import torch

    found = {}
    for name, value in weights.items():
        array = np.array(value)
        if name == "ids":
            found["d2t"] = torch.tensor(
                array - np.arange(len(array)), dtype=torch.int64
            )
            continue
        if name == "mask_embedding":
            found[name] = torch.tensor(array)
            continue
        if name.startswith("layers."):
            _, layer, short = name.split(".")
            there = f"layers.{layer}.{LAYER_NAMES[short]}"
        else:
            there = NAMES[name]
        if array.ndim == 2 and name not in AS_THEY_ARE:
            array = np.ascontiguousarray(array.T)
        found[there] = torch.tensor(array)
    return found


def torch_hidden(w, config, taps, ids, embedding, *, reach=None):
    """The block's final hidden states, one text, attention in the open."""
    import torch
    import torch.nn.functional as F

    def rms(x, weight):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_eps)
        return x * scale * weight

    def turned(x, positions):
        half = config.head_dim // 2
        inverse = config.rope.theta ** (-torch.arange(half) / half)
        angles = positions[:, None] * inverse
        cosine = torch.cat([angles.cos()] * 2, -1)[:, None]
        sine = torch.cat([angles.sin()] * 2, -1)[:, None]
        swapped = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cosine + swapped * sine

    past, rows = len(taps), len(ids)
    start = past
    context = rms(taps @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = embedding[ids]
    if config.mask_embedding:
        x[1:] = w["mask_embedding"]
    x = x * config.embedding_scale
    where = torch.cat([torch.arange(past), start + torch.arange(rows)])
    for l in range(config.num_layers):

        def of(name, l=l):
            return w.get(f"layers.{l}.{name}")

        y = rms(x, of("input_layernorm.weight"))
        both = torch.cat([context, y])

        def heads(rows, name, of=of):
            weight = of(f"self_attn.{name}_proj.weight")
            out = F.linear(rows, weight, of(f"self_attn.{name}_proj.bias"))
            return out.view(len(rows), -1, config.head_dim)

        q = turned(rms(heads(y, "q"), of("self_attn.q_norm.weight")), where[past:])
        k = turned(rms(heads(both, "k"), of("self_attn.k_norm.weight")), where)
        v = heads(both, "v") * config.value_scale
        group = config.num_heads // config.num_key_heads
        k, v = (a.repeat_interleave(group, 1) for a in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        apart = where[past:, None] - where[None]
        seen = torch.ones_like(apart, dtype=torch.bool)
        if config.causal and config.causal[l]:
            seen &= apart >= 0
        if config.windows and config.windows[l]:
            seen &= apart.abs() < config.windows[l]
        if reach is not None:
            seen &= where[None] >= start - reach
        scores = scores.masked_fill(~seen, -math.inf)
        if config.sinks:
            sink = of("self_attn.attention_sink_bias")[:, None, None]
            scores = torch.cat([scores, sink.expand(-1, rows, 1)], -1)
            law = scores.softmax(-1)[..., :-1]
        else:
            law = scores.softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", law, v).reshape(rows, -1)
        x = x + F.linear(
            mixed, of("self_attn.o_proj.weight"), of("self_attn.o_proj.bias")
        )
        y = rms(x, of("post_attention_layernorm.weight"))
        gate = F.silu(F.linear(y, of("mlp.gate_proj.weight")))
        up = F.linear(y, of("mlp.up_proj.weight"))
        x = x + F.linear(gate * up, of("mlp.down_proj.weight"))
    return rms(x, w["norm.weight"])


def torch_logits(w, config, base):
    """Scaled, capped, over the target's vocabulary."""
    import torch

    base = base * config.logit_scale
    if config.logit_cap is not None:
        base = torch.tanh(base / config.logit_cap) * config.logit_cap
    if "d2t" not in w:
        return base
    wide = torch.full((*base.shape[:-1], VOCABULARY), -math.inf)
    wide[..., torch.arange(base.shape[-1]) + w["d2t"]] = base
    return wide


def prepared(target, drafter, weights, texts=TEXTS, params=None):
    """A loop whose rows have read the texts but for their last tokens, and a view."""
    loop = Loop(target, drafter, weights, rows=len(texts), room=64, page_size=4)
    params = params or SamplingParams(temperature=0.0, max_tokens=16)
    for row, text in enumerate(texts):
        loop.admit(row, text, params)
    rows = loop.state.rows
    cache = KVCache(pages=loop.state.pages, table=rows.table, length=rows.length)
    return loop, View(target=target, cache=cache, sampling=rows.sampling)


def tapped(target, text, taps):
    """The target's residual stream at every position of a text, by another way."""
    config = target.config
    from jspec.cache import CacheLayout

    layout = CacheLayout(rows=1, room=len(text), pages=1, page_size=len(text))
    cache = KVCache(
        pages=empty_pages(
            layout,
            layers=config.num_layers,
            key_heads=config.num_key_heads,
            head_dim=config.head_dim,
            dtype=jnp.float32,
        ),
        table=jnp.zeros((1, 1), jnp.int32),
        length=jnp.zeros(1, jnp.int32),
    )
    ids = jnp.asarray([text], jnp.int32)
    parent = jnp.arange(len(text), dtype=jnp.int32)[None] - 1
    seen = target(ids, parent, cache, feature_layers=taps, logits=False)
    return np.array(seen.features[0])


def keys(batch):
    return jax.random.split(jax.random.key(7, impl="threefry2x32"), batch)
