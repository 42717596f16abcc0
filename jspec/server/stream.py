"""Tokens into text as they come: whole characters, and never past a stop string."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from jspec.params import Chunk, FinishReason

__all__ = ["Detokenizer", "Piece", "TextReader", "TextStream"]

UNKNOWN = "\ufffd"
"""What bytes become that are no character, or not yet."""

UNFINISHED = 3
"""Most bytes of a character that is not finished, so most `UNKNOWN`s it can become."""

WINDOW = 16
"""Tokens decoded together; those before are left out at the next chance."""

PATIENCE = 64
"""Most tokens decoded together where none ends a character."""


class Decoding(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str:
        """The text of ids; bytes that are no character become U+FFFD."""
        ...


class Detokenizer:
    """Turns one token after the other into text, in whole characters.

    A tokenizer decodes a token differently at the beginning of a text and within it, so
    each token is decoded behind some before it, and what they gave alone is taken off
    (as text-generation-inference and vLLM do). Those start where no character is
    broken, and are never many: the cost of a token does not grow with the text.

    On bytes that are no text the pieces still come out the same however they arrive.
    """

    def __init__(self, tokenizer: Decoding, context: Sequence[int] = ()) -> None:
        """Starts a text.

        Args:
          tokenizer: whose `decode` is used, about once a token.
          context: the last tokens of the prompt, for the text to continue it
            seamlessly; without them it begins as `decode` begins a text.
        """
        self._tokenizer = tokenizer
        self._window = list(context[-WINDOW:])
        self._text = self._decode(self._window)
        while self._window and self._text.startswith(UNKNOWN):
            del self._window[0]
            self._text = self._decode(self._window)
        self._shown = _settled(self._text)
        self._clean = len(self._window)

    def push(self, token: int) -> str:
        """The characters that a token completes."""
        window = self._window
        window.append(token)
        text = self._decode(window)
        if text == self._text and not self._decode([token, token]):
            window.pop()  # it has no text anywhere, such as a special token
            return ""
        whole = not text.endswith(UNKNOWN)
        if whole:
            settled = len(text)
        elif len(window) - self._clean > UNFINISHED:
            settled = _settled(text)
        else:
            # One broken character can make a run of bytes unreadable as a whole, so
            # nothing is certain before it had the time to be completed.
            settled = self._shown
        new = text[self._shown : settled]
        self._text, self._shown = text, max(self._shown, settled)
        if whole:
            if len(window) >= WINDOW:
                self._shorten(self._clean)
            self._clean = len(window)
        elif len(window) > PATIENCE:
            self._shorten(self._character())
            self._clean = 0
        return new

    def flush(self) -> str:
        """What was waiting for the rest of its character, at the end of the text."""
        rest = self._text[self._shown :]
        self._shown = len(self._text)
        return rest

    def _shorten(self, start: int) -> None:
        text = self._decode(self._window[start:])
        if text:
            del self._window[:start]
            self._text, self._shown = text, _settled(text)

    def _character(self) -> int:
        """A late token with which a character begins, if one can be found."""
        late = len(self._window) - UNFINISHED - 1
        starts = range(late, max(late - WINDOW, 0), -1)
        text = (self._decode(self._window[start:]) for start in starts)
        begins = (not piece.startswith(UNKNOWN) for piece in text)
        return next((s for s, whole in zip(starts, begins, strict=True) if whole), late)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True) if ids else ""


def _settled(text: str) -> int:
    """Characters that no further token can change."""
    tail = len(text) - len(text.rstrip(UNKNOWN))
    return len(text) - min(tail, UNFINISHED)


class _Stops:
    """Looks for several strings at once, a character at a time (Knuth-Morris-Pratt)."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._borders = tuple(_borders(string) for string in strings)
        self._matched = [0] * len(strings)

    def feed(self, character: str) -> int:
        """Length of the longest string that ends with this character; 0: none."""
        found = 0
        for i, (string, border) in enumerate(
            zip(self._strings, self._borders, strict=True)
        ):
            matched = self._matched[i]
            while matched and string[matched] != character:
                matched = border[matched - 1]
            if string[matched] == character:
                matched += 1
            if matched == len(string):
                found = max(found, matched)
                matched = border[matched - 1]
            self._matched[i] = matched
        return found

    @property
    def begun(self) -> int:
        """Newest characters that may be the beginning of one of the strings."""
        return max(self._matched, default=0)


