"""MTP modules, read out of the checkpoint of the target they were trained with.

A target's directory is converted as a target, and its modules are left; `--family mtp`
reads them and leaves the rest. What a module's layer is, its tensors say: an expert, a
latent or a linear attention is refused by the tensor's name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.drafters.base import DrafterPlan
from converters.drafters.llama_layers import (
    changes_back,
    layer_config,
    waived_frequencies,
    whose,
)
from converters.drafters.mtp_families import (
    COUNTS,
    FAMILIES,
    Family,
    family_of,
    module_sizes,
    modules_in,
)
from converters.sources import TensorFiles
from converters.tables import Change
from jspec.drafters.mtp_config import MTPConfig

__all__ = ["export", "plan", "recognise", "without_modules"]

FOREIGN = {
    "experts": "a mixture of experts",
    "moe": "a mixture of experts",
    "shared_expert": "a mixture of experts",
    "kv_a_proj_with_mqa": "latent attention (MLA)",
    "kv_b_proj": "latent attention (MLA)",
    "linear_attn": "linear attention",
    "qkv_proj": "fused queries, keys and values",
    "g_proj": "a gate for each head",
    "attention_sink_bias": "attention sinks",
}
"""Parts of tensors' names that tell a layer which is not computed here."""

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "attention_value_scale": (None, 1, 1.0),
    "swiglu_limits": (None, []),
    "swiglu_limits_shared": (None, []),
}
"""Keys of these families, and the values under which they change nothing."""

OUTSIDE = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}
FLAGS = (
    *("hidden_first", "zeroed_first", "unit_norms", "normed_features"),
    *("normed_feed", "final_norm"),
)


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """Modules in files of their own; beside a target's layers they are not alone."""
    if "speculators_model_type" in raw:
        return raw["speculators_model_type"] == "mtp"
    found = set(modules_in(tensors, _layers(raw)))
    return bool(found) and not any(
        ".layers." in name for name in tensors.keys() - found
    )


def without_modules(
    raw: Mapping[str, Any], tensors: TensorFiles
) -> tuple[dict[str, Any], TensorFiles, tuple[str, ...]]:
    """A target's config.json and tensors without its modules, and what to say of it."""
    left = set(modules_in(tensors, _layers(raw)))
    fields = {key: value for key, value in raw.items() if key not in COUNTS}
    kept = {name: tensor for name, tensor in tensors.items() if name not in left}
    if not left:
        return fields, kept, ()
    notice = (
        f"{len(left)} tensors of MTP modules were left for a drafter: "
        f"jspec-convert --family mtp reads them"
    )
    return fields, kept, (notice,)


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How modules are read; what is not theirs is waived, and nothing of theirs."""
    name, family, fields = family_of(raw)
    layers = _layers(raw)
    own = list(modules_in(tensors, layers))
    if not own:
        raise ValueError("there are no tensors of MTP modules")
    _refuse(fields, own)
    found = {_plain(tensor): tensor for tensor in own}
    modules = _count(fields, family, found, layers)
    sizes, vocab_size = module_sizes(fields, family, found, layers)
    copies = {
        part: _copies(tensors, found, family, part, modules, layers) for part in OUTSIDE
    }
    config = MTPConfig(
        sizes=sizes,
        vocab_size=vocab_size,
        modules=modules,
        own_embedding=copies["embed"] is None,
        own_head=copies["head"] is None,
        **family.flags,
    )
    rest = tensors.keys() - set(own)
    waived = [*rest, *waived_frequencies(tensors)]
    for names in copies.values():
        waived += names or []
    return DrafterPlan(
        method="mtp",
        config=config.to_json(),
        lines={
            weight: (found.get(tensor, tensor), change)
            for weight, (tensor, change) in _lines(config, family, layers).items()
        },
        conventions=_conventions(name, config),
        notices=(
            f"{modules} of the layout {name}, one a step; embedding: "
            f"{whose(config.own_embedding)}; head: {whose(config.own_head)}; "
            f"{len(rest)} tensors of the target were left",
        ),
        waived=tuple(waived),
    )


def _layers(raw: Mapping[str, Any]) -> int:
    """How many layers the target has, where its modules are numbered behind them."""
    inner = raw.get("text_config")
    fields = inner if isinstance(inner, Mapping) else raw
    layers = fields.get("num_hidden_layers")
    return layers if isinstance(layers, int) else 0


def _plain(name: str) -> str:
    """Step's names without the level and the word that its files may add."""
    bare = name.replace(".transformer.", ".")
    return bare.replace("shared_head.output.", "shared_head.head.")


