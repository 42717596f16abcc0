"""How many drafts of each row are worth verifying, decided without bending the law."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec.cache import KVCache
from jspec.drafters.budgets import Choice, ranks
from jspec.drafters.packed import pack
from jspec.models.base import Seen, Target
from jspec.rounds import DEAD, ROOT, Proposal

__all__ = [
    "Budgets",
    "Ragged",
    "asked",
    "check_ragged",
    "check_threshold",
    "cut_unlikely",
    "likeliest",
    "survival",
]

type Budgets = float | list[float] | tuple[float, ...]
"""Drafts verified per row of a round, on the average; of several, a round chooses."""


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


def check_threshold(threshold: float) -> None:
    """Refuses a `confidence_threshold` that is no probability."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"confidence_threshold must lie in 0..1, not {threshold}")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged:
    """Which drafts of a round's chains are verified, and in what layout.

    Drafts are admitted over all rows of the round, the likeliest to survive first,
    earlier positions before later ones and then earlier rows (vLLM 0.33, SGLang's
    DSpark planner). A draft's survival depends on the drafts before it, its rivals in
    its own row are behind it, and other rows draw on their own: every row's text
    follows the target's law. Which of the texts a seed gives may depend on the rows
    beside it, for they share the budget.

    Attributes:
      mode: "static": every draft is verified. "cap-accept": the pass is the same, and
        only admitted drafts can be kept. "compact": the pass holds admitted drafts
        and no others, packed into one line.
      budget: drafts admitted, per row of the round on the average. Several, rising:
        every round chooses one of them (`budgets.choose`).
    """

    mode: Literal["static", "cap-accept", "compact"] = "static"
    budget: float | tuple[float, ...] = math.inf

    def __post_init__(self) -> None:
        """Refuses modes that admit nothing, and a budget that nobody reads."""
        if self.mode not in ("static", "cap-accept", "compact"):
            raise ValueError(
                f"ragged must be 'static', 'cap-accept' or 'compact', not {self.mode!r}"
            )
        for one in self.budgets:
            if isinstance(one, bool) or not isinstance(one, int | float):
                raise ValueError(
                    "ragged_budget must be a number above 0, or several that rise, not "
                    f"{self.budget!r}"
                )
        if self.chooses:
            self._check_several()
        bounded = self.chooses or math.isfinite(self.budgets[0])
        if bounded and not self.budgets[0] > 0:
            raise ValueError(f"ragged_budget must be above 0, not {self.budget}")
        if bounded != (self.mode != "static"):
            raise ValueError(
                "ragged_budget goes with ragged='cap-accept' or 'compact', and they "
                "with it"
            )

    def _check_several(self) -> None:
        """Refuses budgets that do not rise, and a choice that would save nothing."""
        rising = list(self.budgets) == sorted(set(self.budgets))
        if not (self.budgets and rising and math.isfinite(self.budgets[-1])):
            raise ValueError(
                f"several ragged_budget must be numbers that rise, not {self.budget}"
            )
        if self.mode == "cap-accept":
            raise ValueError(
                "several ragged_budget need ragged='compact': with 'cap-accept' a pass "
                "costs the same whatever is admitted"
            )

    @property
    def budgets(self) -> tuple[float, ...]:
        """One, or those that a round chooses from."""
        return self.budget if isinstance(self.budget, tuple) else (self.budget,)

    @property
    def chooses(self) -> bool:
        """Whether rounds choose a budget."""
        return isinstance(self.budget, tuple)

    @classmethod
    def of(cls, drafter: Any) -> "Ragged":
        """What a drafter asks for; one that does not say verifies everything."""
        return getattr(drafter, "verified", cls())

    def totals(self, rows: int, width: int) -> tuple[int, ...]:
        """Drafts that a pass over `rows` chains of `width` nodes may hold, rising."""
        drafts = rows * (width - 1)
        wanted = (math.ceil(min(budget, width) * rows) for budget in self.budgets)
        return tuple(sorted({min(drafts, total) for total in wanted}))

    def nodes(self, rows: int, width: int) -> int:
        """Nodes in the largest such pass, the anchors included."""
        return rows + self.totals(rows, width)[-1]

    def admit(self, proposal: Proposal, choice: Choice | None = None) -> Proposal:
        """Offers only what is admitted: by the choice, if there was one to make."""
        b, n = proposal.tokens.shape
        if choice is not None:
            admitted = choice.rank < choice.total
        elif self.mode == "static" or self.nodes(b, n) == b * n:
            return proposal
        else:
            rank = ranks(survival(proposal), proposal.parent != DEAD)
            admitted = rank < self.totals(b, n)[-1]
        parent = jnp.where(admitted, proposal.parent, DEAD)
        return dataclasses.replace(proposal, parent=parent)

    def read(
        self,
        target: Target,
        proposal: Proposal,
        cache: KVCache,
        *,
        branching: bool,
        feature_layers: tuple[int, ...],
        choice: Choice | None = None,
    ) -> Seen:
        """One pass of the target over what is verified.

        Where rounds choose, there is a pass for each budget, of which one is run.
        """
        reading = functools.partial(
            self._read, target, proposal, branching=branching, taps=feature_layers
        )
        totals = self.totals(*proposal.tokens.shape)
        if choice is None or len(totals) == 1:
            return reading(cache, total=totals[-1])

        def reader(total: int) -> Callable[[Any, Any], tuple[Any, ...]]:
            def read(k: Any, v: Any) -> tuple[Any, ...]:
                pages = dataclasses.replace(cache.pages, k=k, v=v)
                own = dataclasses.replace(cache, pages=pages)
                seen = reading(own, total=total)
                return (
                    seen.logits,
                    seen.features,
                    seen.cache.pages.k,
                    seen.cache.pages.v,
                )

            return read

        # Keys and values alone go through: what a branch returns as it came is copied.
        logits, features, k, v = jax.lax.switch(
            choice.tier, list(map(reader, totals)), cache.pages.k, cache.pages.v
        )
        pages = dataclasses.replace(cache.pages, k=k, v=v)
        return Seen(
            logits=logits,
            features=features,
            cache=dataclasses.replace(cache, pages=pages),
        )

    def _read(
        self,
        target: Target,
        proposal: Proposal,
        cache: KVCache,
        *,
        branching: bool,
        taps: tuple[int, ...],
        total: int,
    ) -> Seen:
        """A pass that holds the anchors and so many drafts."""
        b, n = proposal.tokens.shape
        if self.mode != "compact" or branching or b + total == b * n:
            return target(
                proposal.tokens,
                proposal.parent,
                cache,
                branching=branching,
                feature_layers=taps,
            )
        verified = (proposal.parent != DEAD) | (jnp.arange(n) == ROOT)[None]
        packed = pack(cache, verified, b + total)
        tokens = proposal.tokens.reshape(-1).at[packed.node].get(mode="clip")[:, None]
        seen = target(tokens, jnp.full_like(tokens, DEAD), packed, feature_layers=taps)
        assert seen.logits is not None
        features = seen.features
        return Seen(
            logits=packed.apart(seen.logits),
            features=None if features is None else packed.apart(features),
            cache=dataclasses.replace(cache, pages=seen.cache.pages),
        )


def asked(mode: Any, budget: Budgets | None) -> Ragged:
    """`Ragged` as a method's options say it."""
    if isinstance(budget, list | tuple):
        several = tuple(budget)
        return Ragged(mode=mode, budget=several[0] if len(several) == 1 else several)
    return Ragged(mode=mode, budget=math.inf if budget is None else budget)


def check_ragged(drafter: Any) -> None:
    """Refuses what `Ragged` does; several budgets become a tuple, for `jit` to know."""
    ragged = asked(drafter.ragged, drafter.ragged_budget)
    if ragged.mode != "static":
        object.__setattr__(drafter, "ragged_budget", ragged.budget)
