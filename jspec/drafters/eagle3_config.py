"""An EAGLE-3 head in full: its sizes, its norms, its weights."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from jspec.drafters.layers import LayerSizes, known_fields, layer_shapes

__all__ = ["Eagle3Config"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """An EAGLE-3 head in full; conventions are settled here, not while drafting.

    Attributes:
      sizes: of its layers; the first reads an embedding and a feature side by side.
      vocab_size: of the target.
      target_hidden_size: width of each tapped state.
      draft_vocab_size: tokens of its own head. `None`: the target's all.
      taps: residual-stream indices of the target, in the order of concatenation.
        `None`: the paper's, which follow from how many layers the target has.
      tap_count: how many taps there are.
      tap_norms: whether each tap is normed by itself before they are fused.
      fuse_norm: whether all taps are normed together.
      normed_residual: whether the first layer adds to the normed feature.
      normed_feed: whether the next feature is the output behind the final norm.
      final_norm: whether the head reads the output behind a norm.
      own_embedding: whether it brings an embedding; else it reads the target's.
      own_head: whether it brings a head; else it uses the target's.
      tied_head: whether its own embedding is its head.
    """

    sizes: LayerSizes
    vocab_size: int
    target_hidden_size: int
    draft_vocab_size: int | None = None
    taps: tuple[int, ...] | None = None
    tap_count: int = 3
    tap_norms: bool = False
    fuse_norm: bool = False
    normed_residual: bool = False
    normed_feed: bool = False
    final_norm: bool = True
    own_embedding: bool = False
    own_head: bool = True
    tied_head: bool = False

    def __post_init__(self) -> None:
        """Refuses what contradicts itself."""
        if self.taps is not None and len(self.taps) != self.tap_count:
            raise ValueError(
                f"taps {self.taps} are {len(self.taps)}, and the feature is made of "
                f"{self.tap_count}"
            )
        if self.taps is None and self.tap_count != 3:
            raise ValueError(
                f"there are {self.tap_count} taps, and only of 3 is it known which "
                f"they are; give taps"
            )
        if self.tap_norms and self.fuse_norm:
            raise ValueError("tap_norms and fuse_norm exclude each other")
        if self.normed_feed and not self.final_norm:
            raise ValueError("normed_feed needs final_norm")
        if self.tied_head and (self.own_head or not self.own_embedding):
            raise ValueError("a tied head needs an embedding and no other head")
        if self.draft_vocab_size is not None and not self.own_head:
            raise ValueError("a vocabulary of its own needs a head of its own")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        values["sizes"] = LayerSizes.from_json(values["sizes"])
        if values.get("taps") is not None:
            values["taps"] = tuple(values["taps"])
        return cls(**values)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by dotted name; matrices are `[in, out]`."""
        e = self.sizes.hidden_size
        wide = self.tap_count * self.target_hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc": (wide, e)}
        if self.fuse_norm:
            shapes["fuse_norm"] = (wide,)
        if self.tap_norms:
            for i in range(self.tap_count):
                shapes[f"tap_norms.{i}"] = (self.target_hidden_size,)
        for l in range(self.sizes.num_layers):
            shapes |= layer_shapes(self.sizes, l, width=None if l else 2 * e)
        shapes["layers.0.feature_norm"] = (e,)
        if self.final_norm:
            shapes["norm"] = (e,)
        if self.own_embedding:
            shapes["embed"] = (self.vocab_size, e)
        if self.own_head:
            shapes["head"] = (e, self.draft_vocab_size or self.vocab_size)
        if self.draft_vocab_size is not None:
            shapes["ids"] = (self.draft_vocab_size,)
        return shapes
