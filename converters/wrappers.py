"""The language model inside a model of several senses: its config, its tensors."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["ARCHITECTURES", "MODEL_TYPES", "Inside", "inside", "text_config"]

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "Gemma3ForConditionalGeneration": "gemma3",
        "Gemma4ForConditionalGeneration": "gemma4",
    }
)
"""The family of the language model in each architecture that holds one."""
MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {"gemma3": "gemma3", "gemma4": "gemma4"}
)
PREFIXES = ("language_model.model.", "model.language_model.")
"""What stands there where a language model alone has `model.`; the first is older."""
OLD_HEAD = "language_model.lm_head.weight"
OTHER_SENSES = (
    *("vision_tower", "multi_modal_projector", "audio_tower"),
    *("embed_vision", "embed_audio"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inside:
    """Where the language model's tensors are.

    Attributes:
      prefix: in place of `model.`.
      head: the head's name.
      skipped: tensors of the other senses.
    """

    prefix: str = "model."
    head: str = "lm_head.weight"
    skipped: tuple[str, ...] = ()

    def name(self, name: str) -> str:
        """The name there of a tensor, by the name it would have alone."""
        if name == "lm_head.weight":
            return self.head
        if name.startswith("model."):
            return self.prefix + name.removeprefix("model.")
        return name

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know: nothing but text is converted."""
        senses = {
            sense
            for sense in OTHER_SENSES
            for name in self.skipped
            if sense in name.split(".")[:2]
        }
        if not senses:
            return ()
        return (
            f"{len(self.skipped)} tensors of {', '.join(sorted(senses))} are left out: "
            "the language model alone is converted",
        )


def text_config(raw: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The config.json that the language model would have alone.

    Args:
      raw: config.json; one without a text_config is given back as it is.
      architecture: of the language model alone.
    """
    inner = raw.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(raw)
    outer = ("tie_word_embeddings", "torch_dtype", "dtype")
    outer = {key: raw[key] for key in outer if key in raw}
    return outer | dict(inner) | {"architectures": [architecture]}


def inside(raw: Mapping[str, Any], tensors: Iterable[str]) -> Inside:
    """Where the tensors of the language model are, in either layout or alone."""
    if not isinstance(raw.get("text_config"), Mapping):
        return Inside()
    names = list(tensors)
    skipped = tuple(
        name
        for name in names
        if name.removeprefix("model.").split(".")[0] in OTHER_SENSES
    )
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in names):
            head = OLD_HEAD if OLD_HEAD in names else "lm_head.weight"
            return Inside(prefix=prefix, head=head, skipped=skipped)
    return Inside(skipped=skipped)
