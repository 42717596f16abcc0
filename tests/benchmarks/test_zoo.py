"""The zoo run, with rivals that count instead of decoding."""

import contextlib
import dataclasses
import json

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.zoo import command, compare, judging, report, result, run, summary
from benchmarks.zoo.journal import Journal
from benchmarks.zoo.opening import Refused
from benchmarks.zoo.plan import FULL, QUICK, Config, Contestant, contestants
from benchmarks.zoo.rivals import Reading
from jspec.drafters import METHODS

SMALL = Config(
    kinds=("qa", "maths"),
    texts=2,
    ks=(2, 4),
    temperatures=(0.0, 1.0),
    batches=(1, 2),
    passes=1,
    max_tokens=9,
)
TEXTS = run.Texts(
    ids={kind: [[1, 2], [3]] for kind in SMALL.kinds},
    names={kind: [f"{kind}-0", f"{kind}-1"] for kind in SMALL.kinds},
    room=64,
    bytes=1000,
)
NGRAM = Contestant(name="ngram", method="ngram")
CELLS = 2 * 2 * 2 * 2


class Rival:
    """A token a millisecond, `1 + K / 2` of them a round; all but the last are kept."""

    def __init__(self, name, ks, asked):
        self.name, self.ks, self.asked, self.context = name, tuple(ks), asked, 32

    def ask(self, k, prompts, temperature, seeds):
        self.asked.append((self.name, k, temperature, len(prompts)))
        tau = 1 + k // 2
        row = {"tokens": 9, "rounds": 9 // tau, "digest": "alike"}
        row |= {"drafted": [9 // tau] * k, "accepted": [9 // tau] * (k // 2)}
        return Reading(
            rows=(row,) * len(prompts),
            tokens=9 * len(prompts),
            seconds=9e-3 / tau,
            cpu_seconds=0.0,
        )

    def rounds(self, ks, batches):
        verify = 10.0 if self.name == run.PASSES.name else 15.0
        return {b: {k: [verify if k else 8.0] for k in (0, *ks)} for b in batches}


class Opener:
    """Opens what it is asked for, but for what it should refuse."""

    def __init__(self, refuse=()):
        self.opened, self.asked, self.refuse = [], [], refuse

    @contextlib.contextmanager
    def __call__(self, contestant, ks, refused):
        ready = [k for k in ks if (contestant.name, k) not in self.refuse]
        refused |= {k: f"K {k} is too much" for k in ks if k not in ready}
        if not ready:
            raise Refused("nothing works")
        self.opened.append(contestant.name)
        yield Rival(contestant.name, ready, self.asked)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    monkeypatch.setattr(run.machine, "read_bandwidth", lambda: [0.01])


def measure(path, opener, who=(NGRAM,), config=SMALL, **options):
    journal = Journal(path / "zoo.cells.jsonl", config.fixed)
    whole = run.run(config, who, journal, texts=TEXTS, open_rival=opener, **options)
    return journal, whole


@pytest.fixture
def measured(tmp_path):
    journal, _ = measure(tmp_path, Opener())
    return result.collect(journal, [NGRAM])


def test_every_cell_is_measured_beside_plain_decoding(tmp_path):
    opener = Opener()
    journal, whole = measure(tmp_path, opener)
    cells = journal.of("cell")
    assert whole and len(cells) == CELLS
    assert {(c["k"], c["batch"], c["temperature"]) for c in cells} == {
        (k, b, t) for k in (2, 4) for b in (1, 2) for t in (0.0, 1.0)
    }
    assert [len(c["plain"]) for c in cells] == [len(c["groups"]) for c in cells]
    order = [(name, k) for name, k, *_ in opener.asked[1:7]]
    assert order[:3] != order[3:] and sorted(order[:3]) == sorted(order[3:])


def test_a_second_start_measures_nothing_again(tmp_path):
    measure(tmp_path, Opener())
    again = Opener()
    journal, whole = measure(tmp_path, again)
    assert whole and again.opened == [] and len(journal.of("cell")) == CELLS


def test_a_run_whose_time_is_over_goes_on_where_it_stopped(tmp_path, monkeypatch):
    clock = iter([0.0, 0.0, *[61.0] * 99])
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))
    journal, whole = measure(tmp_path, Opener(), minutes=1)
    assert not whole and len(journal.of("cell")) == 2
    monkeypatch.undo()
    monkeypatch.setattr(run.machine, "read_bandwidth", lambda: [0.01])
    journal, whole = measure(tmp_path, Opener())
    assert whole and len(journal.of("cell")) == CELLS
    assert len({json.dumps(c) for c in journal.of("cell")}) == CELLS


def test_a_line_that_was_cut_off_is_measured_again(tmp_path):
    journal, _ = measure(tmp_path, Opener())
    text = journal.path.read_text()
    journal.path.write_text(text[:-20])
    journal, whole = measure(tmp_path, Opener())
    assert whole and len(journal.of("cell")) == CELLS


def test_a_journal_of_other_settings_is_refused(tmp_path):
    measure(tmp_path, Opener())
    with pytest.raises(ValueError, match="measured with max_tokens 9 and not 7"):
        measure(tmp_path, Opener(), config=dataclasses.replace(SMALL, max_tokens=7))


def test_what_another_drafter_gave_does_not_count(tmp_path):
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "weights").write_text("first")
    own = dataclasses.replace(NGRAM, name="eagle", drafter=drafter)
    measure(tmp_path, Opener(), [own])
    (drafter / "weights").write_text("second")
    journal, whole = measure(tmp_path, Opener(), [own])
    assert whole and len(journal.of("cell")) == 2 * CELLS
    assert len(result.collect(journal, [own])["cells"]) == CELLS


