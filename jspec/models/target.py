"""What a target is to whoever serves it or drafts for it."""

from typing import Any, Literal, Protocol

from jaxtyping import Array, Float, Int

from jspec.cache import KVCache
from jspec.tree import pytree

__all__ = ["Kind", "Seen", "Target", "TargetConfig"]

type Kind = Literal["full", "sliding"]
"""How far attention of a layer reaches: to the whole text, or a window back."""


class TargetConfig(Protocol):
    """What every family's configuration says, to whoever serves the model.

    Configurations are frozen dataclasses; `token_count` can be replaced.
    """

    @property
    def family(self) -> str:
        """One of `models.FAMILIES`."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, padding rows included."""
        ...

    @property
    def tokens(self) -> int:
        """How many ids may be emitted."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the stream, so of each tapped feature."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers of the model; `feature_layers` go up to it."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads of each layer."""
        ...

    @property
    def norm_eps(self) -> float:
        """Of the norms."""
        ...

    @property
    def max_position(self) -> int:
        """Longest text the model was made for."""
        ...

    @property
    def tie_embeddings(self) -> bool:
        """Whether the head is the embedding."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        ...

    @property
    def token_count(self) -> int | None:
        """Ids from here on are padding; `None`: every row is a token."""
        ...

    @property
    def cache_heads(self) -> tuple[tuple[int, int], ...]:
        """Key heads and head width of each stored layer."""
        ...

    def stores(self, layer: int) -> bool:
        """Whether the layer has keys and values of its own."""
        ...

    def cache_layer(self, layer: int) -> int:
        """The stored layer whose keys and values a layer reads."""
        ...

    def layer_kind(self, layer: int) -> Kind:
        """How far its attention reaches."""
        ...

    def window(self, layer: int) -> int | None:
        """How many tokens back it reaches, itself included; `None`: all."""
        ...

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by dotted name; matrices are `[in, out]`."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `models.config_from_json` gives an equal one back."""
        ...


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

    @property
    def config(self) -> TargetConfig:
        """What it is."""
        ...

    @property
    def dtype(self) -> Any:
        """Of its stream and its cache."""
        ...

    def embed_tokens(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N E"]:
        """The stream before the first layer: layer 0 of the features."""
        ...

    def normed(self, x: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
        """The final norm of the stream behind the last layer."""
        ...

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
