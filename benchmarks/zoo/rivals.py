"""Who is measured: a server of ours in this process, or transformers in its own."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jspec
from benchmarks import machine
from benchmarks.peers import client
from benchmarks.peers.protocol import Clock, Run, watch
from jspec.server.lab import round_costs
from jspec.server.measurements import Palette

CONTEXT = 256
"""Tokens in the cache of each row, where rounds without text are timed."""

type Rounds = dict[int, dict[int, list[float]]]
"""Milliseconds of rounds without text, by batch and K."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What one group of texts took.

    Attributes:
      rows: of each text the tokens, rounds, drafted and accepted by position, and a
        digest of its ids.
      tokens: decoded after every row had its first.
      seconds: that this took.
      cpu_seconds: of whoever was measured.
    """

    rows: tuple[Mapping[str, Any], ...]
    tokens: int
    seconds: float
    cpu_seconds: float

    def to_json(self) -> dict[str, Any]:
        """What a group is in a cell: tokens and time."""
        return {"tokens": self.tokens, "seconds": round(self.seconds, 6)}


class Rival(Protocol):
    """A contestant that is ready.

    Attributes:
      ks: the K it can be asked for.
      context: tokens in the cache of each row, where `rounds` are timed.
    """

    ks: tuple[int, ...]

    @property
    def context(self) -> int:
        """See above."""
        ...

    def ask(
        self,
        k: int,
        prompts: Sequence[list[int]],
        temperature: float,
        seeds: Sequence[int],
    ) -> Reading:
        """Decodes these prompts at once."""
        ...

    def rounds(self, ks: Sequence[int], batches: Sequence[int]) -> Rounds:
        """What rounds take; empty: not known."""
        ...


class Ours:
    """A server in this process."""

    def __init__(
        self, server: Any, palette: Palette, ks: Sequence[int], max_tokens: int
    ) -> None:
        self.server, self.palette, self.ks = server, palette, tuple(ks)
        self.max_tokens = max_tokens

    def ask(
        self,
        k: int,
        prompts: Sequence[list[int]],
        temperature: float,
        seeds: Sequence[int],
    ) -> Reading:
        """Streams the texts."""
        self.palette.now = k
        used, clock = time.process_time(), Clock(len(prompts))
        params = [
            jspec.SamplingParams(
                temperature=temperature, max_tokens=self.max_tokens, seed=seed
            )
            for seed in seeds
        ]
        handles = list(map(self.server.submit, prompts, params))
        watch(handles, clock)
        done = [handle.result() for handle in handles]
        for one in done:
            if one.finish_reason == "error":
                raise RuntimeError(one.error)
        group = clock.group([one.token_ids for one in done])
        return Reading(
            rows=tuple(
                {
                    "tokens": len(one.token_ids),
                    "rounds": one.speculation.rounds,
                    "drafted": list(one.speculation.drafted_per_position),
                    "accepted": list(one.speculation.accepted_per_position),
                    "digest": digest(one.token_ids),
                }
                for one in done
            ),
            tokens=sum(clock.counts) - group.early,
            seconds=group.decode_seconds,
            cpu_seconds=time.process_time() - used,
        )

    def rounds(self, ks: Sequence[int], batches: Sequence[int]) -> Rounds:
        """Timed over pages that hold nothing; only of a server that has served none."""
        costs = round_costs(self.server, (0, *ks), batches, [self.context])
        found: Rounds = {}
        for one in costs.samples["verify"]:
            k = one.size // one.batch - 1
            found.setdefault(one.batch, {}).setdefault(k, []).append(round(one.ms, 4))
        return found

    @property
    def context(self) -> int:
        """What rounds are timed at, in a server of short texts less."""
        room = self.server.settings["max_model_len"]
        return min(CONTEXT, room // 2)


class Peer:
    """transformers in a process of its own, which sleeps while others are measured."""

    def __init__(self, worker: client.Worker, k: int, max_tokens: int) -> None:
        self.worker, self.max_tokens = worker, max_tokens
        self.ks: tuple[int, ...] = (k,)
        self.context = 0

    def ask(
        self,
        k: int,
        prompts: Sequence[list[int]],
        temperature: float,
        seeds: Sequence[int],
    ) -> Reading:
        """Greedy text, after the cores have come to rest."""
        machine.settle(limit=1.0)
        answer = self.worker.run(
            Run(
                prompts=list(prompts),
                max_tokens=self.max_tokens,
                batch=len(prompts),
                ignore_eos=False,
            )
        )
        rounds = int(answer["counters"].get("rounds", 0))
        return Reading(
            rows=tuple(
                {"tokens": len(ids), "rounds": rounds, "digest": digest(ids)}
                for ids in answer["tokens"]
            ),
            tokens=answer["decode_tokens"],
            seconds=answer["decode_seconds"],
            cpu_seconds=answer["cpu_seconds"],
        )

    def rounds(self, ks: Sequence[int], batches: Sequence[int]) -> Rounds:
        """Not known."""
        return {}


def digest(ids: Sequence[int]) -> str:
    """Tells texts apart."""
    return hashlib.blake2b(json.dumps(list(ids)).encode(), digest_size=8).hexdigest()
