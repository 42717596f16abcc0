"""Claim: prompt look-up makes texts that repeat their context 1.5 times faster.

Table: Saxena 2023 (prompt look-up decoding) states 2 to 4 times on summarisation and
context question answering for 7B models on a GPU, where a wider pass is nearly free.
Command: `python -m benchmarks.runs.ngram_speedup`
Expected: ≥ 1.5 times our own plain decoding at batch 1 with the best K, on summaries
and on retrieval-augmented questions. Two cores of a server CPU; passes spread by 5 to
15 %. As it stands it takes under four minutes; more prompts, passes and K are options.
Texts end where the model ends them: text forced past its end repeats itself, which
would flatter look-up.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import claims, report, run


def judge(result: dict[str, Any]) -> Iterator[claims.Claim]:
    """The best K's ratio in each dtype, and the share of equal texts."""
    lines = [line for line in run.summarise(result) if line["batch"] == 1]
    for dtype in dict.fromkeys(line["dtype"] for line in lines):
        ours = [
            line
            for line in lines
            if (line["engine"], line["method"], line["dtype"])
            == ("jspec", "ngram", dtype)
        ]
        best = max(ours, key=lambda line: line["tokens_per_second"], default=None)
        value = math.nan
        if best:
            plain = f"jspec none {dtype}"
            value, _ = report.ratio(result, best["contestant"], [plain], batch=1)
        yield claims.Claim(
            what=f"{dtype}: look-up ÷ our plain decoding",
            value=value,
            goal=1.5,
            note=f"K = {best['k']}, tau {best['tau'] or math.nan:.2f}" if best else "",
        )
        for line in ours:
            yield claims.Claim(
                what=f"{line['contestant']}: share of texts equal to plain",
                value=line["equal"],
                goal=1.0,
            )


def main(
    prompts: Annotated[str, typer.Option(help="NAME:COUNT,…")] = "summaries:2,nq_rag:2",
    repeats: Annotated[int, typer.Option(help="Interleaved passes.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens a prompt.")] = 96,
    ks: Annotated[str, typer.Option("-k", help="Drafted tokens, comma-separated.")] = (
        "4,8"
    ),
) -> None:
    """Measures look-up against plain decoding."""
    config = run.Config(
        contestants=run.contestants(
            methods=("none", "ngram"),
            ks=tuple(map(int, ks.split(","))),
            dtypes=("float32", "bfloat16"),
        ),
        prompts=prompts,
        max_tokens=max_tokens,
        repeats=repeats,
        ignore_eos=False,
    )
    claims.conclude("ngram_speedup", config, judge)


if __name__ == "__main__":
    typer.run(main)
