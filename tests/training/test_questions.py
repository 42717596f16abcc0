"""A target's own questions: where they begin, and which of them are kept."""

import dataclasses

import pytest

from benchmarks import training_prompts
from jspec.training import questions


@dataclasses.dataclass
class Said:
    text: str
    token_ids: tuple[int, ...] = (1, 2, 3, 4)
    finish_reason: str = "stop"


def chat(messages):
    return [ord(c) for c in f"<user>{messages[0]['content']}</user><model>"]


def test_an_opening_ends_where_a_users_words_begin():
    assert bytes(questions.opening(chat)) == b"<user>"
    with pytest.raises(ValueError, match="begins with the user's words"):
        questions.opening(lambda messages: chat(messages)[6:])


def test_a_spec_parts_into_sets_and_a_number_of_own_questions():
    assert questions.split("own:30, train_mbpp:5,train_pydocs") == (
        "train_mbpp:5,train_pydocs",
        30,
    )
    assert questions.split("train_mbpp") == ("train_mbpp", 0)
    for wrong in ("own", "own:0", "own:many", "own:3,own:4"):
        with pytest.raises(ValueError, match="should read own:COUNT, once"):
            questions.split(wrong)


def test_questions_that_are_whole_and_new_are_kept_in_order(tmp_path):
    seeds = []

    def say(begin, these):
        seeds.append(these)
        assert begin == [7]
        return [
            *(Said(f"what is {n}? ") for n in these[:2]),
            Said("what is 0?"),
            Said("cut off in the mid", finish_reason="length"),
            Said("eh", token_ids=(1,)),
            Said("  "),
        ]

    file = tmp_path / "texts" / "questions.json"
    heard = []
    found = questions.ask([7], 3, say, file, told=heard.append)
    assert found == ["what is 0?", "what is 1?", f"what is {questions.ROUND}?"]
    assert heard == [2, 3]
    assert [these[0] for these in seeds] == [0, questions.ROUND]
    seeds.clear()
    assert questions.ask([7], 3, say, file) == found
    assert questions.ask([7], 2, say, file) == found[:2]
    assert not seeds
    more = questions.ask([7], 5, say, file)
    assert more[:3] == found
    assert len(more) == 5
    assert seeds[0][0] == 2 * questions.ROUND


def test_a_target_that_repeats_itself_is_said_to(tmp_path):
    with pytest.raises(ValueError, match=r"asked 1 questions and then none .* new"):
        questions.ask([7], 2, lambda b, s: [Said("why is it so?")], tmp_path / "q.json")


def test_own_questions_are_mixed_among_the_sets_and_need_no_licence():
    chosen = training_prompts.select("train_mbpp:3", 0)
    both = training_prompts.mixed(chosen, ["why?", "how?"], 0)
    assert both == training_prompts.mixed(chosen, ["why?", "how?"], 0)
    assert sorted(prompt.set for prompt in both) == ["own"] * 2 + ["train_mbpp"] * 3
    assert training_prompts.licences(both) == {"train_mbpp": "CC-BY-4.0"}
