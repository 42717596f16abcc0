"""What a target is: its configuration, its weights by name, what it lets one see."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, Self

from jaxtyping import Array, Float, Int

from jspec.cache import KVCache
from jspec.tree import pytree

__all__ = ["FAMILIES", "ModelConfig", "Rope", "Seen", "Target", "weight_shapes"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) and how it is stretched.

    `kind` is "default", "linear" (positions divided by `factor`), "llama3"
    (Llama 3.1: low frequencies divided) or "yarn" (Peng et al. 2023). A base that
    moves with the length of the text ("dynamic", "longrope") is refused: keys
    already in the cache would have been rotated by another base.
    """

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
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

    def __post_init__(self) -> None:
        """Refuses what no formula here covers."""
        kinds = ("default", "linear", "llama3", "yarn")
        if self.kind not in kinds:
            raise ValueError(
                f"rope type {self.kind!r} is not known; known are {', '.join(kinds)}"
            )
        if self.kind in ("llama3", "yarn") and self.original_max_position <= 0:
            raise ValueError(
                f"rope type {self.kind!r} needs original_max_position above 0, "
                f"not {self.original_max_position}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A dense decoder of the Llama family, in full.

    Attributes:
      family: one of `FAMILIES`; the options below say what it computes.
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
        if self.family not in FAMILIES:
            raise ValueError(
                f"model family {self.family!r} is not known; known are "
                f"{', '.join(FAMILIES)}"
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
        if self.token_count is not None and not (
            1 <= self.token_count <= self.vocab_size
        ):
            raise ValueError(
                f"token_count must lie in 1..{self.vocab_size}, not {self.token_count}"
            )

    @property
    def tokens(self) -> int:
        """How many ids may be emitted."""
        return self.vocab_size if self.token_count is None else self.token_count

    def window(self, layer: int) -> int | None:
        """How many tokens back layer `layer` reaches, itself included."""
        return self.windows[layer] if self.windows else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; an unknown key is a `ValueError`."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise ValueError(f"unknown configuration key {unknown[0]!r}")
        values = dict(fields)
        values["rope"] = Rope(**values["rope"])
        values["windows"] = tuple(values.get("windows", ()))
        values["eos_token_ids"] = tuple(values.get("eos_token_ids", ()))
        return cls(**values)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a decoder, by dotted name; matrices are `[in, out]`."""
    e, f, d = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * d, config.num_key_heads * d
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, e)}
    for l in range(config.num_layers):
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
        if config.attention_bias:
            layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
        if config.output_bias:
            layer |= {"o_bias": (e,)}
        if config.mlp_bias:
            layer |= {"gate_bias": (f,), "up_bias": (f,), "down_bias": (e,)}
        if config.qk_norm:
            layer |= {"q_norm": (d,), "k_norm": (d,)}
        shapes |= {f"layers.{l}.{name}": shape for name, shape in layer.items()}
    shapes["norm"] = (e,)
    if not config.tie_embeddings:
        shapes["head"] = (e, config.vocab_size)
    return shapes


@pytree
class Seen:
    """What one pass of the target shows.

    Attributes:
      logits: of the successor of each node, float32; `None` where not asked for.
      features: hidden states of the tapped layers, concatenated in their order;
        `None` when no layer is tapped. Layer `j` is the residual stream after `j`
        layers, before the final norm.
      cache: with the keys and values of every offered node appended.
    """

    logits: Float[Array, "B N V"] | None
    features: Float[Array, "B N F"] | None
    cache: KVCache


class Target(Protocol):
    """A model that verifies: reads a tree of tokens after what its cache holds."""

    config: ModelConfig

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        parent: Int[Array, "B N"],
        cache: KVCache,
        *,
        branching: bool = False,
        feature_layers: tuple[int, ...] = (),
        logits: bool = True,
    ) -> Seen:
        """What it says of the nodes, of which each follows its `parent`."""
        ...
