"""EAGLE-3 heads in the layouts of SafeAILab, SpecForge and speculators.

Where they differ: which layers are tapped (an index of the residual stream, or of the
layer whose output it is, or nothing at all), how the first layer is called, and what
`norm_output` means (SpecForge: a norm before the head; elsewhere: what is fed back).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.drafters.base import DrafterPlan, bare_names
from converters.drafters.llama_layers import (
    changes_back,
    layer_config,
    layer_names,
    layer_sizes,
    unknown_keys,
    waived_frequencies,
    whose,
)
from converters.sources import TensorFiles
from converters.tables import Change, from_offsets
from jspec.drafters.eagle3_config import Eagle3Config

__all__ = ["export", "plan", "recognise"]

TAPS = "eagle_aux_hidden_state_layer_ids"
KNOWN = frozenset(
    {
        *("draft_vocab_size", "target_hidden_size", "eagle_config", TAPS),
        *("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
        *("use_aux_norm", "speculators_model_type", "speculators_config"),
        *("speculators_version", "transformer_layer_config", "embed_requires_grad"),
        *("has_no_defaults_at_init", "tie_weights", "bias"),
    }
)
NAMES = {
    "fc": "fc.weight",
    "fuse_norm": "input_norm.weight",
    "norm": "norm.weight",
    "embed": "embed_tokens.weight",
    "head": "lm_head.weight",
    "ids": "d2t",
}
AUX_NORMS = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """speculators says so, an architecture does, or the wide first layer is there."""
    bare = bare_names(tensors)
    if "speculators_model_type" in raw:
        return raw["speculators_model_type"] == "eagle3"
    if "mask_hidden" in bare:
        return False
    if any("Eagle3" in name for name in raw.get("architectures") or []):
        return True
    return any(
        name.startswith("midlayer.") or name == "layers.0.hidden_norm.weight"
        for name in bare
    )


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How a head is read; every norm in the file has its flag, or is left over."""
    layout, inner = _layout(raw)
    bare = bare_names(tensors)
    sizes, vocab_size = layer_sizes(inner)
    draft_vocab = raw.get("draft_vocab_size") or vocab_size
    if draft_vocab > vocab_size:
        raise ValueError(
            f"config.json: draft_vocab_size {draft_vocab} exceeds the vocabulary, "
            f"{vocab_size}"
        )
    wide = raw.get("target_hidden_size") or sizes.hidden_size
    taps, convention = _taps(raw)
    own_embedding = "embed_tokens.weight" in bare
    tied = bool(inner.get("tie_word_embeddings")) and "lm_head.weight" not in bare
    smaller = draft_vocab != vocab_size
    output = raw.get("norm_output")
    config = Eagle3Config(
        sizes=sizes,
        vocab_size=vocab_size,
        target_hidden_size=wide,
        draft_vocab_size=draft_vocab if smaller else None,
        taps=taps,
        tap_count=_tap_count(bare, tensors, wide, taps),
        tap_norms=bool(raw.get("fc_norm") or raw.get("use_aux_norm")),
        fuse_norm=bool(raw.get("norm_before_fc")),
        normed_residual=bool(raw.get("norm_before_residual")),
        normed_feed=layout != "specforge" and bool(output),
        final_norm=output is None or bool(output) or layout != "specforge",
        own_embedding=own_embedding,
        own_head=not tied,
        tied_head=tied,
    )
    waived = [*waived_frequencies(tensors), *_maps(bare, tensors, vocab_size, smaller)]
    if not config.final_norm and "norm.weight" in bare:
        waived.append(bare["norm.weight"])
    return DrafterPlan(
        method="eagle3",
        config=config.to_json(),
        lines=_lines(config, layout, bare),
        conventions={
            "layout": layout,
            "taps": convention,
            "d2t": "offsets",
            "concat": "embedding of the next token, feature",
            "position": "the feature's",
        },
        notices=(
            *unknown_keys(inner, KNOWN),
            *(unknown_keys(raw, KNOWN) if inner is not raw else ()),
            *_silent(raw, layout),
            f"embedding: {whose(own_embedding)}; head: "
            f"{'its embedding' if tied else 'its own'}; taps: "
            f"{taps or 'as in the paper, by how many layers the target has'}",
        ),
        waived=tuple(waived),
    )


