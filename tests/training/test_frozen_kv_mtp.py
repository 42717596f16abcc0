"""Which of a target's layers an assistant asks, and what is refused."""

import dataclasses
from types import SimpleNamespace

import pytest

from jspec.drafters.frozen_kv_mtp import FrozenKVMTP
from jspec.drafters.frozen_layers import FrozenKVConfig
from jspec.training import RECIPES
from jspec.training.recipe import Frame
from tests.training.kit import target, task, words
from tests.training.test_sizes import SMOLLM2


def frame(config):
    return Frame(target=config, known=30_000, mask_token_id=5, length=256)


def test_an_assistant_asks_layers_whose_entering_states_are_kept():
    plan = RECIPES["frozen_kv_mtp"].plan(frame(SMOLLM2))
    config = FrozenKVConfig.from_json(plan)
    assert config.reads == (15, 27)
    assert set(config.reads) <= set(frame(SMOLLM2).taps)
    assert FrozenKVConfig.from_json(config.to_json()) == config


def test_a_target_of_another_family_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Llama family.*this one is of 'gemma3'"):
        RECIPES["frozen_kv_mtp"].plan(frame(SimpleNamespace(family="gemma3")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reads": (0,)}, "reads names 1 layers of the target, the assistant has 2"),
        ({"reads": (0, -1)}, "reads must name layers of the target from 0 on, not -1"),
        ({"draft_vocab_size": 65}, "at most 64 without, not 65"),
    ],
)
def test_assistants_that_cannot_be_are_refused(changes, said):
    config = task("frozen_kv_mtp").drafter.config
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(config, **changes)


def test_an_assistant_of_a_layer_that_its_target_lacks_is_refused():
    made = task("frozen_kv_mtp")
    config = dataclasses.replace(made.drafter.config, reads=(0, 2))
    drafter = FrozenKVMTP(config=config)
    weights = dict.fromkeys(drafter.weight_shapes())
    for name, shape in drafter.weight_shapes().items():
        weights[name] = SimpleNamespace(shape=shape)
    with pytest.raises(ValueError, match="reads layer 2 of its target, a full one"):
        drafter.check(weights, target())
    assert len(words(made).ids) == config.draft_vocab_size
