"""`jspec calibrate`: what is measured, kept, gone on with, refused, and written."""

import json

import pytest
from typer.testing import CliRunner

from jspec import cli
from jspec.control import CostTable, Goodput, Sample, Schedule
from jspec.server.calibrate import Grid, calibrate, export
from jspec.server.schedule import fingerprint, make_controller
from jspec.testing import compilations
from tests.serving import greedy, quick_compiler, settled

GRID = Grid(max_batch=2, ks=(1, 4), contexts=(16, 40), repeats=2)


@pytest.fixture(scope="module")
def measured(servers, tmp_path_factory):
    """One calibration of the tiny model, and its file."""
    output = tmp_path_factory.mktemp("calibrate") / "costs.json"
    seen = []
    with quick_compiler(servers.folder / "xla"):
        found = calibrate(
            output,
            servers.paths["target"],
            method="ngram",
            grid=GRID,
            alpha=[0.8, 0.5],
            progress=lambda *told: seen.append(told),
        )
    assert [done for _, done, _ in seen] == list(range(1, 9))
    return found, output


def again(servers, output, **changes):
    options = {"method": "ngram", "grid": GRID, "alpha": [0.8, 0.5]} | changes
    with quick_compiler(servers.folder / "xla"):
        return calibrate(output, servers.paths["target"], **options)


def test_every_batch_context_and_k_is_measured_with_and_without_the_drafter(measured):
    found, output = measured
    content = json.loads(output.read_text())
    rounds = {(s["batch"], s["context"], s["size"]) for s in content["rounds"]}
    assert rounds == {(b, c, k) for b in (1, 2) for c in (16, 40) for k in (0, 1, 4)}
    passes = {(s["batch"], s["context"], s["size"]) for s in content["passes"]}
    assert passes == {
        (b, c, b * (k + 1)) for b in (1, 2) for c in (16, 40) for k in (1, 4)
    }
    assert len(content["rounds"]) == GRID.repeats * len(rounds)
    assert content["complete"]
    assert content["acceptance"] == [0.8, 0.5, 0.5, 0.5]
    assert {s.size for s in found.costs.samples["draft"]} == {1, 4}
    assert all(found.costs.round_ms(b, k, c) > 0 for b, c, k in rounds)
    assert [(one.batch, one.context) for one in found.best] == [
        (1, 16),
        (2, 16),
        (1, 40),
        (2, 40),
    ]


def test_a_whole_file_is_not_measured_again_and_another_alpha_costs_nothing(
    servers, measured, monkeypatch
):
    found, output = measured
    monkeypatch.setattr("jspec.server.measurements.serve", None)
    other = again(servers, output, alpha=[0.0])
    assert other.costs.samples == found.costs.samples
    assert {one.measured for one in other.best} == {0}


def test_a_run_that_was_broken_off_goes_on_where_it_was(servers, measured, tmp_path):
    _, output = measured
    content = json.loads(output.read_text())
    content["complete"] = False
    content["rounds"] = [s for s in content["rounds"] if s["context"] == 16]
    partial = tmp_path / "partial.json"
    partial.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="interrupted; the same jspec calibrate"):
        make_controller(partial, max_batch=2, max_model_len=64, max_k=4, batches=(1, 2))
    again(servers, partial)
    after = json.loads(partial.read_text())
    kept = [s for s in after["rounds"] if s["context"] == 16]
    assert kept == content["rounds"]
    assert len(after["rounds"]) == 2 * len(kept)
    assert after["complete"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dtype": "bfloat16"}, "another dtype: 'float32'"),
        ({"method_options": {"longest": 2}}, "another options"),
        ({"method": "suffix"}, "'suffix' drafts nothing on the device"),
        ({"method": "none"}, "method 'none' drafts nothing"),
        ({"alpha": [1.5]}, "alpha must be probabilities"),
    ],
)
def test_what_does_not_go_with_the_file_is_refused(servers, measured, changes, why):
    with pytest.raises(ValueError, match=why):
        again(servers, measured[1], **changes)


def test_a_grid_has_natural_numbers():
    with pytest.raises(ValueError, match="K values must be some, and distinct"):
        Grid(ks=(1, 1))
    with pytest.raises(ValueError, match="context 0 is less than 1"):
        Grid(contexts=(0,))


@pytest.mark.slow
def test_points_that_the_pages_do_not_hold_are_left_out(servers, tmp_path):
    small = Grid(max_batch=2, ks=(1,), contexts=(16, 40), repeats=1, kv_pages=4)
    found = again(servers, tmp_path / "small.json", grid=small)
    assert found.left_out == ((2, 40),)


