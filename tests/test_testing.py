import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.params import SamplingParams
from jspec.rounds import DEAD
from jspec.testing import (
    GREEDY,
    Scripted,
    TableTarget,
    check_law,
    check_method,
    compilations,
    decode,
    exact_law,
    oracle,
    script,
    text_logits,
    tiny_config,
)

TABLE = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
AIM = TableTarget(table=jnp.asarray(TABLE))
PROMPTS = ([1, 2, 3, 1, 2, 3], [5, 4], [3])


def test_a_table_target_answers_by_the_last_token():
    np.testing.assert_array_equal(
        text_logits(AIM, np.array([[3, 1]]))[0], TABLE[[3, 1]]
    )
    done = decode(AIM, METHODS["none"](), None, PROMPTS)
    for prompt, ours in zip(PROMPTS, done, strict=True):
        here = prompt[-1]
        for token in ours.tokens:
            assert token == TABLE[here].argmax()
            here = token


def test_a_tiny_config_takes_changes():
    assert tiny_config(qk_norm=True).qk_norm
    with pytest.raises(TypeError):
        tiny_config(colour="red")


def test_a_script_is_offered_by_place_and_refused_where_it_is_wrong():
    lines = script([[0] * 40], gamma=3)
    done = decode(
        AIM, Scripted(gamma=3), lines, [[3]], dataclasses.replace(GREEDY, max_tokens=8)
    )
    assert done[0].tokens == decode(AIM, METHODS["none"](), None, [[3]])[0].tokens[:8]
    drafter, lines = oracle(AIM, [[3]])
    assert decode(AIM, drafter, lines, [[3]])[0].tau > 4


def test_the_law_of_a_table_is_the_product_of_its_rows():
    joint = exact_law(AIM, [2], SamplingParams(), first=2)
    p = np.exp(TABLE) / np.exp(TABLE).sum(-1, keepdims=True)
    assert len(joint) == 36
    assert joint[1, 4] == pytest.approx(p[2, 1] * p[1, 4], rel=1e-5)


def test_a_wrong_law_is_found():
    joint = {(0,): 0.5, (1,): 0.5}
    check_law(np.array([[0]] * 5010 + [[1]] * 4990), joint)
    with pytest.raises(AssertionError, match="do not follow the target's law"):
        check_law(np.array([[0]] * 5500 + [[1]] * 4500), joint)
    with pytest.raises(AssertionError, match="which the target's law rules out"):
        check_law(np.array([[2]]), joint)


def test_compilations_are_counted():
    import jax

    with compilations() as compiled:
        jax.jit(lambda x: x * 3 + 1)(np.arange(7.0))
    assert compiled


def test_good_methods_pass():
    check_method(
        METHODS["ngram"](gamma=2, shortest=1), None, AIM, prompts=PROMPTS, draws=2000
    )
    check_method(METHODS["none"](), None, AIM, prompts=PROMPTS, draws=2000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Liar(METHODS["draft_model"]):
    """Claims a law it does not draw from."""

    def propose(self, weights, memory, anchor, keys, view):
        proposal, memory = super().propose(weights, memory, anchor, keys, view)
        return dataclasses.replace(proposal, q=jnp.full_like(proposal.q, 1 / 6)), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gossip(METHODS["ngram"]):
    """Draws its randomness from the row above."""

    def propose(self, weights, memory, anchor, keys, view):
        above = jnp.roll(view.sampling.seed, 1, axis=0)
        proposal, memory = super().propose(weights, memory, anchor, keys, view)
        odd = (above[:, 1] % 2 == 1)[:, None]
        return dataclasses.replace(
            proposal, parent=jnp.where(odd, DEAD, proposal.parent)
        ), memory


def test_a_drafter_that_lies_about_its_law_is_found():
    with pytest.raises(AssertionError, match="law"):
        check_method(
            Liar(gamma=2), TableTarget(table=AIM.table.T), AIM, prompts=PROMPTS
        )


def test_a_drafter_that_listens_to_its_neighbours_is_found():
    with pytest.raises(AssertionError, match="depends on the batch"):
        check_method(Gossip(gamma=2, shortest=1), None, AIM, prompts=PROMPTS)
