"""The prompts for measuring."""

import pytest

from benchmarks import data


@pytest.mark.parametrize("name", data.SETS)
def test_a_set_holds_as_many_prompts_as_it_says(name):
    prompts = data.read(name)
    assert len(prompts) == data.SETS[name].count
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert all(prompt.turns[0].strip() for prompt in prompts)


def test_the_choice_of_prompts_never_changes():
    assert [prompt.id for prompt in data.select("summaries:2,gsm8k:2")] == [
        "sum-dickens-and-music-0033",
        "sum-princess-winsome-0091",
        "gsm-0529",
        "gsm-0011",
    ]


def test_fewer_prompts_are_the_beginning_of_more():
    assert data.prompts("mbpp", 3) == data.prompts("mbpp", 9)[:3]


def test_another_seed_draws_others():
    assert data.prompts("mbpp", 9) != data.prompts("mbpp", 9, seed=1)


def test_a_category_spans_sets():
    assert {prompt.set for prompt in data.prompts("coding")} == {
        "humaneval",
        "mbpp",
        "mt_bench",
    }


def test_raw_prompts_go_without_the_chat_template(tokenizer):
    raw, chat = data.select("humaneval:1,nq_qa:1")
    first, second = data.tokens([raw, chat], tokenizer)
    assert first == tokenizer.encode(raw.request)
    assert second == tokenizer.chat(chat.request)


@pytest.mark.parametrize("spec", ["poems:2", "gsm8k:900", "gsm8k:0", "gsm8k:-1"])
def test_a_wrong_spec_is_refused(spec):
    with pytest.raises(ValueError):
        data.select(spec)


def test_every_set_says_where_its_text_comes_from():
    assert all((data.FOLDER / name / "README.md").exists() for name in data.SETS)
