"""The host's side of a round: what a drafter in plain Python is told and asked."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jspec.drafters.base import HostDraft, HostDrafter
from jspec.engine.request import Request
from jspec.rounds import DEAD

__all__ = ["HostSide", "ask"]


class HostSide:
    """A host drafter, its memory, and how much of each text it has been told."""

    def __init__(self, drafter: HostDrafter) -> None:
        """Starts with no text."""
        self.drafter = drafter
        self.memory = drafter.init()
        self._told: dict[int, tuple[Request, int]] = {}

    def sync(self, requests: Sequence[Request]) -> None:
        """Tells what was delivered, who has left, and which of these are new."""
        drafter, memory = self.drafter, self.memory
        for name, (request, told) in list(self._told.items()):
            if len(request.text) > told:
                drafter.observe(memory, name, request.text[told:])
                self._told[name] = request, len(request.text)
            if request.finished:
                drafter.leave(memory, name)
                del self._told[name]
        for request in requests:
            if request.id not in self._told and not request.finished:
                drafter.admit(memory, request.id, tuple(request.text))
                self._told[request.id] = request, len(request.text)

    def draft(
        self, requests: Sequence[Request], gamma: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the round offers its requests: tokens and parents, a row each.

        They are as wide as the longest draft. A request is asked for no more than its
        own limit and its rest can use.
        """
        self.sync(requests)
        gammas = []
        for request in requests:
            own = request.params.num_speculative_tokens
            most = math.inf if own is None else own
            gammas.append(int(max(min(gamma, most, request.remaining - 1), 0)))
        return ask(self.drafter, self.memory, [one.id for one in requests], gammas)


def ask(
    drafter: HostDrafter, memory: Any, texts: Sequence[int], gammas: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Drafts of texts that the memory knows, in arrays; refuses what is no draft.

    Raises:
      ValueError: a draft is too long, or its tokens form no tree.
    """
    name = f"the host drafter {type(drafter).__name__}"
    drafts: Sequence[HostDraft] = [HostDraft()] * len(texts)
    if any(gammas):
        drafts = drafter.propose(memory, texts, gammas)
    if len(drafts) != len(texts):
        raise ValueError(f"{name} made {len(drafts)} drafts for {len(texts)} texts")
    longest = max((len(draft.tokens) for draft in drafts), default=0)
    tokens = np.zeros((len(texts), longest), np.int32)
    parent = np.full((len(texts), longest), DEAD, np.int32)
    for row, (draft, most) in enumerate(zip(drafts, gammas, strict=True)):
        count = len(draft.tokens)
        if count > most:
            raise ValueError(f"{name} drafted {count} tokens; {most} were asked for")
        tokens[row, :count] = draft.tokens
        parent[row, :count] = _parents(draft, drafter.branching, name)
    return tokens, parent


def _parents(draft: HostDraft, branching: bool, name: str) -> np.ndarray:
    chain = np.arange(len(draft.tokens))
    if draft.parent is None:
        return chain
    parent = np.asarray(draft.parent, np.int64)
    if parent.shape != chain.shape or ((parent < 0) | (parent > chain)).any():
        raise ValueError(
            f"{name} drafted {len(chain)} tokens with parents {list(draft.parent)}: "
            f"each must follow the anchor, 0, or a token before it"
        )
    if not branching and (parent != chain).any():
        raise ValueError(f"{name} drafted a tree, and its branching is False")
    return parent
