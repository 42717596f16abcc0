import itertools
import json

import jax
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.gpu import cases, inputs, kernels

CASES = {f"{case.kernel} {case.label}": case for case in cases.cases()}
TINY = {f"{case.kernel} {case.label}": case for case in cases.tiny()}


def kind(case):
    return case.kernel, case.tree, case.dense


KINDS = {kind(case): case for case in reversed(CASES.values())}


def traced(case):
    """The shapes that kernel and twin give at a case, and those of its inputs."""
    made = jax.eval_shape(lambda: inputs.make(case))
    static = dict(made.static)
    outs = [
        jax.eval_shape(
            lambda *a, run=run, **k: run(*a, **k, **static), *made.arrays, **made.given
        )
        for run in inputs.functions(case).values()
    ]
    return made, outs


def measured(kernel="tree_mask", label="tiny", **changed):
    return {
        "kernel": kernel,
        "label": label,
        "floor_bytes": 10,
        "agrees": True,
        "largest_difference": 0.0,
        "differing": 0,
        "entries": 4,
        "seconds": {"gpu": 1e-6, "reference": 2e-6},
        **changed,
    }


def test_every_kernel_is_measured_at_every_size_asked_for():
    found = list(CASES.values())
    assert {case.kernel for case in found} == set(inputs.MAKERS)
    assert all(case.floor > 0 for case in found)
    assert {case.rows for case in found} == set(cases.BATCHES)
    assert {case.context for case in found} >= set(cases.CONTEXTS)
    for kernel in ("greedy_verify", "rejection_verify", "block_verify"):
        its = [case for case in found if case.kernel == kernel]
        assert {case.nodes - 1 for case in its if not case.tree} == {1, 3, 7}
        assert {case.vocabulary for case in its} == set(cases.VOCABULARIES)
    for kernel in ("paged_attention", "greedy_verify", "tree_mask"):
        its = [case for case in found if case.kernel == kernel and case.tree]
        assert {case.nodes for case in its} >= set(cases.TREES)
    assert {kind(case) for case in TINY.values()} >= set(KINDS) - {
        ("paged_attention", False, False),
        ("greedy_verify", False, False),
    }


def test_every_kernels_largest_case_comes_first():
    found = list(CASES.values())
    kinds = len(inputs.MAKERS)
    assert {case.kernel for case in found[:kinds]} == set(inputs.MAKERS)
    for kernel in inputs.MAKERS:
        floors = [case.floor for case in found if case.kernel == kernel]
        assert floors == sorted(floors, reverse=True)


@pytest.mark.parametrize(
    ("case", "floor"),
    [
        (cases.attention(2, 10, 3, heads=16, width=4), 2 * 2 * 8 * 13 * 4 * 2 + 1536),
        (cases.greedy(2, 3, 100), 2 * 3 * 100 * 2),
        (cases.judging("rejection_verify", 2, 2, 100), 2 * 3 * 100 * 2),
        (
            cases.judging("rejection_verify", 2, 2, 100, dense=True),
            2 * 3 * 100 * 2 + 2 * 100 * (2 + 4),
        ),
        (
            cases.judging("block_verify", 2, 2, 100, dense=True),
            2 * 3 * 100 * 2 + 2 * 2 * 100 * 4,
        ),
        (cases.drawing(2, 100), 2 * 100 * 4 * 2),
        (cases.drawing(2, 100, dense=False), 2 * 100 * 2),
        (cases.keeping(2, 8, 3, arrays=2, width=4), 2 * 2 * 2 * 2 * 8 * 4 * 2),
        (cases.masking(2, 33), 2 * 33 * (4 + 8)),
    ],
)
def test_the_floor_is_what_must_be_moved_once(case, floor):
    assert case.floor == floor


