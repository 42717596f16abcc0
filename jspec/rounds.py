"""The nouns of a round: what is proposed, what is judged, what became permanent."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.tree import pytree

__all__ = [
    "DEAD",
    "ROOT",
    "Evidence",
    "Proposal",
    "SparseLaw",
    "Verdict",
    "ancestors_of",
    "settle",
]

ROOT = 0
"""The node of the anchor."""

DEAD = -1
"""The parent of a node that is not offered; the anchor's own parent too."""


@pytree
class SparseLaw:
    """A law of each node that is zero but for some candidates.

    What a drafter with a vocabulary of its own draws from, or one that draws among
    its likeliest tokens: a dense law over the target's vocabulary is never built.

    Attributes:
      ids: the candidates in the target's vocabulary; those of one node that have a
        probability differ. Where nodes or rows share them, their axis may be 1.
      probs: their probabilities; 0 where there is no candidate.
    """

    ids: Int[Array, "#B #N C"]
    probs: Float[Array, "B N C"]


@pytree
class Proposal:
    """A token tree per row, every parent before its children.

    Node 0 is the anchor, the newest emitted token. A chain is the tree
    `parent = [-1, 0, 1, ...]`; a block is a chain whose `q` rows are independent.
    A drafted node with parent `DEAD` is padding: never offered, so never kept.

    Attributes:
      tokens: ids of the nodes.
      parent: the node that each follows.
      q: the law each node was drawn from, given all nodes before it, elder siblings
        included: siblings drawn apart have one law; of siblings drawn without
        replacement, a later one's law lacks the earlier tokens and is renormalised.
        `None` when drafting was certain (argmax, top-k, look-up).
      confidence: how likely each node is to be kept if those before it are, said
        without a look at its own token unless drafting was certain. It advises who
        chooses how much to verify; what is kept never depends on it.
    """

    tokens: Int[Array, "B N"]
    parent: Int[Array, "B N"]
    q: Float[Array, "B N V"] | SparseLaw | None = None
    confidence: Float[Array, "B N"] | None = None


@pytree
class Verdict:
    """What the target keeps of a proposal.

    Attributes:
      kept: the nodes of the kept path, the anchor among them.
      bonus: the token that follows the last kept node.
    """

    kept: Bool[Array, "B N"]
    bonus: Int[Array, " B"]

    @property
    def accepted(self) -> Int[Array, " B"]:
        """Drafted tokens kept."""
        return self.kept.sum(-1, dtype=jnp.int32) - 1

    @property
    def path(self) -> Int[Array, "B N"]:
        """The kept nodes first, in order; then the others."""
        return jnp.argsort(~self.kept, axis=-1, stable=True).astype(jnp.int32)


@pytree
class Evidence:
    """What became permanent: tokens the cache now holds for good.

    Attributes:
      tokens: ids in the order of the text.
      start: position of the first.
      count: how many of them are real; the rest is padding.
      anchor: the token after the last: the newest emitted one, or the prompt's next.
      features: the target's tapped hidden states at these positions.
      accepted: how many drafted tokens this round kept. `None`: a piece of the prompt,
        which nobody drafted.
    """

    tokens: Int[Array, "B T"]
    start: Int[Array, " B"]
    count: Int[Array, " B"]
    anchor: Int[Array, " B"]
    features: Float[Array, "B T F"] | None = None
    accepted: Int[Array, " B"] | None = None


def ancestors_of(parent: Int[Array, "B N"]) -> Bool[Array, "B N N"]:
    """`[b, n, m]`: node `n` descends from node `m`, or is it.

    Paths are doubled in every step, so depth `N` takes `log2 N` steps.
    """
    n = parent.shape[1]
    nodes = jnp.arange(n)
    related = (parent[:, :, None] == nodes[None, None]) | jnp.eye(n, dtype=bool)[None]
    for _ in range(max(n - 1, 1).bit_length()):
        related = jnp.einsum("bij,bjk->bik", related, related)
    return related


def settle(
    proposal: Proposal, verdict: Verdict
) -> tuple[Int[Array, "B N"], Int[Array, " B"]]:
    """What a reader sees of a round: the accepted tokens, then the bonus.

    Returns:
      tokens, of which the first `count` are emitted, and `count = accepted + 1`.
    """
    n = proposal.tokens.shape[1]
    accepted = verdict.accepted
    path = jnp.roll(verdict.path, -1, axis=1)
    drafted = jnp.take_along_axis(proposal.tokens, path, axis=1)
    steps = jnp.arange(n)[None]
    tokens = jnp.where(steps == accepted[:, None], verdict.bonus[:, None], drafted)
    return tokens, accepted + 1
