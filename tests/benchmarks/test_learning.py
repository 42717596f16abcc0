"""What the learning run reads in cards."""

import json
import math

import pytest

from benchmarks.runs import learning
from jspec import zoo

HELD = [
    None,
    {"right": [40, 10, 0, 0], "inside": [100, 100, 100, 0]},
    {"right": [50, 20, 10, 0], "inside": [100, 100, 100, 0]},
    {"right": [60, 30, 20, 0], "inside": [100, 100, 100, 0]},
]
CARD = {
    "parameters": 1_000_000,
    "tokens": 400,
    "held_out_acceptance": [0.6, 0.3, 0.2, 0.0],
    "curve": [
        {"tokens": tokens, "held": held}
        for tokens, held in zip((0, 100, 200, 400), HELD, strict=True)
    ],
}


def test_tau_is_one_and_the_shares_that_are_right_up_to_each_place():
    assert learning.taus(CARD) == [
        (100, pytest.approx(1.5)),
        (200, pytest.approx(1.8)),
        (400, pytest.approx(2.1)),
    ]


def test_a_doubling_adds_the_slope_over_the_logarithm_of_tokens():
    assert learning.by_doubling(learning.taus(CARD)) == pytest.approx(0.3)
    assert math.isnan(learning.by_doubling([(100, 1.5)]))


def test_the_run_writes_what_the_cards_of_a_zoo_say(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "shipped", lambda: {"tiny": ("eagle3", "medusa")})
    monkeypatch.setattr(zoo, "card", lambda target, method: CARD)
    learning.main("tiny", tmp_path)
    written = json.loads((tmp_path / "learning.json").read_text())
    assert [claim["met"] for claim in written["claims"]] == [True, None]
    assert (
        "| `eagle3` | 1.0 M | 400 | 0.60 0.30 0.20 0.00 | 2.10 | +0.30 |"
        in (tmp_path / "learning.md").read_text()
    )
    assert (tmp_path / "learning.svg").stat().st_size > 1000
