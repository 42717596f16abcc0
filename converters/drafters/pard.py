"""PARD checkpoints: a language model whose config.json names its mask."""

from collections.abc import Mapping
from typing import Any

from converters.config import from_hugging_face, to_hugging_face, unread_keys
from converters.drafters.base import DrafterPlan
from converters.families import HUGGING_FACE
from converters.recognise import FAMILY
from converters.sources import TensorFiles
from converters.tables import Change, lines
from jspec.drafters.pard import PARDConfig

__all__ = ["export", "plan", "recognise"]

KEYS = ("pard_token", "spd_type")


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """Only a model that says it was trained for it."""
    return "pard_token" in raw


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """The language model's own lines, and its mask."""
    mask = raw.get("pard_token")
    if isinstance(mask, bool) or not isinstance(mask, int):
        raise ValueError(f"config.json: pard_token is {mask!r}, not a token id")
    family = _family(raw)
    body = {key: value for key, value in raw.items() if key not in KEYS}
    model = from_hugging_face(body, family)
    config = PARDConfig(model=model, mask_token_id=mask)
    tied = model.tie_embeddings and "lm_head.weight" in tensors
    notices = [
        f"config.json has the key {key!r}, which is not read"
        for key in unread_keys(body)
    ]
    notices.append("the drafter's tokens are taken to be the target's")
    return DrafterPlan(
        method="pard",
        config=config.to_json(),
        lines=lines(HUGGING_FACE[family], model),
        conventions={"rope": "half-split"},
        notices=tuple(notices),
        waived=("lm_head.weight",) if tied else (),
    )


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The config.json it came with if that still says the same; else a new one."""
    ours = PARDConfig.from_json(config)
    written = to_hugging_face(ours.model, "bfloat16")
    written["pard_token"] = ours.mask_token_id
    raw = source.get("config")
    if isinstance(raw, Mapping):
        try:
            if plan(raw, {}).config == ours.to_json():
                written = dict(raw)
        except ValueError:
            pass
    return written, lines(HUGGING_FACE[ours.model.family], ours.model)


def _family(raw: Mapping[str, Any]) -> str:
    named = [*(raw.get("architectures") or ())][:1]
    kind = FAMILY.get(named[0]) if named else raw.get("model_type")
    family = str(kind)
    if family not in HUGGING_FACE:
        raise ValueError(
            f"config.json: a PARD drafter of {(named or [kind])[0]!r} is not "
            f"supported; {', '.join(HUGGING_FACE)} are"
        )
    return family
