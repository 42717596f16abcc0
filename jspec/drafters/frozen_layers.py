"""A Gemma 4 assistant's layers: queries alone, over keys that are the target's.

Every layer is Gemma 4's, without what makes keys and values.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.layers import known_fields
from jspec.models.base import Rope
from jspec.models.gemma_layers import gelu_gated, norm
from jspec.models.layers import linear, linears, rotate, turns

__all__ = ["AttentionKind", "FrozenKVConfig", "Mix", "layers", "logits_of"]

type Mix = Callable[[int, Array], Array]
"""Layer and rotated queries to mixed values."""

IMPOSSIBLE = -1e30
"""The logit of an id that is no token: no law gives it a probability."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """The layers of one type.

    Attributes:
      name: of the type: a `Kind` of the target's layers.
      head_dim: width of its heads.
      rope: how its queries are rotated.
      window: how many positions back a query sees, its own included; `None`: all.
    """

    name: str
    head_dim: int
    rope: Rope
    window: int | None = None

    def __post_init__(self) -> None:
        """Refuses what no layer can be."""
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(
                f"head_dim of {self.name} layers must be even, not {self.head_dim}"
            )
        if self.window is not None and self.window < 2:
            raise ValueError(
                f"a window of {self.window} shows a draft no committed token; it must "
                f"be at least 2"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenKVConfig:
    """A Gemma 4 assistant in full.

    Attributes:
      vocab_size: of the target.
      backbone_size: hidden size of the target.
      hidden_size: of its own layers.
      kinds: the types of layers there are.
      layer_kinds: of each layer, the name of its type.
      centroids: clusters of tokens that the head chooses among; 0: it has none.
      centroid_top_k: clusters whose tokens get a logit.
      draft_vocab_size: tokens that it can draft, `ids` in the target; 0: all.
      reads: of each layer, the target's layer whose keys it asks. `()`: the last one
        of its type that stores any.
      target_family: whose keys and values it was trained on.
      target_layers: how many layers the target has, the last of which is read.
        `None`: as many as the target turns out to have.
    """

    vocab_size: int
    backbone_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    norm_eps: float
    kinds: tuple[AttentionKind, ...]
    layer_kinds: tuple[str, ...]
    centroids: int = 0
    centroid_top_k: int = 0
    draft_vocab_size: int = 0
    reads: tuple[int, ...] = ()
    target_family: str = "gemma4"
    target_layers: int | None = None

    def __post_init__(self) -> None:
        """Refuses sizes that no assistant can have."""
        for name in (
            *("vocab_size", "backbone_size", "hidden_size"),
            *("intermediate_size", "num_heads"),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer above 0, not {value!r}")
        known = [kind.name for kind in self.kinds]
        if not self.layer_kinds:
            raise ValueError("an assistant must have at least one layer")
        for name in self.layer_kinds:
            if name not in known:
                raise ValueError(f"layer type {name!r} is not among kinds, {known}")
        self._check_reads()
        words = self.draft_vocab_size
        if words and (self.centroids or not 1 <= words <= self.vocab_size):
            raise ValueError(
                f"draft_vocab_size must be 0 with centroids, and at most "
                f"{self.vocab_size} without, not {words}"
            )
        if self.centroids and (
            self.vocab_size % self.centroids
            or not 1 <= self.centroid_top_k <= self.centroids
        ):
            raise ValueError(
                f"{self.centroids} centroids, of which {self.centroid_top_k} are "
                f"chosen, cannot share {self.vocab_size} tokens evenly"
            )

    def _check_reads(self) -> None:
        if len(self.reads) not in (0, len(self.layer_kinds)):
            raise ValueError(
                f"reads names {len(self.reads)} layers of the target, the assistant "
                f"has {len(self.layer_kinds)}"
            )
        wrong = next((layer for layer in self.reads if layer < 0), None)
        if wrong is not None:
            raise ValueError(
                f"reads must name layers of the target from 0 on, not {wrong}"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        values["kinds"] = tuple(
            AttentionKind(
                **known_fields(AttentionKind, kind) | {"rope": Rope(**kind["rope"])}
            )
            for kind in values["kinds"]
        )
        values["layer_kinds"] = tuple(values["layer_kinds"])
        values["reads"] = tuple(values.get("reads", ()))
        return cls(**values)

    def kind(self, name: str) -> AttentionKind:
        """The layers of a type."""
        return next(kind for kind in self.kinds if kind.name == name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by dotted name; matrices are `[in, out]`."""
        e, f, wide = self.hidden_size, self.intermediate_size, self.backbone_size
        shapes: dict[str, tuple[int, ...]] = {
            "pre_projection": (2 * wide, e),
            "post_projection": (e, wide),
            "embed": (self.draft_vocab_size or self.vocab_size, e),
            "norm": (e,),
        }
        for l, name in enumerate(self.layer_kinds):
            d = self.kind(name).head_dim
            queries = self.num_heads * d
            layer = {
                "q": (e, queries),
                "o": (queries, e),
                "q_norm": (d,),
                "attention_norm": (e,),
                "post_attention_norm": (e,),
                "mlp_norm": (e,),
                "post_mlp_norm": (e,),
                "gate": (e, f),
                "up": (e, f),
                "down": (f, e),
                "scalar": (1,),
            }
            shapes |= {f"layers.{l}.{part}": shape for part, shape in layer.items()}
        if self.draft_vocab_size:
            shapes["ids"] = (self.draft_vocab_size,)
        if self.centroids:
            shapes |= {"centroids": (e, self.centroids), "ids": (self.vocab_size,)}
        return shapes