def test_the_schedule_is_written_in_every_form(measured, tmp_path):
    found, _ = measured
    for path in export(found, tmp_path / "schedule.json"):
        limits = {"max_batch": 2, "max_model_len": 64, "max_k": 4, "batches": (1, 2)}
        table = make_controller(path, **limits)
        assert isinstance(table, Schedule)
        assert table.k(1, 40) in (0, 1, 4)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("goodput:", "", "adaptive:", "table:")
    ],
)
def test_the_file_is_a_schedule_and_serves_without_compiling(servers, measured, kind):
    _, output = measured
    with servers.new("ngram", schedule=f"{kind}{output}", max_batch=2) as server:
        assert server.settings["schedule"] == f"{kind}{output}"
        with compilations() as compiled:
            [done] = server.generate("a a a", greedy(60))
            found = settled(server)
    assert compiled == []
    assert done.token_ids == servers.plain("a a a", greedy(60)).token_ids
    rounds = found["rounds_by_num_speculative_tokens"]
    assert set(rounds) <= ({0, 1, 2, 3, 4} if kind == "adaptive:" else {0, 1, 4})
    switches = found["num_speculative_tokens_switches"]
    assert switches <= 1 + sum(rounds.values()) // 4


def test_costs_of_another_model_or_method_are_refused(servers, measured):
    _, output = measured
    limits = {"max_batch": 2, "max_model_len": 64, "max_k": 4, "batches": (1, 2)}
    target = fingerprint(servers.paths["target"])
    good = {"target": target, "method": "ngram", "drafter": None}
    assert isinstance(make_controller(output, **limits, served=good), Goodput)
    for name, value in (("method", "eagle"), ("target", "0"), ("drafter", "1")):
        with pytest.raises(ValueError, match=f"measured for another {name}"):
            make_controller(output, **limits, served=good | {name: value})


def test_the_command_prints_both_best_ks_and_writes_the_maps(
    servers, measured, tmp_path
):
    _, output = measured
    own = tmp_path / "costs.json"
    own.write_text(output.read_text())
    done = CliRunner().invoke(
        cli.app,
        [
            *("calibrate", "-o", str(own), "--target", str(servers.paths["target"])),
            *("--method", "ngram", "-k", "1", "-k", "4", "--max-batch", "2"),
            *("--context", "16", "--context", "40", "--repeats", "2"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "K, closed form" in done.output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "costs.json",
        "costs.png",
        *(f"costs.{form}.json" for form in ("vllm", "sglang", "depthchart")),
    }
    wrong = CliRunner().invoke(cli.app, ["calibrate", "-o", str(tmp_path / "x.txt")])
    assert wrong.exit_code == 2


def test_a_budget_needs_a_table_and_a_drafter_that_says_something(servers, measured):
    for kind in ("goodput", "budget"):
        with pytest.raises(ValueError, match="measure them with `jspec calibrate"):
            servers.new("ngram", schedule=kind)
    with pytest.raises(ValueError, match="drafts say nothing of themselves"):
        servers.new("ngram", schedule=f"budget:{measured[1]}", max_batch=2)


@pytest.mark.slow
def test_a_budget_follows_what_a_draft_model_says_of_its_drafts(servers, tmp_path):
    costs = CostTable(
        verify=[
            Sample(ms=20.0 + width, batch=b, size=b * width)
            for b in (1, 2)
            for width in (1, 2, 5)
        ],
        draft=[Sample(ms=0.1 * k, batch=b, size=k) for b in (1, 2) for k in (1, 4)],
    )
    costs.save(tmp_path / "costs.json")
    budget = make_controller(
        f"budget:{tmp_path / 'costs.json'}",
        max_batch=2,
        max_model_len=128,
        max_k=4,
        batches=(1, 2),
    )
    heard = []
    hear = budget.hear
    budget.hear = lambda *told: (heard.append(told), hear(*told))
    with servers.new("self", schedule=budget, max_batch=2) as server:
        prompts = ["the cat and the", "zz"]
        done = server.generate(prompts, greedy(40))
        rounds = settled(server)["rounds_by_num_speculative_tokens"]
    for prompt, one in zip(prompts, done, strict=True):
        assert one.token_ids == servers.plain(prompt, greedy(40)).token_ids
    assert heard
    for confidence, drafted, accepted in heard:
        assert confidence.shape[0] == len(drafted) == len(accepted)
        assert ((confidence > 0) & (confidence <= 1)).all()
    assert max(rounds, key=rounds.get) == 4