def _layout(raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if "speculators_model_type" in raw:
        inner = raw.get("transformer_layer_config")
        if not isinstance(inner, Mapping):
            raise ValueError("config.json lacks transformer_layer_config")
        return "speculators", inner
    specforge = "eagle_config" in raw or any(
        "Eagle3" in name for name in raw.get("architectures") or []
    )
    return "specforge" if specforge else "safeailab", raw


def _taps(raw: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, str]:
    """Residual-stream indices, and how they were written."""
    nested = raw.get("eagle_config") or {}
    if nested.get("use_aux_hidden_state") is False:
        raise ValueError(
            "config.json: use_aux_hidden_state = False, a head without taps, is not "
            "supported"
        )
    if raw.get(TAPS) is not None:
        return tuple(raw[TAPS]), f"{TAPS}: residual-stream indices"
    if nested.get(TAPS) is not None:
        taps = tuple(layer + 1 for layer in nested[TAPS])
        return taps, f"eagle_config.{TAPS}: layers whose outputs are read"
    return None, "none given: 2, L/2 and L-3 of the target's L layers"


def _tap_count(
    bare: Mapping[str, str], tensors: TensorFiles, wide: int, taps: Any
) -> int:
    """How many taps the first projection reads."""
    if taps is not None:
        return len(taps)
    if "fc.weight" not in bare:
        raise ValueError("the tensor fc.weight is missing")
    shape = tensors[bare["fc.weight"]].shape
    if len(shape) != 2 or shape[1] % wide:
        raise ValueError(
            f"the tensor fc.weight has shape {shape}, which reads no whole number of "
            f"states of width {wide}"
        )
    return shape[1] // wide


def _maps(
    bare: Mapping[str, str], tensors: TensorFiles, vocab_size: int, smaller: bool
) -> list[str]:
    """Checks d2t and t2d; those that are not needed."""
    if smaller and "d2t" not in bare:
        raise ValueError(
            "the tensor d2t is missing, without which the ids of a smaller vocabulary "
            "mean nothing"
        )
    ids = None
    if "d2t" in bare:
        offsets = tensors[bare["d2t"]].read()
        if offsets.dtype.kind not in "iu" or offsets.ndim != 1:
            raise ValueError(
                f"the tensor d2t is {offsets.dtype}, not a row of integers"
            )
        ids = from_offsets(offsets.astype(np.int64), None)
        wrong = np.flatnonzero(
            (ids < 0) | (ids >= vocab_size) | (np.diff(ids, prepend=-1) <= 0)
        )
        if wrong.size:
            raise ValueError(
                f"the tensor d2t maps draft id {wrong[0]} to {ids[wrong[0]]}: offsets "
                f"must give rising ids below {vocab_size}"
            )
    if "t2d" in bare and ids is not None:
        known = np.flatnonzero(tensors[bare["t2d"]].read())
        if not np.array_equal(known, ids):
            raise ValueError("the tensor t2d marks other tokens than d2t maps to")
    waived = ["t2d"] if smaller else ["t2d", "d2t"]
    return [bare[name] for name in waived if name in bare]


def _silent(raw: Mapping[str, Any], layout: str) -> list[str]:
    if layout == "speculators" and "norm_before_residual" not in raw:
        return [
            "config.json does not say norm_before_residual; it is taken as false, as "
            "its trainer does (vLLM would take it as true)"
        ]
    return []


def _lines(
    config: Eagle3Config, layout: str, bare: Mapping[str, str]
) -> dict[str, tuple[str, Change]]:
    shapes = config.shapes()
    first = "midlayer."
    if layout == "speculators" or not any(name.startswith(first) for name in bare):
        first = "layers.{l}."
    names = _names(config, first)
    if "aux_norm_low.weight" in bare and config.tap_count == len(AUX_NORMS):
        names |= {f"tap_norms.{i}": name for i, name in enumerate(AUX_NORMS)}
    for l in range(1, config.sizes.num_layers):
        other = f"layers.{l}.hidden_norm.weight"
        if names[f"layers.{l}.attention_norm"] not in bare and other in bare:
            names[f"layers.{l}.attention_norm"] = other
    lines = changes_back(names, shapes) | (
        {"ids": (names["ids"], from_offsets)} if "ids" in shapes else {}
    )
    return {w: (bare.get(name, name), change) for w, (name, change) in lines.items()}


def _names(config: Eagle3Config, first: str) -> dict[str, str]:
    names = NAMES | layer_names(config.shapes(), first)
    names["layers.0.feature_norm"] = f"{first.replace('{l}', '0')}hidden_norm.weight"
    for i in range(config.tap_count):
        names[f"tap_norms.{i}"] = f"fc_norm.{i}.weight"
    return names


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The layout it came in, or speculators', in which every flag has a key."""
    head = Eagle3Config.from_json(config)
    names = source.get("tensors") or _names(head, "layers.{l}.")
    raw = source.get("config")
    if raw is None:
        raw = _config_json(head)
    return dict(raw), changes_back(names, head.shapes())


def _config_json(head: Eagle3Config) -> dict[str, Any]:
    inner = layer_config(head.sizes, head.vocab_size, "float32")
    inner["tie_word_embeddings"] = head.tied_head
    written: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
        },
        "transformer_layer_config": inner,
        "draft_vocab_size": head.draft_vocab_size or head.vocab_size,
        "target_hidden_size": head.target_hidden_size,
        "norm_before_residual": head.normed_residual,
        "norm_before_fc": head.fuse_norm,
        "fc_norm": head.tap_norms,
        "norm_output": head.normed_feed,
    }
    if head.taps is not None:
        written[TAPS] = list(head.taps)
    if not head.final_norm:
        raise ValueError("a head without a norm before it has no place in this form")
    return written
