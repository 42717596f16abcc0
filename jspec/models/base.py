"""Configurations: the Llama family's, and the parts that every family's has."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from jspec.models.target import Kind, Seen, Target, TargetConfig

__all__ = [
    "LLAMAS",
    "Kind",
    "ModelConfig",
    "Rope",
    "Seen",
    "Target",
    "TargetConfig",
    "by_layer",
    "check_vocabulary",
    "check_weights",
    "known_values",
    "weight_shapes",
]

LLAMAS = ("llama", "mistral", "qwen2", "qwen3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) and how it is stretched.

    `kind` is "default", "linear" (positions divided by `factor`), "llama3"
    (Llama 3.1: low frequencies divided), "yarn" (Peng et al. 2023) or "proportional"
    (Gemma 4: only the first `fraction` of the pairs turns, at the frequencies they
    have in the whole head). A base that moves with the length of the text
    ("dynamic", "longrope") is refused: keys already in the cache would have been
    rotated by another base.
    """

    kind: Literal["default", "linear", "llama3", "yarn", "proportional"] = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    fraction: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what no formula here covers."""
        kinds = ("default", "linear", "llama3", "yarn", "proportional")
        if self.kind not in kinds:
            raise ValueError(
                f"rope type {self.kind!r} is not known; known are {', '.join(kinds)}"
            )
        if self.kind in ("llama3", "yarn") and self.original_max_position <= 0:
            raise ValueError(
                f"rope type {self.kind!r} needs original_max_position above 0, "
                f"not {self.original_max_position}"
            )
        if not 0 <= self.fraction <= 1:
            raise ValueError(
                f"the fraction of a rope must lie in 0..1, not {self.fraction}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A dense decoder of the Llama family, in full.

    Attributes:
      family: one of `LLAMAS`; the options below say what it computes.
      vocab_size: rows of the embedding, padding rows included.
      windows: per layer, how many tokens back attention reaches; `()`: no limit.
      token_count: ids from here on are padding, never proposed nor emitted.
        `None`: every row is a token.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    max_position: int
    tie_embeddings: bool
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    token_count: int | None = None

    def __post_init__(self) -> None:
        """Refuses sizes that no decoder can have."""
        if self.family not in LLAMAS:
            raise ValueError(
                f"model family {self.family!r} is not known; known are "
                f"{', '.join(LLAMAS)}"
            )
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_key_heads",
            "head_dim",
            "max_position",
        ):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {getattr(self, name)}"
                )
        if self.num_heads % self.num_key_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_key_heads "
                f"{self.num_key_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rope, not {self.head_dim}")
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(
                f"windows names {len(self.windows)} layers, the model has "
                f"{self.num_layers}"
            )
        if any(w is not None and w < 1 for w in self.windows):
            raise ValueError(f"a window must be at least 1 token, not {self.windows}")
        check_vocabulary(self)

    @property
    def tokens(self) -> int:
        """How many ids may be emitted."""
        return self.vocab_size if self.token_count is None else self.token_count

    def window(self, layer: int) -> int | None:
        """How many tokens back layer `layer` reaches, itself included."""
        return self.windows[layer] if self.windows else None

    @property
    def cache_heads(self) -> tuple[tuple[int, int], ...]:
        """Key heads and head width of each stored layer: of all, and all alike."""
        return ((self.num_key_heads, self.head_dim),) * self.num_layers

    def stores(self, layer: int) -> bool:
        """Every layer has keys and values of its own."""
        return True

    def cache_layer(self, layer: int) -> int:
        """Every layer reads its own keys and values."""
        return layer

    def layer_kind(self, layer: int) -> Kind:
        """How far the layer's attention reaches."""
        return "full" if self.window(layer) is None else "sliding"

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of a decoder, by dotted name; matrices are `[in, out]`."""
        e, f, d = self.hidden_size, self.intermediate_size, self.head_dim
        queries, keys = self.num_heads * d, self.num_key_heads * d
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, e)}
        for l in range(self.num_layers):
            layer: dict[str, tuple[int, ...]] = {
                "attention_norm": (e,),
                "q": (e, queries),
                "k": (e, keys),
                "v": (e, keys),
                "o": (queries, e),
                "mlp_norm": (e,),
                "gate": (e, f),
                "up": (e, f),
                "down": (f, e),
            }
            if self.attention_bias:
                layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
            if self.output_bias:
                layer |= {"o_bias": (e,)}
            if self.mlp_bias:
                layer |= {"gate_bias": (f,), "up_bias": (f,), "down_bias": (e,)}
            if self.qk_norm:
                layer |= {"q_norm": (d,), "k_norm": (d,)}
            shapes |= {f"layers.{l}.{name}": shape for name, shape in layer.items()}
        shapes["norm"] = (e,)
        if not self.tie_embeddings:
            shapes["head"] = (e, self.vocab_size)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; an unknown key is a `ValueError`."""
        values = known_values(cls, fields)
        values["rope"] = Rope(**values["rope"])
        values["windows"] = tuple(values.get("windows", ()))
        values["eos_token_ids"] = tuple(values.get("eos_token_ids", ()))
        return cls(**values)


def check_vocabulary(config: TargetConfig) -> None:
    """Refuses a `token_count` that the embedding does not have."""
    count, rows = config.token_count, config.vocab_size
    if count is not None and not 1 <= count <= rows:
        raise ValueError(f"token_count must lie in 1..{rows}, not {count}")


def known_values(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, all of them known to the configuration `cls`, or a `ValueError`."""
    known = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(f"unknown configuration key {unknown[0]!r}")
    return dict(fields)


def weight_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a model, by dotted name; matrices are `[in, out]`."""
    return config.weight_shapes()


def by_layer(config: TargetConfig, weights: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The weights of every layer, by their names within it."""
    layers: list[dict[str, Any]] = [{} for _ in range(config.num_layers)]
    for name, value in weights.items():
        if name.startswith("layers."):
            _, layer, own = name.split(".", 2)
            layers[int(layer)][own] = value
    return layers


def check_weights(config: TargetConfig, weights: Mapping[str, Any]) -> None:
    """Raises `ValueError` unless there is every weight, of its shape, and no other."""
    shapes = config.weight_shapes()
    for name, shape in shapes.items():
        if name not in weights:
            raise ValueError(f"weight {name} is missing")
        if tuple(weights[name].shape) != shape:
            raise ValueError(
                f"weight {name} has shape {tuple(weights[name].shape)}, "
                f"the configuration asks for {shape}"
            )
    extra = sorted(set(weights) - set(shapes))
    if extra:
        raise ValueError(f"weight {extra[0]} belongs to no part of the model")
