"""The lab: full batches are timed, others are plain; loads, settling and break-even."""

import json

import pytest

from jspec.control import Goodput, Static
from jspec.server import lab
from jspec.server.lab_table import show
from jspec.testing import compilations
from tests.serving import quick_compiler, settled

WALK = "the cat and the cat and the"


def rate(value):
    return {"tokens_per_second": value}


@pytest.mark.parametrize(
    ("gains", "reach"),
    [((2.0, 1.5, 0.5), 5.0), ((0.9, 2.0, 2.0), 0.0), ((2.0, 1.5, 1.0), None)],
)
def test_a_k_breaks_even_where_its_gain_crosses_one(gains, reach):
    loads = [
        {"concurrency": load, "read": {"K=0": rate(10.0), "K=2": rate(10.0 * gain)}}
        for load, gain in zip((1, 2, 8), gains, strict=True)
    ]
    assert lab.break_even(loads, 2) == reach


def test_only_rounds_of_the_full_batch_are_asked_for_and_timed():
    meter = lab.Meter([2])
    assert meter.palette == (0, 2)
    meter.begin(Static(2), 2, 12)
    assert [meter.k(batch) for batch in (1, 2, 3)] == [0, 2, 0]
    for batch, accepted in ((1, [0]), (2, [2, 2]), (2, [0, 2]), (2, [1, 1])):
        meter.update(accepted, batch, 2)
        assert not meter.done.is_set()
    meter.update([2, 2], 2, 2)
    assert meter.done.is_set()
    reading = meter.reading()
    assert reading["rounds"] == 3
    assert reading["ks"] == {2: 3}
    assert reading["tau"] == pytest.approx((4 + 4 + 6) / 3 / 2)
    assert reading["settled"] == 2


def test_a_controller_is_measured_on_texts_and_nothing_is_compiled(servers):
    meter = lab.Meter([1, 4])
    with servers.new("self", schedule=meter, max_batch=2) as server:
        costs = lab.round_costs(server, meter.palette, [1, 2], [16, 40], repeats=1)
        assert {s.size for s in costs.samples["verify"]} == {1, 2, 5, 4, 10}
        with compilations() as compiled:
            fixed = lab.measure(server, meter, Static(4), [WALK, "zz"], 10)
            goodput = Goodput(costs, palette=(1, 4))
            own = lab.measure(server, meter, goodput, [WALK, "zz"], 10)
            settled(server)
        assert compiled == []
    assert fixed["ks"].keys() == {4}
    assert fixed["tau"] == 5.0
    assert fixed["tokens_per_second"] > 0
    assert set(own["ks"]) <= {0, 1, 4}


@pytest.mark.slow
def test_a_sweep_reads_every_controller_at_every_load_and_prints_it(servers, capsys):
    told = []
    with quick_compiler(servers.folder / "xla"):
        result = lab.sweep(
            servers.paths["target"],
            method="ngram",
            ks=(1, 3),
            concurrency=(1, 2),
            tokens=8,
            passes=2,
            progress=lambda *one: told.append(one),
        )
    assert [done for _, done, _ in told] == list(range(1, 29))
    assert told[-1][1:] == (28, 28)
    json.dumps(result)
    names = ["K=0", "K=1", "K=3", "SGLang", "adaptive", "adaptive, costs", "goodput"]
    for load in result["loads"]:
        assert list(load["read"]) == names
        assert all(len(one["every"]) == 2 for one in load["read"].values())
    show(result)
    shown = capsys.readouterr().out
    assert "goodput" in shown
    assert "K = 3" in shown
