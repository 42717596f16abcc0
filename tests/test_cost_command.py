"""`jspec cost`: a table, a figure, JSON for machines, and wrong input in one line."""

import json
import sys

import pytest

from jspec.cli import main

SEED = ("--alpha", "0.7", "-k", "3", "-c", "0.165")


@pytest.fixture
def cost(monkeypatch, capsys):
    def run(*args):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["jspec", "cost", *args])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return run


def test_the_table_shows_the_numbers_of_chain_and_block(cost):
    status, out, err = cost(*SEED, "--t-star", "295")
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    chain, block = (row for row in rows if row[:1] in (["chain"], ["block"]))
    assert {"1.69×", "150"} <= set(chain)
    assert {"2.17×", "175", "0.61×", "0.142", "0.535"} <= set(block)


def test_json_is_every_case_and_nothing_else(cost):
    status, out, _ = cost(*SEED, "-k", "5", "--json")
    assert status == 0
    cases = json.loads(out)
    assert [(case["name"], case["k"]) for case in cases] == [
        ("chain", 3), ("block", 3), ("chain", 5), ("block", 5),
    ]  # fmt: skip
    assert cases[0]["speedup"] == pytest.approx(1.6943, abs=1e-4)


def test_passes_are_counted_from_the_method(cost):
    _, out, _ = cost(*SEED, "--method", "ngram", "--json")
    (ngram,) = json.loads(out)
    assert (ngram["name"], ngram["passes"], ngram["drafts"]) == ("ngram", 0, 0)


def test_modules_are_summed(cost):
    _, out, _ = cost(*SEED, "-c", "0.1", "-c", "0.2", "--modules", "--json")
    (modules,) = json.loads(out)
    assert modules["drafts"] == pytest.approx(0.465)


def test_a_figure_is_drawn_where_asked(cost, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.svg"
    assert cost(*SEED, "--figure", str(path))[0] == 0
    drawn = path.read_text()
    assert "<svg" in drawn
    assert all(word in drawn for word in ("break-even", "chain, α 0.7", "block, α 0.7"))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "Missing option"),
        (("--alpha", "1.5", "-k", "3", "-c", "0.1"), "alpha 1.5 is outside"),
        (("--alpha", "0.5", "-k", "-3", "-c", "0.1"), "K -3 is not a number"),
        ((*SEED, "--modules"), "K 3 needs 3 modules; costs of 1 are given"),
        ((*SEED, "--method", "nope"), "method 'nope' is not one of"),
        ((*SEED, "-k", "4", "--figure", "x.png"), "a figure is drawn for one K"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(cost, args, why):
    status, out, err = cost(*args)
    assert (status, out) == (2, "")
    assert why in err
    assert len(err.splitlines()) == 1