def test_a_refused_k_is_listed_and_the_others_are_measured(tmp_path):
    opener = Opener(refuse=[("ngram", 4), ("suffix", 2), ("suffix", 4)])
    suffix = Contestant(name="suffix", method="suffix")
    journal, whole = measure(tmp_path, opener, [suffix, NGRAM])
    found = result.collect(journal, [suffix, NGRAM])
    assert whole and {cell["k"] for cell in found["cells"]} == {2}
    assert {(line["name"], line["k"], line["why"]) for line in found["refused"]} == {
        ("ngram", 4, "K 4 is too much"),
        ("suffix", 2, "nothing works"),
        ("suffix", 4, "nothing works"),
    }
    assert "- `ngram`, K = 4: K 4 is too much" in report.markdown(found)


def test_the_quick_run_measures_texts_that_the_whole_run_measures():
    quick, full = (
        {
            (turn, k, text.id)
            for turn in config.turns(NGRAM)
            for k in config.asked(NGRAM)
            for group in config.groups(turn.batch)
            for text in (config.prompts(turn.kind)[i] for i in group)
        }
        for config in (QUICK, FULL)
    )
    assert quick < full


def test_a_contestant_without_a_drafter_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="'eagle2' needs a drafter, and none is"):
        contestants(["ngram", "eagle2"], {}, target="tiny", peers=False)
    with pytest.raises(ValueError, match="there is no contestant 'eagle9'"):
        contestants(["eagle9"], {}, target="tiny", peers=False)
    words = ["zoo", "--methods", "medusa", "--target", "tiny", "-o", str(tmp_path)]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2 and ended.stderr.count("\n") == 1
    assert "jspec train medusa" in ended.stderr


def test_who_takes_part_follows_from_the_drafters_there_are(tmp_path):
    shelf = {"eagle": tmp_path, "draft_model": tmp_path}
    named = [one.name for one in contestants(None, shelf, target="tiny", peers=True)]
    assert {"none", "ngram", "suffix", "eagle", "draft_model", "eagle2"} < set(named)
    assert named[-1] == "transformers_assisted" and "medusa" not in named
    named = [one.name for one in contestants(None, {}, target="tiny", peers=False)]
    assert not {"eagle", "eagle2", "transformers"} & set(named)


def test_no_method_copies_what_it_answered_to_the_same_text_before():
    [suffix] = contestants(["suffix"], {}, target="tiny", peers=False)
    drafter = METHODS["suffix"](**suffix.options)
    memory = drafter.init()
    for text in (0, 1):
        drafter.admit(memory, text, (5, 6))
        assert len(drafter.propose(memory, [text], [4])[0].tokens) == 0
        drafter.observe(memory, text, [7, 8, 9])
        drafter.leave(memory, text)


def test_numbers_of_a_line_follow_from_its_cells(measured):
    chosen = summary.lines(measured["cells"], lambda c: c["batch"] == 1)
    four = next(line for line in chosen if line.k == 4)
    assert four.tau == 3.0 and four.equal == 1.0 and four.pairs == 8
    assert (four.speedup, four.rate) == pytest.approx((3.0, 3000.0))
    assert four.accepted == (1.0, 1.0, 0.0, 0.0) and four.offered == (24, 24, 24, 24)
    assert [line.k for line in summary.best(chosen)] == [4]


