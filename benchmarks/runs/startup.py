"""Claim: the embedded model answers within three minutes, then within twenty seconds.

Table: none in a paper. The first start downloads, converts and compiles into an empty
cache; the second finds all three done.
Command: `python -m benchmarks.runs.startup`
Expected: first ≤ 180 s (download included), second ≤ 20 s, on two cores of a server
CPU. Both are seconds from the start of the process to its end, four tokens later.
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


def start(cache: Path, method: str) -> float:
    """Seconds that `jspec generate` takes with this folder as the user's cache.

    Raises:
      RuntimeError: the command failed.
    """
    command = [
        *(sys.executable, "-m", "jspec.cli", "generate", "--json"),
        *("--target", "smollm2-135m", "--method", method, "--max-tokens", "4"),
        "Why is the sky blue?",
    ]
    clock = machine.Stopwatch()
    done = subprocess.run(
        command,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(
            f"jspec generate ended with {done.returncode}: {done.stderr[-400:]}"
        )
    return clock.seconds()


def judge(seconds: dict[str, list[float]]) -> list[Claim]:
    """The slowest start of each kind; the value is how often it fits the limit."""
    return [
        Claim(
            what=f"{kind} start, {limit:.0f} s over seconds taken",
            value=limit / max(seconds[kind]),
            goal=1.0,
            note=f"{max(seconds[kind]):.1f} s",
        )
        for kind, limit in LIMITS.items()
    ]


def main(
    repeats: Annotated[int, typer.Option(help="Fresh caches.")] = 2,
    method: Annotated[str, typer.Option(help="What is compiled.")] = "ngram",
) -> None:
    """Starts into an empty cache and again into the filled one."""
    seconds: dict[str, list[float]] = {kind: [] for kind in LIMITS}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in LIMITS:
                seconds[kind].append(start(Path(cache), method))
    claims = judge(seconds)
    result: dict[str, Any] = {
        **machine.commit(),
        "machine": machine.describe(),
        "method": method,
        "seconds": seconds,
        "claims": [claim.to_json() for claim in claims],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "startup.json").write_text(json.dumps(result, indent=1) + "\n")
    text = "\n".join(f"- {claim.sentence()}" for claim in claims) + "\n"
    (RESULTS / "startup.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
