"""What a zoo run is held to: goals of speed, tau and exactness."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.claims import Claim
from benchmarks.zoo import summary
from benchmarks.zoo.plan import PEERS

FASTEST = 1.5
"""The best method's speed-up at batch 1."""

TAU: Mapping[str, float] = {
    "eagle3": 2.0,
    "dflash": 1.8,
    "dspark": 1.8,
    "frozen_kv_mtp": 1.8,
}
"""Tau at K = 4 on greedy chat; of every other trained method: above look-up's."""


def judge(result: Mapping[str, Any]) -> Iterator[Claim]:
    """The claims of greedy text at batch 1."""
    greedy = [cell for cell in result["cells"] if cell["temperature"] == 0]
    ours = [cell for cell in greedy if cell["name"] not in PEERS]
    alone = [cell for cell in ours if cell["batch"] == 1]
    same = [text for cell in ours for text in cell["equal"]]
    yield Claim(
        what="share of our greedy texts that equal plain decoding's",
        value=sum(same) / len(same) if same else math.nan,
        goal=1.0,
        note=f"{len(same)} texts",
    )
    drafting = [line for line in summary.lines(alone) if line.k]
    if drafting:
        best = max(drafting, key=lambda line: line.speedup)
        yield Claim(
            what="best speed-up at batch 1",
            value=best.speedup,
            goal=FASTEST,
            note=f"{best.name}, K = {best.k}",
        )
    chat = summary.lines(alone, lambda cell: cell["kind"] == "chat" and cell["k"] == 4)
    taus = {line.name: line.tau for line in chat if line.tau is not None}
    copied = taus.get("ngram")
    for name in {cell["name"]: None for cell in alone if cell["drafter"]}:
        if name in taus:
            yield Claim(
                what=f"{name}: tau on chat at K = 4",
                value=taus[name],
                goal=TAU.get(name, copied),
                note="" if copied is None else f"look-up {copied:.2f}",
            )
