"""What the research runs on the economics conclude, from results made by hand."""

import dataclasses
import json
import math
import statistics

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import claims, drafting, in_law, spread
from benchmarks.runs import (
    block_vs_standard,
    context,
    parallel_vs_chain,
    synthetic,
    zoo_plane,
)
from jspec.control import economics

STEP, PASS, CHAIN, BLOCK = 10.0, 12.0, 16.0, 13.0
"""Milliseconds: a step, a pass over K + 1 tokens, and rounds with drafts."""


def values(found):
    return {claim.what: (claim.value, claim.met) for claim in found}


def reading(k, ms, tau, **more):
    rate = 1e3 * tau / ms
    return {"k": k, "tokens_per_second": rate, "tau": tau, "rounds": 10, **more}


def test_everybody_is_first_once_and_the_first_pass_does_not_count():
    order = list(spread.turns("abc", 2))
    assert order[:3] == [(0, "a"), (0, "b"), (0, "c")]
    assert [who for turn, who in order if turn == 1] == ["b", "c", "a"]
    assert len(order) == 9


def test_an_interval_holds_the_statistic_and_shrinks_with_the_spread():
    near, far = [10.0, 10.1, 9.9, 10.0, 10.2], [5.0, 15.0, 9.0, 11.0, 10.0]
    mean = statistics.mean
    low, high = spread.interval(near, mean)
    wide = spread.interval(far, mean)
    assert low <= mean(near) <= high
    assert wide[1] - wide[0] > 5 * (high - low)
    assert spread.interval([1.0], lambda _: math.nan) == pytest.approx(
        (math.nan, math.nan), nan_ok=True
    )


def test_a_crossing_lies_between_points_or_nowhere():
    assert spread.crossing(2.0, [0, 1, 3], [0.0, 1.0, 3.0]) == 2.0
    assert spread.crossing(1.0, [1, 8], [1.5, 0.5]) == 4.5
    assert math.isnan(spread.crossing(4.0, [0, 1], [0.0, 1.0]))


def test_a_steady_rule_judges_every_k_up_to_its_rates_and_no_tree():
    rule = drafting.steady(0.5, 3)
    assert rule.rates == (0.5, 0.25, 0.125)
    for k in (1, 2, 3):
        assert rule.refusal("eagle3", branching=False, gamma=k) is None
    assert "chain" in rule.refusal("eagle3", branching=True, gamma=2)


def test_without_a_recipe_there_is_no_untrained_drafter(tmp_path):
    with pytest.raises(ValueError, match=r"'mtp|'draft_model'"):
        drafting.untrained("draft_model", "nowhere", tmp_path)
    with pytest.raises(ValueError, match="'nothing' is not known"):
        drafting.about("nothing")


def test_what_is_recorded_has_null_for_what_is_no_number(tmp_path, capsys):
    drawn = []
    claims.record(
        "one",
        {"ties": [{"low": math.nan, "high": math.inf}]},
        [claims.Claim(what="speed", value=2.0, goal=1.0)],
        draw=drawn.append,
        table="| a |",
        results=tmp_path / "new",
    )
    saved = json.loads((tmp_path / "new" / "one.json").read_text())
    assert saved["ties"] == [{"low": None, "high": None}]
    assert saved["claims"][0]["met"] is True and saved["machine"]
    assert [path.suffix for path in drawn] == [".svg", ".png"]
    said = (tmp_path / "new" / "one.md").read_text()
    assert said == "| a |\n\n- speed: 2 (goal: at least 1.0), met.\n"
    assert "speed: 2" in capsys.readouterr().out


