"""The table: what it says, what it refuses and how, and other engines' files."""

import json

import numpy as np
import pytest

from jspec.control import Schedule, formats, representative

RFC = [
    [1, 64, 0, 32768, 3],
    [65, 256, 0, 768, 0],
    [65, 256, 769, 32768, 3],
    [257, 512, 0, 32768, 0],
]
TODAY = [[1, 64, 3], [65, 128, 1], [129, 512, 0]]
LIMITS = {"max_batch": 512, "max_model_len": 32768, "max_k": 3}
SMALL = {"max_batch": 8, "max_model_len": 100, "max_k": 7}


def parse(entries, **limits):
    return Schedule.parse(entries, **(SMALL | limits))


def test_the_tables_of_the_rfc_are_valid_and_say_what_they_say():
    old, new = Schedule.parse(TODAY, **LIMITS), Schedule.parse(RFC, **LIMITS)
    assert [old.k(batch, 9000) for batch in (1, 64, 65, 128, 129, 512)] == [
        3, 3, 1, 1, 0, 0,
    ]  # fmt: skip
    assert [new.k(100, context) for context in (0, 768, 769, 32768)] == [0, 0, 3, 3]
    assert [new.k(batch, 769) for batch in (1, 64, 65, 256, 257)] == [3, 3, 3, 3, 0]
    assert (old.palette, new.palette) == ((0, 1, 3), (0, 3))


def test_three_and_five_tuples_mix_in_any_order():
    table = parse([(3, 4, 51, 100, 2), [1, 2, 7], (3, 4, 0, 50, 1)])
    assert [table.k(batch, 50) for batch in range(1, 5)] == [7, 7, 1, 1]
    assert [table.k(batch, 51) for batch in range(1, 5)] == [7, 7, 2, 2]


def test_a_gap_carries_the_k_before_it_and_the_last_band_goes_on():
    table = parse([(1, 2, 0, 9, 5), (1, 2, 10, 100, 4), (5, 6, 1)])
    assert [table.k(batch, 9) for batch in range(1, 9)] == [5, 5, 5, 5, 1, 1, 1, 1]
    assert table.k(4, 10) == 4
    assert table.k(99) == 1


def test_what_lies_beyond_the_limits_is_cut_and_costs_no_executable():
    table = parse([(1, 8, 0, 100, 1), (1, 8, 101, 999, 2), (9, 64, 3)])
    assert table.palette == (1,)
    assert table.k(8, 5000) == 1


def test_the_palette_is_the_distinct_k_however_many_cells_there_are():
    cells = [
        (b, b, 10 * c, 10 * c + 9, (b + c) % 3) for b in range(1, 9) for c in range(11)
    ]
    assert parse(cells).palette == (0, 1, 2)


def test_a_lookup_outside_the_table_takes_its_edge():
    table = parse([(1, 8, 0, 50, 1), (1, 8, 51, 100, 2)])
    assert (table.k(0, -5), table.k(9, 101)) == (1, 2)


