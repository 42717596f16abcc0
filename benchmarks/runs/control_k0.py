"""Claim: at K = 0 a loaded drafter costs nothing.

Table: none in a paper; engines that keep running the drafter at K = 0 lose its share.
Command: `python -m benchmarks.runs.control_k0`
Expected: a server with a drafter whose schedule says K = 0, ÷ a server without:
tokens/s ≥ 0.99 and time to the first token ≤ 1.02. Prompt look-up, and the embedded
model as its own draft model, the dearest draft model there could be. Two cores of a
server CPU.

All servers of the run read the same arrays: one model is loaded, and packed, once. So
where weights lie in memory, which moved tokens/s by a tenth between servers that each
had their own, is the same for all. A comparison is four short requests in the order
none, own, own, none, then own, none, none, own: what drifts slowly falls on both
alike. A ratio is that of the two geometric means of such a four; what is stated is the
median of the ratios with a bootstrapped 95 % interval. A second server without a
drafter is compared the same way: its distance from 1 is what the run cannot tell.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

import jspec
from benchmarks import data
from benchmarks.claims import Claim, record
from benchmarks.drafting import one_model
from benchmarks.spread import interval
from jspec.control import Static
from jspec.server.lab import Meter, measure

NAME = "control_k0"
TARGET = "smollm2-135m"
PLAIN = "none"
CONTESTANTS: dict[str, dict[str, Any]] = {
    PLAIN: {"method": "none"},
    "none again": {"method": "none"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    "draft_model": {
        "method": "draft_model",
        "drafter": TARGET,
        "num_speculative_tokens": 4,
    },
}
FIRST = "first token"
EVERY = 4
"""Turns to a comparison of first tokens, which take a long prompt each."""

type Reading = Callable[[str, int], float]
"""Of a contestant and a turn: seconds to a first token, or tokens per second."""


def first_token(server: jspec.Server, prompt: Any) -> float:
    """Seconds from a request to its first token."""
    params = jspec.SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    began = time.perf_counter()
    handle = server.submit(prompt, params)
    next(iter(handle))
    seconds = time.perf_counter() - began
    handle.result()
    return seconds


def four(read: Reading, own: str, turn: int) -> tuple[float, float]:
    """Geometric means of two readings without a drafter and two with, interleaved."""
    order = (PLAIN, own, own, PLAIN) if turn % 2 == 0 else (own, PLAIN, PLAIN, own)
    found: dict[str, list[float]] = {PLAIN: [], own: []}
    for name in order:
        found[name].append(read(name, turn))
    mean = statistics.geometric_mean
    return mean(found[PLAIN]), mean(found[own])


def judge(read: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> list[Claim]:
    """Paired ratios; stated so that more is better."""
    claims = []
    for quantity, by_name in read.items():
        late = quantity == FIRST
        for name, pairs in by_name.items():
            ratios = [a / b if late else b / a for a, b in pairs]
            low, high = interval(ratios, statistics.median)
            goal = round(1 / 1.02, 4) if late else 0.99
            claims.append(
                Claim(
                    what=f"{name} at K = 0, {'none ÷ own' if late else 'own ÷ none'}: "
                    f"{quantity}",
                    value=statistics.median(ratios),
                    goal=None if name.startswith(PLAIN) else goal,
                    note=f"95 % interval {low:.3f} to {high:.3f}, "
                    f"{len(ratios)} comparisons",
                )
            )
    return claims


def main(
    passes: Annotated[int, typer.Option(help="Comparisons of each.")] = 16,
    tokens: Annotated[int, typer.Option(help="Of each row and reading.")] = 24,
    batches: Annotated[str, typer.Option(help="Rows.")] = "1,8",
    seconds: Annotated[
        float | None, typer.Option(help="No comparison begins after so long.")
    ] = None,
) -> None:
    """Measures servers with and without a drafter in turns."""
    started = time.perf_counter()
    rows = [int(one) for one in batches.split(",")]
    short = [one.request for one in data.prompts("mt_bench", max(rows))]
    long = [one.request for one in data.prompts("nq_rag", 3)]
    with contextlib.ExitStack() as stack:
        servers, meter = {}, Meter([0])
        with one_model():
            for name, options in CONTESTANTS.items():
                server = jspec.serve(
                    TARGET,
                    schedule=meter,
                    max_batch=max(rows),
                    max_model_len=1536,
                    prefix_cache=False,
                    **options,
                )
                servers[name] = stack.enter_context(server)
                print(f"{time.perf_counter() - started:.0f} s: {name} is ready")

        def rate(batch: int) -> Reading:
            def read(name: str, turn: int) -> float:
                at = [(turn + i) % len(short) for i in range(batch)]
                one = measure(
                    servers[name], meter, Static(0), [short[i] for i in at], tokens
                )
                return one["tokens_per_second"]

            return read

        readings: dict[str, Reading] = {
            f"tokens/s at batch {batch}": rate(batch) for batch in rows
        } | {FIRST: lambda name, turn: first_token(servers[name], long[turn % 3])}
        own = [name for name in servers if name != PLAIN]
        read: dict[str, dict[str, list[tuple[float, float]]]] = {
            quantity: {name: [] for name in own} for quantity in readings
        }
        for reading in readings.values():
            for name in servers:
                reading(name, 0)
        for turn in range(passes):
            if seconds is not None and time.perf_counter() - started > seconds:
                break
            for quantity, reading in readings.items():
                if quantity == FIRST and turn % EVERY:
                    continue
                for name in own:
                    read[quantity][name].append(four(reading, name, turn))
            print(f"{time.perf_counter() - started:.0f} s: {turn + 1} of {passes}")
    result = {
        "tokens": tokens,
        "seconds": round(time.perf_counter() - started),
        "read": read,
    }
    record(NAME, result, judge(read))


if __name__ == "__main__":
    typer.run(main)
