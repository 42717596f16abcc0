"""Documents that users give a running server to draft from."""

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from jspec.drafters.places import Corpus
from jspec.tokenizer import Tokenizer

__all__ = ["CorpusState", "Shelf"]

type Documents = Sequence[str | Sequence[int]] | Path

MAX_TOKENS = 10_000_000
"""Tokens that a corpus may have; at 24 bytes each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusState:
    """What is known of a corpus.

    Attributes:
      name: as it was given.
      status: drafts come from it once it is "ready".
      documents: how many; 0 until it is ready.
      tokens: of all documents; 0 until it is ready.
      error: why it failed.
    """

    name: str
    status: Literal["loading", "ready", "failed"]
    documents: int = 0
    tokens: int = 0
    error: str | None = None


class Shelf:
    """Corpora by name, loaded one after the other beside the engine.

    A host drafter's memory that has the attribute `corpora` takes them: a mapping
    that is replaced as a whole, so that the engine's thread needs no lock.
    """

    def __init__(self, memory: Any, tokenizer: Tokenizer, tokens: int) -> None:
        """Starts empty.

        Args:
          memory: of the host drafter, if there is one.
          tokenizer: of the target.
          tokens: ids run below it.
        """
        self._memory = memory
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._states: dict[str, CorpusState] = {}
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def add(self, name: str, documents: Documents) -> threading.Thread:
        """Begins to load a corpus.

        Returns:
          the thread that loads it; it ends when the corpus is ready or has failed.

        Raises:
          ValueError: nothing takes corpora, the name is taken, or it is no document.
        """
        if not hasattr(self._memory, "corpora"):
            raise ValueError(
                "this server's method drafts from no corpora; 'suffix' does"
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"a corpus has a name, not {name!r}")
        if isinstance(documents, Path):
            if not documents.is_file():
                raise ValueError(f"{documents} is no file with documents")
        elif isinstance(documents, str | bytes) or not isinstance(documents, Sequence):
            raise ValueError(
                f"documents are a list of texts or of token ids, or the Path of a "
                f"file, not {type(documents).__name__}"
            )
        state = CorpusState(name=name, status="loading")
        with self._lock:
            if name in self._states:
                raise ValueError(f"corpus {name!r} is there already; remove it first")
            self._states[name] = state
        thread = threading.Thread(
            target=self._load,
            args=(state, documents),
            name=f"jspec-corpus-{name}",
            daemon=True,
        )
        thread.start()
        return thread

    def remove(self, name: str) -> None:
        """Forgets a corpus, one that is being loaded too.

        Raises:
          ValueError: there is none of that name.
        """
        with self._lock:
            if self._states.pop(name, None) is None:
                raise ValueError(f"there is no corpus {name!r}")
            rest = {k: v for k, v in self._memory.corpora.items() if k != name}
            self._memory.corpora = rest

    def states(self) -> tuple[CorpusState, ...]:
        """Every corpus, in the order of adding."""
        with self._lock:
            return tuple(self._states.values())

    def _load(self, state: CorpusState, documents: Documents) -> None:
        corpus, error = None, None
        with self._loading:
            try:
                corpus = Corpus(list(self._encoded(state.name, documents)))
                if not corpus.tokens:
                    raise ValueError(f"corpus {state.name!r} has no tokens")
            except Exception as fault:
                error = str(fault) or type(fault).__name__
        with self._lock:
            if self._states.get(state.name) is not state:
                return  # it was removed meanwhile
            if corpus is None or error is not None:
                done = dataclasses.replace(state, status="failed", error=error)
            else:
                done = dataclasses.replace(
                    state,
                    status="ready",
                    documents=corpus.documents,
                    tokens=corpus.tokens,
                )
                self._memory.corpora = {**self._memory.corpora, state.name: corpus}
            self._states[state.name] = done

    def _encoded(self, name: str, documents: Documents) -> Iterator[Sequence[int]]:
        count = 0
        texts = _read(documents) if isinstance(documents, Path) else documents
        for i, text in enumerate(texts):
            if isinstance(text, str):
                ids: Sequence[int] = self._tokenizer.encode(
                    text, add_special_tokens=False
                )
            else:
                ids = list(text)
                bad = [part for part in ids if not 0 <= part < self._tokens]
                if bad:
                    raise ValueError(
                        f"document {i} has id {bad[0]}, which is not a token; ids run "
                        f"from 0 to {self._tokens - 1}"
                    )
            count += len(ids)
            if count > MAX_TOKENS:
                raise ValueError(f"corpus {name!r} has more than {MAX_TOKENS} tokens")
            yield ids


def _read(path: Path) -> Iterator[str]:
    """A .jsonl file has a document a line, a JSON string each; another file is one."""
    if path.suffix != ".jsonl":
        yield path.read_text(encoding="utf-8")
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)
            except ValueError:
                text = None
            if not isinstance(text, str):
                raise ValueError(f"{path}:{number} is not a JSON string")
            yield text
