"""Hugging Face's config.json to `ModelConfig`, in every spelling, and back.

A key that is absent has the default that transformers gives it. A key that would
change the arithmetic in a way we do not compute is refused by name; one that no
reader of these families knows is reported, not refused.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jspec.models.base import ModelConfig, Rope

__all__ = [
    "IDLE",
    "boundary_ids",
    "check_said",
    "from_hugging_face",
    "known_count",
    "read_rope",
    "short",
    "to_hugging_face",
    "unread_keys",
    "words",
    "write_rope",
]


def words(text: str) -> frozenset[str]:
    """The words of a text, such as the keys that one reads."""
    return frozenset(text.split())


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "mistral": {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2": {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
"""Where transformers' defaults differ by family; the rest are in the code below."""

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (None, 1, 1.0),
    "attention_multiplier": (None,),
    "attn_logit_softcapping": (None, 0),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1, 1.0),
    "final_logit_softcapping": (None, 0),
    "is_decoder": (None, True, False),
    "is_encoder_decoder": (None, False),
    "logit_scale": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "logit_scaling": (None, 1, 1.0),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": (None, 1, 1.0),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "num_nextn_predict_layers": (None, 0),
    "quantization_config": (None,),
    "rope_interleaved": (None, False),
    "attn_output_gate": (None, False),
    "add_cross_attention": (None, False),
    "no_rope_layers": (None, []),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
}
"""Keys that change the arithmetic, and the values under which they do not."""

READ = words(
    """architectures model_type vocab_size hidden_size intermediate_size
    num_hidden_layers num_attention_heads num_key_value_heads head_dim rms_norm_eps
    rope_theta rope_scaling rope_parameters max_position_embeddings
    original_max_position_embeddings tie_word_embeddings attention_bias mlp_bias
    sliding_window use_sliding_window max_window_layers layer_types eos_token_id
    bos_token_id pad_token_id torch_dtype dtype"""
)
IDLE = words(
    """attention_dropout auto_map initializer_range pretraining_tp transformers_version
    use_cache use_return_dict _name_or_path _attn_implementation
    _attn_implementation_autoset output_attentions output_hidden_states return_dict
    output_scores return_dict_in_generate torchscript use_bfloat16 tf_legacy_loss
    pruned_heads chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id
    finetuning_task
    id2label label2id num_labels problem_type tokenizer_class prefix
    sep_token_id task_specific_params tie_encoder_decoder hidden_dropout unk_token_id
    temperature top_k top_p typical_p do_sample max_length min_length num_beams
    num_beam_groups num_return_sequences early_stopping length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size repetition_penalty
    diversity_penalty
    bad_words_ids begin_suppress_tokens suppress_tokens exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id remove_invalid_values
    transformers.js_config rope_type resid_pdrop embd_pdrop mlp_dropout
    unsloth_version unsloth_fixed is_llama_config dropout"""
)
"""Keys that say nothing about what the model computes."""

ROPE_KEYS = words(
    """rope_type type rope_theta factor low_freq_factor high_freq_factor
    original_max_position_embeddings attention_factor beta_fast beta_slow mscale
    mscale_all_dim truncate finetuned partial_rotary_factor"""
)


