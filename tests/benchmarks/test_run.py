"""The runner, with workers that count instead of decoding."""

import json
import sys

import pytest

from benchmarks import report, run
from benchmarks.peers import client


def bench(model, tokenizer, start, specs=("jspec", "transformers"), **changes):
    config = run.Config(
        contestants=tuple(map(run.Contestant.parse, specs)),
        **{"prompts": "nq_qa:3", "max_tokens": 5, "settle_seconds": 0}
        | {"bandwidth_megabytes": 16}
        | changes,
    )
    return run.bench(config, model, tokenizer=tokenizer, start=start, progress=False)


def test_a_contestant_is_read_from_its_spec():
    parsed = run.Contestant.parse("llama_cpp:ngram:5@q4_1")
    assert parsed == run.Contestant(
        engine="llama_cpp", method="ngram", k=5, dtype="q4_1"
    )
    assert run.Contestant.parse("vllm").name == "vllm none float32"


@pytest.mark.parametrize("spec", ["ollama", "vllm:ngram:x", "vllm@int3", "vllm:a:1:2"])
def test_a_wrong_contestant_is_refused(spec):
    with pytest.raises(ValueError):
        run.Contestant.parse(spec)


def test_plain_decoding_appears_once_whatever_the_ks():
    names = [
        one.name
        for one in run.contestants(
            methods=("none", "ngram"), ks=(2, 4), peers=("vllm", "llama_cpp@q4_1")
        )
    ]
    assert names == [
        "jspec none float32",
        "jspec ngram-2 float32",
        "jspec ngram-4 float32",
        "vllm none float32",
        "llama_cpp none q4_1",
    ]


def test_passes_visit_every_contestant_in_turning_order(model, tokenizer, start):
    result = bench(model, tokenizer, start, repeats=2)
    visits = [(line["pass"], line["engine"]) for line in result["runs"]]
    assert visits == [
        (0, "jspec"),
        (0, "transformers"),
        (1, "transformers"),
        (1, "jspec"),
    ]


def test_tokens_before_the_first_of_the_last_row_are_not_counted(
    model, tokenizer, start
):
    result = bench(model, tokenizer, start, repeats=1, batches=(1, 2))
    counts = {line["batch"]: line["decode_tokens"] for line in result["runs"]}
    assert counts == {1: 3 * 4, 2: 4 * 4}


def test_prompts_come_again_to_fill_the_last_batch(model, tokenizer, start):
    result = bench(model, tokenizer, start, repeats=1, batches=(2,))
    rows = result["outputs"]["jspec none float32, batch 2"]
    assert len(rows) == 4 and rows[3] == rows[0]


def test_what_cannot_run_is_listed_and_the_rest_goes_on(model, tokenizer, start):
    specs = ("jspec", "vllm", "jspec:refused:1", "jspec:narrow:1")
    result = bench(model, tokenizer, start, specs, repeats=1, batches=(2, 4))
    assert set(result["refused"]) == {
        "vllm none float32",
        "jspec refused-1 float32",
        "jspec narrow-1 float32, batch 4",
    }
    assert "no such method" in result["refused"]["jspec refused-1 float32"]
    assert len(result["runs"]) == 3


def test_a_result_is_kept_after_every_pass(model, tokenizer, start):
    kept = []
    config = run.Config(
        contestants=(run.Contestant.parse("jspec"),),
        prompts="nq_qa:1",
        max_tokens=3,
        repeats=2,
        settle_seconds=0,
        bandwidth_megabytes=16,
    )
    run.bench(
        config,
        model,
        tokenizer=tokenizer,
        start=start,
        progress=False,
        keep=lambda result: kept.append(len(result["runs"])),
    )
    assert kept == [1, 2]


def test_a_result_survives_its_file(model, tokenizer, start, tmp_path):
    result = bench(model, tokenizer, start)
    run.save(result, tmp_path / "result.json")
    assert report.load(tmp_path / "result.json") == json.loads(json.dumps(result))


def test_the_summary_states_medians_equality_and_tau(model, tokenizer, start):
    lines = run.summarise(bench(model, tokenizer, start))
    assert [line["equal"] for line in lines] == [1.0, 1.0]
    assert all(
        line["lowest"] <= line["tokens_per_second"] <= line["highest"] for line in lines
    )
    assert lines[0]["tau"] == 1.0 and lines[0]["floor_share"] > 0


def test_disturbed_passes_count_only_where_there_are_no_others(model, tokenizer, start):
    result = bench(model, tokenizer, start, repeats=2)
    for line in result["runs"]:
        alone = line["pass"] == 0 and line["engine"] == "jspec"
        line["cores_used_by_others"] = 0.0 if alone else 0.8
    counts = [(line["passes"], line["disturbed"]) for line in run.summarise(result)]
    assert counts == [(1, 1), (2, 2)]
    assert "3 passes of 2 lines were disturbed" in report.notes(result)


def test_another_text_is_noticed(model, tokenizer, start):
    result = bench(model, tokenizer, start)
    result["outputs"]["transformers none float32, batch 1"][0][0] += 1
    shares = {line["engine"]: line["equal"] for line in run.summarise(result)}
    assert shares == {"jspec": 1.0, "transformers": pytest.approx(2 / 3)}


def test_contestants_must_be_distinct():
    one = run.Contestant.parse("jspec")
    with pytest.raises(ValueError):
        run.Config(contestants=(one, one))


def test_a_worker_that_dies_is_reported(tmp_path):
    with (
        client.Worker([sys.executable, "-c", ""], {}, tmp_path / "log") as worker,
        pytest.raises(client.WorkerError, match="status 0"),
    ):
        worker._ask({"op": "load"})


def test_the_table_has_a_column_a_batch(model, tokenizer, start):
    result = bench(model, tokenizer, start, batches=(1, 2))
    head, _, *rows = report.table(result).splitlines()
    assert "batch 1, tokens/s | batch 2, tokens/s" in head
    assert len(rows) == 2
    assert "interleaved" in report.notes(result)


def test_the_figure_is_written_as_svg_and_png(model, tokenizer, start, tmp_path):
    pytest.importorskip("matplotlib")
    result = bench(model, tokenizer, start, batches=(1, 2))
    written = report.figure(result, tmp_path / "figure")
    assert [file.suffix for file in written] == [".svg", ".png"]
    assert all(file.stat().st_size > 1000 for file in written)


def test_a_ratio_names_the_best_peer(model, tokenizer, start):
    result = bench(model, tokenizer, start)
    for line in result["runs"]:
        line["tokens_per_second"] = {"jspec": 30.0, "transformers": 20.0}[
            line["engine"]
        ]
    ratio, best = report.ratio(
        result,
        "jspec none float32",
        ["transformers none float32", "vllm none float32"],
        batch=1,
    )
    assert (ratio, best) == (1.5, "transformers none float32")
