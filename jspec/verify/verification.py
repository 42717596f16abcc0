"""What a verification is: a frozen dataclass that judges the proposals of a round."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jspec.rounds import DEAD, Proposal, Verdict
from jspec.sampling import Sampling, law
from jspec.verify.operations import judge_chain, judge_greedy, wanted
from jspec.verify.standard import verify_greedy

__all__ = [
    "AboutVerification",
    "Verification",
    "check_probabilities",
    "cut_broken",
    "drawn_or_greedy",
    "is_number",
    "judged_or_greedy",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AboutVerification:
    """What a verification is, for people and for start-up checks.

    Attributes:
      name: what `verification=` takes.
      paper: where it was published.
      idea: one sentence.
      topology: the proposals it can judge; "tree": every one.
      lossy: whether the output's law may differ from the target's: never, always, or
        as its fields say.
    """

    name: str
    paper: str
    idea: str
    topology: Literal["chain", "tree"]
    lossy: Literal["never", "always", "by its fields"]

    def shape_refusal(self, method: str, *, branching: bool) -> str | None:
        """Why it cannot judge what a method proposes, or `None`."""
        if branching and self.topology == "chain":
            return (
                f"verification {self.name!r} judges chains, and method {method!r} "
                f"drafts trees: use 'standard'"
            )
        return None


class Verification(Protocol):
    """Implemented by frozen dataclasses: a static argument of `jit`, like a drafter."""

    about: ClassVar[AboutVerification]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def lossy(self) -> bool:
        """Whether the output's law may differ from the target's."""
        ...

    def refusal(self, method: str, *, branching: bool, gamma: int) -> str | None:
        """Why it cannot judge what a method proposes, or `None`: checked at start-up.

        Args:
          method: the drafter's name.
          branching: whether it drafts trees.
          gamma: drafted tokens a round, along the longest path.
        """
        ...

    def judge(
        self,
        keys: Key[Array, " B"],
        logits: Float[Array, "B N V"],
        choice: Int[Array, "B N"],
        proposal: Proposal,
        sampling: Sampling,
        *,
        branching: bool,
        kernels: str | None = None,
    ) -> Verdict:
        """What the target keeps.

        Args:
          keys: one a row, consumed.
          logits: of the successor of each node, the request's rules applied.
          choice: their likeliest tokens.
          proposal: the drafted tree.
          sampling: how each row turns logits into a law; temperature 0 where nobody
            reads the row.
          branching: whether the proposal may be more than a chain.
          kernels: the implementation of what has one in `jspec.pallas`, and `None`
            the laws and walks of this package, unless a kernel was measured to be
            faster; the rest of a rule is the same for all.
        """
        ...


def drawn_or_greedy(
    judge: Callable[[Array, Array, Proposal], Verdict],
    keys: Key[Array, " B"],
    logits: Float[Array, "B N V"],
    choice: Int[Array, "B N"],
    proposal: Proposal,
    sampling: Sampling,
    *,
    kernels: str | None = None,
) -> Verdict:
    """Greedy rows need no law: where no row draws, none is computed."""

    def drawn(_: None) -> Verdict:
        return judge(keys, law(logits, sampling), proposal)

    def walked(_: None) -> Verdict:
        word = wanted("greedy_verify", kernels)
        if word is None:
            return verify_greedy(choice, proposal)
        return judge_greedy(logits, proposal, implementation=word)

    return jax.lax.cond(jnp.any(sampling.sampled), drawn, walked, None)


def judged_or_greedy(
    operation: str,
    rule: Callable[[Array, Array, Proposal], Verdict],
    keys: Key[Array, " B"],
    logits: Float[Array, "B N V"],
    choice: Int[Array, "B N"],
    proposal: Proposal,
    sampling: Sampling,
    *,
    kernels: str | None = None,
) -> Verdict:
    """`drawn_or_greedy` of a chain, whose rows that draw have an operation.

    Args:
      operation: of `jspec.pallas`, which says what `rule` says.
      rule: judges where no implementation is wanted.
      keys: one a row, consumed.
      logits: of the successor of each node.
      choice: their likeliest tokens.
      proposal: the drafted chain.
      sampling: of each row.
      kernels: see `Verification.judge`.
    """
    word = wanted(operation, kernels)
    if word is None:
        return drawn_or_greedy(
            rule, keys, logits, choice, proposal, sampling, kernels=kernels
        )
    return jax.lax.cond(
        jnp.any(sampling.sampled),
        lambda _: judge_chain(
            operation, keys, logits, proposal, sampling, implementation=word
        ),
        lambda _: judge_greedy(logits, proposal, implementation=word),
        None,
    )


def cut_broken(proposal: Proposal, sound: Bool[Array, "B N"]) -> Proposal:
    """Offers nothing after a node whose law is broken: there the row will end.

    No rule then looks at such a law before the path has reached its node.

    Args:
      proposal: the drafted tree.
      sound: whether the likeliest successor of each node has a finite logit.
    """
    above = jnp.maximum(proposal.parent, 0)
    follows = jnp.take_along_axis(sound, above, axis=1)
    parent = jnp.where(follows, proposal.parent, DEAD)
    return dataclasses.replace(proposal, parent=parent)


def is_number(value: Any) -> bool:
    """Whether it is an integer or a float, and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_probabilities(verification: Any) -> None:
    """Refuses a verification one of whose fields is no probability above 0."""
    for field in dataclasses.fields(verification):
        value = getattr(verification, field.name)
        if not is_number(value) or not 0 < value <= 1:
            raise ValueError(
                f"{field.name} of verification {verification.about.name!r} must lie "
                f"above 0 and at most at 1, not {value!r}"
            )
