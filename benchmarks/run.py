"""Runs methods × K × batches × prompts of several engines, interleaved in one run."""

import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from benchmarks import data, machine
from benchmarks.peers import client
from benchmarks.peers.protocol import Load, Run
from benchmarks.weights import Model

FORMAT = 1
DTYPES = ("float32", "bfloat16", "q4_1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """One engine with one method: what gets a line in the table."""

    engine: str
    method: str = "none"
    k: int = 0
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """`ENGINE METHOD[-K] DTYPE`: unique in a run."""
        method = f"{self.method}-{self.k}" if self.k else self.method
        return f"{self.engine} {method} {self.dtype}"

    @classmethod
    def parse(cls, spec: str, *, dtype: str = "float32") -> "Contestant":
        """Reads `ENGINE[:METHOD[:K]][@DTYPE]`, such as `llama_cpp:ngram:5@q4_1`."""
        body, _, wanted = spec.strip().partition("@")
        engine, *rest = body.split(":")
        method = rest[0] if rest else "none"
        k = rest[1] if len(rest) > 1 else ("0" if method == "none" else "4")
        if engine not in client.MODULES:
            raise ValueError(
                f"There is no engine {engine!r}; there are {', '.join(client.MODULES)}."
            )
        if len(rest) > 2 or not k.isdecimal():
            raise ValueError(f"{spec!r} should read ENGINE[:METHOD[:K]][@DTYPE].")
        if (wanted or dtype) not in DTYPES:
            raise ValueError(f"{wanted!r} is not one of {', '.join(DTYPES)}.")
        return cls(engine=engine, method=method, k=int(k), dtype=wanted or dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A run. Printed with its result.

    Attributes:
      prompts: `NAME:COUNT,...`; see `benchmarks.data.select`.
      batches: each is a batch of its own, filled by going round the prompts again.
      repeats: passes; each visits every contestant, in turning order.
      ignore_eos: decodes past the end of the text, so that all do equal work.
      warmup_tokens: decoded once per contestant and batch, unmeasured.
      settle_seconds: how long to wait, at most, for the last engine to stop spinning.
      attempts: a measurement that others disturbed is made again, so many times in all,
        and the least disturbed one is kept.
      others: cores that other processes may use without disturbing.
      bandwidth_megabytes: read by each measurement of the memory; more than the caches.
    """

    contestants: tuple[Contestant, ...]
    prompts: str = "summaries:4"
    batches: tuple[int, ...] = (1,)
    max_tokens: int = 64
    repeats: int = 3
    threads: int = 2
    seed: int = 0
    ignore_eos: bool = True
    warmup_tokens: int = 8
    settle_seconds: float = 5.0
    attempts: int = 1
    others: float = 0.1
    bandwidth_megabytes: int = 512

    def __post_init__(self) -> None:
        """Refuses what cannot be run."""
        names = [contestant.name for contestant in self.contestants]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"Contestants must be some, and distinct: {names}.")
        if min(*self.batches, self.max_tokens - 1, self.repeats, self.threads) < 1:
            raise ValueError(
                "Batches, repeats and threads start at 1, tokens at 2: "
                f"{self.batches}, {self.repeats}, {self.threads}, {self.max_tokens}."
            )


def contestants(
    *,
    methods: Sequence[str] = (),
    ks: Sequence[int] = (4,),
    dtypes: Sequence[str] = ("float32",),
    peers: Sequence[str] = (),
) -> tuple[Contestant, ...]:
    """jspec's methods × K × dtypes, then the peers in each dtype they do not name."""
    found: dict[str, Contestant] = {}
    for dtype, method in itertools.product(dtypes, methods):
        for k in (0,) if method == "none" else ks:
            one = Contestant(engine="jspec", method=method, k=k, dtype=dtype)
            found.setdefault(one.name, one)
    for peer, dtype in itertools.product(peers, dtypes):
        one = Contestant.parse(peer, dtype=dtype)
        found.setdefault(one.name, one)
    return tuple(found.values())


Starter = Callable[..., client.Worker]


def _options(contestant: Contestant, options: dict[str, Any]) -> dict[str, Any]:
    """Those for jspec, without a schedule where there is nothing to schedule."""
    if contestant.engine != "jspec":
        return {}
    drafts = contestant.method != "none"
    return {name: one for name, one in options.items() if drafts or name != "schedule"}


