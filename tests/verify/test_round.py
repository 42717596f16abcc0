"""Every rule in a whole round: requests' own laws, neighbours, broken rows, trees."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import Finish
from jspec.drafters import METHODS
from jspec.drafters.draft_model import DraftModel
from jspec.params import SamplingParams
from jspec.rounds import DEAD
from jspec.testing import (
    GREEDY,
    Loop,
    Scripted,
    TableTarget,
    check_law,
    decode,
    exact_law,
    sample,
    tiny_target,
)
from jspec.verify import Block, Fly, Standard, Synthetic, TargetOnly, Typical

V = 8
CHAINS = {
    "standard": Standard(),
    "block": Block(),
    "target_only": TargetOnly(),
    "typical": Typical(),
    "fly": Fly(window=1),
    "synthetic": Synthetic(length=2.0),
}
LOSSY_WHEN_GREEDY = ("fly", "synthetic")


def some(*often, of):
    """Cases of which all but some are slow."""
    slow = pytest.mark.slow
    return [name if name in often else pytest.param(name, marks=slow) for name in of]


PARENTS = (0, 0, 1, 1, 2)
PROMPTS = ([1, 2, 3], [5] * 6, [7], [4, 6])


@functools.cache
def tables():
    rng = np.random.default_rng(0)
    p = rng.normal(0, 2, (V, V)).astype(np.float32)
    return TableTarget(table=jnp.asarray(p)), TableTarget(
        table=jnp.asarray(p + rng.normal(0, 1, (V, V)).astype(np.float32))
    )


def params(**changes):
    """A greedy row with penalties, a sampled one, a greedy one, a filtered one."""
    each = (
        {"temperature": 0.0, "frequency_penalty": 1.5, "repetition_penalty": 1.2},
        {"temperature": 0.9, "seed": 1},
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 2, "top_k": 3, "presence_penalty": 0.5},
    )
    return [
        SamplingParams(**({"max_tokens": 20, "ignore_eos": True} | one | changes))
        for one in each
    ]


@functools.cache
def plain(index):
    target, _ = tables()
    return decode(
        target, METHODS["none"](), None, [PROMPTS[index]], params()[index], rows=4
    )[0].tokens


def random_script(nodes, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(-1, V, (4, 128, nodes)), jnp.int32)


def texts(rule, order=range(4), only=range(4)):
    target, draft = tables()
    done = decode(
        target,
        DraftModel(gamma=3),
        draft,
        [PROMPTS[i] for i in only],
        [params()[i] for i in only],
        order=[list(order)[i] for i in only],
        rows=4,
        verification=rule,
    )
    return [(one.tokens, one.accepted) for one in done]


@pytest.mark.parametrize("name", some("block", "fly", of=CHAINS))
def test_r23_r27_r29_r53_rows_are_their_own_and_greedy_ones_decode_plainly(name):
    rule = CHAINS[name]
    together = texts(rule)
    assert texts(rule, order=(3, 1, 0, 2)) == together
    for i in range(4):
        assert texts(rule, only=[i]) == [together[i]]
    assert sum(map(sum, (accepted for _, accepted in together))) > 0
    if name not in LOSSY_WHEN_GREEDY:
        assert [together[i][0] for i in (0, 2)] == [plain(i) for i in (0, 2)]


@pytest.mark.parametrize("name", some("block", of=["block", "target_only"]))
def test_r20_r21_the_law_of_a_request_is_kept(name):
    target, draft = tables()
    wish = SamplingParams(temperature=0.9, top_k=4, top_p=0.95)
    drawn = sample(
        target,
        DraftModel(gamma=2),
        draft,
        PROMPTS[0],
        wish,
        draws=20_000,
        batch=10_000,
        verification=CHAINS[name],
    )
    check_law(drawn, exact_law(target, PROMPTS[0], wish))


@pytest.mark.parametrize(
    "name", some("target_only", of=["standard", "target_only", "typical"])
)
def test_trees_leave_greedy_rows_alone_in_a_mixed_batch(name):
    target, _ = tables()
    drafter = Scripted(gamma=3, parents=PARENTS)
    done = decode(
        target,
        drafter,
        random_script(len(PARENTS)),
        PROMPTS,
        params(),
        rows=4,
        verification=CHAINS[name],
    )
    assert [done[i].tokens for i in (0, 2)] == [plain(i) for i in (0, 2)]
    assert sum(sum(one.accepted) for one in done) > 0


@pytest.mark.parametrize("name", some("block", "typical", of=CHAINS))
def test_a_row_whose_law_is_broken_ends_with_an_error_and_its_neighbours_do_not(name):
    target, _ = tables()
    wish = params(max_tokens=12)
    wish[2] = dataclasses.replace(wish[2], temperature=1.0)
    script = jnp.tile(jnp.array([2, 3, 1], jnp.int32), (4, 128, 1))
    script = script.at[2].set(jnp.array([0, 3, 1], jnp.int32)[None])

    def run(broken):
        table = target.table.at[:, jnp.array([0, 7])].set(-60.0)
        table = table.at[7, 0].set(60.0).at[0].set(broken)
        return decode(
            TableTarget(table=table),
            Scripted(gamma=3),
            script,
            PROMPTS,
            wish,
            rows=4,
            verification=CHAINS[name],
        )

    sound = run(jnp.zeros(V))
    assert sound[2].tokens[0] == 0 and len(sound[2].tokens) == 12
    for broken in (jnp.nan, -jnp.inf):
        done = run(jnp.full(V, broken))
        assert (done[2].finish, done[2].tokens) == (Finish.ERROR, [0])
        assert [done[i] for i in (0, 1, 3)] == [sound[i] for i in (0, 1, 3)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Careless(Scripted):
    """Leaves placeholders where it has nothing to say, and offers them."""

    def propose(self, weights, memory, anchor, keys, view):
        proposal, memory = super().propose(weights, memory, anchor, keys, view)
        none = (proposal.parent == DEAD).at[:, 0].set(False)
        tokens = jnp.where(none, -1, proposal.tokens)
        tokens = tokens.at[:, -1].set(2**30)
        chain = jnp.arange(tokens.shape[1], dtype=jnp.int32) - 1
        return dataclasses.replace(
            proposal, tokens=tokens, parent=jnp.broadcast_to(chain, tokens.shape)
        ), memory


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8]
)
def test_r52_placeholders_that_are_offered_reach_neither_model_nor_text(temperature):
    target = tiny_target()
    lines = jnp.full((2, 128, 4), -1, jnp.int32).at[:, ::3, 0].set(9)
    wish = dataclasses.replace(GREEDY, max_tokens=16, temperature=temperature, seed=5)
    done = decode(target, Careless(gamma=4), lines, [[1, 2, 3], [9]], wish)
    right = decode(target, METHODS["none"](), None, [[1, 2, 3], [9]], wish)
    assert all(0 <= token < 64 for one in done for token in one.tokens)
    assert {one.finish for one in done} == {Finish.LENGTH}
    if temperature == 0:
        assert [one.tokens for one in done] == [one.tokens for one in right]


@pytest.mark.parametrize("name", some("block", of=["block", "synthetic"]))
def test_r49_a_number_of_drafts_that_varies_from_round_to_round(name):
    target, draft = tables()
    loop = Loop(target, DraftModel(gamma=3), draft, verification=CHAINS[name])
    for row, (prompt, wish) in enumerate(zip(PROMPTS, params(), strict=True)):
        loop.admit(row, prompt, wish)
    found = [[] for _ in PROMPTS]
    for turn in range(40):
        loop.drafter = DraftModel(gamma=(0, 3, 1)[turn % 3])
        emission = loop.round()
        for row, text in enumerate(found):
            text += emission.tokens[row, : emission.count[row]].tolist()
    assert [len(text) for text in found] == [20] * 4
    if name not in LOSSY_WHEN_GREEDY:
        assert [found[i] for i in (0, 2)] == [plain(i) for i in (0, 2)]
