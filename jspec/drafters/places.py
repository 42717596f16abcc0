"""Where tokens stand in texts, and how those texts went on from there.

A tree of all suffixes answers the same questions, with a node for every suffix and
depth. Here a text keeps its tokens, and every token one place in two lists: of those
that end alike in one and in two tokens. Longer matches are found by looking back.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

__all__ = ["Corpus", "Limits", "Places", "Source", "best_guess"]

NEWEST_ONES, NEWEST_TWOS = 256, 1024
"""Places that are looked at: the newest of those that end in one, in two tokens."""

type Place = tuple[Sequence[int], int]


class Source(Protocol):
    """Texts to go on from."""

    def ones(self, token: int) -> Iterable[Place]:
        """Where a token stands, the newest first."""
        ...

    def twos(self, before: int, token: int) -> Iterable[Place]:
        """Where a pair of tokens stands, by the second, the newest first."""
        ...


class Places:
    """Texts that grow and go; some 250 bytes a token (derived from its objects)."""

    def __init__(self) -> None:
        self.size = 0
        self._texts: dict[int, list[int]] = {}
        self._ones: dict[int, collections.deque[Place]] = {}
        self._twos: dict[tuple[int, int], collections.deque[Place]] = {}

    def text(self, name: int) -> Sequence[int]:
        """A text's tokens."""
        return self._texts[name]

    def extend(self, name: int, tokens: Iterable[int]) -> None:
        """A text goes on, or begins."""
        text = self._texts.setdefault(name, [])
        for token in tokens:
            place = text, len(text)
            if text:
                pair = text[-1], token
                if pair not in self._twos:
                    self._twos[pair] = collections.deque(maxlen=NEWEST_TWOS)
                self._twos[pair].append(place)
            if token not in self._ones:
                self._ones[token] = collections.deque(maxlen=NEWEST_ONES)
            self._ones[token].append(place)
            text.append(token)
            self.size += 1

    def remove(self, name: int) -> None:
        """Forgets a text, if it is there."""
        text = self._texts.pop(name, None)
        if text is None:
            return
        tokens = tuple(text)
        text.clear()  # places of it are known by that until they are dropped
        self.size -= len(tokens)
        for token in set(tokens):
            _drop(self._ones, token)
        for pair in set(pairwise(tokens)):
            _drop(self._twos, pair)

    def ones(self, token: int) -> Iterable[Place]:
        """Where a token stands, the newest first."""
        return reversed(self._ones.get(token, ()))

    def twos(self, before: int, token: int) -> Iterable[Place]:
        """Where a pair of tokens stands, by the second, the newest first."""
        return reversed(self._twos.get((before, token), ()))


def _drop[Key](places: dict[Key, collections.deque[Place]], key: Key) -> None:
    kept = [place for place in places[key] if place[0]] if key in places else []
    if kept:
        places[key] = collections.deque(kept, maxlen=places[key].maxlen)
    else:
        places.pop(key, None)


class Corpus:
    """Documents that stay as they are; 24 bytes a token, sorted once."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        self.documents = len(documents)
        self.tokens = sum(map(len, documents))
        flat = np.full(self.tokens + self.documents, -1, np.int32)
        at = 0
        for document in documents:
            flat[at : at + len(document)] = document
            at += len(document) + 1
        pairs = np.concatenate([[-1], _pair(flat[:-1], flat[1:])])[: len(flat)]
        self._text = memoryview(flat)
        self._one_order = np.argsort(flat, kind="stable").astype(np.int32)
        self._one_keys = flat[self._one_order]
        self._two_order = np.argsort(pairs, kind="stable").astype(np.int32)
        self._two_keys = pairs[self._two_order]

    def ones(self, token: int) -> Iterable[Place]:
        """Where a token stands, the last first."""
        return self._found(self._one_keys, self._one_order, token, NEWEST_ONES)

    def twos(self, before: int, token: int) -> Iterable[Place]:
        """Where a pair of tokens stands, by the second, the last first."""
        key = int(_pair(np.int64(before), np.int64(token)))
        return self._found(self._two_keys, self._two_order, key, NEWEST_TWOS)

    def _found(
        self, keys: np.ndarray, order: np.ndarray, key: int, most: int
    ) -> Iterable[Place]:
        wanted = keys.dtype.type(key)
        start, end = np.searchsorted(keys, [wanted, wanted + 1])
        places = order[max(start, end - most) : end][::-1].tolist()
        return [(self._text, place) for place in places]


def _pair(before: np.ndarray | np.int64, token: np.ndarray | np.int64) -> np.ndarray:
    both = np.asarray(before, np.int64) * 2**31 + token
    return np.where((np.asarray(before) < 0) | (np.asarray(token) < 0), -1, both)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a guess may go.

    Attributes:
      depth: longest match that is looked for.
      factor: a match of `m` tokens is gone on from for `factor * m + offset`.
      offset: see there.
      least: a guess ends before it gets less likely than this.
    """

    depth: int
    factor: float
    offset: float
    least: float


def best_guess(
    sources: Iterable[Source], text: Sequence[int], most: int, limits: Limits
) -> list[int]:
    """How a text goes on, by the source whose guess has the highest score.

    A guess follows the likeliest next token, by how often it followed the match; its
    score is the sum of the probabilities of the paths to its tokens: how many of them
    are expected to be right. The first source wins ties.
    """
    best: list[int] = []
    score = 0.0
    for source in sources:
        guess, value = _guess(source, text, most, limits)
        if value > score:
            best, score = guess, value
    return best


def _guess(
    source: Source, text: Sequence[int], most: int, limits: Limits
) -> tuple[list[int], float]:
    """The best guess after a match of any length; a longer match wins ties."""
    longest = min(limits.depth, len(text))
    best, score = _follow(_going(source.ones(text[-1])), 1, most, limits)
    places: list[Place] = []
    if longest > 1:
        places = _going(source.twos(text[-2], text[-1]))
    length = 2
    while places:
        deeper: list[Place] = []
        if length < longest:
            token = text[-1 - length]
            deeper = [
                (other, at)
                for other, at in places
                if at >= length and other[at - length] == token
            ]
        if len(deeper) < len(places):  # else the longer match says the same, and more
            guess, value = _follow(places, length, most, limits)
            if value >= score:
                best, score = guess, value
        places = deeper
        length += 1
    return best, score


def _going(places: Iterable[Place]) -> list[Place]:
    """The places behind which a text goes on."""
    return [
        (text, at) for text, at in places if at + 1 < len(text) and text[at + 1] >= 0
    ]


def _follow(
    places: list[Place], length: int, most: int, limits: Limits
) -> tuple[list[int], float]:
    tokens: list[int] = []
    path, score = 1.0, 0.0
    room = min(most, int(limits.factor * length + limits.offset))
    while places and len(tokens) < room:
        if len(places) == 1:
            text, at = places[0]
            sure = list(text[at + 1 : at + 1 + room - len(tokens)])
            if -1 in sure:
                sure = sure[: sure.index(-1)]
            return tokens + sure, score + path * len(sure)
        counts = collections.Counter(text[at + 1] for text, at in places)
        token, count = counts.most_common(1)[0]
        path *= count / len(places)
        if path < limits.least:
            break
        tokens.append(token)
        score += path
        places = _going((text, at + 1) for text, at in places if text[at + 1] == token)
    return tokens, score
