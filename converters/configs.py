"""Which reader and which writer of config.json each family has."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from converters import config as llama_config
from converters import gemma_config
from jspec.models.base import LLAMAS
from jspec.models.gemma_config import GEMMAS

__all__ = [
    "ARCHITECTURES",
    "MODEL_TYPES",
    "architecture",
    "from_hugging_face",
    "to_hugging_face",
    "unread_keys",
]

READERS: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys(LLAMAS, llama_config) | dict.fromkeys(GEMMAS, gemma_config)
)
ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        name: family
        for reader in (llama_config, gemma_config)
        for family, name in reader.ARCHITECTURES.items()
    }
)
"""The family of each architecture."""
MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {family: family for family in LLAMAS}
    | {kind: family for family, kind in gemma_config.MODEL_TYPES.items()}
)
"""The family of each model type."""


def architecture(family: str) -> str:
    """What transformers calls a family's language model."""
    return READERS[family].ARCHITECTURES[family]


def from_hugging_face(
    config: Mapping[str, Any],
    family: str,
    *,
    generation: Mapping[str, Any] | None = None,
    token_count: int | None = None,
) -> Any:
    """Reads the config.json of any family; see `config.from_hugging_face`."""
    return READERS[family].from_hugging_face(
        config, family, generation=generation, token_count=token_count
    )


def to_hugging_face(config: Any, dtype: str) -> dict[str, Any]:
    """A config.json that transformers reads as the same model, or a `ValueError`."""
    return READERS[config.family].to_hugging_face(config, dtype)


def unread_keys(config: Mapping[str, Any], family: str) -> list[str]:
    """Keys that the family's reader does not know."""
    return READERS[family].unread_keys(config)
