"""A drafter learns the text it is given, and a stopped run goes on as if it had not."""

import jax
import numpy as np
import pytest

from jspec import checkpoint
from jspec.drafters import METHODS
from jspec.testing import GREEDY, compilations, decode, tiny_target
from jspec.training import RECIPES
from jspec.training.run import Settings, run
from jspec.training.texts import Texts

LENGTH = 32


@pytest.fixture(scope="module")
def target():
    return jax.device_put(tiny_target(seed=3), jax.devices()[0])


@pytest.fixture(scope="module")
def texts(target):
    """One text again and again: the target's own answer of 24 tokens."""
    prompt = [5, 23, 42, 7, 19, 50, 3, 31]
    [answer] = decode(target, METHODS["none"](), None, [prompt], GREEDY)
    assert len(set(answer.tokens)) > 5
    text = np.array([*prompt, *answer.tokens])
    return Texts(notes={"seed": 0}, texts=(text,) * 20, prompts=(8,) * 20)


def asked(method, **changes):
    fields = {
        "tokens": 10_000,
        "batch": 2,
        "length": LENGTH,
        "anchors": 8,
        "rate": 0.01,
    }
    return Settings(method=method, **fields | {"save_every": 1000} | changes)


def trained(settings, target, texts, folder, **told):
    return run(settings, target, texts, folder, command="", tokenizer_files={}, **told)


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m == "eagle3" else pytest.mark.slow) for m in RECIPES],
)
def test_a_drafter_trained_on_one_text_drafts_it(method, target, texts, tmp_path):
    card = trained(asked(method), target, texts, tmp_path)
    before, after = (
        np.array(point["held"]["right"]) / point["held"]["inside"]
        for point in (card["curve"][0], card["curve"][-1])
    )
    assert after[:4].sum() > before[:4].sum() + 1.5
    assert card["held_out_tau"][4] == 1 + sum(card["held_out_acceptance"][:4])


class Stop(Exception):
    pass


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(target, texts, tmp_path):
    settings = asked("eagle", tokens=400, save_every=3)
    whole = trained(settings, target, texts, tmp_path / "whole")

    def stop(step, loss):
        if step == 5:
            raise Stop

    with pytest.raises(Stop):
        trained(settings, target, texts, tmp_path / "halves", tell=stop)
    seen, compiled_after = [], {}

    def note(step, loss):
        seen.append(step)
        compiled_after[step] = len(compiled)

    with compilations() as compiled:
        halves = trained(settings, target, texts, tmp_path / "halves", tell=note)
    assert compiled_after[4] == compiled_after[6]
    assert (seen[0], seen[-1]) == (4, whole["updates"])
    for name in ("held_out_acceptance", "tokens", "updates"):
        assert halves[name] == whole[name]
    assert [p["loss"] for p in halves["curve"]] == [p["loss"] for p in whole["curve"]]
    one, other = (
        checkpoint.load_drafter(tmp_path / name / "drafter")[2]
        for name in ("whole", "halves")
    )
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_kept_states_are_read_again_by_the_next_run(target, texts, tmp_path):
    settings = asked("eagle3", tokens=200, save_every=3)
    rounded = [
        trained(settings, target, texts, tmp_path / name, states=tmp_path / "states")
        for name in ("first", "second")
    ]
    plain = trained(settings, target, texts, tmp_path / "plain")
    one, other, true = (
        [point["loss"] for point in card["curve"][1:]] for card in (*rounded, plain)
    )
    assert one == other
    assert one != true
    assert np.allclose(one, true, rtol=0.02)
    with pytest.raises(ValueError, match="keeps other states"):
        asked_longer = asked("eagle3", length=LENGTH // 2)
        trained(asked_longer, target, texts, tmp_path / "x", states=tmp_path / "states")
