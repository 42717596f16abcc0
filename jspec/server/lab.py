"""The lab: the same texts under every static K and every controller, load by load."""

import contextlib
import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jspec.control import Adaptive, Controller, CostTable, Goodput, Sample, Static
from jspec.control.base import Counts, Size
from jspec.control.slots import SGLANG_DEFAULT
from jspec.engine.buckets import powers
from jspec.engine.probe import time_rounds
from jspec.params import SamplingParams
from jspec.server.local import Prompt, Server, serve

__all__ = ["TEXTS", "Meter", "break_even", "measure", "round_costs", "sweep"]

TEXTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, then explain it "
    "line by line, quoting each line before you explain it.",
    "List the planets of the solar system with one fact each, then list them again in "
    "reverse order with the same facts.",
    "Give ten rules for writing clear instructions, each with an example.",
)
"""What is asked where nobody says anything else: some copy much, some little."""

PROMPT_ROOM = 256
"""Most tokens of a text that is asked, its template included."""


class Meter:
    """A controller that hands each choice on, and times the rounds of one full batch.

    Rounds of other batches, in which requests come and go, are plain and not counted.
    """

    def __init__(self, palette: Sequence[int]) -> None:
        """Compiles all of these; measures nothing yet."""
        self.palette = tuple(sorted({0, *palette}))
        self._inner: Controller = Static(0)
        self._batch, self._enough = 0, 0.0
        self._rounds: list[tuple[float, float, int]] = []
        self.done = threading.Event()

    def begin(self, inner: Controller, batch: int, tokens: float) -> None:
        """Measures `inner` from the first round of `batch` rows, for so many tokens."""
        self._inner, self._batch, self._enough = inner, batch, tokens
        self._rounds = []
        self.done.clear()

    def k(self, batch: int, context: int = 0) -> Size:
        """The choice of who is measured, for a full batch; 0 for others."""
        return self._inner.k(batch, context) if batch == self._batch else 0

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Notes what a round of the full batch gave, and when."""
        if batch != self._batch or self.done.is_set():
            return
        self._inner.update(accepted, batch, drafted)
        tokens = batch * (1 + sum(accepted) / len(accepted))
        self._rounds.append((time.perf_counter(), tokens, drafted or 0))
        if sum(one[1] for one in self._rounds[1:]) >= self._enough:
            self.done.set()

    def reading(self) -> dict[str, Any]:
        """Tokens per second over the rounds after the first, and how often each K."""
        (began, _, _), *rest = self._rounds
        ks = [k for _, _, k in rest]
        return {
            "tokens_per_second": sum(one[1] for one in rest) / (rest[-1][0] - began),
            "rounds": len(rest),
            "tau": sum(one[1] for one in rest) / len(rest) / self._batch,
            "ks": dict(sorted(Counter(ks).items())),
            "settled": Counter(ks[len(ks) // 2 :]).most_common(1)[0][0],
            "switches": sum(a != b for a, b in itertools.pairwise(ks)),
        }


def measure(
    server: Server,
    meter: Meter,
    controller: Controller,
    prompts: Sequence[Prompt],
    tokens: int,
    *,
    timeout: float = 300.0,
) -> dict[str, Any]:
    """What one controller makes of these prompts, all at once.

    Every row goes on, greedily, until all together have `tokens` each: rows of one
    measurement decode what those of another do.
    """
    meter.begin(controller, len(prompts), tokens * len(prompts))
    # Whoever comes first decodes while the prompts of the others are read.
    pieces = len(prompts) * (server.settings["max_model_len"] // 512 + 2)
    most = tokens * (meter.palette[-1] + 1) + pieces
    params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
    with contextlib.ExitStack() as stack:
        for prompt in prompts:
            stack.callback(server.submit(prompt, params).abort)
        if not meter.done.wait(timeout):
            raise RuntimeError(
                f"{len(prompts)} texts did not have {tokens} tokens after {timeout} s"
            )
    while server.metrics()["running_requests"]:
        time.sleep(0.002)
    return meter.reading()


def sweep(
    target: str | Path,
    *,
    method: str = "auto",
    drafter: str | Path | None = None,
    method_options: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    ks: Sequence[int] = (1, 3, 5),
    concurrency: Sequence[int] = (1, 8, 32, 64),
    tokens: int = 24,
    prompts: Sequence[str] = TEXTS,
    passes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Every static K and every controller at each load, on the same texts.

    Costs are measured first, in the same engine. Each controller is new at each load
    and sees the texts once before it counts.

    Args:
      target: as for `jspec.serve`, like what follows.
      method: which drafts on the device.
      drafter: the method's weights.
      method_options: its fields.
      dtype: of the weights.
      ks: drafted tokens; 0 is always among them.
      concurrency: requests at once.
      tokens: of each row and measurement.
      prompts: taken in turn.
      passes: readings of each, every other time in the reverse order; their geometric
        mean is what counts.
      progress: told what was measured, how many of how many.
    """
    meter = Meter(ks)
    most = max(concurrency)
    room = PROMPT_ROOM + 2 * most + tokens * (max(ks) + 1)
    with serve(
        target,
        method=method,
        drafter=drafter,
        method_options=method_options,
        dtype=dtype,
        num_speculative_tokens=max(ks),
        schedule=meter,
        max_batch=most,
        max_model_len=room,
        kv_pages=most * -(-room // 16),
    ) as server:
        asked = [_asked(server, text) for text in prompts]
        lengths = sorted(map(len, asked))
        middle = lengths[len(lengths) // 2]
        costs = round_costs(server, meter.palette, concurrency, [middle])
        result: dict[str, Any] = {
            "settings": dict(server.settings) | {"schedule": "lab"},
            "device": jax.devices()[0].device_kind,
            "ks": list(meter.palette),
            "tokens": tokens,
            "costs": costs.to_json(),
            "loads": [],
        }
        names = [*(f"K={k}" for k in meter.palette), *_controllers(costs, most, ks)]
        count = len(concurrency) * len(names) * passes
        for at, load in enumerate(concurrency):
            rows = list(itertools.islice(itertools.cycle(asked), load))
            rivals: dict[str, Controller] = {
                f"K={k}": Static(k) for k in meter.palette
            } | _controllers(costs, most, ks)
            readings: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            done = at * len(names) * passes
            for turn in range(passes):
                for name in names if turn % 2 == 0 else names[::-1]:
                    rival = rivals[name]
                    if not (turn or isinstance(rival, Static)):
                        measure(server, meter, rival, rows, tokens)
                    readings[name].append(measure(server, meter, rival, rows, tokens))
                    done += 1
                    if progress is not None:
                        progress(f"{name}, {load}", done, count)
            read = {name: _together(every) for name, every in readings.items()}
            result["loads"].append({"concurrency": load, "read": read})
    reach = {str(k): break_even(result["loads"], k) for k in meter.palette if k}
    return result | {"break_even": reach}


def _together(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last reading, at the geometric mean of all rates."""
    rates = [one["tokens_per_second"] for one in readings]
    mean = statistics.geometric_mean(rates)
    return dict(readings[-1]) | {"tokens_per_second": mean, "every": rates}


def break_even(loads: Sequence[Mapping[str, Any]], k: int) -> float | None:
    """The load up to which a static K gained over none; `None`: at every load.

    Between two measured loads the gain is taken as linear; 0: it gained at none.
    """
    gains = [
        (
            load["concurrency"],
            load["read"][f"K={k}"]["tokens_per_second"]
            / load["read"]["K=0"]["tokens_per_second"],
        )
        for load in loads
    ]
    if gains[0][1] < 1:
        return 0.0
    for (low, before), (high, after) in itertools.pairwise(gains):
        if after < 1:
            return low + (high - low) * (before - 1) / (before - after)
    return None


def _controllers(
    costs: CostTable, most: int, ks: Sequence[int]
) -> dict[str, Controller]:
    graphs = powers(most)
    palette = [0, *ks]
    slots = {"1": {"candidate_steps": palette}}
    theirs = {}
    for low, slot in SGLANG_DEFAULT.items():
        steps = [k for k in slot["candidate_steps"] if k in palette]
        if steps:
            theirs[low] = {**slot, "candidate_steps": steps}
    return {
        "SGLang": Adaptive(theirs or slots, graph_batches=graphs, compat="sglang"),
        "adaptive": Adaptive(slots, graph_batches=graphs),
        "adaptive, costs": Adaptive(slots, graph_batches=graphs, cost=costs.round_ms),
        "goodput": Goodput(costs, palette=ks),
    }


def round_costs(
    server: Server,
    palette: Sequence[int],
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int = 5,
) -> CostTable:
    """What whole rounds of a server take that has served nobody yet.

    Drafting and verifying are not told apart (`jspec calibrate` does): a pass costs
    what a round with as many tokens does.
    """
    verify = []
    for batch, context in itertools.product(batches, contexts):
        times = time_rounds(
            server._engine,
            batch=batch,
            gammas=palette,
            context=context,
            repeats=repeats,
        )
        verify += [
            Sample(ms=ms, batch=batch, size=batch * (k + 1), context=context)
            for k, every in times.items()
            for ms in every
        ]
    return CostTable(verify=verify)


def _asked(server: Server, text: str) -> list[int]:
    if server.tokenizer.has_chat_template:
        return server.tokenizer.chat([{"role": "user", "content": text}])
    return server.tokenizer.encode(text)