def test_integers_of_numpy_are_integers():
    assert parse([tuple(np.array([1, 8, 2]))]).k(4) == 2


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        (None, "a schedule is a list of entries, not NoneType"),
        ({1: 3}, "a schedule is a list of entries, not dict"),
        ([], "the schedule is empty; leave it out for a constant K"),
        ([[1, 2]], r"entry \[1, 2\] is neither \(batch_low, batch_high, K\) nor"),
        ([[1, 2, 0, 3]], r"entry \[1, 2, 0, 3\] is neither"),
        (["123"], "entry '123' is neither"),
        ([[1, 2, 3.0]], r"entry \[1, 2, 3.0\]: K 3.0 is not an integer"),
        ([[1, 2, True]], r"entry \[1, 2, True\]: K True is not an integer"),
        ([[1, "2", 3]], r"entry \[1, '2', 3\]: batch bound '2' is not an integer"),
        ([[1, 2, 0.0, 9, 3]], r"context bound 0.0 is not an integer"),
        ([[1, 2, None]], r"K None is not an integer"),
        ([[0, 2, 3]], r"entry \[0, 2, 3\]: batch bound 0 is less than 1"),
        ([[3, 2, 3]], r"entry \[3, 2, 3\] begins at batch 3, after its end, 2"),
        ([[1, 2, -1]], r"entry \[1, 2, -1\]: K -1 is less than 0"),
        ([[1, 2, 8]], r"entry \[1, 2, 8\]: K 8 exceeds num_speculative_tokens, 7"),
        ([[1, 8, -1, 100, 3]], r"context bound -1 is less than 0"),
        ([[1, 8, 9, 8, 3]], r"\[1, 8, 9, 8, 3\] begins at context 9, after its end, 8"),
        ([[2, 8, 3]], r"entry \[2, 8, 3\] is the first, and begins at batch 2"),
        (
            [[1, 4, 3], [4, 8, 1]],
            r"entries \[1, 4, 3\] and \[4, 8, 1\] both have batch 4, but their batch",
        ),
        (
            [[1, 4, 0, 50, 3], [1, 2, 51, 100, 1], [3, 4, 51, 100, 1]],
            r"entries \[1, 2, 51, 100, 1\] and \[1, 4, 0, 50, 3\] both have batch 1",
        ),
        (
            [[1, 8, 3], [1, 8, 1]],
            r"entries \[1, 8, 3\] and \[1, 8, 1\] overlap: the first has every context",
        ),
        (
            [[1, 8, 51, 100, 3], [1, 8, 1]],
            r"entries \[1, 8, 1\] and \[1, 8, 51, 100, 3\] overlap: the first has",
        ),
        (
            [[1, 8, 1, 100, 3]],
            r"entry \[1, 8, 1, 100, 3\] begins at context 1; contexts",
        ),
        (
            [[1, 8, 0, 50, 3], [1, 8, 50, 100, 1]],
            r"\[1, 8, 0, 50, 3\] and \[1, 8, 50, 100, 1\] overlap at context 50",
        ),
        (
            [[1, 8, 0, 50, 3], [1, 8, 60, 100, 1]],
            r"\[1, 8, 0, 50, 3\] and \[1, 8, 60, 100, 1\] leave contexts 51 to 59",
        ),
        (
            [[1, 8, 0, 50, 3], [1, 8, 51, 99, 1]],
            r"\[1, 8, 51, 99, 1\] is the last of batches 1 to 8, and ends at context "
            "99; max_model_len is 100",
        ),
    ],
)
def test_every_violation_is_a_sentence_with_its_entries(entries, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse(entries)


@pytest.mark.parametrize("limit", ["max_batch", "max_model_len", "max_k"])
def test_limits_are_integers_too(limit):
    with pytest.raises(ValueError, match=f"{limit} -1 is less than"):
        parse([[1, 8, 0]], **{limit: -1})


def test_one_context_stands_for_the_rows_that_decode():
    lengths = [10, 1000, 20, 30]
    assert representative(lengths) == 20
    assert representative(lengths, "mean") == 265
    assert representative(lengths, "max") == 1000
    assert representative([]) == 0


@pytest.mark.parametrize(
    "entries",
    [RFC, TODAY, [[1, 3, 0, 768, 2], [1, 3, 769, 32768, 0], [9, 20, 3], [30, 31, 1]]],
)
def test_entries_parse_back_to_the_same_table(entries):
    table = Schedule.parse(entries, **LIMITS)
    assert Schedule.parse(table.entries(), **LIMITS) == table


def test_different_tables_differ():
    assert Schedule.parse(RFC, **LIMITS) != Schedule.parse(TODAY, **LIMITS)


@pytest.mark.parametrize("form", ["vllm", "depthchart"])
def test_a_form_that_knows_contexts_reads_back_what_it_wrote(form, tmp_path):
    table = Schedule.parse(RFC, **LIMITS)
    path = tmp_path / "schedule.json"
    formats.save(table, path, form)
    back = formats.read(formats.load(path), **LIMITS)
    assert all(
        back.k(batch, context) == table.k(batch, context)
        for batch in (1, 64, 65, 256, 257, 512)
        for context in (0, 1, 768, 769, 32768)
    )


def test_sglang_reads_back_what_it_wrote_where_graphs_end_with_the_bands(tmp_path):
    table = Schedule.parse(TODAY, **LIMITS)
    path = tmp_path / "adaptive.json"
    formats.save(table, path, "sglang")
    assert formats.load(path) == {
        "1": {"candidate_steps": [3]},
        "65": {"candidate_steps": [1]},
        "129": {"candidate_steps": [0]},
    }
    graphs = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    back = formats.read(formats.load(path), graph_batches=graphs, **LIMITS)
    assert back == table


def test_sglang_pads_a_batch_before_it_looks_for_the_slot():
    content = {"1": {"candidate_steps": [3]}, "32": {"candidate_steps": [0]}}
    padded = formats.read(content, graph_batches=(1, 16, 64), **LIMITS)
    assert [padded.k(batch) for batch in (16, 17, 31, 32)] == [3, 0, 0, 0]


def test_a_context_can_be_chosen_for_a_form_without_contexts():
    table = Schedule.parse(RFC, **LIMITS)
    with pytest.raises(ValueError, match=r"entry \[65, 256, 0, 768, 0\] depends on"):
        formats.to_sglang(table)
    assert formats.to_sglang(table, context=1000) == {
        "1": {"candidate_steps": [3]},
        "257": {"candidate_steps": [0]},
    }
    assert formats.to_vllm(table, context=1000) == {
        "num_speculative_tokens_per_batch_size": [[1, 256, 3], [257, 512, 0]]
    }


def test_a_slot_with_a_choice_is_no_table():
    with pytest.raises(ValueError, match=r"slot 1 leaves a choice of \[1, 3\]"):
        formats.read({"1": {"candidate_steps": [3, 1]}}, **LIMITS)


def test_vllms_configuration_is_read_whole_and_under_both_names():
    for name in ("num_speculative_tokens_per_batch_size", "speculative_token_schedule"):
        config = {"method": "eagle3", "num_speculative_tokens": 3, name: RFC}
        assert formats.read(config, **LIMITS) == Schedule.parse(RFC, **LIMITS)
    with pytest.raises(ValueError, match="are two names of one schedule"):
        formats.read(dict.fromkeys(formats.VLLM, RFC), **LIMITS)


def test_a_mapping_of_no_known_form_is_refused():
    with pytest.raises(ValueError, match=r"this one has method"):
        formats.read({"method": "eagle3"}, **LIMITS)


def fixture(**change):
    """depthchart's own test table."""
    batches = [(1, 60), (61, 128), (129, 256), (257, 1024)]
    contexts = [(1, 256), (257, 768), (769, 1536), (1537, 100000)]
    cells = ["3333", "1333", "0333", "0033"]
    rows = [
        {"bs_lo": b[0], "bs_hi": b[1], "ctx_lo": c[0], "ctx_hi": c[1], "k": int(k)}
        for b, line in zip(batches, cells, strict=True)
        for c, k in zip(contexts, line, strict=True)
    ]
    return {"k_palette": [0, 1, 3], "schedule_2d": rows} | change


def test_depthcharts_table_is_read_and_its_last_cells_go_on():
    table = formats.read(fixture(), max_batch=2000, max_model_len=131072, max_k=3)
    assert [table.k(61, context) for context in (0, 1, 256, 257)] == [1, 1, 1, 3]
    assert [table.k(2000, context) for context in (768, 769, 131072)] == [0, 3, 3]


def change_row(number, **change):
    rows = fixture()["schedule_2d"]
    rows[number] = rows[number] | change
    return rows


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k_palette": []}, "k_palette is missing or empty"),
        ({"k_palette": [1, 3]}, "lacks 0, which overload needs"),
        ({"k_palette": [0, 3]}, "has a k outside k_palette"),
        ({"schedule_2d": []}, "schedule_2d is missing or empty"),
        ({"schedule_2d": change_row(0, bs_lo=0)}, "bs_lo 0 is less than 1"),
        ({"schedule_2d": change_row(0, bs_lo=61)}, "has a low above its high"),
        ({"schedule_2d": change_row(0, k=3.0)}, "k 3.0 is not an integer"),
        ({"schedule_2d": fixture()["schedule_2d"][4:]}, "begins at batch 61"),
        ({"schedule_2d": change_row(5, ctx_hi=700)}, "do not meet"),
        ({"schedule_2d": fixture()["schedule_2d"][:-1]}, "has 0 cells for batches 257"),
        (
            {"schedule_2d": [*fixture()["schedule_2d"], fixture()["schedule_2d"][0]]},
            "has 2 cells for batches 1",
        ),
        ({"schedule_2d": [{"bs_lo": 1}]}, "is not a mapping of bs_lo, bs_hi"),
    ],
)
def test_depthcharts_own_rules_hold(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        formats.read(fixture(**change), **LIMITS)


def test_yaml_is_read_where_pyyaml_is_and_missed_in_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "table.yaml"
    path.write_text(json.dumps(fixture()))
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(ValueError, match=r"table.yaml is YAML, which needs PyYAML"):
        formats.load(path)
    monkeypatch.undo()
    pytest.importorskip("yaml")
    path.write_text("k_palette: [0, 3]\nschedule_2d:\n- {bs_lo: 1}\n")
    assert formats.load(path) == {"k_palette": [0, 3], "schedule_2d": [{"bs_lo": 1}]}
    path.write_text("{")
    with pytest.raises(ValueError, match=r"table.yaml is not YAML"):
        formats.load(path)


def test_what_is_not_json_is_said_so(tmp_path):
    path = tmp_path / "schedule.json"
    path.write_text("[1, ")
    with pytest.raises(ValueError, match=r"schedule.json is not JSON"):
        formats.load(path)
