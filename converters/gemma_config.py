"""Hugging Face's config.json to `GemmaConfig`, in every spelling, and back."""

from collections.abc import Mapping
from typing import Any

from converters.config import (
    IDLE,
    boundary_ids,
    check_said,
    known_count,
    read_rope,
    short,
    words,
    write_rope,
)
from jspec.models.base import Kind, Rope
from jspec.models.gemma_config import Experts, GemmaConfig, LayerType

__all__ = ["from_hugging_face", "to_hugging_face", "unread_keys"]

MODEL_TYPES = {"gemma2": "gemma2", "gemma3": "gemma3_text", "gemma4": "gemma4_text"}
ARCHITECTURES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
}
SHARED: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {
        **SHARED,
        "vocab_size": 256_000,
        "num_hidden_layers": 26,
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3": {
        **SHARED,
        "vocab_size": 262_208,
        "num_hidden_layers": 26,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "gemma4": {
        **SHARED,
        "vocab_size": 262_144,
        "num_hidden_layers": 30,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        "global_head_dim": 512,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
        },
    },
}
"""What transformers assumes where config.json is silent, as it often is."""

MAY_BE_NULL = words(
    """attn_logit_softcapping final_logit_softcapping eos_token_id bos_token_id
    pad_token_id num_global_key_value_heads"""
)
"""Keys of which null means none, and not what transformers assumes."""

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": (None, "gelu_pytorch_tanh"),
    "use_bidirectional_attention": (None, False, "vision"),
    "quantization_config": (None,),
    "is_encoder_decoder": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
}
"""Keys that change the arithmetic of a text, and the values under which they do not."""

READ = words(
    """architectures model_type vocab_size hidden_size intermediate_size
    num_hidden_layers num_attention_heads num_key_value_heads head_dim rms_norm_eps
    rope_theta rope_local_base_freq rope_scaling rope_parameters
    max_position_embeddings tie_word_embeddings attention_bias query_pre_attn_scalar
    sliding_window sliding_window_pattern _sliding_window_pattern layer_types
    eos_token_id bos_token_id pad_token_id torch_dtype dtype attn_logit_softcapping
    final_logit_softcapping global_head_dim num_global_key_value_heads
    attention_k_eq_v num_kv_shared_layers use_double_wide_mlp enable_moe_block
    num_experts top_k_experts moe_intermediate_size hidden_size_per_layer_input
    vocab_size_per_layer_input per_layer_config"""
)
MORE_IDLE = words("cache_implementation hidden_act")
"""`hidden_act` is the old name, and what Gemma 2 and later compute is the other's."""


