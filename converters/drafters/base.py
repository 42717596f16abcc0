"""What a drafter's converter says: a method, its configuration, its tensors."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from converters.sources import TensorFiles
from converters.tables import Change

__all__ = ["Converter", "DrafterPlan", "bare_names"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterPlan:
    """How a drafter's checkpoint is read.

    Attributes:
      method: a name in `jspec.drafters.METHODS`.
      config: what the method's `configure` takes, as JSON.
      lines: the tensor's name in the source, and its change, by jspec's weight.
      conventions: what the source meant where layouts differ, for the record.
      notices: what the user should know, a sentence each: keys that nobody reads,
        what is borrowed from the target.
      waived: tensors that are not needed; any other left over is an error.
    """

    method: str
    config: Mapping[str, Any]
    lines: Mapping[str, tuple[str, Change]]
    conventions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notices: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()


class Converter(Protocol):
    """A module of this package: one method's layouts, read and written."""

    def recognise(self, raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
        """Whether a config.json and its tensors are this method's."""
        ...

    def plan(self, raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
        """How they are read; a `ValueError` names the key or tensor that is wrong."""
        ...

    def export(
        self, config: Mapping[str, Any], source: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
        """The way back: config.json, and each weight's tensor and change.

        Args:
          config: of the checkpoint.
          source: of the checkpoint: "config" is the config.json it came with, if any.
        """
        ...


def bare_names(tensors: TensorFiles, prefix: str = "model.") -> dict[str, str]:
    """The tensors' own names by their names without a leading `prefix`."""
    return {name.removeprefix(prefix): name for name in tensors}
