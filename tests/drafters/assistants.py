"""Gemma 4 assistants for tests: transformers' own, tiny, and jspec's of them."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from converters.drafters.frozen_kv_mtp import plan
from converters.sources import Tensor
from jspec.drafters.frozen_kv_mtp import FrozenKVMTP
from jspec.drafters.frozen_layers import AttentionKind, FrozenKVConfig
from jspec.models import Rope, build
from jspec.models.gemma_config import GemmaConfig, LayerType

TEXT = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "sliding_window": 8,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
ORDERED = {
    "use_ordered_embeddings": True,
    "num_centroids": 16,
    "centroid_intermediate_top_k": 5,
}


def assistant(text=None, seed=0, **changes):
    """transformers' assistant with random weights, all of which count."""
    import torch
    from transformers import (
        Gemma4AssistantConfig,
        Gemma4AssistantForCausalLM,
        Gemma4TextConfig,
    )

    torch.manual_seed(seed)
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**(TEXT | (text or {}))),
        backbone_hidden_size=32,
        **changes,
    )
    model = Gemma4AssistantForCausalLM(config).eval()
    for name, a in [*model.named_parameters(), *model.named_buffers()]:
        with torch.no_grad():
            if name.endswith("token_ordering"):
                a.copy_(torch.randperm(len(a)))
            elif name.endswith("norm.weight") or name.endswith("layer_scalar"):
                a.uniform_(0.6, 1.4)
            elif a.ndim == 2:
                a.normal_(std=1.5 * a.shape[1] ** -0.5)
    return model


def tensors_of(model):
    """A checkpoint's arrays by name; the tied head is there once."""
    return {
        name: np.ascontiguousarray(a.detach().numpy())
        for name, a in model.state_dict().items()
        if name != "lm_head.weight" and "rotary_emb" not in name
    }


def converted(model, **options):
    """The drafter that a transformers' assistant becomes, and its weights."""
    arrays = tensors_of(model)
    files = {
        name: Tensor(shape=a.shape, dtype=a.dtype, stored="F32", read=lambda a=a: a)
        for name, a in arrays.items()
    }
    raw = model.config.to_dict()
    made = plan(raw, files)
    weights = {
        weight: jnp.asarray(change(arrays[name], None))
        for weight, (name, change) in made.lines.items()
    }
    return FrozenKVMTP.configure(made.config, **options), weights


CONFIG = FrozenKVConfig(
    vocab_size=64,
    backbone_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    norm_eps=1e-6,
    kinds=(
        AttentionKind(name="sliding", head_dim=16, rope=Rope(), window=8),
        AttentionKind(
            name="full",
            head_dim=32,
            rope=Rope(kind="proportional", theta=1e6, fraction=0.25),
        ),
    ),
    layer_kinds=("sliding", "full"),
)


def target_config(**changes):
    """A Gemma 4 of 64 tokens whose last two layers read the keys of the first two."""
    fields = {
        "family": "gemma4",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "kinds": ("sliding", "full", "sliding", "full"),
        "full": LayerType(key_heads=1, head_dim=32, rope=CONFIG.kind("full").rope),
        "sliding": LayerType(key_heads=2, head_dim=16, rope=Rope()),
        "sliding_window": 8,
        "score_scale": 1.0,
        "norm_eps": 1e-6,
        "max_position": 4096,
        "unit_offset": False,
        "value_norm": True,
        "shared_layers": 2,
        "layer_scalar": True,
    }
    return GemmaConfig(**(fields | changes))


def weights_of(shapes, seed=0, dtype=jnp.float32):
    """Random weights; norms and scalars around one, and an order of all tokens."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes.items():
        value = rng.standard_normal(shape)
        if name == "ids":
            weights[name] = jnp.asarray(rng.permutation(shape[0]), jnp.int32)
            continue
        if name.endswith(("norm", "scalar")):
            value = 1 + 0.2 * value
        elif len(shape) == 2:
            value *= 1.5 * shape[-1 if name == "embed" else 0] ** -0.5
        weights[name] = jnp.asarray(value, dtype)
    return weights


def random_pair(dtype=jnp.float32, changes=None, **options):
    """A random assistant, its weights and a random target."""
    config = target_config(layer_input_size=4, layer_input_rows=64)
    target = build(config, weights_of(config.weight_shapes(), 1, dtype))
    ours = dataclasses.replace(CONFIG, **(changes or {}))
    drafter = FrozenKVMTP(config=ours, **options).fit(target)
    return drafter, weights_of(drafter.weight_shapes(), 2, dtype), target


MARKERS = (60, 61, 62, 63)


def knowing_pair(unknown=(), **options):
    """A target, and an assistant that is a copy of its last two layers.

    What follows a token is a function of the token and of the marker that the text
    begins with: only markers have values, all keys count alike, and a norm behind
    attention forgets how many there are. So a draft that reads the right keys, and no
    others, is right, however deep. Tokens of `unknown` are never drafted.
    """
    config = target_config(sliding_window=2048, norm_eps=1e-12, tie_embeddings=False)
    w = weights_of(config.weight_shapes(), 7)
    mark = jnp.arange(64)[:, None] >= MARKERS[0]
    w["embed"] = jnp.where(mark == (jnp.arange(32) >= 24)[None], 2 * w["embed"], 0)
    w["head"] = w["head"].at[:, MARKERS[0] :].set(0)
    for l in range(4):
        for name in ("o", "down") if l < 2 else ():
            w[f"layers.{l}.{name}"] = jnp.zeros_like(w[f"layers.{l}.{name}"])
        if l < 2:
            w[f"layers.{l}.v"] = w[f"layers.{l}.v"].at[:24].set(0)
            w[f"layers.{l}.scalar"] = jnp.ones(1)
        else:
            w[f"layers.{l}.q_norm"] = jnp.zeros_like(w[f"layers.{l}.q_norm"])
    target = build(config, w)
    sliding, full = CONFIG.kinds
    ours = dataclasses.replace(
        CONFIG,
        norm_eps=config.norm_eps,
        kinds=(dataclasses.replace(sliding, window=2048), full),
    )
    drafter = FrozenKVMTP(config=ours, **options).fit(target)
    shapes = drafter.weight_shapes()
    own = weights_of(shapes, 4)
    own["pre_projection"] = jnp.concatenate([jnp.eye(32), jnp.zeros((32, 32))])
    own["embed"] = w["head"].T.at[jnp.array(unknown, int)].set(0)
    own["norm"] = w["norm"]
    for l in range(2):
        for name in (n for n in shapes if n.startswith(f"layers.{l}.")):
            own[name] = w[name.replace(f"layers.{l}.", f"layers.{l + 2}.")]
    return drafter, own, target