def _refuse(fields: Mapping[str, Any], own: list[str]) -> None:
    for tensor in own:
        for part in tensor.split("."):
            if part in FOREIGN:
                raise ValueError(
                    f"the tensor {tensor} is part of {FOREIGN[part]}, with which MTP "
                    f"modules cannot be run yet"
                )
    for key, allowed in HARMLESS.items():
        if fields.get(key) not in allowed:
            raise ValueError(
                f"config.json: {key} = {fields[key]} changes what an MTP module "
                f"computes in a way that is not supported"
            )


def _count(
    fields: Mapping[str, Any], family: Family, found: Mapping[str, str], layers: int
) -> int:
    """How many modules config.json says, or else how many projections there are."""
    shared = "{" not in family.names["fc"]
    said = next((fields[key] for key in COUNTS if fields.get(key)), None)
    if said is None:
        said = 1
        while not shared and family.tensor("fc", said, layers) in found:
            said += 1
    if not isinstance(said, int) or said < 1:
        raise ValueError(f"config.json: {said!r} is no number of MTP modules")
    if shared and said > 1:
        raise ValueError(
            f"config.json: {said} MTP layers behind one projection are not supported"
        )
    return said


def _copies(
    tensors: TensorFiles,
    found: Mapping[str, str],
    family: Family,
    part: str,
    modules: int,
    layers: int,
) -> list[str] | None:
    """Modules' copies of the target's table; `None`: they bring one of their own."""
    if part not in family.names:
        return []
    names = [family.tensor(part, module, layers) for module in range(modules)]
    copies = [found[name] for name in names if name in found]
    tied = part == "head" and OUTSIDE[part] not in tensors
    theirs = tensors.get(OUTSIDE["embed" if tied else part])
    for name in copies:
        if theirs is None or not np.array_equal(tensors[name].read(), theirs.read()):
            return None
    return copies


def _lines(
    config: MTPConfig, family: Family, layers: int
) -> dict[str, tuple[str, Change]]:
    shapes, lines = config.module_shapes(), {}
    for module in range(config.modules):
        names = {weight: family.tensor(weight, module, layers) for weight in shapes}
        for weight, line in changes_back(names, shapes).items():
            lines[f"modules.{module}.{weight}"] = line
    return lines


def _conventions(name: str, config: MTPConfig) -> dict[str, str]:
    pair = ["embedding of the next token", "feature"]
    if config.hidden_first:
        pair.reverse()
    normed = " behind its final norm" if config.normed_features else ""
    return {
        "layout": name,
        "feature": f"the target's last state{normed}",
        "concat": ", ".join(pair),
        "position": "the feature's",
        "first embedding": "zero" if config.zeroed_first else "as any other",
        "handed on": "behind its norm" if config.normed_feed else "before any norm",
    }


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The layout they came in, or a family's that computes the same."""
    modules = MTPConfig.from_json(config)
    raw = source.get("config")
    if raw is None:
        family = _alike(modules)
        raw = _config_json(modules, family)
    else:
        _, family, _ = family_of(raw)
    lines = _lines(modules, family, _layers(raw))
    names = source.get("tensors") or {w: name for w, (name, _) in lines.items()}
    return dict(raw), {w: (names[w], change) for w, (_, change) in lines.items()}


def _alike(config: MTPConfig) -> Family:
    asked = {flag: getattr(config, flag) for flag in FLAGS}
    plain = {f.name: f.default for f in dataclasses.fields(config) if f.name in FLAGS}
    parts = {name for name in config.module_shapes() if not name.startswith("layers.")}
    for family in FAMILIES.values():
        several = "{" in family.names["fc"]
        if (
            plain | dict(family.flags) == asked
            and parts <= family.names.keys()
            and (several or config.modules == 1)
        ):
            return family
    raise ValueError("MTP modules with these flags have no other form to be written in")


def _config_json(config: MTPConfig, family: Family) -> dict[str, Any]:
    sizes = config.sizes
    written = layer_config(sizes, config.vocab_size, "float32")
    del written["architectures"]
    for ours, theirs in family.renamed.items():
        if written.get(ours) is not None:
            written[theirs] = written.pop(ours)
    turned = sizes.rotary_dim or sizes.head_dim
    return written | {
        "model_type": family.kinds[0],
        "num_hidden_layers": config.target_layers or 0,
        COUNTS[0]: config.modules,
        "partial_rotary_factor": turned / sizes.head_dim,
        "attn_output_gate": sizes.output_gate,
        "use_sliding_window": bool(sizes.windows),
    }
