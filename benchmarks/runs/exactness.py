"""Claim: greedy text does not depend on the drafter.

Table: Leviathan et al. 2023, section 3: the output law is the target's. At temperature
0 the text is equal, token by token, wherever arithmetic does not depend on the number
of rows in a product.
Command: `python -m benchmarks.runs.exactness`
Expected: 20 prompts of five kinds; look-up and a self-draft give the ids of plain
decoding on all 20 in float32 (goal in bfloat16: all 20 too), and a model that drafts
for itself has every draft accepted. Not a timing: the hardware changes rounding alone.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import claims, run

PROMPTS = "mt_bench:4,gsm8k:4,humaneval:4,nq_rag:4,summaries:4"


def judge(result: dict[str, Any]) -> Iterator[claims.Claim]:
    """Shares of equal texts, and the self-draft's accepted share."""
    for line in run.summarise(result):
        if line["engine"] != "jspec":
            continue
        yield claims.Claim(
            what=f"{line['contestant']}, batch {line['batch']}: share of equal texts",
            value=line["equal"],
            goal=1.0,
        )
        if line["method"] == "draft_model":
            yield claims.Claim(
                what=f"{line['contestant']}, batch {line['batch']}: accepted share",
                value=_accepted(result, line),
                goal=1.0 if line["dtype"] == "float32" else None,
            )


def _accepted(result: dict[str, Any], line: dict[str, Any]) -> float:
    runs = [
        one["counters"]
        for one in result["runs"]
        if (one["contestant"], one["batch"]) == (line["contestant"], line["batch"])
    ]
    drafted = sum(one.get("drafted", 0) for one in runs)
    return (
        sum(one.get("accepted", 0) for one in runs) / drafted if drafted else math.nan
    )


def main(
    prompts: Annotated[str, typer.Option(help="NAME:COUNT,…")] = PROMPTS,
    max_tokens: Annotated[int, typer.Option(help="Tokens a prompt.")] = 64,
) -> None:
    """Compares the greedy ids of every method with plain decoding's."""
    config = run.Config(
        contestants=run.contestants(
            methods=("none", "ngram", "draft_model"),
            ks=(4,),
            dtypes=("float32", "bfloat16"),
        ),
        prompts=prompts,
        batches=(1, 4),
        max_tokens=max_tokens,
        repeats=1,
        ignore_eos=False,
    )
    claims.conclude("exactness", config, judge)


if __name__ == "__main__":
    typer.run(main)
