"""Configurations of the Gemma family: Gemma 2, Gemma 3 and Gemma 4, text only."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from jspec.models.base import Kind, Rope, check_vocabulary, known_values

__all__ = ["GEMMAS", "Experts", "GemmaConfig", "LayerType"]

GEMMAS = ("gemma2", "gemma3", "gemma4")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerType:
    """Keys of all layers of one kind: how many heads, how wide, how they turn."""

    key_heads: int
    head_dim: int
    rope: Rope


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture beside the MLP: `top` of `count` gated MLPs of `width`."""

    count: int
    top: int
    width: int

    def __post_init__(self) -> None:
        """Refuses sizes that no mixture has."""
        if not 1 <= self.top <= self.count or self.width < 1:
            raise ValueError(
                f"{self.top} of {self.count} experts of width {self.width} are no "
                "mixture"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaConfig:
    """A Gemma, in full.

    Attributes:
      family: one of `GEMMAS`; the options below say what it computes.
      kinds: how far attention reaches, layer by layer.
      full: keys of the layers that see the whole text.
      sliding: keys of the layers that see `sliding_window` tokens back.
      score_scale: of the attention scores.
      unit_offset: norms multiply by `1 + weight`, not by the weight.
      qk_norm: norms on queries and keys.
      value_norm: a norm without a weight on values.
      keys_are_values: full layers have no value matrix: values are the keys before
        norm and rope.
      shared_layers: so many last layers have no keys of their own; they read those of
        the last layer of their kind that has.
      double_wide: the MLP of those is twice as wide.
      attention_cap: scores are `cap * tanh(score / cap)`.
      final_cap: logits are, too.
      layer_input_size: width of the embedding that every layer adds for itself; 0:
        there is none.
      layer_input_rows: rows of its table.
      layer_scalar: every layer's output is multiplied by a number of its own.
      experts: the mixture beside every MLP; `None`: there is none.
      token_count: as in `ModelConfig`.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    kinds: tuple[str, ...]
    full: LayerType
    sliding: LayerType
    sliding_window: int
    score_scale: float
    norm_eps: float
    max_position: int
    tie_embeddings: bool = True
    attention_bias: bool = False
    unit_offset: bool = True
    qk_norm: bool = True
    value_norm: bool = False
    keys_are_values: bool = False
    shared_layers: int = 0
    double_wide: bool = False
    attention_cap: float | None = None
    final_cap: float | None = None
    layer_input_size: int = 0
    layer_input_rows: int = 0
    layer_scalar: bool = False
    experts: Experts | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    token_count: int | None = None

    def __post_init__(self) -> None:
        """Refuses sizes that no decoder can have."""
        if self.family not in GEMMAS:
            raise ValueError(
                f"model family {self.family!r} is not known; known are "
                f"{', '.join(GEMMAS)}"
            )
        for name in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_layers"),
            *("num_heads", "max_position", "sliding_window"),
        ):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {getattr(self, name)}"
                )
        for kind in sorted(set(self.kinds)):
            if kind not in ("full", "sliding"):
                raise ValueError(f"a layer is full or sliding, not {kind!r}")
            of = self.keys(kind)
            if of.key_heads < 1 or self.num_heads % of.key_heads:
                raise ValueError(
                    f"num_heads {self.num_heads} is not a multiple of the "
                    f"{of.key_heads} key heads of {kind} layers"
                )
            if of.head_dim < 2 or of.head_dim % 2:
                raise ValueError(
                    f"the head width of {kind} layers must be even for rope, not "
                    f"{of.head_dim}"
                )
        self._check_sharing()
        for name in ("attention_cap", "final_cap"):
            cap = getattr(self, name)
            if cap is not None and cap <= 0:
                raise ValueError(f"{name} must be above 0, not {cap}")
        check_vocabulary(self)
        if self.layer_input_size and self.layer_input_rows < self.tokens:
            raise ValueError(
                f"layer_input_rows must be at least the {self.tokens} tokens, not "
                f"{self.layer_input_rows}"
            )

    def _check_sharing(self) -> None:
        if not 0 <= self.shared_layers < self.num_layers:
            raise ValueError(
                f"shared_layers must lie in 0..{self.num_layers - 1}, not "
                f"{self.shared_layers}"
            )
        own = self.kinds[: self.num_layers - self.shared_layers]
        for kind in sorted(set(self.kinds) - set(own)):
            raise ValueError(
                f"the last {self.shared_layers} layers read keys of others, and no "
                f"{kind} layer before them has any"
            )

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.kinds)

    @property
    def tokens(self) -> int:
        """How many ids may be emitted."""
        return self.vocab_size if self.token_count is None else self.token_count

    def keys(self, kind: str) -> LayerType:
        """Keys of the layers of one kind."""
        return self.full if kind == "full" else self.sliding

    def layer_kind(self, layer: int) -> Kind:
        """How far the layer's attention reaches."""
        return "full" if self.kinds[layer] == "full" else "sliding"

    def window(self, layer: int) -> int | None:
        """How many tokens back layer `layer` reaches, itself included."""
        return self.sliding_window if self.kinds[layer] == "sliding" else None

    def stores(self, layer: int) -> bool:
        """Whether the layer has keys and values of its own."""
        return layer < self.num_layers - self.shared_layers

    def cache_layer(self, layer: int) -> int:
        """The stored layer whose keys and values the layer reads."""
        return layer if self.stores(layer) else self.last_stored(self.layer_kind(layer))

    def last_stored(self, kind: str) -> int:
        """The last layer of a kind that has keys and values of its own.

        Raises:
          ValueError: the model has no layer of that kind.
        """
        for layer in reversed(range(self.num_layers - self.shared_layers)):
            if self.kinds[layer] == kind:
                return layer
        raise ValueError(f"this {self.family} model has no {kind} layer")

    @property
    def cache_heads(self) -> tuple[tuple[int, int], ...]:
        """Key heads and head width of each stored layer."""
        stored = self.kinds[: self.num_layers - self.shared_layers]
        keys = [self.keys(kind) for kind in stored]
        return tuple((of.key_heads, of.head_dim) for of in keys)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight, by dotted name; matrices are `[in, out]`."""
        e, p = self.hidden_size, self.layer_input_size
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, e)}
        if p:
            width = self.num_layers * p
            shapes |= {
                "layer_embed": (self.layer_input_rows, width),
                "layer_project": (e, width),
                "layer_project_norm": (p,),
            }
        for l in range(self.num_layers):
            layer = self._attention_shapes(l) | self._mlp_shapes(l)
            if p:
                layer |= {
                    "input_gate": (e, p),
                    "input_project": (p, e),
                    "input_norm": (e,),
                }
            if self.layer_scalar:
                layer |= {"scalar": (1,)}
            shapes |= {f"layers.{l}.{name}": shape for name, shape in layer.items()}
        shapes["norm"] = (e,)
        if not self.tie_embeddings:
            shapes["head"] = (e, self.vocab_size)
        return shapes

    def _attention_shapes(self, l: int) -> dict[str, tuple[int, ...]]:
        e, of = self.hidden_size, self.keys(self.layer_kind(l))
        queries, keys = self.num_heads * of.head_dim, of.key_heads * of.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "attention_norm": (e,),
            "post_attention_norm": (e,),
            "q": (e, queries),
            "o": (queries, e),
        }
        own = ("k", "v") if self.stores(l) else ()
        if self.keys_are_values and self.kinds[l] == "full":
            own = own[:1]
        layer |= dict.fromkeys(own, (e, keys))
        if self.attention_bias:
            layer |= {"q_bias": (queries,), "o_bias": (e,)}
            layer |= {f"{name}_bias": (keys,) for name in own}
        if self.qk_norm:
            layer |= {"q_norm": (of.head_dim,)}
            layer |= {f"{name}_norm": (of.head_dim,) for name in own[:1]}
        return layer

    def _mlp_shapes(self, l: int) -> dict[str, tuple[int, ...]]:
        e, f = self.hidden_size, self.intermediate_size
        if self.double_wide and not self.stores(l):
            f *= 2
        layer: dict[str, tuple[int, ...]] = {
            "mlp_norm": (e,),
            "post_mlp_norm": (e,),
            "gate": (e, f),
            "up": (e, f),
            "down": (f, e),
        }
        if self.experts is not None:
            x, w = self.experts.count, self.experts.width
            layer |= {
                "router": (e, x),
                "router_scale": (e,),
                "expert_scale": (x,),
                "expert_norm": (e,),
                "expert_gate_up": (x, e, 2 * w),
                "expert_down": (x, w, e),
                "post_dense_norm": (e,),
                "post_expert_norm": (e,),
            }
        return layer

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; an unknown key is a `ValueError`."""
        values = known_values(cls, fields)
        for kind in ("full", "sliding"):
            keys = known_values(LayerType, values[kind])
            values[kind] = LayerType(**keys | {"rope": Rope(**keys["rope"])})
        if values.get("experts") is not None:
            values["experts"] = Experts(**values["experts"])
        for name in ("kinds", "eos_token_ids"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)