def test_an_interval_holds_the_median_and_needs_two_values():
    assert summary.interval([2.0]) is None
    low, high = summary.interval([1.0, 1.1, 1.2, 1.3, 9.0])
    assert 1.0 <= low < 1.2 < high <= 9.0


def test_drafting_costs_what_a_round_takes_beyond_its_pass():
    line = {
        "name": "eagle",
        "passes_of": "gamma",
        "rounds": [[1, 0, [11.0]], [1, 4, [20.0, 90.0, 22.0]]],
        "passes": [[1, 0, [10.0]], [1, 4, [14.0]]],
    }
    [cost] = summary.costs([line], trees=())
    assert (cost.round, cost.verify) == (2.2, 1.4)
    assert cost.drafts == pytest.approx(0.8) and cost.c == pytest.approx(0.2)
    [tree] = summary.costs([line], trees=("eagle",))
    assert tree.c is None and tree.drafts == cost.drafts


def test_a_report_is_remade_from_its_json(tmp_path, measured):
    command.write(measured, tmp_path)
    text = (tmp_path / "zoo.md").read_text()
    assert "| `ngram` | 4 | 3.00 | 3.00× (3.00–3.00) | 4 | 3000.0" in text
    assert (
        "best speed-up at batch 1: 3, ngram, K = 4 (goal: at least 1.5), met." in text
    )
    drawn = {path.name for path in tmp_path.iterdir()}
    for what in ("speedup", "acceptance", "tau"):
        assert {f"zoo_{what}.svg", f"zoo_{what}.png"} < drawn
    assert result.load(tmp_path / "zoo.json")["cells"] == measured["cells"]
    (tmp_path / "zoo.md").unlink()
    ended = CliRunner().invoke(app, ["zoo", "--report-only", "-o", str(tmp_path)])
    assert ended.exit_code == 0 and (tmp_path / "zoo.md").read_text() == text


def test_trained_methods_are_held_to_their_goal_or_to_look_up(measured):
    cells = [
        cell | {"kind": "chat"} | of
        for cell in measured["cells"]
        for of in (
            {},
            {"name": "eagle3", "drafter": "there"},
            {"name": "medusa", "drafter": "there", "equal": [False]},
        )
    ]
    claims = list(judging.judge({"cells": cells}))
    goals = {claim.what: (claim.goal, claim.met) for claim in claims}
    assert goals["eagle3: tau on chat at K = 4"] == (2.0, True)
    assert goals["medusa: tau on chat at K = 4"] == (3.0, True)
    assert not goals["share of our greedy texts that equal plain decoding's"][1]


def test_a_contestant_that_fails_is_listed_and_the_others_are_measured(tmp_path):
    class Failing(Rival):
        def ask(self, *_):
            raise RuntimeError("the engine failed")

    class FailingOpener(Opener):
        @contextlib.contextmanager
        def __call__(self, contestant, ks, refused):
            kind = Failing if contestant.name == "suffix" else Rival
            yield kind(contestant.name, ks, self.asked)

    suffix = Contestant(name="suffix", method="suffix")
    journal, _ = measure(tmp_path, FailingOpener(), [suffix, NGRAM])
    assert {line["why"] for line in journal.of("refused")} == {"the engine failed"}
    assert len(journal.of("cell")) == CELLS


def test_a_run_agrees_with_itself_and_not_with_another_tau(tmp_path, measured):
    said, agree = compare.compare(measured, measured)
    assert agree and said[0].startswith("ngram, K = 2: tau 2.250 and 2.250, within")
    other = json.loads(json.dumps(measured))
    for cell in other["cells"]:
        for row in cell["rows"]:
            row["rounds"] += 1
    said, agree = compare.compare(measured, other)
    assert not agree and "NOT within 3%" in said[0]
    command.write(measured, tmp_path / "here")
    command.write(other, tmp_path / "there")
    words = ["zoo", "--report-only", "-o", str(tmp_path / "here")]
    against = ["--against", str(tmp_path / "there" / "zoo.json")]
    assert CliRunner().invoke(app, [*words, *against]).exit_code == 1


def test_runs_of_other_texts_are_not_compared(measured):
    other = measured | {"cells": []}
    said, agree = compare.compare(measured, other)
    assert not agree and said[-1] == "The two runs have no text in common."


def test_options_of_the_other_command_are_refused_before_zoo():
    ended = CliRunner().invoke(app, ["--repeats", "3", "zoo"])
    assert ended.exit_code == 2 and "--repeats stands before zoo" in ended.stderr