def foreseeable(slower=1.0):
    """A machine that keeps to its costs, but for rounds of 0.6 that are slower."""
    table = drafting.costs({0: [STEP], 2: [CHAIN]}, {0: [99.0], 2: [PASS]}, context=64)
    cells = []
    for rate in (0.3, 0.6):
        ms = CHAIN * (slower if rate == 0.6 else 1)
        tau = economics.emitted(rate, 2)
        cells += [
            {"method": "eagle3", "rate": rate, "k": 0, "read": [reading(0, STEP, 1)]},
            {"method": "eagle3", "rate": rate, "k": 2, "read": [reading(2, ms, tau)]},
        ]
    return {
        "settings": {"ks": (2,)},
        "costs": {"eagle3": table.to_json()},
        "cells": cells,
    }


def test_a_machine_that_keeps_to_its_costs_is_foreseen():
    found = list(synthetic.errors(foreseeable()))
    by_way = {(one["way"], one["rate"]): one for one in found}
    assert by_way["measured rounds", 0.6]["error"] == pytest.approx(0)
    # Two drafts of 0.2 steps each; the dearer pass is not in the closed form.
    closed = by_way["closed form", 0.6]
    assert closed["foreseen"] == pytest.approx(economics.emitted(0.6, 2) / 1.4)
    # One row's three tokens are fewer than T*, which is ten.
    assert by_way["with T*", 0.6]["foreseen"] == pytest.approx(closed["foreseen"])
    said = values(synthetic.judge(found))
    what = "speed-up foreseen by measured rounds: 1 - worst error"
    assert said[what] == (pytest.approx(1), True)


def test_a_machine_that_does_not_is_not_and_its_worst_cell_is_named():
    found = list(synthetic.errors(foreseeable(slower=2.0)))
    claim = next(
        one
        for one in synthetic.judge(found)
        if one.what == "speed-up foreseen by measured rounds: 1 - worst error"
    )
    assert claim.value == pytest.approx(0) and not claim.met
    assert claim.note == "eagle3, K=2, rate 0.6"
    assert "| eagle3 | 0.6 | 2 |" in synthetic.table(found)


def two_sides(noise=0.0):
    """A chain of 0.7 and a block at three rates, three turns, as costs foresee it."""
    read = []
    for turn in (1, 2, 3):
        for side, rates, ms in (
            ("chain", (0.7,), CHAIN),
            ("block", (0.1, 0.4, 0.8), BLOCK),
        ):
            for rate in rates:
                tau = economics.emitted(rate, 3) * (1 + noise * turn)
                one = reading(3, ms, tau)
                read.append({"turn": turn, "side": side, "rate": rate, **one})
    return {
        "settings": {"k": 3, "chain_rates": (0.7,), "chain": "eagle3"}
        | {"block": "dflash"},
        "costs": {
            "pass": {"0": [STEP], "3": [PASS]},
            "chain": {"3": [CHAIN]},
            "block": {"3": [BLOCK]},
        },
        "read": read,
    }


def test_a_tie_is_found_where_the_costs_foresee_it(tmp_path):
    result = two_sides(noise=0.01)
    [one] = result["ties"] = parallel_vs_chain.ties(result)
    wanted = economics.alpha_for(economics.emitted(0.7, 3) * BLOCK / CHAIN, 3, 0.0)
    assert one["foreseen"] == pytest.approx(wanted)
    assert one["measured"] == pytest.approx(wanted, abs=1e-6)
    assert (one["low"], one["high"]) == pytest.approx((wanted, wanted), abs=1e-6)
    # Drafts of 0.1 steps against 0.4; the pass, which both take, it does not know.
    tokens = economics.emitted(one["closed_form"], 3)
    assert tokens == pytest.approx(economics.emitted(0.7, 3) * 1.1 / 1.4)
    said = values(parallel_vs_chain.judge([one]))
    what = "tie of a chain at 0.7, from measured rounds: 1 - distance"
    assert said[what] == (pytest.approx(1), True)
    parallel_vs_chain.figure(result, tmp_path / "tie.svg")
    assert "<svg" in (tmp_path / "tie.svg").read_text()


