"""Claim: exact bfloat16 with speculation is as fast as a 4-bit file without.

Table: none in a paper. A 4-bit file reads 2.8 times fewer bytes a step and answers with
another text; speculation keeps the text of the bfloat16 model.
Command: `python -m benchmarks.runs.bf16_vs_q4`
Expected: jspec's look-up in bfloat16 ÷ llama.cpp's plain Q4_1 ≥ 1.0 at batch 1, on
prompts that repeat their context. Two cores of a server CPU; passes spread by 5 to
15 %. As it stands it takes under four minutes; more prompts and passes are options.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import claims, report, run

FOUR_BIT = "llama_cpp none q4_1"


def judge(result: dict[str, Any]) -> Iterator[claims.Claim]:
    """The best K against the 4-bit file, and plain decoding for comparison."""
    lines = run.summarise(result)
    ours = [line for line in lines if line["engine"] == "jspec" and line["k"]]
    best = max(ours, key=lambda line: line["tokens_per_second"], default=None)
    value = math.nan
    if best:
        value, _ = report.ratio(result, best["contestant"], [FOUR_BIT], batch=1)
    yield claims.Claim(
        what="bfloat16 with look-up ÷ llama.cpp's Q4_1",
        value=value,
        goal=1.0,
        note=best["contestant"] if best else "",
    )
    value, _ = report.ratio(result, "jspec none bfloat16", [FOUR_BIT], batch=1)
    yield claims.Claim(what="plain bfloat16 ÷ llama.cpp's Q4_1", value=value, goal=None)


def main(
    prompts: Annotated[str, typer.Option(help="NAME:COUNT,…")] = "summaries:2,nq_rag:2",
    repeats: Annotated[int, typer.Option(help="Interleaved passes.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens a prompt.")] = 96,
) -> None:
    """Measures exact speculation against a 4-bit file."""
    config = run.Config(
        contestants=run.contestants(
            methods=("none", "ngram"),
            ks=(4, 8),
            dtypes=("bfloat16",),
            peers=("llama_cpp@q4_1", "llama_cpp:ngram:5@q4_1"),
        ),
        prompts=prompts,
        max_tokens=max_tokens,
        repeats=repeats,
        ignore_eos=False,
    )
    claims.conclude("bf16_vs_q4", config, judge)


if __name__ == "__main__":
    typer.run(main)