def unread_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys that nothing here knows: worth a look, so they are reported."""
    return sorted(set(config) - READ - IDLE - MORE_IDLE - set(HARMLESS))


def from_hugging_face(
    config: Mapping[str, Any],
    family: str,
    *,
    generation: Mapping[str, Any] | None = None,
    token_count: int | None = None,
) -> GemmaConfig:
    """Reads the config.json of a text model, as `converters.config` does a Llama's.

    Raises:
      ValueError: a key says something we do not compute; it is named.
    """
    for key, allowed in HARMLESS.items():
        if key in config and config[key] not in allowed:
            raise ValueError(
                f"config.json: {key} = {short(config[key])} changes what the model "
                "computes in a way that is not supported"
            )
    values = {**DEFAULTS[family], **config}
    values |= {
        key: default
        for key, default in DEFAULTS[family].items()
        if values[key] is None and key not in MAY_BE_NULL
    }
    if family != "gemma2" and values.get("attn_logit_softcapping") is not None:
        raise ValueError(
            f"config.json: attn_logit_softcapping = {values['attn_logit_softcapping']} "
            f"of a {family} is not supported: transformers does not read it"
        )

    def size(key: str) -> int:
        number = values[key]
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"config.json: {key} is {number!r}, not a number")
        return number

    fourth = family == "gemma4"
    kinds = _kinds(values, family)
    keys_are_values = fourth and bool(values.get("attention_k_eq_v", False))
    full, sliding = _layer_types(values, family, kinds, keys_are_values)
    eos, bos, pad = boundary_ids(values, generation or {})
    per_layer = size("hidden_size_per_layer_input") if fourth else 0
    return GemmaConfig(
        family=family,
        vocab_size=size("vocab_size"),
        hidden_size=size("hidden_size"),
        intermediate_size=size("intermediate_size"),
        num_heads=size("num_attention_heads"),
        kinds=kinds,
        full=full,
        sliding=sliding,
        sliding_window=size("sliding_window"),
        score_scale=1.0 if fourth else float(values["query_pre_attn_scalar"]) ** -0.5,
        norm_eps=float(values["rms_norm_eps"]),
        max_position=size("max_position_embeddings"),
        tie_embeddings=bool(values["tie_word_embeddings"]),
        attention_bias=bool(values["attention_bias"]),
        unit_offset=not fourth,
        qk_norm=family != "gemma2",
        value_norm=fourth,
        keys_are_values=keys_are_values,
        shared_layers=size("num_kv_shared_layers") if fourth else 0,
        double_wide=fourth and bool(values.get("use_double_wide_mlp", False)),
        attention_cap=_cap(values, "attn_logit_softcapping"),
        final_cap=_cap(values, "final_logit_softcapping"),
        layer_input_size=per_layer,
        layer_input_rows=size("vocab_size_per_layer_input") if per_layer else 0,
        layer_scalar=fourth,
        experts=_experts(values) if fourth else None,
        eos_token_ids=eos,
        bos_token_id=bos,
        pad_token_id=pad,
        token_count=known_count(token_count, size("vocab_size")),
    )


def _cap(values: Mapping[str, Any], key: str) -> float | None:
    cap = values.get(key)
    return None if cap is None else float(cap)


def _experts(values: Mapping[str, Any]) -> Experts | None:
    if not values.get("enable_moe_block"):
        return None
    keys = ("num_experts", "top_k_experts", "moe_intermediate_size")
    for key in keys:
        if not isinstance(values.get(key), int):
            raise ValueError(f"config.json has enable_moe_block, and lacks {key}")
    count, top, width = (values[key] for key in keys)
    return Experts(count=count, top=top, width=width)


def _kinds(values: Mapping[str, Any], family: str) -> tuple[Kind, ...]:
    """Which layers slide; the last layer of a Gemma 4 never does."""
    layers, types = values["num_hidden_layers"], values.get("layer_types")
    pattern = values.get("sliding_window_pattern", 6)
    if family == "gemma2":
        pattern = 2
    if types is None:
        kinds: list[Kind] = [
            "sliding" if (l + 1) % pattern else "full" for l in range(layers)
        ]
    else:
        names: dict[str, Kind] = {
            "full_attention": "full",
            "sliding_attention": "sliding",
        }
        for name in types:
            if name not in names:
                raise ValueError(f"config.json: layer type {name!r} is not supported")
        if len(types) != layers:
            raise ValueError(
                f"config.json: layer_types names {len(types)} layers of {layers}"
            )
        kinds = [names[name] for name in types]
    if family == "gemma4" and kinds:
        kinds[-1] = "full"
    return tuple(kinds)


def _layer_types(
    values: Mapping[str, Any],
    family: str,
    kinds: tuple[Kind, ...],
    keys_are_values: bool,
) -> tuple[LayerType, LayerType]:
    """Keys of full and of sliding layers."""
    own = {"head_dim": values["head_dim"], "key_heads": values["num_key_value_heads"]}
    ropes = _ropes(values, family)
    full = own | (_global(values, kinds, keys_are_values) if family == "gemma4" else {})
    return (
        LayerType(rope=ropes["full"], **full),
        LayerType(rope=ropes["sliding"], **own),
    )


def _global(
    values: Mapping[str, Any], kinds: tuple[Kind, ...], keys_are_values: bool
) -> dict[str, int]:
    """What differs in full layers: by keys of their own, or layer by layer."""
    names = {"head_dim": "head_dim", "num_key_value_heads": "key_heads"}
    given = values.get("per_layer_config")
    if given is None:
        changed = {"head_dim": values["global_head_dim"]}
        heads = values.get("num_global_key_value_heads")
        if keys_are_values and heads is not None:
            changed["key_heads"] = heads
        return changed
    by_layer = {int(l): dict(entry) for l, entry in given.items() if entry}
    wanted = [l for l, kind in enumerate(kinds) if kind == "full"]
    changes = list(by_layer.values())
    if changes and (
        sorted(by_layer) != wanted
        or any(entry != changes[0] for entry in changes)
        or not changes[0].keys() <= names.keys()
    ):
        raise ValueError(
            f"config.json: per_layer_config = {short(given)} is not supported: it can "
            "change head_dim and num_key_value_heads of the full layers, of all alike"
        )
    return {names[key]: value for key, value in changes[0].items()} if changes else {}


def _ropes(values: Mapping[str, Any], family: str) -> dict[str, Rope]:
    """One rope of full and one of sliding layers, whichever way they are written."""
    longest = values["max_position_embeddings"]
    given = values.get("rope_parameters") or {}
    names = {"full": "full_attention", "sliding": "sliding_attention"}
    if family == "gemma2":
        rope = read_rope(values, longest)
        return dict.fromkeys(names, rope)
    if family == "gemma4" or given.keys() & set(names.values()):
        if values.get("rope_scaling"):
            raise ValueError(
                "config.json has rope_scaling beside rope_parameters of each kind of "
                "layer; one of them is what is supported"
            )
        defaults = {"full": values.get("rope_theta", 1e6), "sliding": 1e4}
        return {
            kind: read_rope(
                {
                    "rope_theta": defaults[kind],
                    "rope_parameters": given.get(name) or {},
                },
                longest,
            )
            for kind, name in names.items()
        }
    local = {"rope_theta": values["rope_local_base_freq"]}
    return {"full": read_rope(values, longest), "sliding": read_rope(local, longest)}


def to_hugging_face(config: GemmaConfig, dtype: str) -> dict[str, Any]:
    """A config.json that transformers 5 reads as the same text model.

    Raises:
      ValueError: transformers' model of this family cannot say it.
    """
    family, eos = config.family, list(config.eos_token_ids)
    names = {"full": "full_attention", "sliding": "sliding_attention"}
    written: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": MODEL_TYPES[family],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.sliding.key_heads,
        "head_dim": config.sliding.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "sliding_window": config.sliding_window,
        "layer_types": [names[kind] for kind in config.kinds],
        "final_logit_softcapping": config.final_cap,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": config.pad_token_id,
        "dtype": dtype,
    }
    if family == "gemma4":
        written |= _fourth(config)
    else:
        scalar = config.score_scale**-2
        whole = round(scalar)
        same = float(whole) ** -0.5 == config.score_scale
        written["query_pre_attn_scalar"] = whole if same else scalar
        written["attn_logit_softcapping"] = config.attention_cap
    if family == "gemma2":
        written["rope_parameters"] = write_rope(config.full.rope)
    else:
        written["rope_parameters"] = {
            "full_attention": write_rope(config.full.rope),
            "sliding_attention": write_rope(config.sliding.rope),
        }
    check_said(config, from_hugging_face(written, family), family)
    return written


def _fourth(config: GemmaConfig) -> dict[str, Any]:
    """What only Gemma 4 has to say."""
    full, experts = config.full, config.experts
    changed = {"head_dim": full.head_dim, "num_key_value_heads": full.key_heads}
    whole = [l for l, kind in enumerate(config.kinds) if kind == "full"]
    return {
        "per_layer_config": {str(l): dict(changed) for l in whole},
        "attention_k_eq_v": config.keys_are_values,
        "num_kv_shared_layers": config.shared_layers,
        "use_double_wide_mlp": config.double_wide,
        "hidden_size_per_layer_input": config.layer_input_size,
        "vocab_size_per_layer_input": config.layer_input_rows or config.vocab_size,
        "enable_moe_block": experts is not None,
        "num_experts": experts.count if experts else None,
        "top_k_experts": experts.top if experts else None,
        "moe_intermediate_size": experts.width if experts else None,
    }
