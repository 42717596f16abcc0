"""DFlash checkpoints: z-lab's layout and that of speculators."""

from collections.abc import Mapping
from typing import Any

from converters.drafters.base import DrafterPlan
from converters.drafters.block_tables import TABLE, bare, mapped, written_or
from converters.drafters.blocks import options_of, read_block, write_block
from converters.sources import TensorFiles
from converters.tables import Change
from jspec.drafters.block_config import BlockConfig, block_shapes

__all__ = ["export", "plan", "recognise"]


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """By its name, its options, or a context without an embedding."""
    kind = raw.get("speculators_model_type")
    if kind is not None:
        return kind == "dflash"
    if "DFlashDraftModel" in (raw.get("architectures") or ()):
        return True
    names = bare(tensors)
    marks = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    return "dflash_config" in raw or (
        marks <= names.keys() and "embed_tokens.weight" not in names
    )


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How it is read; successors that share the name are refused by theirs."""
    projector = options_of(raw).get("projector_type")
    if projector not in (None, "dflash"):
        raise ValueError(
            f"config.json: projector_type {projector!r} is a successor of DFlash that "
            f"is not supported"
        )
    read = read_block(raw, tensors, sample_from_anchor=False)
    names = bare(tensors)
    return DrafterPlan(
        method="dflash",
        config=read.config.to_json(),
        lines=mapped(TABLE, block_shapes(read.config), names),
        conventions=read.conventions,
        notices=read.notices,
        waived=tuple(names[name] for name in ("t2d",) if name in names),
    )


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The config.json it came with if that still says the same; else z-lab's."""
    block = BlockConfig.from_json(config)
    ours = write_block(block, "DFlashDraftModel", "dflash_config")
    return written_or(ours, config, source, TABLE, block_shapes(block), plan)
