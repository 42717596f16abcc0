"""One request on the host: what was delivered, why it ended, what drafting brought."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Protocol

from jspec.params import FinishReason, SamplingParams, Speculation, Usage

__all__ = ["Emitted", "Reader", "Request", "Stage"]


class Stage(enum.Enum):
    """Where a request is in its life; it only moves forward."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Reader(Protocol):
    """Whoever reads a request's tokens; called by the thread that runs the engine."""

    def scan(
        self, token_ids: Sequence[int], finish_reason: FinishReason | None
    ) -> int | None:
        """Looks at new tokens before they count as delivered.

        Args:
          token_ids: what the round gave, possibly nothing.
          finish_reason: why the text ends with them; `None`: it goes on.

        Returns:
          `None`, or how many of them remain of a text that ends here by its content,
          as at a stop string.
        """
        ...

    def deliver(
        self, token_ids: Sequence[int], finish_reason: FinishReason | None
    ) -> None:
        """Receives what is left of them, when the request's counts include them.

        The last call, and only the last, has a `finish_reason`.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Emitted:
    """What one round gave one row, read back from the device.

    Attributes:
      tokens: delivered ids, a stop token included.
      drafted: drafted tokens that were offered to the target.
      accepted: those of them that were kept.
      finish_reason: set if the device ended the row with these tokens.
      confidence: what the drafter said of the drafts; empty: nobody asked.
    """

    tokens: Sequence[int]
    drafted: int = 0
    accepted: int = 0
    finish_reason: FinishReason | None = None
    confidence: Sequence[float] = ()


class Request:
    """A prompt on its way to a completion. Only the engine's thread changes it."""

    def __init__(
        self,
        request_id: int,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        reader: Reader | None = None,
    ) -> None:
        """Starts to wait.

        Args:
          request_id: one for each request of an engine.
          prompt_ids: at least one.
          params: what is asked for.
          reader: told of every token.
        """
        self.id = request_id
        self.prompt_ids = tuple(prompt_ids)
        self.params = params
        self.reader = reader
        self.stage = Stage.WAITING
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.limit = params.max_tokens
        """Tokens that may be delivered: `max_tokens`, less near the model's limit."""
        self.forbidden: tuple[tuple[int, ...], ...] = ()
        """Token sequences that may not be delivered."""
        self.lossy = False
        """Whether its drafts are kept by a rule that changes the output's law."""
        self.cached_tokens = 0
        self.text = list(self.prompt_ids)
        """Prompt and delivered tokens."""
        self._rounds = 0
        self._drafted: list[int] = []
        self._accepted: list[int] = []

    def __repr__(self) -> str:
        """Says which request it is and how far it got."""
        return (
            f"Request({self.id}, {len(self.prompt_ids)} prompt tokens, "
            f"{self.delivered} delivered, {self.finish_reason or self.stage.value})"
        )

    @property
    def finished(self) -> bool:
        """Whether nothing more will be delivered."""
        return self.stage is Stage.FINISHED

    @property
    def delivered(self) -> int:
        """How many tokens the reader has."""
        return len(self.text) - len(self.prompt_ids)

    @property
    def remaining(self) -> int:
        """How many more it may get."""
        return self.limit - self.delivered

    @property
    def token_ids(self) -> list[int]:
        """The tokens the reader has."""
        return self.text[len(self.prompt_ids) :]

    @property
    def written(self) -> int:
        """Tokens of the text whose keys and values are certainly in the pages.

        The newest token is the next round's anchor, and not among them.
        """
        return len(self.text) - 1

    @property
    def usage(self) -> Usage:
        """Tokens read and delivered so far."""
        return Usage(
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=self.delivered,
            cached_tokens=self.cached_tokens,
        )

    @property
    def speculation(self) -> Speculation:
        """What drafting brought so far."""
        return Speculation(
            rounds=self._rounds,
            drafted=sum(self._drafted),
            accepted=sum(self._accepted),
            drafted_per_position=tuple(self._drafted),
            accepted_per_position=tuple(self._accepted),
            tau=self.delivered / self._rounds if self._rounds else 0.0,
            lossy=self.lossy,
        )

    def take(self, emitted: Emitted) -> int:
        """Delivers what a round gave, up to where the text ends.

        Nothing that arrives after the end is delivered or counted.

        Returns:
          how many tokens were delivered.
        """
        if self.finished:
            return 0
        tokens, reason = list(emitted.tokens), emitted.finish_reason
        if len(tokens) > self.remaining:
            tokens, reason = tokens[: self.remaining], "length"
        elif len(tokens) == self.remaining and reason is None:
            reason = "length"
        tokens, reason = self._scan(tokens, reason)
        self.text.extend(tokens)
        self._count(len(tokens), emitted)
        self._deliver(tokens, reason)
        return len(tokens)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends the request from the host's side, unless it has ended already."""
        if self.finished:
            return
        self.error = error
        _, reason_kept = self._scan([], reason)
        self._deliver([], reason_kept)

    def _scan(
        self, tokens: list[int], reason: FinishReason | None
    ) -> tuple[list[int], FinishReason | None]:
        if self.reader is None:
            return tokens, reason
        try:
            kept = self.reader.scan(tokens, reason)
        except Exception as error:
            # One reader that fails must not end the engine, nor its neighbours.
            self.error = f"the text could not be read: {error!r}"
            return [], "error"
        return (tokens, reason) if kept is None else (tokens[:kept], "stop")

    def _deliver(self, tokens: list[int], reason: FinishReason | None) -> None:
        if reason is not None:
            self.stage = Stage.FINISHED
            self.finish_reason = reason
        if self.reader is not None and (tokens or reason is not None):
            self.reader.deliver(tokens, reason)

    def _count(self, delivered: int, emitted: Emitted) -> None:
        """Counts a round by what was delivered of it.

        Delivered tokens are drafted ones and then the bonus. If there are no more of
        them than accepted ones, the text ended within the draft: what was drafted
        behind its end was for nobody, so it counts neither for nor against drafting.
        """
        if not delivered:
            return
        self._rounds += 1
        accepted = min(emitted.accepted, delivered)
        cut = delivered <= emitted.accepted
        drafted = min(emitted.drafted, delivered) if cut else emitted.drafted
        for counts, reached in ((self._drafted, drafted), (self._accepted, accepted)):
            counts.extend([0] * (drafted - len(counts)))
            for position in range(reached):
                counts[position] += 1
