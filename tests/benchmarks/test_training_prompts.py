"""The prompts that drafters are trained on."""

import pytest

from benchmarks import data, training_prompts


@pytest.mark.parametrize("name", training_prompts.SETS)
def test_a_training_set_holds_as_many_prompts_as_it_says(name):
    prompts = training_prompts.read(name)
    assert len(prompts) == training_prompts.SETS[name].count
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert all(prompt.text.strip() for prompt in prompts)
    assert (data.FOLDER / name / "README.md").exists()


def test_no_training_prompt_is_one_for_measuring():
    measured = {p.turns[0] for name in data.SETS for p in data.read(name)}
    trained = {p.text for p in training_prompts.select(",".join(training_prompts.SETS))}
    assert len(trained) > 7_000
    assert not measured & trained


def test_the_order_of_training_prompts_never_changes():
    spec = "train_mbpp:3,train_handbook:2"
    assert [p.id for p in training_prompts.select(spec)] == [
        p.id for p in training_prompts.select(spec)
    ]
    assert training_prompts.select(spec) != training_prompts.select(spec, seed=1)


@pytest.mark.parametrize("spec", ["poems", "train_mbpp:0", "train_mbpp:x"])
def test_a_wrong_spec_of_training_prompts_is_refused(spec):
    with pytest.raises(ValueError):
        training_prompts.select(spec)
