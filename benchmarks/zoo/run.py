"""Measures what a journal lacks, contestant by contestant, plain decoding beside each.

Every group of texts is decoded by plain decoding and at every K one after the other, in
turning order, so a speed-up compares what was measured within seconds. All servers read
the same arrays of the target: where weights lie in memory moves tokens/s by a tenth.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import importlib.metadata
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from benchmarks import data, machine
from benchmarks.drafting import one_model
from benchmarks.zoo.journal import Journal
from benchmarks.zoo.opening import Open, Opener, Refusals, Refused
from benchmarks.zoo.plan import PLAIN, Config, Contestant, Turn
from benchmarks.zoo.rivals import Reading, Rival, Rounds
from jspec.checkpoint import load, read_config
from jspec.targets import resolve
from jspec.tokenizer import Tokenizer

type Progress = Callable[[str, int, int], None]

ALONE = Contestant(name=PLAIN, method=PLAIN)
PASSES = Contestant(name="verification alone", method="suffix")
"""Whose rounds are passes of the target: its drafts come from the host."""

PACKAGES = ("jspec", "jax", "jaxlib", "flax", "numpy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Token ids of the prompts by kind, and their names.

    Attributes:
      room: most tokens of a prompt and its text, for servers.
      bytes: of the weights, which a step of plain decoding reads once.
    """

    ids: dict[str, list[list[int]]]
    names: dict[str, list[str]]
    room: int
    bytes: int


