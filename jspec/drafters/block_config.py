"""The block denoiser of DFlash and DSpark: its sizes, its weights, what it refuses."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from jspec.drafters.layers import (
    check_draft_sampling,
    check_sizes,
    check_weights,
    known_fields,
)
from jspec.drafters.ragged import check_ragged, check_threshold
from jspec.models.base import Rope, Target

__all__ = [
    "BlockConfig",
    "block_shapes",
    "check_block",
    "check_drafting",
    "check_options",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A block denoiser in full; conventions are settled here, not while drafting.

    Attributes:
      vocab_size: rows of the target's embedding.
      block_size: rows of the block it was trained on, the anchor's among them.
      sample_from_anchor: whether a row speaks of the position behind its own, so
        that the anchor's row drafts too; else a mask speaks of its own position.
      mask_token_id: what stands in the target's embedding for "not known yet".
      taps: residual-stream indices of the target that make up the context.
      windows: per layer, how many positions away attention reaches; `()`: no limit.
      causal: per layer, whether a row is blind to those behind it; `()`: none is.
      draft_vocab_size: tokens of its own smaller head. `None`: the target's all.
      own_embedding: whether it brings an embedding.
      own_head: whether it brings a head.
      mask_embedding: whether it brings the mask's embedding.
      sinks: whether heads have attention sinks.
      embedding_scale: of what the embedding gives.
      value_scale: of values, the context's and the block's.
      logit_scale: of logits.
      logit_cap: logits become `cap * tanh(logits / cap)`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    target_hidden_size: int
    sample_from_anchor: bool = False
    windows: tuple[int | None, ...] = ()
    causal: tuple[bool, ...] = ()
    attention_bias: bool = False
    draft_vocab_size: int | None = None
    own_embedding: bool = False
    own_head: bool = False
    mask_embedding: bool = False
    sinks: bool = False
    embedding_scale: float = 1.0
    value_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None

    def __post_init__(self) -> None:
        """Refuses sizes that no block can have."""
        if self.block_size < 1 or self.drafts < 1:
            raise ValueError(
                f"a block of {self.block_size} rows drafts nothing: block_size must be "
                f"at least {1 if self.sample_from_anchor else 2}"
            )
        if not self.taps:
            raise ValueError("taps must name at least one layer of the target")
        if self.num_heads % self.num_key_heads or self.head_dim % 2:
            raise ValueError(
                f"{self.num_heads} heads over {self.num_key_heads} key heads of width "
                f"{self.head_dim} cannot attend: heads come in whole groups, widths "
                f"are even"
            )
        for name in ("windows", "causal"):
            if len(getattr(self, name)) not in (0, self.num_layers):
                raise ValueError(
                    f"{name} names {len(getattr(self, name))} layers, the drafter has "
                    f"{self.num_layers}"
                )
        if self.draft_vocab_size is not None and not self.own_head:
            raise ValueError("a smaller vocabulary needs a head of its own")

    @property
    def drafts(self) -> int:
        """Tokens that a whole block drafts."""
        return self.block_size - (0 if self.sample_from_anchor else 1)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        values["rope"] = Rope(**known_fields(Rope, values["rope"]))
        for name in ("taps", "windows", "causal"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def block_shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """Every weight by dotted name; matrices are `[in, out]`."""
    e, f, d = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * d, config.num_key_heads * d
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (len(config.taps) * config.target_hidden_size, e),
        "context_norm": (e,),
        "norm": (e,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (e,),
        "q": (e, queries),
        "k": (e, keys),
        "v": (e, keys),
        "o": (queries, e),
        "q_norm": (d,),
        "k_norm": (d,),
        "mlp_norm": (e,),
        "gate": (e, f),
        "up": (e, f),
        "down": (f, e),
    }
    if config.attention_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,)}
        layer |= {"v_bias": (keys,), "o_bias": (e,)}
    if config.sinks:
        layer |= {"sinks": (config.num_heads,)}
    for l in range(config.num_layers):
        shapes |= {f"layers.{l}.{name}": shape for name, shape in layer.items()}
    if config.mask_embedding:
        shapes["mask_embedding"] = (e,)
    if config.own_embedding:
        shapes["embed"] = (config.vocab_size, e)
    if config.own_head:
        shapes["head"] = (e, config.draft_vocab_size or config.vocab_size)
    if config.draft_vocab_size is not None:
        shapes["ids"] = (config.draft_vocab_size,)
    return shapes


def check_block(
    method: str,
    config: BlockConfig,
    shapes: Mapping[str, tuple[int, ...]],
    weights: Any,
    target: Target,
) -> None:
    """Raises `ValueError` if weights are not `shapes` or do not fit the target."""
    check_weights(method, weights, shapes)
    check_sizes(
        method,
        target,
        hidden_size=config.target_hidden_size,
        vocab_size=config.vocab_size,
    )
    theirs = target.config
    lent = not (config.own_embedding and config.own_head)
    if lent and config.hidden_size != theirs.hidden_size:
        raise ValueError(
            f"the drafter of method {method!r} is {config.hidden_size} wide and lacks "
            f"an embedding or a head; the target's are {theirs.hidden_size} wide"
        )
    if not all(0 <= tap <= theirs.num_layers for tap in config.taps):
        raise ValueError(
            f"the drafter of method {method!r} taps layers {config.taps}, the target "
            f"has {theirs.num_layers}"
        )
    if config.draft_vocab_size is not None:
        ids = np.asarray(weights["ids"])
        if not (np.diff(ids) > 0).all() or ids[0] < 0 or ids[-1] >= theirs.vocab_size:
            raise ValueError(
                f"the drafter of method {method!r} has ids that do not rise within "
                f"0..{theirs.vocab_size - 1}: its d2t holds no offsets"
            )
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise ValueError(
            f"mask_token_id {config.mask_token_id} is no row of an embedding of "
            f"{config.vocab_size}"
        )


def check_options(drafter: Any, drafts: int) -> None:
    """Raises `ValueError` if an option of a block drafter is one it does not have."""
    if not 0 <= drafter.gamma <= drafts:
        raise ValueError(
            f"num_speculative_tokens must lie in 0..{drafts}, what one block of this "
            f"drafter holds, not {drafter.gamma}"
        )
    if drafter.context_window is not None and drafter.context_window < 1:
        raise ValueError(
            f"context_window must be at least 1 token, not {drafter.context_window}"
        )
    check_drafting(drafter)


def check_drafting(drafter: Any) -> None:
    """Raises `ValueError` if a drafter cannot draw, or offer, as it is asked to."""
    check_ragged(drafter)
    check_draft_sampling(drafter.draft_sampling, "greedy", "probabilistic")
    check_threshold(drafter.confidence_threshold)
