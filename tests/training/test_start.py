"""What a drafter's first weights are, drawn or given."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import checkpoint
from jspec.models.base import Rope
from jspec.models.layers import rotate, turns
from jspec.training import RECIPES
from jspec.training.dflash import begin
from jspec.training.lessons import Lesson
from jspec.training.run import Settings, run
from jspec.training.start import first_weights, tap_sizes
from jspec.training.texts import Texts
from tests.training import kit

FUSING = ("eagle3", "p_eagle", "dflash", "dspark")


def lesson(features, answered=None):
    b, t, _ = features.shape
    everywhere = np.ones((b, t), bool)
    return Lesson(
        tokens=jnp.zeros((b, t), jnp.int32),
        answered=jnp.asarray(everywhere if answered is None else answered),
        features=jnp.asarray(features, jnp.float32),
        state=jnp.zeros((b, t, 4)),
    )


def test_sizes_are_standard_deviations_and_few_huge_places_do_not_count():
    drawn = np.random.default_rng(0).standard_normal((4, 500, 3)) * [1, 30, 0]
    drawn[:, :2] = 1e6
    found = tap_sizes(lesson(drawn))
    np.testing.assert_allclose(found[:2], [1, 30], rtol=0.1)
    assert 0 < found[2] <= 0.01


def test_only_what_the_target_wrote_is_measured():
    drawn = np.ones((2, 10, 1))
    drawn[:, :6] = 100
    answered = np.arange(10)[None].repeat(2, 0) >= 6
    np.testing.assert_allclose(tap_sizes(lesson(drawn, answered)), 1 / 0.6745)


@pytest.mark.parametrize("method", FUSING)
def test_what_is_fused_of_the_taps_hears_small_numbers_as_well_as_large_ones(method):
    task = kit.task(method)
    recipe, target = RECIPES[method], kit.target()
    assert recipe.fused in task.drafter.weight_shapes()
    width = task.drafter.weight_shapes()[recipe.fused][0]
    sizes = np.geomspace(0.1, 1000, width)
    drawn = (recipe, task.drafter, target, kit.words(task), 0)
    plain, fitted = first_weights(*drawn), first_weights(*drawn, sizes)
    np.testing.assert_allclose(
        fitted[recipe.fused] * sizes[:, None], plain[recipe.fused], rtol=1e-5
    )
    for name in plain.keys() - {recipe.fused}:
        np.testing.assert_array_equal(plain[name], fitted[name])


def test_heads_look_one_two_and_more_tokens_back():
    """A query's bias, turned to place p, meets a key's at p - d alone."""
    width, heads = 64, 9
    config = SimpleNamespace(cache_heads=((3, width),))
    target = SimpleNamespace(config=config)
    q = begin("layers.0.q_bias", (heads * width,), target, None).reshape(heads, width)
    k = begin("layers.0.k_bias", (heads * width,), target, None).reshape(heads, width)

    def turned(vectors, place):
        turn = turns(Rope(), width, jnp.array([[place]]))
        return np.asarray(rotate(jnp.asarray(vectors)[None, None], turn))[0, 0]

    at = np.stack([turned(k, 50 - d) for d in range(8)])
    scores = np.einsum("hw,dhw->hd", turned(q, 50), at)
    assert scores.argmax(1).tolist() == [1, 2, 3, 1, 2, 4, 1, 2, 5]


@pytest.fixture(scope="module")
def texts():
    text = np.arange(32) % 24
    return Texts(notes={"seed": 0}, texts=(text,) * 20, prompts=(8,) * 20)


def trained(folder, texts, method, **changes):
    fields = {"tokens": 40, "batch": 2, "length": 32, "anchors": 4, "rate": 1e-9}
    settings = Settings(method=method, **fields | changes)
    return run(settings, kit.target(), texts, folder, command="", tokenizer_files={})


@pytest.mark.slow
def test_pard_begins_where_a_small_model_ended(tmp_path, texts):
    trained(tmp_path / "small", texts, "draft_model", rate=1e-2)
    small = str(tmp_path / "small/drafter")
    card = trained(tmp_path / "pard", texts, "pard", init=small)
    assert card["settings"]["init"] == small
    _, before = checkpoint.load(tmp_path / "small/drafter")
    _, _, after = checkpoint.load_drafter(tmp_path / "pard/drafter")
    assert before.keys() == after.keys()
    for name, weight in before.items():
        np.testing.assert_allclose(
            np.asarray(weight, np.float32),
            np.asarray(after[name], np.float32),
            atol=1e-6,
        )


@pytest.mark.slow
def test_the_words_of_a_drafter_that_is_begun_from_stay_its_own(tmp_path, texts):
    trained(tmp_path / "one", texts, "frozen_kv_mtp")
    other = dataclasses.replace(texts, texts=(np.arange(32) % 24 + 30,) * 20)
    trained(
        tmp_path / "two", other, "frozen_kv_mtp", init=str(tmp_path / "one/drafter")
    )
    ids = [
        checkpoint.load_drafter(tmp_path / name / "drafter")[2]["ids"]
        for name in ("one", "two")
    ]
    np.testing.assert_array_equal(*ids)


def test_weights_of_another_drafter_are_no_beginning(tmp_path, texts):
    with pytest.raises(ValueError, match="is not a jspec checkpoint"):
        trained(tmp_path / "a", texts, "eagle", init=str(tmp_path))
    task = kit.task("medusa")
    config = task.drafter.config.to_json()
    checkpoint.save_drafter(
        tmp_path / "medusa", "medusa", config, kit.random_weights(task), source={}
    )
    with pytest.raises(ValueError, match=r"no beginning for a eagle .* is missing"):
        trained(tmp_path / "b", texts, "eagle", init=str(tmp_path / "medusa"))