def unread_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys that nothing here knows: worth a look, so they are reported."""
    return sorted(set(config) - READ - IDLE - set(HARMLESS))


def from_hugging_face(
    config: Mapping[str, Any],
    family: str,
    *,
    generation: Mapping[str, Any] | None = None,
    token_count: int | None = None,
) -> ModelConfig:
    """Reads config.json.

    Args:
      config: as parsed.
      family: which of the supported families it is.
      generation: generation_config.json, whose list of ends is the fuller one.
      token_count: how many tokens the tokenizer has, where that is known.

    Raises:
      ValueError: a key is missing, or says something we do not compute; it is named.
    """
    for key, allowed in HARMLESS.items():
        if key in config and config[key] not in allowed:
            raise ValueError(
                f"config.json: {key} = {short(config[key])} changes what the model "
                "computes in a way that is not supported"
            )
    defaults = DEFAULTS[family]

    def value(key: str, otherwise: Any = None) -> Any:
        return config.get(key, defaults.get(key, otherwise))

    def size(key: str) -> int:
        number = config.get(key, defaults.get(key))
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(
                f"config.json: {key} is {number!r}, not a number"
                if key in config
                else f"config.json lacks {key}"
            )
        return number

    heads = size("num_attention_heads")
    layers = size("num_hidden_layers")
    bias = family in ("llama", "qwen3") and bool(value("attention_bias", False))
    vocab_size = size("vocab_size")
    eos, bos, pad = boundary_ids({**defaults, **config}, generation or {})
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=size("hidden_size"),
        intermediate_size=size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_key_heads=_or(value("num_key_value_heads"), heads),
        head_dim=_or(value("head_dim"), size("hidden_size") // heads),
        norm_eps=float(value("rms_norm_eps", 1e-6)),
        rope=read_rope(config, size("max_position_embeddings")),
        max_position=size("max_position_embeddings"),
        tie_embeddings=bool(value("tie_word_embeddings", False)),
        attention_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=family == "llama" and bool(value("mlp_bias", False)),
        qk_norm=family == "qwen3",
        windows=_windows(config, family, layers, value),
        eos_token_ids=eos,
        bos_token_id=bos,
        pad_token_id=pad,
        token_count=known_count(token_count, vocab_size),
    )


def known_count(token_count: int | None, vocab_size: int) -> int | None:
    """How many tokens there are, if that says more than the embedding does."""
    return token_count if token_count and token_count < vocab_size else None


def boundary_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[tuple[int, ...], int | None, int | None]:
    """Ids that end a text, the one that begins it, the one that pads.

    Args:
      config: config.json.
      generation: generation_config.json, which is the fuller one where it says any.
    """

    def token(key: str) -> Any:
        given = generation.get(key)
        return config.get(key) if given is None else given

    eos = _ids(token("eos_token_id"), "eos_token_id")
    pad = _pad(token("pad_token_id"))
    return eos, _single(token("bos_token_id"), "bos_token_id"), pad


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def short(value: Any) -> str:
    """A value as a message can name it."""
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _ids(value: Any, key: str) -> tuple[int, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, Sequence) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise ValueError(f"config.json: {key} = {short(value)} is not a token id")
    return tuple(dict.fromkeys(values))


def _single(value: Any, key: str) -> int | None:
    ids = _ids(value, key)
    return ids[0] if ids else None


def _pad(value: Any) -> int | None:
    pad = _single(value, "pad_token_id")
    return None if pad is None or pad < 0 else pad


def read_rope(config: Mapping[str, Any], max_position: int) -> Rope:
    """`rope_theta` with `rope_scaling`, or `rope_parameters`; `type` is old for it."""
    where = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(where) or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"config.json: {where} = {short(given)} is not an object")
    nested = [key for key, entry in given.items() if isinstance(entry, Mapping)]
    if nested:
        raise ValueError(
            f"config.json: {where} has settings of its own for {nested[0]!r}; one "
            "rope for all layers is what is supported"
        )
    unknown = sorted(set(given) - ROPE_KEYS)
    if unknown:
        raise ValueError(f"config.json: {where} has the unknown key {unknown[0]!r}")
    kind = given.get("rope_type", given.get("type")) or "default"
    fraction = given.get("partial_rotary_factor")
    if kind != "proportional" and fraction not in (None, 1, 1.0):
        raise ValueError(
            f"config.json: {where} has partial_rotary_factor = "
            f"{fraction}, which is not supported"
        )
    theta = given.get("rope_theta", config.get("rope_theta"))
    original = config.get(
        "original_max_position_embeddings",
        given.get("original_max_position_embeddings"),
    )
    original = max_position if original is None else original

    def number(key: str, *, needed: bool = False) -> float | None:
        entry = given.get(key)
        if entry is None:
            if needed:
                raise ValueError(f"config.json: {where} of type {kind!r} lacks {key}")
            return None
        if isinstance(entry, bool) or not isinstance(entry, int | float):
            raise ValueError(f"config.json: {key} in {where} is {entry!r}, no number")
        return float(entry)

    options: dict[str, Any] = {}
    if kind == "linear":
        options["factor"] = number("factor", needed=True)
    elif kind == "proportional":
        factor, fraction = number("factor"), number("partial_rotary_factor")
        options["factor"] = 1.0 if factor is None else factor
        options["fraction"] = 1.0 if fraction is None else fraction
    elif kind == "llama3":
        options = {
            key: number(key, needed=True)
            for key in ("factor", "low_freq_factor", "high_freq_factor")
        }
        options["original_max_position"] = int(original)
    elif kind == "yarn":
        factor = number("factor")
        options = {
            "factor": max_position / original if factor is None else factor,
            "original_max_position": int(original),
            "attention_factor": number("attention_factor"),
            "beta_fast": number("beta_fast") or 32.0,
            "beta_slow": number("beta_slow") or 1.0,
            "mscale": number("mscale"),
            "mscale_all_dim": number("mscale_all_dim"),
            "truncate": bool(given.get("truncate", True)),
        }
    elif kind != "default":
        raise ValueError(
            f"config.json: rope type {kind!r} in {where} is not supported; "
            "default, linear, llama3, yarn and proportional are"
        )
    return Rope(kind=kind, theta=10_000.0 if theta is None else float(theta), **options)


def _windows(
    config: Mapping[str, Any], family: str, layers: int, value: Any
) -> tuple[int | None, ...]:
    """Which layers slide, exactly as transformers decides it."""
    types = config.get("layer_types")
    known = ("full_attention", "sliding_attention")
    if types is not None:
        for kind in types:
            if kind not in known:
                raise ValueError(f"config.json: layer type {kind!r} is not supported")
        if len(types) != layers:
            raise ValueError(
                f"config.json: layer_types names {len(types)} layers of {layers}"
            )
    window = value("sliding_window")
    if family == "llama":
        sliding = types is not None and "sliding_attention" in types
        if window is not None or sliding:
            raise ValueError(
                f"config.json: sliding_window = {window} of a Llama is not supported: "
                "transformers does not read it"
            )
        return ()
    if family == "mistral":
        if types is not None and len(set(types)) > 1:
            raise ValueError(
                "config.json: layer_types of a Mistral mixes kinds of attention, "
                "which is not supported: transformers does not read it"
            )
        return () if window is None else (window,) * layers
    if not config.get("use_sliding_window", False):
        window = None
    if types is None:
        first = value("max_window_layers")
        types = [known[window is not None and l >= first] for l in range(layers)]
    if "sliding_attention" not in types:
        return ()
    if window is None:
        raise ValueError(
            "config.json: layer_types has sliding layers, but use_sliding_window and "
            "sliding_window give them no window"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def to_hugging_face(config: Any, dtype: str) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 read as the same model.

    Raises:
      ValueError: transformers' model of this family cannot say it.
    """
    family, layers = config.family, config.num_layers
    eos = list(config.eos_token_ids)
    written: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_scaling(config.rope),
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": config.pad_token_id,
        "torch_dtype": dtype,
    }
    if family == "llama":
        written["attention_bias"] = config.attention_bias
        written["mlp_bias"] = config.mlp_bias
    elif family == "mistral":
        written["sliding_window"] = config.windows[0] if config.windows else None
    else:
        sliding = {window for window in config.windows if window is not None}
        written["use_sliding_window"] = bool(sliding)
        written["sliding_window"] = next(iter(sliding), None)
        written["max_window_layers"] = layers
        written["layer_types"] = [
            "sliding_attention" if config.window(l) else "full_attention"
            for l in range(layers)
        ]
        if family == "qwen3":
            written["attention_bias"] = config.attention_bias
    check_said(config, from_hugging_face(written, family), family)
    return written


def check_said(config: Any, again: Any, family: str) -> None:
    """Refuses what a config.json that was written does not give back.

    Args:
      config: what was to be said, a dataclass.
      again: what the file says.
      family: of the file.
    """
    for field in dataclasses.fields(config):
        ours, theirs = getattr(config, field.name), getattr(again, field.name)
        if ours != theirs and field.name != "token_count":
            raise ValueError(
                f"{field.name} = {ours} of this model cannot be said in a "
                f"config.json of the family {family}"
            )


def write_rope(rope: Rope) -> dict[str, Any]:
    """`rope_parameters` of one rope, as transformers 5 writes them."""
    base = {"rope_type": rope.kind, "rope_theta": rope.theta}
    return base | (_rope_scaling(rope) or {})


def _rope_scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "proportional":
        scaling["partial_rotary_factor"] = rope.fraction
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "yarn":
        scaling["beta_fast"] = rope.beta_fast
        scaling["beta_slow"] = rope.beta_slow
        scaling["truncate"] = rope.truncate
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(rope, key) is not None:
                scaling[key] = getattr(rope, key)
    return scaling
