"""GGUF's metadata to `ModelConfig`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.sources import Gguf
from jspec.models.base import ModelConfig, Rope

__all__ = ["family_of", "from_gguf", "unread_keys"]

FAMILIES = ("llama", "qwen2", "qwen3")
READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "tensor_data_layout",
        "use_parallel_residual",
        "vocab_size",
    }
)
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": (),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Keys that change the arithmetic, and the values under which they do not."""


def family_of(source: Gguf) -> str:
    """The family that the file's architecture names.

    Raises:
      ValueError: it is none of those supported.
    """
    found = source.metadata.get("general.architecture")
    if found not in FAMILIES:
        raise ValueError(
            f"{source.file}: the GGUF architecture {found!r} is not supported; "
            f"{', '.join(FAMILIES)} are"
        )
    return str(found)


def unread_keys(source: Gguf) -> list[str]:
    """Keys of the architecture that nothing here knows."""
    prefix = f"{source.metadata['general.architecture']}."
    return sorted(
        key
        for key in source.metadata
        if key.startswith(prefix)
        and key.removeprefix(prefix) not in READ
        and key.removeprefix(prefix) not in HARMLESS
    )


def from_gguf(source: Gguf, *, token_count: int | None = None) -> ModelConfig:
    """Reads the configuration out of metadata and the names of the tensors.

    Raises:
      ValueError: a key is missing, or says something we do not compute; it is named.
    """
    family = family_of(source)
    metadata, tensors = source.metadata, source.tensors

    def value(key: str, otherwise: Any = None) -> Any:
        return metadata.get(f"{family}.{key}", otherwise)

    def number(key: str, otherwise: Any = None) -> Any:
        found = value(key, otherwise)
        if isinstance(found, list):
            if len(set(found)) != 1:
                raise ValueError(
                    f"{source.file}: {family}.{key} differs from layer to layer, "
                    "which is not supported"
                )
            found = found[0]
        if found is None:
            raise ValueError(f"{source.file} lacks the key {family}.{key}")
        return found

    for key, allowed in HARMLESS.items():
        if value(key) is not None and value(key) not in allowed:
            raise ValueError(
                f"{source.file}: {family}.{key} = {value(key)} changes what the model "
                "computes in a way that is not supported"
            )
    heads, width = int(number("attention.head_count")), int(number("embedding_length"))
    rotated = value("rope.dimension_count")
    head_dim = int(value("attention.key_length", rotated or width // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if value(key, head_dim) != head_dim:
            raise ValueError(
                f"{source.file}: {family}.{key} = {value(key)} is not the width of a "
                f"head, {head_dim}; that is not supported"
            )
    context = int(number("context_length"))
    window = value("attention.sliding_window")
    if isinstance(window, int) and 0 < window < context:
        raise ValueError(
            f"{source.file}: {family}.attention.sliding_window = {window} does not say "
            "which layers slide; that is not supported"
        )
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{source.file}: the tensor token_embd.weight is missing")
    vocab_size = tensors["token_embd.weight"].shape[0]

    def token(name: str) -> int | None:
        return metadata.get(f"tokenizer.ggml.{name}_token_id")

    ends = [token("eos"), token("eot")]
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=int(number("feed_forward_length")),
        num_layers=int(number("block_count")),
        num_heads=heads,
        num_key_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        norm_eps=_shortest(number("attention.layer_norm_rms_epsilon")),
        rope=_rope(source, family, head_dim, context),
        max_position=context,
        tie_embeddings="output.weight" not in tensors,
        attention_bias=family == "qwen2" or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=family == "qwen3",
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos_token_id=token("bos"),
        pad_token_id=token("padding"),
        token_count=(token_count if token_count and token_count < vocab_size else None),
    )


def _shortest(value: float) -> float:
    """The number that was meant: 1e-05, not the float32 next to it."""
    return float(str(np.float32(value)))


def _rope(source: Gguf, family: str, head_dim: int, context: int) -> Rope:
    metadata = source.metadata

    def value(key: str, otherwise: float | None = None) -> Any:
        found = metadata.get(f"{family}.rope.{key}", otherwise)
        return _shortest(found) if isinstance(found, float) else found

    theta = value("freq_base", 10_000.0)
    kind = value("scaling.type") or "none"
    factor = value("scaling.factor", value("scale_linear", 1.0))
    if kind == "none" and f"{family}.rope.scaling.type" not in metadata and factor != 1:
        kind = "linear"
    factors = source.tensors.get("rope_freqs.weight")
    if factors is not None and not np.all(factors.read() == 1):
        if kind != "none":
            raise ValueError(
                f"{source.file} scales rope twice: by rope_freqs.weight and as {kind!r}"
            )
        original = value("scaling.original_context_length")
        return _llama3(source, factors.read(), theta, head_dim, original)
    if kind == "none":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(kind="linear", theta=theta, factor=factor)
    if kind == "yarn":
        stretch = value("scaling.attn_factor", value("scaling.yarn_attn_factor", 1.0))
        usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        return Rope(
            kind="yarn",
            theta=theta,
            factor=factor,
            original_max_position=int(
                value("scaling.original_context_length") or context
            ),
            attention_factor=None if stretch == 1 else stretch * usual,
            beta_fast=value("scaling.yarn_beta_fast", 32.0),
            beta_slow=value("scaling.yarn_beta_slow", 1.0),
        )
    raise ValueError(
        f"{source.file}: rope type {kind!r} in {family}.rope.scaling.type is not "
        "supported; none, linear and yarn are"
    )


def _llama3(
    source: Gguf, factors: np.ndarray, theta: float, head_dim: int, original: Any
) -> Rope:
    """The settings of Llama 3's rope whose effect `rope_freqs.weight` spells out.

    A frequency of wavelength `w` is divided by `factor` where `w > original / low`,
    left where `w < original / high`, and in between by what lies between. The factors
    show only the two bounds, so `low` may be taken as 1.
    """
    wave = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    factor = _shortest(float(factors.max()))

    def divided(low: float, high: float, length: float) -> np.ndarray:
        s = np.clip((length / wave - low) / (high - low), 0, 1)
        return 1 / ((1 - s) / factor + s)

    guesses = [(1.0, 4.0, int(original or 8192)), (1.0, 4.0, 8192)]
    s = (1 / factors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)
    between = (s > 1e-4) & (s < 1 - 1e-4)
    if between.sum() >= 2:
        slope, start = np.polyfit(1 / wave[between], s[between], 1)
        if start < 0:
            length = round(slope / -start)
            guesses.append((1.0, round(1 - 1 / start, 6), length))
    for low, high, length in guesses:
        if np.allclose(divided(low, high, length), factors, rtol=1e-4):
            return Rope(
                kind="llama3",
                theta=theta,
                factor=factor,
                low_freq_factor=low,
                high_freq_factor=high,
                original_max_position=length,
            )
    raise ValueError(
        f"{source.file}: rope_freqs.weight is not the scaling of Llama 3; other "
        "frequency factors are not supported"
    )
