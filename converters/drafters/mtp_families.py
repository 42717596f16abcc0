"""The layouts of MTP modules: one table a family, and what its modules compute."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from converters.drafters.llama_layers import PARTS, layer_sizes
from jspec.drafters.layers import LayerSizes

__all__ = [
    "COUNTS",
    "FAMILIES",
    "SPECULATORS",
    "Family",
    "family_of",
    "module_sizes",
    "modules_in",
]

COUNTS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "num_mtp_modules",
)
"""Keys of config.json that say how many modules there are."""

OTHERS = (
    *COUNTS,
    *("num_experts", "num_local_experts", "n_routed_experts", "layer_types"),
    *("partial_rotary_factor", "attn_output_gate", "use_qk_norm", "qk_layernorm"),
    *("attention_bias", "mlp_bias", "use_sliding_window", "max_window_layers"),
)
"""Keys that speak of the target's layers, or that tensors answer for a module's."""

ROPE_OTHERS = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Read elsewhere, or of images alone: a text's three positions are one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One layout. In names, `{k}` is the module, and `{i}` the layer it would be.

    Attributes:
      kinds: `model_type` of its targets.
      names: tensors by the module's weight.
      layer: the prefix of the module's decoder layer.
      parts: tensors of the layer that are called otherwise than in a Llama.
      flags: of `MTPConfig`.
      renamed: keys of config.json that the module's layer has its own for.
      rotary: the part of a head that is rotated where config.json does not say.
      gated: whether the mixed values are gated where config.json does not say.
    """

    kinds: tuple[str, ...]
    names: Mapping[str, str]
    layer: str
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rotary: float = 1.0
    gated: bool = False

    def tensor(self, weight: str, module: int, layers: int) -> str:
        """The tensor of a module's weight, in a target of so many layers."""
        if weight.startswith("layers.0."):
            part = weight.removeprefix("layers.0.")
            name = self.layer + (self.parts.get(part) or PARTS[part])
        else:
            name = self.names[weight]
        return name.replace("{k}", str(module)).replace("{i}", str(layers + module))