def _borders(string: str) -> list[int]:
    """For each prefix, the longest shorter one that it also ends with."""
    borders, length = [0], 0
    for character in string[1:]:
        while length and string[length] != character:
            length = borders[length - 1]
        length += string[length] == character
        borders.append(length)
    return borders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """What new tokens added to a text.

    Attributes:
      text: to be shown now.
      kept: how many of the tokens belong to the text.
      stopped: whether a stop string ended it.
    """

    text: str
    kept: int
    stopped: bool = False


class TextStream:
    """The text of one request.

    A stop string is found wherever it lies, also across tokens and rounds. The text
    ends before it; the ids end with the token that completes it, as in vLLM and in
    OpenAI's counts. The first string to be complete wins, of several ending together
    the longest, so the split into tokens does not matter to the text. Characters that
    may begin a stop string are held back until it is decided. A string that is complete
    within the first `min_tokens` tokens is text like any other.

    A stop token belongs to the ids and not to the text.
    """

    def __init__(
        self,
        tokenizer: Decoding,
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        context: Sequence[int] = (),
    ) -> None:
        """Starts a text.

        Args:
          tokenizer: decodes.
          stop: strings that end it.
          min_tokens: tokens within which none does.
          context: the last tokens of the prompt; see `Detokenizer`.
        """
        self._detokenizer = Detokenizer(tokenizer, context)
        self._stops = _Stops(stop) if stop else None
        self._min_tokens = min_tokens
        self._tokens = 0
        self._held = ""
        self._shown: list[str] = []
        self.ended = False

    @property
    def text(self) -> str:
        """All that was shown."""
        return "".join(self._shown)

    def push(
        self, token_ids: Sequence[int], finish_reason: FinishReason | None = None
    ) -> Piece:
        """Adds tokens.

        Args:
          token_ids: the next ones, any number.
          finish_reason: why the text ends with them; "stop": the last is a stop token.
            `None`: it goes on.
        """
        if self.ended:
            raise ValueError("the text has ended")
        stopper = finish_reason == "stop" and len(token_ids) > 0
        shown = ""
        for i, token in enumerate(token_ids[: len(token_ids) - stopper]):
            self._tokens += 1
            new, stopped = self._release(self._detokenizer.push(token))
            shown += new
            if stopped:
                return self._piece(shown, i + 1, stopped=True)
        if finish_reason is not None:
            shown += self._held + self._detokenizer.flush()
            self._held = ""
            self.ended = True
        return self._piece(shown, len(token_ids))

    def _release(self, new: str) -> tuple[str, bool]:
        if self._stops is None:
            return new, False
        for i, character in enumerate(new):
            length = self._stops.feed(character)
            if length and self._tokens > self._min_tokens:
                text = self._held + new[: i + 1]
                return text[: len(text) - length], True
        text = self._held + new
        cut = len(text) - self._stops.begun
        self._held = text[cut:]
        return text[:cut], False

    def _piece(self, text: str, kept: int, *, stopped: bool = False) -> Piece:
        self.ended |= stopped
        self._shown.append(text)
        return Piece(text=text, kept=kept, stopped=stopped)


class TextReader:
    """Reads a request for somebody who wants text (a `jspec.engine.request.Reader`)."""

    def __init__(self, text: TextStream, put: Callable[[Chunk], object]) -> None:
        """Starts to read.

        Args:
          text: makes text of tokens and finds stop strings.
          put: receives every chunk, on the engine's thread: it must not wait.
        """
        self.text = text
        self._put = put
        self._new = ""

    def scan(
        self, token_ids: Sequence[int], finish_reason: FinishReason | None
    ) -> int | None:
        """How many tokens remain if a stop string ends the text among them."""
        self._new = ""
        piece = self.text.push(token_ids, finish_reason)
        self._new = piece.text
        return piece.kept if piece.stopped else None

    def deliver(
        self, token_ids: Sequence[int], finish_reason: FinishReason | None
    ) -> None:
        """Hands them on with their text."""
        self._put(
            Chunk(
                text=self._new,
                token_ids=list(token_ids),
                finish_reason=finish_reason,
            )
        )
