"""How a worker talks: one JSON object a line, requests on stdin, answers on stdout.

`{"op": "load", ...Load}`   → `{"ready": true, "versions": {...}, "note": str}`
`{"op": "run", ...Run}`     → `{"tokens": [[...]], "seconds": ..., ...Timing}`
`{"op": "close"}`           → the process ends
A failure answers `{"error": "..."}` and the worker lives on. This file runs in every
peer's environment, so it imports the standard library alone.
"""

import dataclasses
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Load:
    """What to get ready.

    Attributes:
      model: `benchmarks.weights.Model` as a dictionary.
      method: `none`, `ngram` or any other name of jspec's.
      k: drafted tokens per round; 0 for `none`.
      options: further keyword arguments of the engine.
    """

    model: dict[str, Any]
    dtype: str
    method: str = "none"
    k: int = 0
    threads: int = 2
    max_batch: int = 8
    max_model_len: int = 2048
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Run:
    """Greedy decoding of `max_tokens` tokens a prompt, whatever ends the text.

    Attributes:
      batch: prompts that run together; the next ones start when all have ended.
      ignore_eos: decodes on past the end of the text, so that all rows do equal work.
    """

    prompts: list[list[int]]
    max_tokens: int
    batch: int = 1
    ignore_eos: bool = True


class Engine(Protocol):
    """What a worker implements."""

    def load(self, load: Load) -> dict[str, str]:
        """Gets ready and returns versions."""
        ...

    def group(self, prompts: list[list[int]], run: Run) -> "Group":
        """Decodes prompts that run together."""
        ...


@dataclasses.dataclass
class Group:
    """A group's tokens and what its clock saw.

    Decoding is timed from the moment when every row has emitted something to the last
    token; `early` counts the tokens that were there at that moment.
    """

    tokens: list[list[int]]
    early: int
    prefill_seconds: float
    decode_seconds: float
    counters: dict[str, float] = dataclasses.field(default_factory=dict)


class Clock:
    """Notices when every row of a group has its first token."""

    def __init__(self, rows: int) -> None:
        self.started = time.perf_counter()
        self.counts = [0] * rows
        self.first: float | None = None
        self.last = self.started
        self.early = 0

    def saw(self, counts: Iterable[int]) -> None:
        """Takes the rows' numbers of tokens so far."""
        self.last = time.perf_counter()
        self.counts = list(counts)
        if self.first is None and all(self.counts):
            self.first = self.last
            self.early = sum(self.counts)

    def group(
        self, tokens: Sequence[Sequence[int]], counters: dict[str, float] | None = None
    ) -> Group:
        """The group's result."""
        first = self.last if self.first is None else self.first
        return Group(
            tokens=[list(map(int, row)) for row in tokens],
            early=self.early,
            prefill_seconds=first - self.started,
            decode_seconds=self.last - first,
            counters=counters or {},
        )


def watch(handles: Sequence[Iterable[Any]], clock: Clock) -> None:
    """Tells the clock of every chunk; a thread a row, which sleeps between them.

    Args:
      handles: of each row what streams chunks, with the `token_ids` they bring.
      clock: of as many rows.

    Raises:
      BaseException: the first thing that went wrong in a row.
    """
    counts = [0] * len(handles)
    failures: list[BaseException] = []
    lock = threading.Lock()

    def read(row: int) -> None:
        try:
            for chunk in handles[row]:
                with lock:
                    counts[row] += len(chunk.token_ids)
                    clock.saw(counts)
        except BaseException as error:
            failures.append(error)

    readers = [
        threading.Thread(target=read, args=(row,)) for row in range(len(handles))
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if failures:
        raise failures[0]


def answer_run(engine: Engine, run: Run) -> dict[str, Any]:
    """Runs all groups and sums their clocks."""
    started, used = time.perf_counter(), time.process_time()
    groups = [
        engine.group(run.prompts[at : at + run.batch], run)
        for at in range(0, len(run.prompts), run.batch)
    ]
    seconds, used = time.perf_counter() - started, time.process_time() - used
    tokens = [row for group in groups for row in group.tokens]
    counters: dict[str, float] = {}
    for group in groups:
        for name, value in group.counters.items():
            counters[name] = counters.get(name, 0) + value
    return {
        "tokens": tokens,
        "seconds": seconds,
        "cpu_seconds": used,
        "prefill_seconds": sum(group.prefill_seconds for group in groups),
        "decode_seconds": sum(group.decode_seconds for group in groups),
        "decode_tokens": sum(map(len, tokens)) - sum(group.early for group in groups),
        "counters": counters,
    }


def serve(engine: Engine) -> None:
    """Answers requests until `close` or the end of stdin.

    Engines print on stdout as they like: file descriptor 1 becomes stderr, and answers
    go out by a copy of the original.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "load": lambda words: {"ready": True, "versions": engine.load(Load(**words))},
        "run": lambda words: answer_run(engine, Run(**words)),
    }
    for line in sys.stdin:
        words = json.loads(line)
        op = words.pop("op")
        if op == "close":
            break
        try:
            answer = handlers[op](words)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out)
    out.flush()
    os._exit(0)