def test_a_chain_that_no_block_reaches_has_no_tie():
    result = two_sides()
    for one in result["read"]:
        if one["side"] == "chain":
            one["tokens_per_second"] *= 10
    [one] = parallel_vs_chain.ties(result)
    assert math.isnan(one["measured"])
    assert "not measured" in next(iter(parallel_vs_chain.judge([one]))).sentence()


def test_block_verification_keeps_eleven_ninths_where_standard_keeps_ten():
    law = in_law.enumerated(5)
    assert law["example"] == pytest.approx({"standard": 10 / 9, "block": 11 / 9})
    assert law["least_gain"] >= -1e-6 and law["mean_gain"] > 0


def test_rules_are_compared_prompt_by_prompt():
    texts = [
        {"k": 4, "temperature": 1.0, "rule": rule, "prompt": prompt, "seed": 0}
        | {"tokens": 12, "rounds": rounds}
        for prompt in (0, 1, 2)
        for rule, rounds in (("standard", 6), ("block", 5))
    ]
    [one] = found = block_vs_standard.compare({"texts": texts})
    assert one["tau"]["standard"] == [2.0, 2.0, 2.0]
    assert one["ratio"] == pytest.approx(1.2) == one["low"] == one["high"]
    law = {"example": {"standard": 10 / 9, "block": 1.0}, "laws": 1}
    law |= {"least_gain": -0.5, "mean_gain": 0.0}
    said = [claim.met for claim in block_vs_standard.judge(law, found)]
    assert said == [True, False, False, True, None]


def test_without_a_shipped_drafter_that_draws_the_run_says_what_to_do(monkeypatch):
    monkeypatch.setattr(block_vs_standard.zoo, "find", lambda target, method: None)
    with pytest.raises(ValueError, match="jspec train"):
        block_vs_standard.shipped("smollm2-135m")


def test_the_best_method_of_each_context_is_judged():
    read = [
        {"method": method, "context": at, "text": 0, "turn": turn, **one}
        for turn in (1, 2)
        for method, at, ms, tau in (
            ("ngram", 128, 12.0, 1.1),
            ("ngram", 4096, 12.0, 2.4),
            ("eagle3", 128, 14.0, 2.1),
            ("eagle3", 4096, 14.0, 1.0),
        )
        for one in (reading(0, STEP, 1), reading(4, ms, tau))
    ]
    found = list(context.summarise({"settings": {"k": 4}, "read": read}))
    said = {one.what: one for one in context.judge(found)}
    best = said["128 tokens: best method ÷ plain decoding"]
    assert best.value == pytest.approx(1.5) and best.met
    assert best.note.startswith("eagle3")
    assert said["4096 tokens: best method ÷ plain decoding"].note.startswith("ngram")
    kept = said["eagle3: tokens a round at 4096 ÷ at 128"]
    assert kept.value == pytest.approx(1 / 2.1) and kept.met is None
    assert "| eagle3 | 2.10, " in context.table(found)


def plane(fast):
    """Look-up below the curve and a block above it, measured as foreseen or not."""
    read = [
        {"method": method, "prompt": 0, "turn": turn, **one}
        for turn in (1, 2)
        for method, ms, tau in (("ngram", 12.0, 1.1), ("dflash", 13.0 / fast, 2.6))
        for one in (reading(0, STEP, 1), reading(3, ms, tau))
    ]
    timed = {"ngram": {"0": [STEP], "3": [12.0]}, "dflash": {"0": [STEP], "3": [13.0]}}
    made = {"read": read, "round_ms": timed}
    made |= {"drafters": {"ngram": "none", "dflash": "shipped"}}
    return zoo_plane.placed(list(zoo_plane.points(made)))


def test_points_lie_on_the_measured_side_of_break_even(tmp_path):
    found = plane(1.0)
    assert [one["speedup"] for one in found] == pytest.approx([11 / 12, 2.0])
    assert economics.emitted(found[1]["alpha"], 3) == pytest.approx(2.6)
    said = values(zoo_plane.judge(found))
    assert said["share of points on the side of break-even that was measured"] == (
        1.0,
        True,
    )
    zoo_plane.figures(found, tmp_path / "plane")
    assert {path.name for path in tmp_path.iterdir()} == {
        "plane_k3.svg",
        "plane_k3.png",
    }