def _below(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {weight: f"{prefix}{name}.weight" for weight, name in names.items()}


PAIR = {"token_norm": "enorm", "feature_norm": "hnorm", "fc": "eh_proj"}
SHARED = {
    "norm": "shared_head.norm",
    "head": "shared_head.head",
    "embed": "embed_tokens",
}
MIMO = {
    "token_norm": "token_layernorm",
    "feature_norm": "hidden_layernorm",
    "fc": "input_proj",
    "norm": "final_layernorm",
}
DEEPSEEK = _below("model.layers.{i}.", PAIR | SHARED)

FAMILIES: Mapping[str, Family] = {
    "deepseek_v3": Family(
        kinds=("deepseek_v3", "deepseek_v32"),
        names=DEEPSEEK,
        layer="model.layers.{i}.",
        flags={"zeroed_first": True},
    ),
    "glm4_moe": Family(
        kinds=("glm4_moe",),
        names=DEEPSEEK,
        layer="model.layers.{i}.",
        flags={"zeroed_first": True},
        rotary=0.5,
    ),
    "step3p5": Family(
        kinds=("step3p5", "step3p7"),
        names=DEEPSEEK,
        layer="model.layers.{i}.",
        flags={"unit_norms": True, "normed_features": False, "normed_feed": False},
    ),
    "mimo": Family(
        kinds=("mimo",),
        names=_below("model.mtp_layers.{k}.", MIMO),
        layer="model.mtp_layers.{k}.",
        flags={"hidden_first": True, "zeroed_first": True},
    ),
    "mimo_v2": Family(
        kinds=("mimo_v2", "mimo_v2_flash", "mimo_v2_pro", "mimo_v2_omni"),
        names=_below("model.mtp.layers.{k}.", PAIR | {"norm": "final_layernorm"}),
        layer="model.mtp.layers.{k}.",
        parts={"mlp_norm": "pre_mlp_layernorm.weight"},
        renamed={
            "num_attention_heads": "swa_num_attention_heads",
            "num_key_value_heads": "swa_num_key_value_heads",
            "head_dim": "swa_head_dim",
            "rope_theta": "swa_rope_theta",
            "rms_norm_eps": "layernorm_epsilon",
            "sliding_window": "sliding_window_size",
        },
    ),
    "qwen3_next": Family(
        kinds=(
            *("qwen3_next", "qwen3_5", "qwen3_5_text"),
            *("qwen3_5_moe", "qwen3_5_moe_text"),
        ),
        names=_below(
            "mtp.",
            {
                "token_norm": "pre_fc_norm_embedding",
                "feature_norm": "pre_fc_norm_hidden",
                "fc": "fc",
                "norm": "norm",
            },
        ),
        layer="mtp.layers.{k}.",
        flags={"unit_norms": True},
        rotary=0.25,
        gated=True,
    ),
    "ernie4_5": Family(
        kinds=("ernie4_5", "ernie4_5_moe"),
        names={
            "token_norm": "model.mtp_emb_norm.{k}.weight",
            "feature_norm": "model.mtp_hidden_norm.{k}.weight",
            "fc": "model.mtp_linear_proj.{k}.weight",
        },
        layer="model.mtp_block.{k}.",
        flags={"zeroed_first": True, "normed_feed": False, "final_norm": False},
    ),
}
"""Modules inside a target's checkpoint."""

SPECULATORS = Family(
    kinds=("qwen3",),
    names=_below("mtp_layers.{k}.", MIMO),
    layer="mtp_layers.{k}.",
)
"""A module in files of its own; named as MiMo's, in the other order."""


def family_of(raw: Mapping[str, Any]) -> tuple[str, Family, Mapping[str, Any]]:
    """The layout of a config.json, its name, and the part that says the layer's sizes.

    Raises:
      ValueError: its model type has no layout here.
    """
    if raw.get("speculators_model_type") is not None:
        return _speculators(raw)
    inner = raw.get("text_config")
    fields = inner if isinstance(inner, Mapping) else raw
    for name, family in FAMILIES.items():
        if {fields.get("model_type"), raw.get("model_type")} & set(family.kinds):
            return name, family, fields
    known = ", ".join(kind for family in FAMILIES.values() for kind in family.kinds)
    raise ValueError(
        f"config.json: MTP modules of the model type {raw.get('model_type')!r} are not "
        f"supported; those of {known} are"
    )


def _speculators(raw: Mapping[str, Any]) -> tuple[str, Family, Mapping[str, Any]]:
    inner = raw.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise ValueError("config.json lacks transformer_layer_config")
    kind, next_ = inner.get("model_type"), FAMILIES["qwen3_next"]
    if kind in next_.kinds:
        changed = dataclasses.replace(
            SPECULATORS, flags=next_.flags, rotary=next_.rotary, gated=next_.gated
        )
        return "speculators", changed, inner
    if kind not in SPECULATORS.kinds:
        raise ValueError(
            f"config.json: an MTP module of the model type {kind!r} is not supported; "
            f"those of {', '.join((*SPECULATORS.kinds, *next_.kinds))} are"
        )
    return "speculators", SPECULATORS, inner


def module_sizes(
    fields: Mapping[str, Any], family: Family, found: Mapping[str, str], layers: int
) -> tuple[LayerSizes, int]:
    """Of a module's layer: numbers out of config.json, parts by their tensors."""
    given = {key: value for key, value in fields.items() if key not in OTHERS}
    if not fields.get("use_sliding_window"):
        given.pop("sliding_window", None)
    for ours, theirs in family.renamed.items():
        if theirs in given:
            given[ours] = given.pop(theirs)
    rope = given.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    if rope:
        given["rope_parameters"] = {
            key: value for key, value in rope.items() if key not in ROPE_OTHERS
        }
    alone = {"model_type": "llama", "num_hidden_layers": 1}
    sizes, vocab_size = layer_sizes(given | alone)
    factor = rope.get("partial_rotary_factor", family.rotary)
    turned = int(fields.get("partial_rotary_factor", factor) * sizes.head_dim + 1e-6)

    def has(part: str) -> bool:
        return family.tensor(f"layers.0.{part}", 0, layers) in found

    return dataclasses.replace(
        sizes,
        attention_bias=has("q_bias"),
        output_bias=has("o_bias"),
        mlp_bias=has("gate_bias"),
        qk_norm=has("q_norm"),
        rotary_dim=None if turned == sizes.head_dim else turned,
        output_gate=bool(fields.get("attn_output_gate", family.gated)),
    ), vocab_size


def modules_in(names: Mapping[str, Any], layers: int) -> Iterator[str]:
    """The tensors among `names` that belong to MTP modules of any layout.

    Args:
      names: of a checkpoint.
      layers: of its target: what is numbered from there on is a module if it has a
        module's projection.
    """
    for name in names:
        first, number, *_ = [*name.removeprefix("model.").split("."), "", ""]
        bundled = first == "mtp" or first.startswith("mtp_")
        if first == "layers" and number.isdecimal() and int(number) >= layers:
            bundled = not names.keys().isdisjoint(
                f"model.layers.{number}.{between}eh_proj.weight"
                for between in ("", "transformer.")
            )
        if bundled:
            yield name
