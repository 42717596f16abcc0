import json

import typer
from typer.testing import CliRunner

from benchmarks.gpu import cases, kernels


def test_every_case_names_a_kernel_and_more_bytes_than_none():
    found = cases.cases()
    assert all(case.floor > 0 for case in found)
    assert len({(case.kernel, case.label) for case in found}) == len(found)
    assert {case.sizes.get("rows") for case in found} == set(cases.BATCHES)


def test_a_small_case_is_compared_timed_and_drawn(tmp_path):
    result = kernels.results(cases.tiny(), minutes=1, small=True)
    (case,) = result["cases"]
    assert result["interpreted"] and case["largest_difference"] < 0.02
    assert all(seconds > 0 for seconds in case["seconds"].values())
    kernels.figure(json.loads(json.dumps(result)), tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 0
    (line,) = kernels.lines(result)
    assert line.startswith("paged_attention, B=1 context=70 tree 3")


def test_what_no_time_was_left_for_is_named():
    result = kernels.results(cases.tiny(), minutes=0, small=True)
    assert result["not_measured"] == ["paged_attention: B=1 context=70 tree 3 D=64"]


def test_the_command_lists_its_cases_and_refuses_to_run_without_a_gpu():

    app = typer.Typer()
    app.command()(kernels.main)
    listed = CliRunner().invoke(app, ["--dry-run"])
    assert listed.exit_code == 0 and "at least" in listed.output
    refused = CliRunner().invoke(app, [])
    assert refused.exit_code != 0 and "no GPU is at hand" in refused.output
