"""Verifications that change the output's law: synthetic, typical, FLy."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jspec.rounds import DEAD, Proposal, Verdict
from jspec.sampling import Sampling, law
from jspec.verify.fly import top_entropy, verify_fly
from jspec.verify.laws import ahead_of, offered
from jspec.verify.synthetic import rates_of_length, verify_synthetic
from jspec.verify.typical import verify_typical
from jspec.verify.verification import (
    AboutVerification,
    check_probabilities,
    drawn_or_greedy,
    is_number,
)

__all__ = ["Fly", "Synthetic", "Typical"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Keeps drafts at given rates, whatever they are: an ablation, never for use.

    Attributes:
      rates: of each position, the share of rounds that keep it and those before.
      length: mean emitted tokens a round instead, the bonus included.
    """

    about: ClassVar[AboutVerification] = AboutVerification(
        name="synthetic",
        paper="vLLM 0.33, synthetic acceptance",
        idea="drafts are kept by a coin that never looks at them",
        topology="chain",
        lossy="always",
    )
    rates: tuple[float, ...] | None = None
    length: float | None = None
    lossy = True

    def __post_init__(self) -> None:
        """Refuses both, neither, and rates that cannot be."""
        if (self.rates is None) == (self.length is None):
            raise ValueError(
                "verification 'synthetic' needs either rates or length, as in "
                "'synthetic:rates=(0.8,0.6)' or 'synthetic:length=2.4'"
            )
        if self.rates is not None:
            rates = self.rates
            if not isinstance(rates, tuple) or not all(
                is_number(rate) and 0 <= rate <= 1 for rate in rates
            ):
                raise ValueError(
                    f"rates of verification 'synthetic' must be numbers in 0..1, not "
                    f"{rates!r}"
                )
            if list(rates) != sorted(rates, reverse=True):
                raise ValueError(
                    f"rates of verification 'synthetic' must not rise, as {rates} do"
                )
        elif self.length is None or not is_number(self.length) or self.length < 1:
            raise ValueError(
                f"length of verification 'synthetic' must be a number of at least 1, "
                f"not {self.length!r}"
            )

    def refusal(self, method: str, *, branching: bool, gamma: int) -> str | None:
        """Judges chains of as many drafts as it has rates for."""
        if self.rates is not None and len(self.rates) != gamma:
            return (
                f"verification 'synthetic' has {len(self.rates)} rates, and method "
                f"{method!r} drafts {gamma} tokens: it needs one for each"
            )
        if self.length is not None and self.length > gamma + 1:
            return (
                f"verification 'synthetic' has length {self.length:g}, and method "
                f"{method!r} drafts {gamma} tokens: a round emits at most {gamma + 1}"
            )
        return self.about.shape_refusal(method, branching=branching)

    def judge(
        self,
        keys: Array,
        logits: Array,
        choice: Array,
        proposal: Proposal,
        sampling: Sampling,
        *,
        branching: bool,
        kernels: str | None = None,
    ) -> Verdict:
        """`verify_synthetic`; what a rule bans and padding are never kept."""
        gamma = proposal.tokens.shape[1] - 1
        rates = self.rates
        if rates is None:
            assert self.length is not None
            rates = rates_of_length(self.length, gamma)
        p = law(logits, sampling)
        tokens, parent = offered(proposal, logits.shape[-1])
        possible = jax.vmap(ahead_of)(logits, tokens) > -jnp.inf
        parent = jnp.where(jnp.pad(possible, ((0, 0), (1, 0))), parent, DEAD)
        proposal = dataclasses.replace(proposal, parent=parent)
        return verify_synthetic(keys, p, proposal, rates=rates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Typical:
    """Typical acceptance; greedy rows keep what the target would have said.

    Attributes:
      epsilon: a draft of more than this probability is always kept.
      delta: the probability that is asked where the target is sure; less is asked
        the less sure it is.
    """

    about: ClassVar[AboutVerification] = AboutVerification(
        name="typical",
        paper="Medusa, Cai et al. 2024, arXiv:2401.10774",
        idea="drafts are kept that the target might well have said",
        topology="tree",
        lossy="always",
    )
    epsilon: float = 0.09
    delta: float = 0.3
    lossy = True

    def __post_init__(self) -> None:
        """Refuses what is no probability."""
        check_probabilities(self)

    def refusal(self, method: str, *, branching: bool, gamma: int) -> str | None:
        """Judges everything."""
        return None

    def judge(
        self,
        keys: Array,
        logits: Array,
        choice: Array,
        proposal: Proposal,
        sampling: Sampling,
        *,
        branching: bool,
        kernels: str | None = None,
    ) -> Verdict:
        """`verify_typical`."""

        def rule(keys: Array, p: Array, proposal: Proposal) -> Verdict:
            return verify_typical(
                keys, p, proposal, epsilon=self.epsilon, delta=self.delta
            )

        asked = (keys, logits, choice, proposal, sampling)
        return drawn_or_greedy(rule, *asked, kernels=kernels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fly:
    """Forgives a refused draft if those after it pass; greedy rows too.

    Attributes:
      window: drafts that must pass after a forgiven one.
      threshold: the entropy, in nats, from which on the target counts as unsure.
      top: likeliest tokens that the entropy is taken over.
    """

    about: ClassVar[AboutVerification] = AboutVerification(
        name="fly",
        paper="FLy, training-free loosely speculative decoding, as in vLLM 0.33",
        idea="a refused draft is forgiven if those after it pass",
        topology="chain",
        lossy="always",
    )
    window: int = 6
    threshold: float = 0.3
    top: int = 3
    lossy = True

    def __post_init__(self) -> None:
        """Refuses sizes that mean nothing."""
        for name in ("window", "top"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(
                    f"{name} of verification 'fly' must be an integer of at least 1, "
                    f"not {size!r}"
                )
        if not is_number(self.threshold) or self.threshold < 0:
            raise ValueError(
                f"threshold of verification 'fly' must be a number of at least 0, not "
                f"{self.threshold!r}"
            )

    def refusal(self, method: str, *, branching: bool, gamma: int) -> str | None:
        """Judges chains longer than the window: shorter ones it would not forgive."""
        if gamma <= self.window:
            return (
                f"verification 'fly' with a window of {self.window} needs more than "
                f"{self.window} drafted tokens a round, and method {method!r} drafts "
                f"{gamma}: nothing would ever be forgiven"
            )
        return self.about.shape_refusal(method, branching=branching)

    def judge(
        self,
        keys: Array,
        logits: Array,
        choice: Array,
        proposal: Proposal,
        sampling: Sampling,
        *,
        branching: bool,
        kernels: str | None = None,
    ) -> Verdict:
        """`verify_fly`; a greedy row's doubt is that of its logits at temperature 1."""
        p = law(logits, sampling)
        soft = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        belief = jnp.where(sampling.sampled[:, None, None], p, soft)
        return verify_fly(
            keys,
            p,
            proposal,
            window=self.window,
            unsure=top_entropy(belief, self.top) >= self.threshold,
            belief=belief,
        )