def bench(
    config: Config,
    model: Model,
    *,
    tokenizer: data.Tokenizer | None = None,
    options: dict[str, Any] | None = None,
    start: Starter = client.start,
    progress: bool = True,
    logs: Path | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measures all contestants side by side and returns the result as plain JSON.

    A contestant that cannot be loaded, or cannot run a batch, is listed under
    `refused` with its sentence; the rest goes on.

    Args:
      config: what to run.
      model: the weights in every engine's form.
      tokenizer: of the prompts; the model's own when `None`.
      options: keyword arguments for `jspec.serve`; plain decoding gets no `schedule`.
      start: makes a worker; another one in tests.
      progress: shows a bar.
      logs: where workers' stderr goes; a temporary folder when `None`.
      keep: receives the result after every pass, so that a long run loses little.
    """
    chosen = data.select(config.prompts, config.seed)
    ids = data.tokens(chosen, tokenizer or model.tokenizer)
    longest = max(map(len, ids))
    result: dict[str, Any] = {
        "format": FORMAT,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": dataclasses.asdict(config),
        "options": options or {},
        **machine.commit(),
        "machine": machine.describe(),
        "model": {"sha256": model.sha256, "step_bytes": model.step_bytes},
        "prompts": [
            {"id": prompt.id, "set": prompt.set, "tokens": len(row)}
            for prompt, row in zip(chosen, ids, strict=True)
        ],
        "versions": {},
        "load_seconds": {},
        "bandwidth_gb_s": [],
        "refused": {},
        "runs": [],
        "outputs": {},
    }
    logs = logs or Path(tempfile.mkdtemp(prefix="jspec-bench-"))
    total = len(config.contestants) * (1 + config.repeats * len(config.batches))
    with contextlib.ExitStack() as stack, _bar(total, show=progress) as step:
        workers: dict[Contestant, client.Worker] = {}
        for contestant in config.contestants:
            step(f"loading {contestant.name}")
            load = Load(
                model=dataclasses.asdict(model),
                dtype=contestant.dtype,
                method=contestant.method,
                k=contestant.k,
                threads=config.threads,
                max_batch=max(config.batches),
                max_model_len=_rounded_up(longest + config.max_tokens + 32, 256),
                options=_options(contestant, options or {}),
            )
            try:
                clock = machine.Stopwatch()
                worker = start(
                    contestant.engine,
                    threads=config.threads,
                    log=logs / f"{contestant.name.replace(' ', '-')}.log",
                )
                stack.callback(worker.close)
                result["versions"][contestant.name] = worker.load(load)
                result["load_seconds"][contestant.name] = clock.seconds()
                workers[contestant] = worker
            except (client.WorkerError, client.setup.SetupError) as error:
                result["refused"][contestant.name] = str(error)
        plan = _Plan(config, ids, workers, result)
        plan.warm_up()
        for number in range(config.repeats):
            machine.settle(limit=config.settle_seconds)
            result["bandwidth_gb_s"] += machine.read_bandwidth(
                threads=config.threads, megabytes=config.bandwidth_megabytes
            )
            order = list(workers)
            turn = number % max(1, len(order))
            for contestant in order[turn:] + order[:turn]:
                for batch in config.batches:
                    step(f"pass {number + 1}: {contestant.name}, batch {batch}")
                    plan.measure(number, contestant, batch)
            if keep:
                keep(result)
    return result


@dataclasses.dataclass
class _Plan:
    config: Config
    ids: list[list[int]]
    workers: dict[Contestant, client.Worker]
    result: dict[str, Any]

    def warm_up(self) -> None:
        """Runs every shape once, unmeasured, and drops those that are refused."""
        for contestant, batch in itertools.product(self.workers, self.config.batches):
            try:
                self.workers[contestant].run(
                    Run(
                        prompts=_filled(self.ids, batch)[:batch],
                        max_tokens=self.config.warmup_tokens,
                        batch=batch,
                        ignore_eos=self.config.ignore_eos,
                    )
                )
            except client.WorkerError as error:
                self._refuse(contestant, batch, error)

    def measure(self, number: int, contestant: Contestant, batch: int) -> None:
        """One run of all prompts, with what else the processor did meanwhile."""
        if f"{contestant.name}, batch {batch}" in self.result["refused"]:
            return
        try:
            tries = [self._try(contestant, batch)]
            while len(tries) < self.config.attempts and tries[-1].disturbed(
                self.config.others
            ):
                tries.append(self._try(contestant, batch))
        except client.WorkerError as error:
            self._refuse(contestant, batch, error)
            return
        kept = min(tries, key=lambda one: one.cores_used_by_others or 0.0)
        key = f"{contestant.name}, batch {batch}"
        outputs = self.result["outputs"].setdefault(key, kept.tokens)
        self.result["runs"].append(
            {
                "contestant": contestant.name,
                **dataclasses.asdict(contestant),
                "batch": batch,
                "pass": number,
                **kept.answer,
                "tokens_per_second": _rate(kept.answer),
                "same_as_first_pass": outputs == kept.tokens,
                "attempts": len(tries),
                "busy_before": kept.busy_before,
                "cores_used_by_others": kept.cores_used_by_others,
            }
        )

    def _try(self, contestant: Contestant, batch: int) -> "_Try":
        busy = machine.settle(limit=self.config.settle_seconds)
        load = machine.Load()
        answer = self.workers[contestant].run(
            Run(
                prompts=_filled(self.ids, batch),
                max_tokens=self.config.max_tokens,
                batch=batch,
                ignore_eos=self.config.ignore_eos,
            )
        )
        used = load.core_seconds()
        others = None
        if used is not None:
            others = max(0.0, used - answer["cpu_seconds"]) / answer["seconds"]
        tokens = answer.pop("tokens")
        return _Try(tokens, answer, busy, others)

    def _refuse(self, contestant: Contestant, batch: int, error: Exception) -> None:
        self.result["refused"][f"{contestant.name}, batch {batch}"] = str(error)


@dataclasses.dataclass
class _Try:
    tokens: list[list[int]]
    answer: dict[str, Any]
    busy_before: float | None
    cores_used_by_others: float | None

    def disturbed(self, limit: float) -> bool:
        """Whether other processes used more cores than that."""
        used = self.cores_used_by_others
        return used is not None and used > limit


def _filled(ids: list[list[int]], batch: int) -> list[list[int]]:
    """The prompts, and as many of them again as fill the last batch."""
    count = -(-len(ids) // batch) * batch
    return list(itertools.islice(itertools.cycle(ids), count))


def _rate(answer: dict[str, Any]) -> float:
    seconds = answer["decode_seconds"]
    return answer["decode_tokens"] / seconds if seconds else 0.0


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step


@contextlib.contextmanager
def _bar(total: int, *, show: bool) -> Generator[Callable[[str], None]]:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, disable=not show) as bar:
        task = bar.add_task("", total=total)
        started = False

        def step(what: str) -> None:
            nonlocal started
            bar.update(task, description=what, advance=1 if started else 0)
            started = True

        yield step
        bar.update(task, completed=total, description="done")


def summarise(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per contestant and batch: medians, spread, share of the floor, text.

    Passes that others disturbed are left out where there are undisturbed ones.
    The floor of a step is the weights' bytes over the measured bandwidth; its share is
    stated at batch 1 and method `none`, where a step is one token. `equal` is the share
    of prompts whose ids equal the reference's: jspec's plain decoding at batch 1 in the
    same dtype, or transformers' where jspec did not take part.
    """
    bandwidth = (
        statistics.median(result["bandwidth_gb_s"])
        if result["bandwidth_gb_s"]
        else None
    )
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in result["runs"]:
        groups.setdefault((run["contestant"], run["batch"]), []).append(run)
    limit = result["config"].get("others", math.inf)
    lines = []
    for (name, batch), every in groups.items():
        quiet = [run for run in every if (run["cores_used_by_others"] or 0) <= limit]
        runs = quiet or every
        rates = [run["tokens_per_second"] for run in runs]
        first = runs[0]
        line = {
            "contestant": name,
            **{key: first[key] for key in ("engine", "method", "k", "dtype")},
            "batch": batch,
            "passes": len(runs),
            "disturbed": len(every) - len(quiet),
            "tokens_per_second": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "prefill_seconds": statistics.median(r["prefill_seconds"] for r in runs),
            "equal": _equal(result, first),
            "tau": _tau(runs),
            "floor_share": None,
            "cores_used_by_others": _median(r["cores_used_by_others"] for r in runs),
        }
        size = result["model"]["step_bytes"].get(first["dtype"])
        if batch == 1 and first["method"] == "none" and bandwidth and size:
            floor = bandwidth * 1e9 / size
            line["floor_share"] = line["tokens_per_second"] / floor
        lines.append(line)
    return lines


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _tau(runs: list[dict[str, Any]]) -> float | None:
    """Emitted tokens per target pass and row, where the engine counts rounds."""
    rounds = sum(run["counters"].get("rounds", 0) for run in runs)
    emitted = sum(run["counters"].get("emitted", 0) for run in runs)
    return emitted / rounds if rounds else None


def _equal(result: dict[str, Any], run: dict[str, Any]) -> float | None:
    outputs = result["outputs"]
    for engine in ("jspec", "transformers"):
        reference = outputs.get(f"{engine} none {run['dtype']}, batch 1")
        if reference:
            break
    else:
        return None
    own = outputs[f"{run['contestant']}, batch {run['batch']}"]
    count = len(result["prompts"])
    pairs = zip(own[:count], reference[:count], strict=True)
    return sum(mine == theirs for mine, theirs in pairs) / count


def save(result: dict[str, Any], path: Path) -> None:
    """Writes the result, one run a line, so that differences can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = dict(result)
    runs, outputs = body.pop("runs"), body.pop("outputs")
    text = json.dumps(body, indent=1)[:-2]
    lines = ",\n  ".join(map(json.dumps, runs))
    text += f',\n "runs": [\n  {lines}\n ],\n "outputs": {{\n  '
    text += ",\n  ".join(
        f"{json.dumps(k)}: {json.dumps(v)}" for k, v in outputs.items()
    )
    path.write_text(text + "\n }\n}\n")
