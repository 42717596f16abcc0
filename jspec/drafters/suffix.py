"""Suffix decoding (Oliaro et al. 2024): go on as this text, or another, went on."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from jspec.drafters.base import About, HostDraft
from jspec.drafters.places import Corpus, Limits, Places, best_guess
from jspec.models.base import Target

__all__ = ["Suffix", "SuffixMemory"]


class SuffixMemory:
    """Every text that may be gone on from.

    Attributes:
      texts: prompt and response of each text that is being written.
      responses: what was answered to anyone; the oldest text is forgotten first.
      corpora: documents by name; another thread may put another mapping here.
    """

    def __init__(self) -> None:
        self.texts: dict[int, Places] = {}
        self.responses = Places()
        self.corpora: dict[str, Corpus] = {}
        self.remembered: dict[int, None] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suffix:
    """Drafts what followed the text's last tokens most often, wherever they stood.

    It looks into the text itself, prompt and response; into the responses to all
    requests, running ones too; and into the corpora. Of all guesses the one that is
    expected to be right longest is offered (see `best_guess`), or none.

    Attributes:
      max_tree_depth: longest match that is looked for.
      max_cached_requests: responses that are remembered; 0: none, so what is drafted
        for a request depends on its own text and the corpora alone.
      max_cached_tokens: tokens of them in all.
      max_spec_factor: drafted tokens per matched one.
      max_spec_offset: drafted tokens besides.
      min_token_prob: how likely a drafted path must be, by the counts.
    """

    about: ClassVar[About] = About(
        paper="Oliaro et al. 2024, arXiv:2411.04975",
        idea="what most often followed the text's end, in it, in answers, in corpora",
        weights=None,
        passes="none",
        topology="chain",
        q=("certain",),
    )
    gamma: int = 8
    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_cached_tokens: int = 1_000_000
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    branching = False

    def __post_init__(self) -> None:
        """Refuses limits under which nothing is found."""
        for name, least in (
            ("gamma", 0),
            ("max_tree_depth", 1),
            ("max_cached_requests", 0),
            ("max_cached_tokens", 0),
            ("max_spec_factor", 0),
            ("max_spec_offset", 0),
        ):
            value = getattr(self, name)
            if not value >= least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if not 0 <= self.min_token_prob <= 1:
            raise ValueError(
                f"min_token_prob must lie in 0..1, not {self.min_token_prob}"
            )
        if self.max_spec_factor * self.max_tree_depth + self.max_spec_offset < 1:
            raise ValueError(
                f"max_spec_factor {self.max_spec_factor} and max_spec_offset "
                f"{self.max_spec_offset} draft nothing behind any match of at most "
                f"max_tree_depth {self.max_tree_depth} tokens"
            )

    def check(self, weights: Any, target: Target) -> None:
        """Drafts for every target."""

    def init(self) -> SuffixMemory:
        """Remembers nobody."""
        return SuffixMemory()

    def admit(self, memory: SuffixMemory, text: int, prompt: Sequence[int]) -> None:
        """Takes the prompt in, and the place of the oldest response if need be."""
        memory.texts[text] = Places()
        memory.texts[text].extend(text, prompt)
        if self.max_cached_requests:
            memory.remembered[text] = None
            self._forget(memory)

    def propose(
        self, memory: SuffixMemory, texts: Sequence[int], gammas: Sequence[int]
    ) -> Sequence[HostDraft]:
        """The best guess for each text."""
        limits = Limits(
            depth=self.max_tree_depth,
            factor=self.max_spec_factor,
            offset=self.max_spec_offset,
            least=self.min_token_prob,
        )
        shared = (memory.responses, *memory.corpora.values())
        drafts = []
        for text, gamma in zip(texts, gammas, strict=True):
            own = memory.texts[text]
            guess = best_guess((own, *shared), own.text(text), gamma, limits)
            drafts.append(HostDraft(tokens=guess))
        return drafts

    def observe(self, memory: SuffixMemory, text: int, tokens: Sequence[int]) -> None:
        """Takes in what was answered, for this text and for all others."""
        memory.texts[text].extend(text, tokens)
        if text in memory.remembered:
            memory.responses.extend(text, tokens)
            self._forget(memory)

    def leave(self, memory: SuffixMemory, text: int) -> None:
        """Forgets the text; its response is remembered."""
        del memory.texts[text]

    def _forget(self, memory: SuffixMemory) -> None:
        while memory.remembered and (
            len(memory.remembered) > self.max_cached_requests
            or memory.responses.size > self.max_cached_tokens
        ):
            oldest = next(iter(memory.remembered))
            del memory.remembered[oldest]
            memory.responses.remove(oldest)
