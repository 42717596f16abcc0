"""A language model of another vocabulary that reads and says the target's tokens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jspec.cache import KVCache
from jspec.models.base import Seen, TargetConfig
from jspec.tree import pytree

__all__ = ["Translated", "translate"]


@pytree
class Translated:
    """Says only what both vocabularies have a token for; all else has no probability.

    Token-level intersection (Timor et al. 2025, arXiv:2502.05202, Algorithm 4). A law
    made of its logits is the model's own law given that the token is a shared one: over
    the target's ids, and it sums to 1. So any method that drafts with a language model
    drafts with this one, drawn or greedy, and what is emitted follows the target's law.

    Attributes:
      model: what is translated.
      heard: for each of the target's ids, the model's token that stands for it.
      ours: the shared tokens, by the target's ids.
      theirs: the same tokens, by the model's.
    """

    model: Any
    heard: Int[Array, " V"]
    ours: Int[Array, " C"]
    theirs: Int[Array, " C"]

    @property
    def config(self) -> TargetConfig:
        """The model's, with the target's tokens."""
        return dataclasses.replace(
            self.model.config, vocab_size=self.heard.shape[0], token_count=None
        )

    @property
    def dtype(self) -> jnp.dtype:
        """The model's."""
        return self.model.dtype

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
        """One pass of the model over translated tokens."""
        seen = self.model(
            self.heard.at[tokens].get(mode="clip"),
            parent,
            cache,
            branching=branching,
            feature_layers=feature_layers,
            logits=logits,
        )
        if seen.logits is None:
            return seen
        shape = (*seen.logits.shape[:-1], self.heard.shape[0])
        said = jnp.full(shape, -jnp.inf, seen.logits.dtype)
        said = said.at[..., self.ours].set(seen.logits[..., self.theirs])
        return dataclasses.replace(seen, logits=said)


def translate(
    model: Any,
    shared: Mapping[int, int],
    heard: Mapping[int, int],
    tokens: int,
) -> Translated:
    """Makes a model speak of the target's tokens.

    Args:
      model: of another vocabulary.
      shared: the target's id to the model's, of tokens that both have.
      heard: the model's id that stands for one of the target's it does not have.
      tokens: how many the target has.

    Raises:
      ValueError: nothing is shared, so nothing could be drafted.
    """
    if not shared:
        raise ValueError(
            "the draft model's tokenizer and the target's have no token in common: "
            "nothing could be drafted"
        )
    table = np.zeros(tokens, np.int32)
    for ids in (heard, shared):
        table[list(ids)] = list(ids.values())
    return Translated(
        model=model,
        heard=jnp.asarray(table),
        ours=jnp.asarray(np.array(list(shared), np.int32)),
        theirs=jnp.asarray(np.array(list(shared.values()), np.int32)),
    )
