"""DSpark checkpoints: DeepSeek's layout, SpecForge's and that of speculators."""

from collections.abc import Mapping
from typing import Any

from converters.drafters.base import DrafterPlan
from converters.drafters.block_tables import TABLE, bare, mapped, written_or
from converters.drafters.blocks import (
    NESTS,
    number,
    options_of,
    read_block,
    write_block,
)
from converters.sources import TensorFiles
from converters.tables import Change, Table, same, transpose
from jspec.drafters.markov import DSparkConfig, dspark_shapes

__all__ = ["export", "plan", "recognise"]

HEADS: Table = {
    "markov.before": ("markov_head.markov_w1.weight", same),
    "markov.after": ("markov_head.markov_w2.weight", transpose),
    "markov.gate": ("markov_head.gate_proj.weight", transpose),
    "markov.gate_bias": ("markov_head.gate_proj.bias", same),
    "markov.joint": ("markov_head.joint_proj.weight", transpose),
    "markov.joint_bias": ("markov_head.joint_proj.bias", same),
    "confidence.weight": ("confidence_head.proj.weight", transpose),
    "confidence.bias": ("confidence_head.proj.bias", same),
}
KEYS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)
OWN_BODIES = ("Qwen3DSparkModel", "DSparkDraftModel")


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """By its name, its options, or its Markov head."""
    kind = raw.get("speculators_model_type")
    if kind is not None:
        return kind == "dspark"
    if any("DSpark" in name for name in raw.get("architectures") or ()):
        return True
    return options_of(raw).get(
        "projector_type"
    ) == "dspark" or "markov_head.markov_w1.weight" in bare(tensors)


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How it is read.

    DeepSeek's files draft from the anchor's row; SpecForge's own sampler does not,
    and its files nest their options. A file may say otherwise.
    """
    names, options = bare(tensors), options_of(raw)
    speculators = "speculators_model_type" in raw
    for name in raw.get("architectures") or ():
        if not speculators and name not in (*OWN_BODIES, "DFlashDraftModel"):
            raise ValueError(
                f"config.json: the architecture {name} has a body that is not "
                f"supported; {', '.join(OWN_BODIES)} are"
            )
    nested = any(isinstance(raw.get(key), Mapping) for key in NESTS)
    read = read_block(
        raw, tensors, sample_from_anchor=speculators or not nested, known=KEYS
    )
    before = tensors.get(names.get("markov_head.markov_w1.weight", ""))
    sure = tensors.get(names.get("confidence_head.proj.weight", ""))
    rank = before.shape[-1] if before else 0
    if "markov_rank" in options:
        rank = number(options, "markov_rank")
    feature = bool(sure and sure.shape[-1] != read.config.hidden_size)
    enabled = bool(options.get("enable_confidence_head", sure is not None))
    config = DSparkConfig(
        block=read.config,
        markov_rank=rank,
        markov_head=options.get("markov_head_type") or "vanilla",
        confidence_head=enabled,
        confidence_with_markov=enabled
        and bool(options.get("confidence_head_with_markov", feature)),
    )
    notices = read.notices
    if "sample_from_anchor" not in options:
        which = "" if read.config.sample_from_anchor else "not "
        notices += (
            f"config.json does not say sample_from_anchor: its layout does {which}so",
        )
    return DrafterPlan(
        method="dspark",
        config=config.to_json(),
        lines=mapped({**TABLE, **HEADS}, dspark_shapes(config), names),
        conventions=read.conventions,
        notices=notices,
        waived=tuple(names[name] for name in ("t2d",) if name in names),
    )


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The config.json it came with if that still says the same; else DeepSeek's."""
    ours = DSparkConfig.from_json(config)
    written = write_block(ours.block, "Qwen3DSparkModel", None) | {
        "markov_rank": ours.markov_rank,
        "markov_head_type": ours.markov_head,
        "enable_confidence_head": ours.confidence_head,
        "confidence_head_with_markov": ours.confidence_with_markov,
    }
    table, shapes = {**TABLE, **HEADS}, dspark_shapes(ours)
    return written_or(written, config, source, table, shapes, plan)
