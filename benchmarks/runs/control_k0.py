"""Claim: at K = 0 a loaded drafter costs nothing.

Table: none in a paper; engines that keep running the drafter at K = 0 lose its share.
Command: `python -m benchmarks.runs.control_k0`
Expected: a server with a drafter whose schedule says K = 0, ÷ a server without:
tokens/s ≥ 0.99 and time to the first token ≤ 1.02, both in one run, in turns. Prompt
look-up, and the embedded model as its own draft model, the dearest draft model there
could be: the drafter reads its prompts too, so its first token is late.
Two cores of a server CPU. Plain decoding is served twice, first and last of all: where
weights happen to lie in memory changes tokens/s by more than the goal's percent, so the
faster of the two is what counts, and their ratio is stated.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import jspec
from benchmarks import data, machine
from benchmarks.claims import RESULTS, Claim
from jspec.control import Static
from jspec.server.lab import Meter, measure

NAME = "control_k0"
TARGET = "smollm2-135m"
CONTESTANTS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    "draft_model": {
        "method": "draft_model",
        "drafter": TARGET,
        "num_speculative_tokens": 4,
    },
    "none again": {"method": "none"},
}


def first_token(server: jspec.Server, prompts: Sequence[Any]) -> float:
    """Median seconds from a request to its first token, one request at a time."""
    params = jspec.SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    seconds = []
    for prompt in prompts:
        began = time.perf_counter()
        handle = server.submit(prompt, params)
        next(iter(handle))
        seconds.append(time.perf_counter() - began)
        handle.result()
    return statistics.median(seconds)


def judge(read: dict[str, list[dict[str, float]]]) -> list[Claim]:
    """Medians of the ratios of each turn; goals are stated so that more is better."""
    claims = []
    plain = [read[name] for name in read if name.startswith("none")]
    for key in plain[0][0]:
        late = key == "first_token"
        best = min if late else max
        for name in read:
            if name == "none":
                continue
            rivals = plain[:1] if name == "none again" else plain
            ratios = [
                own[key] / best(rival[turn][key] for rival in rivals)
                for turn, own in enumerate(read[name])
            ]
            middle = statistics.median(ratios)
            goal = 1 / 1.02 if late else 0.99
            claims.append(
                Claim(
                    what=f"{name} at K = 0, {'none ÷ own' if late else 'own ÷ none'}: "
                    f"{key.replace('_', ' ')}",
                    value=1 / middle if late else middle,
                    goal=None if "none" in name else round(goal, 4),
                    note=f"own ÷ none {min(ratios):.3f} to {max(ratios):.3f}",
                )
            )
    return claims


def main(
    passes: Annotated[int, typer.Option(help="Turns of all contestants.")] = 5,
    tokens: Annotated[int, typer.Option(help="Of each row.")] = 48,
    batches: Annotated[str, typer.Option(help="Rows.")] = "1,8",
) -> None:
    """Measures servers with and without a drafter in turns."""
    started = time.perf_counter()
    rows = [int(one) for one in batches.split(",")]
    short = [one.request for one in data.prompts("mt_bench", max(rows))]
    long = [one.request for one in data.prompts("nq_rag", 3)]
    read: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, options in CONTESTANTS.items():
            meter = Meter([0])
            server = jspec.serve(
                TARGET,
                schedule=meter,
                max_batch=max(rows),
                max_model_len=1536,
                prefix_cache=False,
                **options,
            )
            servers[name] = stack.enter_context(server), meter
        for turn in range(passes + 1):
            order = list(servers)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                server, meter = servers[name]
                reading = {"first_token": first_token(server, long)}
                for batch in rows:
                    one = measure(server, meter, Static(0), short[:batch], tokens)
                    rate = one["tokens_per_second"]
                    reading[f"tokens_per_second_at_batch_{batch}"] = rate
                if turn:
                    read[name].append(reading)
            print(f"{time.perf_counter() - started:.0f} s: turn {turn} of {passes}")
    claims = judge(read)
    result = {
        **machine.commit(),
        "machine": machine.describe(),
        "tokens": tokens,
        "seconds": round(time.perf_counter() - started),
        "read": read,
        "claims": [claim.to_json() for claim in claims],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{NAME}.json").write_text(json.dumps(result, indent=1) + "\n")
    text = "\n".join(f"- {claim.sentence()}" for claim in claims) + "\n"
    (RESULTS / f"{NAME}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