def layers(
    config: FrozenKVConfig,
    weights: Mapping[str, Array],
    x: Float[Array, "B N E"],
    position: Int[Array, "B N"],
    mix: Mix,
) -> Float[Array, "B N E"]:
    """The stream behind all layers and the final norm."""
    turned = {
        kind.name: turns(kind.rope, kind.head_dim, position) for kind in config.kinds
    }
    b, n, _ = x.shape
    for l, name in enumerate(config.layer_kinds):

        def own(part: str, l: int = l) -> Array:
            return weights[f"layers.{l}.{part}"]

        def normed(x: Array, part: str, own: Callable[[str], Array] = own) -> Array:
            return norm(x, own(part), config.norm_eps)

        y = normed(x, "attention_norm")
        q = linear(y, own("q")).reshape(b, n, config.num_heads, -1)
        q = rotate(normed(q, "q_norm"), turned[name])
        y = linear(mix(l, q).reshape(b, n, -1), own("o"))
        x = x + normed(y, "post_attention_norm")
        y = normed(x, "mlp_norm")
        y = gelu_gated(*linears(y, (own("gate"), own("up"))))
        y = linear(y, own("down"))
        x = (x + normed(y, "post_mlp_norm")) * own("scalar").astype(x.dtype)[None, None]
    return norm(x, weights["norm"], config.norm_eps)


def logits_of(
    config: FrozenKVConfig,
    weights: Mapping[str, Array],
    x: Float[Array, "B N E"],
    tokens: int,
) -> tuple[Float[Array, "B N C"], Int[Array, "B N C"] | None]:
    """Logits, and whose they are: all tokens', or those of a smaller vocabulary.

    With centroids only the tokens of the likeliest clusters have one. All others have
    no probability: transformers gives them the least chosen logit of the batch less
    one, so that a row's law would hang on its neighbours; vLLM leaves them out too.

    Args:
      config: of the assistant.
      weights: its.
      x: behind the final norm; one node with centroids.
      tokens: ids from here on are padding.

    Returns:
      float32 logits, and their ids; `None`: of all tokens in order.
    """
    if config.draft_vocab_size:
        y = linear(x, weights["embed"], transposed=True, out=jnp.float32)
        return y, jnp.broadcast_to(weights["ids"][None, None], y.shape)
    if not config.centroids:
        y = linear(x, weights["embed"], transposed=True, out=jnp.float32)
        ids = jnp.arange(config.vocab_size)[None, None]
        return jnp.where(ids < tokens, y, IMPOSSIBLE), None
    scores = linear(x, weights["centroids"], out=jnp.float32)[:, 0]
    _, chosen = jax.lax.top_k(scores, config.centroid_top_k)
    ids = weights["ids"].reshape(config.centroids, -1)[chosen]
    ids = ids.reshape(x.shape[0], -1)
    y = jnp.einsum(
        "be,bce->bc",
        x[:, 0],
        weights["embed"][ids],
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return jnp.where(ids < tokens, y, IMPOSSIBLE)[:, None], ids[:, None]
