"""Claim: the embedded model answers within three minutes, then within twenty seconds.

Table: none in a paper. The first start downloads, converts and compiles into an empty
cache; the second finds all three done.
Command: `python -m benchmarks.runs.startup`
Expected: first ≤ 180 s (download included), second ≤ 20 s, on two cores of a server
CPU. Both are seconds of `jspec demo`, which is `make demo` after the installation, from
the start of the process to its end, six short answers later; of repeats the slowest
counts. Then the same executables are compiled once more without a cache: their number
and the seconds of each, tracing included, are stated (several are compiled at a time,
so their sum is more than a start takes). Three minutes in all; what is downloaded makes
the first start vary, all else by 10 %.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine
from benchmarks.claims import RESULTS, Claim

LIMITS = {"first": 180.0, "second": 20.0}

DEMO = ("-m", "jspec.cli", "demo", "--max-tokens")

COMPILE = """
import json, jspec
with jspec.serve("smollm2-135m", method="ngram", num_speculative_tokens=5, max_batch=1,
                 max_model_len=1024, prefix_cache=False,
                 compilation_cache=False) as server:
    print(json.dumps(server.metrics()["compile_seconds"]))
"""
"""As the demo serves; what it prints is all that is read."""


def run(cache: Path, *arguments: str) -> tuple[float, str]:
    """Seconds that Python takes with this folder as the user's cache; what it printed.

    Raises:
      RuntimeError: it failed.
    """
    clock = machine.Stopwatch()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(arguments)!r} ended with {done.returncode}: "
            f"{done.stderr[-400:]}"
        )
    return clock.seconds(), done.stdout


def judge(
    seconds: dict[str, list[float]], compiled: dict[str, float] | None = None
) -> list[Claim]:
    """The slowest start of each kind; the value is how often it fits the limit."""
    claims = [
        Claim(
            what=f"{kind} start, {limit:.0f} s over seconds taken",
            value=limit / max(seconds[kind]),
            goal=1.0,
            note=f"{max(seconds[kind]):.1f} s",
        )
        for kind, limit in LIMITS.items()
    ]
    if not compiled:
        return claims
    each = ", ".join(f"{name} {taken:.1f} s" for name, taken in compiled.items())
    count = Claim(what="executables", value=len(compiled), goal=None)
    slowest = Claim(
        what="the slowest executable's seconds of compilation",
        value=max(compiled.values()),
        goal=None,
        note=each,
    )
    return [*claims, count, slowest]


def main(
    repeats: Annotated[int, typer.Option(help="Fresh caches.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer.")] = 16,
) -> None:
    """Starts into an empty cache and again into the filled one."""
    seconds: dict[str, list[float]] = {kind: [] for kind in LIMITS}
    compiled: dict[str, float] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            for kind in LIMITS:
                seconds[kind].append(run(cache, *DEMO, str(max_tokens))[0])
            if not compiled:
                compiled = json.loads(run(cache, "-c", COMPILE)[1].splitlines()[-1])
    claims = judge(seconds, compiled)
    result: dict[str, Any] = {
        **machine.commit(),
        "machine": machine.describe(),
        "max_tokens": max_tokens,
        "seconds": seconds,
        "compile_seconds": compiled,
        "claims": [claim.to_json() for claim in claims],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "startup.json").write_text(json.dumps(result, indent=1) + "\n")
    text = "\n".join(f"- {claim.sentence()}" for claim in claims) + "\n"
    (RESULTS / "startup.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