def test_a_point_on_the_wrong_side_is_counted():
    said = values(zoo_plane.judge(plane(0.4)))
    assert said["share of points on the side of break-even that was measured"] == (
        0.5,
        False,
    )


def zoo_run(ms):
    """A run of one method at K = 4 whose rounds take `ms`, a step of 10."""
    cell = {"name": "eagle3", "k": 4, "batch": 1, "temperature": 0.0, "equal": None}
    cell |= {"cores_used_by_others": [0.0]}
    cell |= {"groups": [{"tokens": 32, "seconds": 1.0}]}
    cell |= {"plain": [{"tokens": 32, "seconds": 1.6}]}
    cell |= {"rows": [{"rounds": 10, "tokens": 24}]}
    cost = {"name": "eagle3", "passes_of": "gamma", "rounds": [[1, 4, [ms]]]}
    cost |= {"passes": [[1, 0, [10.0]], [1, 4, [11.0]]]}
    return {"format": 1, "kind": "zoo", "costs": [cost], "cells": [cell]}


def test_the_plane_is_drawn_from_a_zoo_run(tmp_path):
    app = typer.Typer()
    app.command()(zoo_plane.main)
    file = tmp_path / "zoo.json"
    asked = ["--zoo", str(file), "--out", str(tmp_path)]
    zoo_plane.result.save(zoo_run(15.0), file)
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    [point] = json.loads((tmp_path / "zoo_plane.json").read_text())["points"]
    assert (point["cost"], point["tau"]) == (pytest.approx(0.5), pytest.approx(2.4))
    assert point["foreseen"] == pytest.approx(1.6) == point["speedup"]
    assert (tmp_path / "zoo_plane_k4.svg").exists()
    file.write_text("{}")
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 2 and "no result of" in refused.output


@pytest.mark.slow
def test_every_run_goes_through_on_a_tiny_target(servers, tmp_path):
    from tests.serving import quick_compiler, write_checkpoint

    target = write_checkpoint(tmp_path / "target", num_layers=8)
    with quick_compiler(servers.folder / "xla"):
        eagle = drafting.untrained("eagle3", target, tmp_path / "eagle3")
        small = {"tokens": 8, "passes": 1}
        found = list(
            synthetic.errors(
                synthetic.measure(
                    dataclasses.replace(
                        synthetic.QUICK, ks=(1, 2), rates=(0.6,), repeats=2, **small
                    ),
                    target,
                )
            )
        )
        assert len(found) == 2 * 2 * 3 and list(synthetic.judge(found))
        two = parallel_vs_chain.measure(
            dataclasses.replace(parallel_vs_chain.QUICK, k=2, repeats=2, **small),
            target,
        )
        assert len(parallel_vs_chain.ties(two)) == 1
        rules = block_vs_standard.measure(
            dataclasses.replace(
                block_vs_standard.QUICK,
                method="eagle3",
                ks=(2,),
                sets=("nq_qa",),
                each=2,
                seeds=1,
                tokens=8,
                batch=2,
                laws=2,
            ),
            target,
            eagle,
        )
        assert block_vs_standard.compare(rules)[0]["prompts"] == 2
        long = context.measure(
            dataclasses.replace(context.QUICK, contexts=(32, 64), k=2, **small), target
        )
        assert {one["context"] for one in context.summarise(long)} == {32, 64}
        flat = zoo_plane.measure(
            dataclasses.replace(
                zoo_plane.QUICK,
                ks=(2,),
                sets=("nq_qa",),
                longest=128,
                repeats=2,
                **small,
            ),
            target,
        )
        assert {one["method"] for one in zoo_plane.points(flat)} == {
            "ngram",
            "eagle3, untrained",
        }
