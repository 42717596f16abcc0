"""Claim: prompts are read as fast as transformers reads them.

Table: none in a paper. On a CPU jspec reads prompts by the kernels that decode, from
weights that are packed for them; transformers multiplies by oneDNN.
Command: `python -m benchmarks.runs.prompt_reading`
Expected: ours ÷ transformers ≥ 1.0 at batch 1 and at 4, in float32 and bfloat16. Two
cores of a server CPU; passes spread by 5 to 15 %, and it takes under four minutes.
Before attention left out what a chain's nodes cannot see, this was 0.63 and 0.66 at
batch 1 (859 tokens of prompts, 338 and 552 tokens/s), and 1.45 at batch 4. A prompt's
seconds end when its first token is there.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import claims, run

PEER = "transformers"


def judge(result: dict[str, Any]) -> Iterator[claims.Claim]:
    """Prompt tokens a second, and the ratio to the peer's in the same dtype."""
    tokens = sum(prompt["tokens"] for prompt in result["prompts"])
    lines = run.summarise(result)
    rates = {}
    for line in lines:
        place = line["engine"], line["dtype"], line["batch"]
        # The prompts are gone round until they fill the last batch.
        rows = -(-len(result["prompts"]) // line["batch"]) * line["batch"]
        read = tokens * rows / len(result["prompts"])
        rates[place] = read / line["prefill_seconds"]
        yield claims.Claim(
            what=f"{line['contestant']}, batch {line['batch']}: prompt tokens/s",
            value=rates[place],
            goal=None,
        )
    for (engine, dtype, batch), rate in rates.items():
        peer = rates.get((PEER, dtype, batch))
        if engine == "jspec" and peer:
            yield claims.Claim(
                what=f"{dtype}, batch {batch}: prompts, ours ÷ transformers",
                value=rate / peer,
                goal=1.0,
            )


def main(
    prompts: Annotated[str, typer.Option(help="NAME:COUNT,…")] = "summaries:2,nq_rag:2",
    repeats: Annotated[int, typer.Option(help="Interleaved passes.")] = 2,
) -> None:
    """Measures how fast prompts are read."""
    config = run.Config(
        contestants=run.contestants(
            methods=("none",), dtypes=("float32", "bfloat16"), peers=(PEER,)
        ),
        prompts=prompts,
        batches=(1, 4),
        max_tokens=4,
        repeats=repeats,
    )
    claims.conclude("prompt_reading", config, judge)


if __name__ == "__main__":
    typer.run(main)