@pytest.mark.parametrize("which", KINDS, ids=str)
def test_kernel_and_twin_take_a_cases_inputs_and_give_the_same_shapes(which):
    made, (ours, right) = traced(KINDS[which])
    assert ours == right
    if made.changed:
        assert right == made.arrays[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_taken_by_its_kernel_and_its_twin(name):
    _, (ours, right) = traced(CASES[name])
    assert ours == right


def test_small_drafts_are_kept_and_refused():
    case = TINY["greedy_verify B=2 tree 3 V=384"]
    run = inputs.functions(case)["reference"]
    kept, _, sound = run(*inputs.make(case).arrays)
    assert kept.tolist() == [[True, True, False]] * 2 and sound.all()


def test_a_small_case_is_compared_timed_and_drawn(tmp_path):
    wanted = [TINY["tree_mask B=2 tree 8"]]
    result = kernels.results(wanted, budget=1, small=True)
    (case,) = result["cases"]
    assert result["interpreted"] and case["agrees"] and case["entries"] == 16
    assert all(seconds > 0 for seconds in case["seconds"].values())
    kernels.figure(json.loads(json.dumps(result)), tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 0
    (line,) = kernels.lines(result)
    assert line.startswith("tree_mask, B=2 tree 8: ") and "WRONG" not in line


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_small_case_runs_interpreted_and_agrees(name):
    result = kernels.results([TINY[name]], budget=10, small=True)
    assert not result["failed"] and result["cases"][0]["agrees"]


@pytest.mark.parametrize(
    ("ours", "right", "agrees"),
    [
        ([1, 2], [1, 3], False),
        ([1.0, 2.0], [1.0, 2.01], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1.0, float("nan")], [1.0, 2.0], False),
    ],
)
def test_integers_must_be_equal_and_other_numbers_near(ours, right, agrees):
    found = kernels.compare(jax.numpy.array(ours), jax.numpy.array(right))
    assert found["agrees"] == agrees and found["differing"] == 1


def test_a_kernel_that_fails_is_named_and_the_others_are_measured(monkeypatch):
    saved = []
    found = iter([RuntimeError("no such instruction"), measured()])

    def measure(case, **options):
        one = next(found)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(kernels, "measure", measure)
    wanted = cases.tiny()[:2]
    result = kernels.results(wanted, budget=1, small=True, save=saved.append)
    (failed,) = result["failed"]
    assert failed["error"] == "RuntimeError: no such instruction"
    assert result["cases"] == [measured()] and len(saved) == 2
    assert "FAILED" in " ".join(kernels.lines(result))


def test_what_the_budget_has_no_room_for_is_left_out_and_named(monkeypatch):
    now = itertools.count(0, 20)
    monkeypatch.setattr(kernels, "measure", lambda case, **options: measured())
    wanted = cases.tiny()[:4]
    # The clock says 0, then 20 and 40 around a case, and 60: one more might take 20.
    result = kernels.results(wanted, budget=1.1, small=True, clock=lambda: next(now))
    assert len(result["cases"]) == 1
    assert result["left_out"] == [
        {"kernel": case.kernel, "label": case.label} for case in wanted[1:]
    ]
    assert "no time was left" in " ".join(kernels.lines(result))


def test_the_command_lists_its_cases_and_refuses_to_run_without_a_gpu():
    app = typer.Typer()
    app.command()(kernels.main)
    listed = CliRunner().invoke(app, ["--dry-run"])
    assert listed.exit_code == 0 and "at least" in listed.output
    refused = CliRunner().invoke(app, [])
    assert refused.exit_code != 0 and "no GPU is at hand" in refused.output


@pytest.mark.parametrize(("agrees", "status"), [(True, 0), (False, 1)])
def test_the_command_fails_where_a_kernel_differs(
    tmp_path, monkeypatch, agrees, status
):
    def results(wanted, **options):
        return {
            "copy_bytes_per_second": 1e9,
            "cases": [measured(agrees=agrees)],
            "failed": [],
            "left_out": [],
        }

    monkeypatch.setattr(kernels, "results", results)
    app = typer.Typer()
    app.command()(kernels.main)
    ran = CliRunner().invoke(app, ["--small", "--out", str(tmp_path)])
    assert ran.exit_code == status and ("WRONG" in ran.output) == (not agrees)
    assert json.loads((tmp_path / "gpu_kernels.json").read_text())["cases"]
