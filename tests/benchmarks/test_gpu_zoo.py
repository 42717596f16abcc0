"""The GPU's zoo: what its costs say, what a budget leaves out, and a rehearsal."""

import itertools
import json

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.gpu import break_even, zoo
from jspec.control import economics

SETTINGS = {"k": 3, "alpha": 0.7, "methods": ("eagle3", "dflash"), "batches": (1, 64)}


def costs(drafts, *, batch_64=40.0):
    """A step of 10 ms that 64 rows slow down a little, and their drafted rounds more.

    Args:
      drafts: milliseconds of each method's drafts at batch 1.
      batch_64: milliseconds of a pass over 256 tokens.
    """
    job = {"target": "t"}
    found = [
        {**job, "kind": "pass", "k": k, "batch": batch, "ms": ms}
        for k, batch, ms in (
            (0, 1, 10.0),
            (3, 1, 10.5),
            (0, 64, 11.0),
            (3, 64, batch_64),
        )
    ]
    for method, ms in drafts.items():
        its = {**job, "method": method, "k": 3}
        found += [{**its, "kind": "drafts", "batch": b, "ms": ms} for b in (1, 64)]
    return found


def said(measured):
    result = {
        "device": "one",
        "jax": "0",
        "weights": {"t": "random"},
        "settings": SETTINGS | {"targets": ("t",)},
        "measured": measured,
    }
    return result | {"concluded": break_even.conclude(result)}


def test_c_is_of_one_pass_and_t_star_is_where_tokens_begin_to_cost():
    chain, block = said(costs({"eagle3": 3.0, "dflash": 2.0}))["concluded"]
    assert (chain["passes"], chain["c"]) == (3, pytest.approx(0.1))
    assert (block["passes"], block["c"]) == (1, pytest.approx(0.2))
    # 255 more tokens took 30 ms more, and a step takes 10.
    assert chain["t_star"] == pytest.approx(10 * 255 / 30)
    assert block["closed_form"]["0.7"] == pytest.approx(
        economics.break_even_batch(block["t_star"], 0.7, 3, 0.2, True)
    )


def test_a_method_pays_up_to_the_batch_at_which_its_gain_is_one():
    [one] = said(costs({"eagle3": 3.0}))["concluded"]
    gains = {int(batch): gain for batch, gain in one["gains"].items()}
    emitted = economics.emitted(0.7, 3)
    assert gains[1] == pytest.approx(emitted * 10 / 13.5)
    assert gains[64] == pytest.approx(emitted * 11 / 43)
    assert gains[1] > 1 > gains[64] and 1 < one["measured"]["0.7"] < 64
    assert break_even.reach({1: 0.9, 8: 2.0}) == 0.0
    assert break_even.reach({1: 2.0, 8: 1.5}) is None


def test_a_whole_round_is_held_against_what_was_derived(tmp_path):
    measured = costs({"eagle3": 3.0})
    whole = {"target": "t", "kind": "round", "method": "eagle3", "k": 3, "batch": 1}
    result = said([*measured, {**whole, "ms": 27.0, "tau": 2.5}])
    [one] = result["concluded"]
    assert one["check"] == {"1": pytest.approx(2.0)}
    assert "| t | eagle3 | 3 | 0.100 |" in break_even.table(result)
    break_even.figure(result["concluded"], tmp_path / "gains.svg")
    assert "eagle3" in (tmp_path / "gains.svg").read_text()


def test_without_batch_1_a_method_is_not_judged():
    measured = [one for one in costs({"eagle3": 3.0}) if one["batch"] != 1]
    assert said(measured)["concluded"] == []


def fake_jobs(settings, name, checkpoint):
    def fails():
        raise RuntimeError("out of memory")

    yield {"target": name, "kind": "pass", "k": 0, "batch": 1}, fails
    yield {"target": name, "kind": "pass", "k": 3, "batch": 1}, lambda: {"ms": 1.0}
    yield {"target": name, "kind": "pass", "k": 3, "batch": 8}, lambda: {"ms": 2.0}


def test_what_fails_is_named_and_what_has_no_time_is_left_out(monkeypatch):
    monkeypatch.setattr(zoo, "jobs", fake_jobs)
    now = itertools.count(0, 20)
    saved = []
    result = zoo.results(
        zoo.REHEARSAL, budget=2.2, save=saved.append, clock=lambda: next(now)
    )
    [failed] = result["failed"]
    assert failed["error"] == "RuntimeError: out of memory" and failed["k"] == 0
    assert [one["ms"] for one in result["measured"]] == [1.0]
    assert result["left_out"] == [
        {"target": "tiny", "kind": "pass", "k": 3, "batch": 8}
    ]
    assert len(saved) == 2


def test_without_a_gpu_only_a_rehearsal_runs():
    app = typer.Typer()
    app.command()(zoo.main)
    refused = CliRunner().invoke(app, [])
    assert refused.exit_code == 2 and "no GPU is at hand" in refused.output


@pytest.mark.slow
def test_a_rehearsal_measures_every_kind_of_job(tmp_path, servers):
    from tests.serving import quick_compiler

    app = typer.Typer()
    app.command()(zoo.main)
    with quick_compiler(servers.folder / "xla"):
        ran = CliRunner().invoke(app, ["--rehearse", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    result = json.loads((tmp_path / "gpu_zoo_rehearsal.json").read_text())
    assert result["left_out"] == result["failed"] == []
    assert {one["kind"] for one in result["measured"]} == {"pass", "drafts", "round"}
    assert [one["method"] for one in result["concluded"]] == list(zoo.REHEARSAL.methods)
    whole = [one for one in result["measured"] if one["kind"] == "round"]
    assert all(1 <= one["tau"] <= 3 for one in whole)
