"""How many drafts of each row are worth verifying, decided without bending the law."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec.rounds import DEAD, Proposal

__all__ = ["cut_unlikely", "likeliest", "survival"]


def likeliest(logits: Float[Array, "*B V"]) -> Float[Array, "*B"]:
    """The probability of the likeliest token: what a draft law says of itself.

    It is read off the law, not off the token drawn, and may decide about it.
    """
    top = logits.max(-1)
    return 1 / jnp.exp(logits - top[..., None]).sum(-1)


def survival(proposal: Proposal) -> Float[Array, "B N"]:
    """How likely each node of a chain is to be kept, those before it included."""
    assert proposal.confidence is not None
    return jnp.cumprod(proposal.confidence, axis=1)


def cut_unlikely(proposal: Proposal, threshold: float) -> Proposal:
    """Offers no node of a chain whose survival is below `threshold`.

    A node's confidence depends on the nodes before it alone, and survival never
    rises along a chain. So what is offered after any drawn prefix is all of `q` or
    nothing of it, and the emitted text follows the target's law as before. A cut
    that looked at the drawn token would offer a law other than `q`.
    """
    if threshold == 0:
        return proposal
    parent = jnp.where(survival(proposal) >= threshold, proposal.parent, DEAD)
    return dataclasses.replace(proposal, parent=parent)
