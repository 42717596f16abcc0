"""Tiny Gemmas, each with an option or two; and what transformers makes of them."""

import functools

import jax.numpy as jnp
import numpy as np

from jspec import models
from jspec.models.base import Rope
from jspec.models.gemma_config import GemmaConfig, LayerType

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "sliding_window": 7,
}
MIXED = ["sliding_attention", "full_attention"] * 2
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
FOURTH = {
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "layer_types": MIXED,
}
EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 12,
}
CASES = {
    "gemma2": ("gemma2", {"attn_logit_softcapping": 2.0}),
    "gemma2-bare": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": ("gemma3_text", {"layer_types": MIXED}),
    "gemma3-linear": (
        "gemma3_text",
        {"rope_parameters": LINEAR, "layer_types": MIXED, "query_pre_attn_scalar": 20},
    ),
    "gemma3-biases-cap-head": (
        "gemma3_text",
        {
            "layer_types": MIXED,
            "attention_bias": True,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3-pattern": ("gemma3_text", {"sliding_window_pattern": 3}),
    "gemma4": ("gemma4_text", FOURTH),
    "gemma4-keys-are-values": (
        "gemma4_text",
        {**FOURTH, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma4-shared": (
        "gemma4_text",
        {
            **FOURTH,
            "num_hidden_layers": 6,
            "layer_types": [*MIXED, *MIXED[:2]],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4-inputs": (
        "gemma4_text",
        {
            **FOURTH,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 61,
            "num_kv_shared_layers": 2,
        },
    ),
    "gemma4-experts": ("gemma4_text", {**FOURTH, **EXPERTS}),
    "gemma4-everything": (
        "gemma4_text",
        {
            **FOURTH,
            **EXPERTS,
            "num_hidden_layers": 6,
            "layer_types": [*MIXED, *MIXED[:2]],
            "attention_bias": True,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 70,
            "final_logit_softcapping": 3.0,
        },
    ),
}


def theirs(case, **changes):
    """The torch model of a case, with weights that are not what they begin as."""
    import torch
    import transformers

    kind, options = CASES[case]
    settings = SIZES | options | changes
    config = transformers.AutoConfig.for_model(kind, **settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        named = [*model.named_parameters()]
        named += [(n, b) for n, b in model.named_buffers() if "layer_scalar" in n]
        for name, value in named:
            if value.ndim == 1:
                middle = 0.0 if name.endswith("bias") else 1.0
                middle -= kind != "gemma4_text" and "norm" in name
                value.copy_(middle + 0.2 * torch.randn_like(value))
            else:
                value.mul_(4.0 if "embed" in name else 12.0)
    return model


@functools.cache
def pair(case):
    """Both models of a case."""
    from converters.configs import from_hugging_face
    from converters.families import HUGGING_FACE
    from converters.tables import lines

    model = theirs(case)
    family = CASES[case][0].removesuffix("_text")
    config = from_hugging_face(model.config.to_dict(), family)
    arrays = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    weights = {
        name: jnp.asarray(change(arrays[source], config))
        for name, (source, change) in lines(HUGGING_FACE[family], config).items()
    }
    return model, models.build(config, weights)


@functools.cache
def recorded(case):
    """Texts, transformers' logits at every position, and its stream at every layer."""
    import torch

    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 64))
    with torch.no_grad():
        seen = pair(case)[0](
            torch.tensor(ids), use_cache=False, output_hidden_states=True
        )
    states = [state.numpy() for state in seen.hidden_states]
    return ids.astype(np.int32), seen.logits.numpy(), states


def gemma4_config(**changes):
    """A tiny Gemma 4 with shared layers, two head widths and an input a layer."""
    settings = {
        "family": "gemma4",
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_heads": 4,
        "kinds": ("sliding", "full") * 3,
        "full": LayerType(
            key_heads=1,
            head_dim=32,
            rope=Rope(kind="proportional", fraction=0.25, theta=1e6),
        ),
        "sliding": LayerType(key_heads=2, head_dim=16, rope=Rope()),
        "sliding_window": 16,
        "score_scale": 1.0,
        "norm_eps": 1e-5,
        "max_position": 512,
        "unit_offset": False,
        "value_norm": True,
        "keys_are_values": True,
        "shared_layers": 2,
        "double_wide": True,
        "final_cap": 30.0,
        "layer_input_size": 8,
        "layer_input_rows": 61,
        "layer_scalar": True,
    }
    return GemmaConfig(**settings | changes)


def tiny_gemma4(seed=0, dtype=jnp.float32, **changes):
    """Such a model, with random weights; `changes` are fields of `GemmaConfig`."""
    config = gemma4_config(**changes)
    return models.build(config, models.random_weights(config, seed, dtype))


def tiny_gemma3(seed=0, dtype=jnp.float32, **changes):
    """A tiny Gemma 3."""
    keys = {"key_heads": 2, "head_dim": 16}
    settings = {
        "family": "gemma3",
        "kinds": ("sliding", "sliding", "full"),
        "full": LayerType(rope=Rope(kind="linear", factor=8.0, theta=1e6), **keys),
        "sliding": LayerType(rope=Rope(), **keys),
        "score_scale": 16**-0.5,
        "unit_offset": True,
        "value_norm": False,
        "keys_are_values": False,
        "shared_layers": 0,
        "double_wide": False,
        "final_cap": None,
        "layer_input_size": 0,
        "layer_input_rows": 0,
        "layer_scalar": False,
    }
    return tiny_gemma4(seed, dtype, **settings | changes)
