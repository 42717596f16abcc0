"""One timed execution: of a pass, of a proposal, of a whole round."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jspec.control.base import Size, Tree

__all__ = ["Sample", "sample_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One timed execution.

    Attributes:
      ms: how long it took.
      batch: rows.
      size: tokens verified, all rows together; or tokens drafted by each row.
      context: tokens in the cache of each row.
      nodes: of a drafted tree of this depth, the anchor included; `None`: the method's
        own number.
      drafts: that the pass of a whole round holds, all rows together, where rounds
        choose that; `None`: all.
    """

    ms: float
    batch: int
    size: int
    context: int = 0
    nodes: int | None = None
    drafts: int | None = None

    @property
    def drafted(self) -> Size:
        """`size` and `nodes` of a proposal as a controller names them."""
        return self.size if self.nodes is None else Tree(self.size, self.nodes)


def sample_of(entry: Any) -> Sample:
    """What `dataclasses.asdict` made of one; refuses anything else."""
    names = [field.name for field in dataclasses.fields(Sample)]
    if not isinstance(entry, Mapping) or not set(entry) <= set(names):
        raise ValueError(f"{entry!r} is not a sample of {', '.join(names)}")
    try:
        return Sample(**entry)
    except TypeError as error:
        raise ValueError(f"sample {dict(entry)} is incomplete: {error}") from error