def read(config: Config) -> Texts:
    """The prompts as the target reads them."""
    path = resolve(config.target)
    tokenizer = Tokenizer(path)
    chosen = {kind: config.prompts(kind) for kind in config.kinds}
    ids = {kind: data.tokens(some, tokenizer) for kind, some in chosen.items()}
    longest = max(len(row) for rows in ids.values() for row in rows)
    need = longest + config.max_tokens + 32
    _, weights = load(path, dtype=config.dtype)
    return Texts(
        ids=ids,
        names={kind: [one.id for one in some] for kind, some in chosen.items()},
        room=min(-(-need // 256) * 256, read_config(path).max_position),
        bytes=sum(array.nbytes for array in jax.tree.leaves(weights)),
    )


def run(
    config: Config,
    contestants: Sequence[Contestant],
    journal: Journal,
    *,
    minutes: float | None = None,
    progress: Progress | None = None,
    texts: Texts | None = None,
    open_rival: Open | None = None,
) -> bool:
    """Measures until nothing is missing, or so many minutes are over.

    Args:
      config: how much.
      contestants: who.
      journal: what was measured before; receives every cell.
      minutes: stops at the end of a turn, once they are over.
      progress: told what was measured, how many cells of how many.
      texts: what `read` gives.
      open_rival: makes contestants ready.

    Returns:
      whether everything is there.
    """
    texts = read(config) if texts is None else texts
    lengths = [len(row) for rows in texts.ids.values() for row in rows]
    opener = open_rival or Opener(config, lengths, room=texts.room)
    session = _Session(config, texts, journal, opener, progress)
    todo = session.plan(contestants)
    if not todo:
        return True
    journal.add("start", **describe(config, texts))
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with one_model(), session:
        for contestant in todo:
            if time.monotonic() < end:
                session.visit(contestant, end)
    return not session.plan(contestants)


def describe(config: Config, texts: Texts) -> dict[str, Any]:
    """What a start is known by."""
    now = datetime.datetime.now(datetime.UTC)
    return {
        "started": now.isoformat(timespec="seconds"),
        "fixed": config.fixed,
        "config": dataclasses.asdict(config),
        **machine.commit(),
        "machine": machine.describe(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "weight_bytes": texts.bytes,
    }


class _Session:
    """One start: plain decoding stays ready, contestants come and go."""

    def __init__(
        self,
        config: Config,
        texts: Texts,
        journal: Journal,
        opener: Open,
        progress: Progress | None,
    ) -> None:
        self.config, self.texts, self.journal = config, texts, journal
        self.opener, self.progress = opener, progress
        self.refused: set[tuple[str, int]] = set()
        self.done, self.total, self.turn = 0, 0, 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @functools.cached_property
    def plain(self) -> Rival:
        """What everything is compared with, made ready when it is first needed."""
        return self._stack.enter_context(self.opener(ALONE, (0,), {}))

    @functools.cached_property
    def passes(self) -> Rival:
        """What verifies without drafting."""
        return self._stack.enter_context(self.opener(PASSES, self.config.ks, {}))

    def plan(self, contestants: Sequence[Contestant]) -> list[Contestant]:
        """Those of whom something is missing that this start has not seen refused."""
        todo, self.done, self.total = [], 0, 0
        for one in contestants:
            digest = one.digest
            for turn in self.config.turns(one):
                ks = [
                    k
                    for k in self.config.asked(one)
                    if (one.name, k) not in self.refused
                ]
                missing = self.journal.missing(one, digest, turn, ks)
                self.total += len(ks)
                self.done += len(ks) - len(missing)
                if missing and one not in todo:
                    todo.append(one)
        return todo

    def visit(self, one: Contestant, end: float) -> None:
        """Measures a contestant until nothing of it is missing, or time is over."""
        digest = one.digest
        turns = list(self.config.turns(one))
        asked = [
            k
            for k in self.config.asked(one)
            if any(self.journal.missing(one, digest, turn, [k]) for turn in turns)
        ]
        refused: Refusals = {}
        self._tell(one.name)
        with contextlib.ExitStack() as stack:
            try:
                rival = stack.enter_context(self.opener(one, asked, refused))
                self._costs(one, digest, rival)
                rival.ask(rival.ks[-1], self.texts.ids[turns[0].kind][:1], 0.0, [0])
                for turn in turns:
                    ks = self.journal.missing(one, digest, turn, rival.ks)
                    if ks:
                        self._measure(one, digest, turn, rival, ks)
                    if time.monotonic() > end:
                        break
            except (Refused, RuntimeError) as error:
                # Peers that are missing or die, and an engine that fails: the report
                # lists it, and the others are measured.
                refused |= dict.fromkeys(asked, f"{error}")
        gc.collect()  # A closed server is a cycle that holds weights.
        for k, why in refused.items():
            self.refused.add((one.name, k))
            self.total -= len(turns)
            self.journal.add("refused", name=one.name, k=k, why=why)

    def _costs(self, one: Contestant, digest: str | None, rival: Rival) -> None:
        """Rounds, and passes of as many tokens, timed one after the other."""
        batches = self.config.batches
        known = {
            (batch, k)
            for line in self.journal.of("cost")
            if (line["name"], line["drafter"]) == (one.name, digest)
            for batch, k, _ in line["rounds"]
        }
        if one.method == PLAIN or known >= set(itertools.product(batches, rival.ks)):
            return
        rounds = rival.rounds(rival.ks, batches)
        if not rounds:
            return
        self.journal.add(
            "cost",
            name=one.name,
            drafter=digest,
            passes_of=one.passes,
            rounds=_listed(rounds),
            passes=_listed(self.passes.rounds(rival.ks, batches)),
            context=rival.context,
            bandwidth_gb_s=[round(one, 2) for one in machine.read_bandwidth()],
        )

    def _measure(
        self,
        one: Contestant,
        digest: str | None,
        turn: Turn,
        rival: Rival,
        ks: Sequence[int],
    ) -> None:
        """One turn: each group by plain decoding and at every K, in turning order."""
        ids, names = self.texts.ids[turn.kind], self.texts.names[turn.kind]
        groups = self.config.groups(turn.batch)
        order = [None, *ks]
        read: dict[int | None, list[Reading]] = {who: [] for who in order}
        spent: dict[int | None, list[float | None]] = {who: [] for who in order}
        for group in groups:
            self.turn += 1
            prompts = [ids[i] for i in group]
            seeds = [self.config.seed + 1000 * turn.number + i for i in group]
            shift = self.turn % len(order)
            for who in order[shift:] + order[:shift]:
                contestant, k = (self.plain, 0) if who is None else (rival, who)
                load, began = machine.Load(), time.perf_counter()
                reading = contestant.ask(k, prompts, turn.temperature, seeds)
                seconds, used = time.perf_counter() - began, load.core_seconds()
                read[who].append(reading)
                others = None if used is None else used - reading.cpu_seconds
                spent[who].append(
                    None if others is None else round(max(0.0, others) / seconds, 3)
                )
        plain = [row for reading in read[None] for row in reading.rows]
        for k in ks:
            rows = [row for reading in read[k] for row in reading.rows]
            self.journal.add(
                "cell",
                name=one.name,
                method=one.method,
                drafter=digest,
                k=k,
                batch=turn.batch,
                temperature=turn.temperature,
                kind=turn.kind,
                groups=[reading.to_json() for reading in read[k]],
                plain=[reading.to_json() for reading in read[None]],
                rows=[
                    {"id": names[i]} | dict(row)
                    for i, row in zip(itertools.chain(*groups), rows, strict=True)
                ],
                equal=[
                    row["digest"] == its["digest"]
                    for row, its in zip(rows, plain, strict=True)
                ]
                if turn.temperature == 0
                else None,
                cores_used_by_others=spent[k],
                **{"pass": turn.number},
            )
            self.done += 1
        self._tell(f"{one.name}, {turn.kind}, T = {turn.temperature:g}")

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, self.done, self.total)


def _listed(rounds: Rounds) -> list[list[Any]]:
    return [[batch, k, ms] for batch, own in rounds.items() for k, ms in own.items()]
