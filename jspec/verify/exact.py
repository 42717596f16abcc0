"""Verifications that keep the target's law: standard, block, target-only."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array

from jspec.rounds import Proposal, Verdict
from jspec.sampling import Sampling
from jspec.verify.block import verify_block
from jspec.verify.standard import verify, verify_chain
from jspec.verify.target_only import verify_target_only
from jspec.verify.verification import (
    AboutVerification,
    check_probabilities,
    drawn_or_greedy,
    judged_or_greedy,
)

__all__ = ["Block", "Standard", "TargetOnly"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standard:
    """Speculative sampling; greedy rows keep what the target would have said."""

    about: ClassVar[AboutVerification] = AboutVerification(
        name="standard",
        paper="Leviathan et al. 2023, arXiv:2211.17192; SpecInfer, arXiv:2305.09781",
        idea="each draft is kept with probability min(1, p/q), siblings in turn",
        topology="tree",
        lossy="never",
    )
    lossy = False

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
        """`verify`, on chains without a walk."""
        asked = (keys, logits, choice, proposal, sampling)
        if branching:
            return drawn_or_greedy(verify, *asked, kernels=kernels)
        return judged_or_greedy(
            "rejection_verify", verify_chain, *asked, kernels=kernels
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Block verification of chains: as exact, and it keeps as much or more."""

    about: ClassVar[AboutVerification] = AboutVerification(
        name="block",
        paper="Sun et al. 2024, arXiv:2403.10444",
        idea="a chain is judged as one: the longest prefix that passes is kept",
        topology="chain",
        lossy="never",
    )
    lossy = False

    def refusal(self, method: str, *, branching: bool, gamma: int) -> str | None:
        """Judges chains."""
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
        """`verify_block`."""
        asked = (keys, logits, choice, proposal, sampling)
        return judged_or_greedy("block_verify", verify_block, *asked, kernels=kernels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetOnly:
    """The target's own probability decides; exact while both thresholds are 1.

    Attributes:
      threshold_single: a draft of at least this probability is always kept.
      threshold_acc: what the siblings' probabilities are divided by.
    """

    about: ClassVar[AboutVerification] = AboutVerification(
        name="target_only",
        paper="SGLang 0.5, tree_speculative_sampling_target_only",
        idea="each draft is kept with the target's probability of it; q is not read",
        topology="tree",
        lossy="by its fields",
    )
    threshold_single: float = 1.0
    threshold_acc: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is no probability."""
        check_probabilities(self)

    @property
    def lossy(self) -> bool:
        """Below 1, either threshold keeps more than the target's law allows."""
        return self.threshold_single < 1 or self.threshold_acc < 1

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
        """`verify_target_only`."""

        def rule(keys: Array, p: Array, proposal: Proposal) -> Verdict:
            return verify_target_only(
                keys,
                p,
                proposal,
                threshold_single=self.threshold_single,
                threshold_acc=self.threshold_acc,
            )

        asked = (keys, logits, choice, proposal, sampling)
        return drawn_or_greedy(rule, *asked, kernels=kernels)
