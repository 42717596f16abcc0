"""Decoder layers of a drafter as Hugging Face writes them: sizes, names, changes."""

from collections.abc import Mapping
from typing import Any

from converters.config import from_hugging_face, to_hugging_face, unread_keys
from converters.sources import TensorFiles
from converters.tables import Change, same, to_offsets, transpose
from jspec.drafters.layers import LayerSizes
from jspec.models.base import ModelConfig

__all__ = [
    "changes_back",
    "layer_config",
    "layer_names",
    "layer_sizes",
    "unknown_keys",
    "waived_frequencies",
    "whose",
]

PARTS = {
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
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
"""A layer's tensors, behind its prefix, by the last part of the weight's name."""

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def layer_sizes(raw: Mapping[str, Any]) -> tuple[LayerSizes, int]:
    """Sizes of a drafter's layers and rows of its embedding, out of config.json.

    A window counts whatever the family: the drafter obeys its own.

    Raises:
      ValueError: a key is missing, or says something that is not computed.
    """
    kind = raw.get("model_type", "llama")
    if kind not in FAMILIES:
        raise ValueError(
            f"config.json: layers of the model type {kind!r} are not supported; "
            f"{', '.join(FAMILIES)} are"
        )
    family = FAMILIES[kind]
    fields = dict(raw)
    window = None
    if family == "llama":
        window = fields.pop("sliding_window", None)
        types = fields.pop("layer_types", None)
        if fields.get("use_sliding_window") is False:
            window = None
        if types is not None and set(types) != {"sliding_attention"}:
            window = None
    config = from_hugging_face(fields, family)
    windows = config.windows
    if window is not None:
        windows = (window,) * config.num_layers
    return _sizes(config, windows), config.vocab_size


def _sizes(config: ModelConfig, windows: tuple[int | None, ...]) -> LayerSizes:
    return LayerSizes(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_key_heads=config.num_key_heads,
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
        rope=config.rope,
        attention_bias=config.attention_bias,
        output_bias=config.output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        windows=windows,
        max_position=config.max_position,
    )


def layer_config(sizes: LayerSizes, vocab_size: int, dtype: str) -> dict[str, Any]:
    """config.json of layers that came without one.

    What a Llama's layers have no key for, who needs it adds.
    """
    fields = {
        name: getattr(sizes, name)
        for name in LayerSizes.__dataclass_fields__
        if name not in ("windows", "max_position", "rotary_dim", "output_gate")
    }
    family = "qwen3" if sizes.qk_norm else "llama"
    if sizes.attention_bias and not sizes.output_bias:
        family = "qwen2"
    config = ModelConfig(
        family=family,
        vocab_size=vocab_size,
        max_position=sizes.max_position or 2048,
        tie_embeddings=False,
        **fields,
    )
    written = to_hugging_face(config, dtype)
    windows = set(sizes.windows) - {None}
    if windows:
        if len(windows) > 1 or None in sizes.windows:
            raise ValueError("windows that differ by layer have no place in this form")
        written["sliding_window"] = windows.pop()
    return written


def layer_names(shapes: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Tensors of all layers by weight; `{l}` in `prefix` is the layer."""
    names = {}
    for weight in shapes:
        if weight.startswith("layers."):
            _, layer, part = weight.split(".", 2)
            if part in PARTS:
                names[weight] = prefix.replace("{l}", layer) + PARTS[part]
    return names


def changes_back(
    names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[str, Change]]:
    """Each weight's tensor and the change that writes it."""

    def change(weight: str) -> Change:
        if weight == "ids":
            return to_offsets
        return transpose if len(shapes[weight]) == 2 and weight != "embed" else same

    return {weight: (names[weight], change(weight)) for weight in shapes}


def waived_frequencies(tensors: TensorFiles) -> list[str]:
    """Frequencies of rotation, which follow from the configuration."""
    return [name for name in tensors if name.endswith("rotary_emb.inv_freq")]


def unknown_keys(raw: Mapping[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    """A notice for every key that nobody reads."""
    return tuple(
        f"config.json has the key {key!r}, which is not read"
        for key in unread_keys(raw)
        if key not in known
    )


def whose(own: bool) -> str:
    """Where an embedding or a head comes from, in words."""
    return "its own" if own else "the target's"
