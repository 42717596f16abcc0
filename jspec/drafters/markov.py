"""DSpark's sizes and small heads: the token before, and how sure a draft is."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.block_config import BlockConfig, block_shapes
from jspec.drafters.layers import known_fields
from jspec.models.layers import embed, linear

__all__ = ["DSparkConfig", "bias", "confidence", "dspark_shapes"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DSparkConfig:
    """A block denoiser and the heads that walk its block.

    Attributes:
      block: sizes and conventions of the block.
      markov_rank: of the Markov head; 0: there is none, and DSpark is DFlash.
      markov_head: how the head makes its low-rank state: from the token before
        alone, gated by the hidden state, or recurrently along the block.
      confidence_head: whether a head says how likely a draft is to be kept.
      confidence_with_markov: whether that head reads the token before, too.
    """

    block: BlockConfig
    markov_rank: int
    markov_head: Literal["vanilla", "gated", "rnn"] = "vanilla"
    confidence_head: bool = False
    confidence_with_markov: bool = False

    def __post_init__(self) -> None:
        """Refuses heads that do not go together."""
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank must be at least 0, not {self.markov_rank}")
        if self.markov_head not in ("vanilla", "gated", "rnn"):
            raise ValueError(
                f"markov_head must be 'vanilla', 'gated' or 'rnn', not "
                f"{self.markov_head!r}"
            )
        if self.confidence_with_markov and not (
            self.confidence_head and self.markov_rank
        ):
            raise ValueError(
                "confidence_with_markov needs a confidence head and a markov_rank "
                "above 0"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        return cls(**values | {"block": BlockConfig.from_json(values["block"])})


def dspark_shapes(config: DSparkConfig) -> dict[str, tuple[int, ...]]:
    """Every weight by dotted name; matrices are `[in, out]`."""
    block = config.block
    e, r = block.hidden_size, config.markov_rank
    shapes = block_shapes(block)
    if r:
        shapes["markov.before"] = (block.vocab_size, r)
        shapes["markov.after"] = (r, block.draft_vocab_size or block.vocab_size)
    if r and config.markov_head == "gated":
        shapes |= {"markov.gate": (e + r, r), "markov.gate_bias": (r,)}
    if r and config.markov_head == "rnn":
        shapes |= {"markov.joint": (2 * r + e, 3 * r), "markov.joint_bias": (3 * r,)}
    if config.confidence_head:
        width = e + (r if config.confidence_with_markov else 0)
        shapes |= {"confidence.weight": (width, 1), "confidence.bias": (1,)}
    return shapes


def bias(
    config: DSparkConfig,
    weights: Any,
    state: Float[Array, "B R"],
    before: Int[Array, " B"],
    hidden: Float[Array, "B E"],
) -> tuple[Float[Array, "B V"], Float[Array, "B R"], Float[Array, "B R"]]:
    """What the token before adds to the logits of one position.

    Returns:
      the bias over the drafter's vocabulary, the recurrent state after it, and the
      embedding of the token before.
    """
    if not config.markov_rank:
        return jnp.zeros((len(before), 1)), state, state
    b = len(before)
    twice = 2 if b == 1 else 1  # Never one row alone: see `write_context`.

    def row(a: Array) -> Array:
        return jnp.broadcast_to(a[:, None], (b, twice, *a.shape[1:]))

    h, s = row(hidden), row(state)
    e = embed(weights["markov.before"], row(before)).astype(hidden.dtype)
    low = e
    if config.markov_head == "gated":
        both = jnp.concatenate([h, e], axis=-1)
        gate = linear(both, weights["markov.gate"], weights["markov.gate_bias"])
        low = jax.nn.sigmoid(gate) * e
    if config.markov_head == "rnn":
        joint = jnp.concatenate([s, e, h], axis=-1)
        joint = linear(joint, weights["markov.joint"], weights["markov.joint_bias"])
        gate, candidate, out = jnp.split(joint, 3, axis=-1)
        gate = jax.nn.sigmoid(gate)
        s = gate * s + (1 - gate) * jnp.tanh(candidate)
        low = jnp.tanh(out)
    push = linear(low, weights["markov.after"], out=jnp.float32)
    return push[:, 0], s[:, 0], e[:, 0]


def confidence(
    config: DSparkConfig,
    weights: Any,
    hidden: Float[Array, "B E"],
    feature: Float[Array, "B R"],
    temperature: Float[Array, ""],
) -> Float[Array, " B"]:
    """How likely the draft of one position is to be kept, if those before it are.

    Float32 throughout. It reads the position's hidden state and at most the token
    before, never the draft it speaks of.
    """
    x = hidden
    if config.confidence_with_markov:
        x = jnp.concatenate([hidden, feature], axis=-1)
    wide = x.astype(jnp.float32)[:, None]
    weight = weights["confidence.weight"].astype(jnp.float32)
    logit = linear(wide, weight, weights["confidence.bias"])[:, 0, 0]
    return jax.nn.sigmoid(logit / temperature)
