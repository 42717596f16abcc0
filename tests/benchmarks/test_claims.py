"""What the research runs conclude from results."""

import json
import math

import pytest

from benchmarks import claims, run
from benchmarks.runs import (
    bf16_vs_q4,
    dispatch,
    exactness,
    ngram_speedup,
    plain_vs_peers,
    prompt_reading,
    startup,
)


def result(*runs, batches=(1,), step_bytes=None):
    made = {
        "format": 1,
        "config": {"batches": batches, "threads": 2, "prompts": "nq_qa:1"}
        | {"max_tokens": 4, "repeats": 1},
        "machine": {"cpu": "c", "features": [], "cores": 2},
        "model": {"step_bytes": step_bytes or {"float32": 10**9}},
        "bandwidth_gb_s": [20.0],
        "prompts": [{"id": "a", "set": "nq_qa", "tokens": 3}],
        "refused": {},
        "runs": [],
        "outputs": {},
    }
    for spec, rate, changes in runs:
        one = run.Contestant.parse(spec)
        batch = changes.get("batch", 1)
        made["outputs"][f"{one.name}, batch {batch}"] = [changes.get("ids", [1, 2])]
        made["runs"].append(
            {
                "contestant": one.name,
                "engine": one.engine,
                "method": one.method,
                "k": one.k,
                "dtype": one.dtype,
                "batch": batch,
                "tokens_per_second": rate,
                "prefill_seconds": 1.0,
                "counters": changes.get("counters", {}),
                "cores_used_by_others": None,
            }
        )
    return made


def values(judge, made):
    return {claim.what: (claim.value, claim.met) for claim in judge(made)}


def test_plain_decoding_is_compared_with_the_best_peer():
    made = result(
        ("jspec", 18.0, {}), ("transformers", 9.0, {}), ("llama_cpp", 20.0, {})
    )
    found = values(plain_vs_peers.judge, made)
    assert found == {
        "float32, batch 1: ours ÷ best peer": (pytest.approx(0.9), False),
        "float32, batch 1: ours ÷ transformers": (pytest.approx(2.0), True),
        "float32, batch 1: share of the memory floor": (pytest.approx(0.9), True),
    }


def test_look_up_is_judged_by_its_best_k():
    made = result(
        ("jspec", 10.0, {}),
        ("jspec:ngram:2", 14.0, {}),
        ("jspec:ngram:4", 16.0, {"ids": [1, 3]}),
    )
    found = values(ngram_speedup.judge, made)
    assert found["float32: look-up ÷ our plain decoding"] == (1.6, True)
    assert found["jspec ngram-4 float32: share of texts equal to plain"] == (0.0, False)


def test_exact_bfloat16_is_compared_with_four_bits():
    made = result(
        ("jspec:ngram:4@bfloat16", 30.0, {}),
        ("jspec@bfloat16", 20.0, {}),
        ("llama_cpp@q4_1", 25.0, {}),
    )
    found = values(bf16_vs_q4.judge, made)
    assert found["bfloat16 with look-up ÷ llama.cpp's Q4_1"] == (1.2, True)
    assert found["plain bfloat16 ÷ llama.cpp's Q4_1"] == (0.8, None)


def test_a_self_draft_must_be_accepted_whole():
    counters = {"drafted": 8, "accepted": 6}
    made = result(
        ("jspec", 10.0, {}), ("jspec:draft_model:4", 5.0, {"counters": counters})
    )
    found = values(exactness.judge, made)
    what = "jspec draft_model-4 float32, batch 1"
    assert found[f"{what}: accepted share"] == (0.75, False)
    assert found[f"{what}: share of equal texts"] == (1.0, True)


def test_host_time_is_stated_per_round():
    counters = dict.fromkeys(dispatch.HOST, 0.005)
    counters |= {dispatch.ROUNDS: 100, dispatch.WAIT: 0.99}
    made = result(("jspec", 10.0, {"counters": counters}))
    found = values(dispatch.judge, made)
    assert found["jspec none float32, batch 1: host µs a round"][0] == pytest.approx(
        100
    )


def test_prompts_are_compared_by_tokens_a_second():
    made = result(
        ("jspec", 1.0, {}), ("transformers", 1.0, {}), ("jspec", 1.0, {"batch": 4})
    )
    made["runs"][0]["prefill_seconds"] = 0.5
    found = values(prompt_reading.judge, made)
    assert found["float32, batch 1: prompts, ours ÷ transformers"] == (2.0, True)
    assert found["jspec none float32, batch 4: prompt tokens/s"][0] == 12.0


def test_the_slowest_start_counts():
    first, second = startup.judge({"first": [90.0, 200.0], "second": [10.0]})
    assert not first.met and second.met


def test_a_start_states_its_executables_and_the_seconds_of_each():
    starts = {"first": [90.0], "second": [10.0]}
    *_, count, slowest = startup.judge(starts, {"admit": 0.5, "prefill 16": 2.0})
    assert (count.value, slowest.value) == (2, 2.0)
    assert slowest.note == "admit 0.5 s, prefill 16 2.0 s"


def test_a_claim_that_was_not_measured_is_neither_met_nor_missed(tmp_path, capsys):
    claim = claims.Claim(what="speed", value=math.nan, goal=1.0)
    assert claim.met is None
    claims.write("empty", result(), lambda made: [claim], results=tmp_path)
    saved = json.loads((tmp_path / "empty.json").read_text())
    assert saved["claims"][0]["value"] is None
    assert "speed: not measured." in capsys.readouterr().out
