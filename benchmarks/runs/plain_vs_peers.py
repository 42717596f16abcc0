"""Claim: plain decoding is at least as fast as the best peer of the same dtype.

Table: none in a paper; the peers are the engines that a user of a CPU would choose
(transformers, vLLM's CPU engine, llama.cpp), all on the same weights and token ids.
Command: `python -m benchmarks.runs.plain_vs_peers`
Expected: ours ÷ best peer ≥ 1.0 at batch 1, 4 and 8 in float32 and bfloat16;
÷ transformers ≥ 1.5 at batch 1 and ≥ 2 at batch 4; ≥ 0.7 of the memory floor at
batch 1. Two cores of a server CPU; single passes spread by 5 to 15 %.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import claims, report, run

PEERS = ("transformers", "vllm", "llama_cpp")
AGAINST_TRANSFORMERS = {1: 1.5, 4: 2.0, 8: None}


def judge(result: dict[str, Any]) -> Iterator[claims.Claim]:
    """The ratios, and the share of the floor."""
    lines = {
        (line["contestant"], line["batch"]): line for line in run.summarise(result)
    }
    own = (line["dtype"] for line in lines.values() if line["engine"] == "jspec")
    for dtype in dict.fromkeys(own):
        ours = f"jspec none {dtype}"
        for batch in result["config"]["batches"]:
            peers = [f"{peer} none {dtype}" for peer in PEERS]
            value, best = report.ratio(result, ours, peers, batch=batch)
            yield claims.Claim(
                what=f"{dtype}, batch {batch}: ours ÷ best peer",
                value=value,
                goal=1.0,
                note=best,
            )
            value, _ = report.ratio(result, ours, peers[:1], batch=batch)
            yield claims.Claim(
                what=f"{dtype}, batch {batch}: ours ÷ transformers",
                value=value,
                goal=AGAINST_TRANSFORMERS.get(batch),
            )
        if (ours, 1) in lines:
            yield claims.Claim(
                what=f"{dtype}, batch 1: share of the memory floor",
                value=lines[ours, 1]["floor_share"],
                goal=0.7,
            )


def main(
    repeats: Annotated[int, typer.Option(help="Interleaved passes.")] = 5,
    max_tokens: Annotated[int, typer.Option(help="Tokens a prompt.")] = 64,
) -> None:
    """Measures plain decoding of jspec and its peers."""
    config = run.Config(
        contestants=run.contestants(
            methods=("none",), dtypes=("float32", "bfloat16"), peers=PEERS
        ),
        prompts="mt_bench:1,gsm8k:1,summaries:1,humaneval:1",
        batches=(1, 4, 8),
        max_tokens=max_tokens,
        repeats=repeats,
    )
    claims.conclude("plain_vs_peers", config, judge)


if __name__ == "__main__":
    typer.run(main)
