"""Times whole rounds on a GPU: with the kernels, with their twins, by default.

Command: `python -m benchmarks.gpu.round`, some minutes on an H100; one JSON. The same
greedy texts are decoded with `kernels="gpu"`, `"reference"` and left out, plainly and
with n-gram drafts, each by a server of its own; tokens a second are the median of the
repeats. Texts are compared token by token: bfloat16 kernels and twins sum in another
order, so a tie within the last bits may part two of them; how many parted is recorded.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

RESULTS = Path(__file__).resolve().parents[1] / "results"
KERNELS = ("gpu", "reference", None)
PROMPTS = tuple(
    f"Write down the numbers from {n} to {n + 40}: {n}, {n + 1}, {n + 2},"
    for n in range(8)
)


def measure(
    target: str, method: str, kernels: str | None, *, tokens: int, repeats: int
) -> dict[str, Any]:
    """Tokens a second of eight texts together, and the texts."""
    import jspec

    k = None if method == "none" else 4
    begun = time.perf_counter()
    with jspec.serve(
        target,
        method,
        num_speculative_tokens=k,
        kernels=kernels,
        max_batch=len(PROMPTS),
        max_model_len=1024,
    ) as server:
        ready = time.perf_counter() - begun
        params = jspec.SamplingParams(max_tokens=tokens, ignore_eos=True)
        speeds, texts = [], []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            done = server.generate(list(PROMPTS), params)
            seconds = time.perf_counter() - started
            texts = [list(one.token_ids) for one in done]
            speeds.append(sum(map(len, texts)) / seconds)
    return {
        "method": method,
        "kernels": kernels,
        "start_up_seconds": ready,
        "tokens_per_second": statistics.median(speeds[1:]),
        "each": speeds[1:],
        "texts": texts,
    }


def parted(ours: list[list[int]], right: list[list[int]]) -> int:
    """Texts that are not the same."""
    return sum(a != b for a, b in zip(ours, right, strict=True))


def main(
    target: Annotated[str, typer.Option(help="The model.")] = "smollm2-135m",
    out: Annotated[Path, typer.Option(help="Folder of the JSON.")] = RESULTS,
    tokens: Annotated[int, typer.Option(help="Tokens of a text.")] = 256,
    repeats: Annotated[int, typer.Option(help="After one that is not counted.")] = 5,
) -> None:
    """Measures, writes `gpu_round.json`, prints a line a run."""
    import jax

    found = []
    for method in ("none", "ngram"):
        runs = [
            measure(target, method, kernels, tokens=tokens, repeats=repeats)
            for kernels in KERNELS
        ]
        right = runs[1].pop("texts")
        for run in runs:
            run["parted"] = parted(run.pop("texts", right), right)
            found.append(run)
            print(
                f"{method}, kernels {run['kernels']}: "
                f"{run['tokens_per_second']:.0f} tokens/s, {run['parted']} of "
                f"{len(PROMPTS)} texts part from the twins'"
            )
    result = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "target": target,
        "runs": found,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu_round.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
