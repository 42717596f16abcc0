import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import decode as steps
from jspec.drafters import METHODS
from jspec.drafters.ragged import Ragged, cut_unlikely
from jspec.params import SamplingParams
from jspec.rounds import DEAD, Proposal
from jspec.testing import GREEDY, check_law, decode, exact_law, sample, tiny_target
from tests.drafters import blocks

WIDTH, GAMMA = 3, 3


@functools.cache
def target():
    return tiny_target()


@functools.cache
def made(**options):
    drafter = METHODS["dflash"].configure(blocks.block_config().to_json(), **options)
    return drafter, blocks.random_weights(drafter.weight_shapes())


def laws(seed):
    """The next token's law by depth and token: the target's, and the draft's."""
    rng = np.random.default_rng(seed)
    p, q = np.exp(1.2 * rng.standard_normal((2, GAMMA + 1, WIDTH, WIDTH)))
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


PATHS = np.array(list(itertools.product(range(WIDTH), repeat=GAMMA)))


def chains(paths, confidence):
    b = len(paths)
    tokens = np.concatenate([np.zeros((b, 1), int), paths], axis=1)
    parent = np.broadcast_to(np.arange(GAMMA + 1) - 1, (b, GAMMA + 1))
    return Proposal(
        tokens=jnp.asarray(tokens, jnp.int32),
        parent=jnp.asarray(parent, jnp.int32),
        confidence=jnp.asarray(confidence, jnp.float32),
    )


def confidences(table, paths, *, own=False):
    """One per node, by depth and by the token before; or, unlawfully, by its own."""
    before = np.concatenate([np.zeros((len(paths), 1), int), paths], axis=1)
    read = before[:, 1:] if own else before[:, :-1]
    sure = table[np.arange(GAMMA)[None], read]
    return np.concatenate([np.ones((len(paths), 1)), sure], axis=1)


def emitted(p, q, offered):
    """The law of the first tokens, where each path offers so many of its nodes."""
    law = np.zeros((WIDTH,) * (GAMMA + 1))
    for path, most in zip(PATHS, offered, strict=True):
        before = [0, *path]
        weight = np.prod([q[i, before[i], path[i]] for i in range(GAMMA)])
        for i in range(most + 1):
            here = p[i, before[i]]
            rest = here
            if i < most:
                drafted = q[i, before[i]]
                keep = min(1.0, here[path[i]] / drafted[path[i]])
                left = np.maximum(here - drafted, 0)
                rest = (1 - keep) * left / max(left.sum(), 1e-300)
            for depth in range(i + 1, GAMMA + 1):
                rest = rest[..., None] * p[depth]
            law[tuple(path[:i])] += weight * rest
            if i < most:
                weight *= keep
    return law


def plain(p):
    law = p[0, 0]
    for depth in range(1, GAMMA + 1):
        law = law[..., None] * p[depth]
    return law


def counts(proposal):
    return np.array((proposal.parent[:, 1:] != DEAD).sum(1))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.4, 1.0])
def test_cutting_by_confidence_keeps_the_law(threshold):
    p, q = laws(0)
    table = np.random.default_rng(1).random((GAMMA, WIDTH))
    cut = cut_unlikely(chains(PATHS, confidences(table, PATHS)), threshold)
    assert len(set(counts(cut))) > 1 or threshold in (0.0, 1.0)
    assert np.abs(emitted(p, q, counts(cut)) - plain(p)).max() < 1e-12


def test_cutting_by_the_token_itself_would_bend_the_law():
    p, q = laws(0)
    table = np.random.default_rng(1).random((GAMMA, WIDTH))
    unlawful = confidences(table, PATHS, own=True)
    cut = cut_unlikely(chains(PATHS, unlawful), 0.4)
    assert np.abs(emitted(p, q, counts(cut)) - plain(p)).max() > 1e-3


@pytest.mark.parametrize("budget", [1.0, 1.5, 2.0])
def test_sharing_a_budget_between_rows_keeps_the_law_of_each(budget):
    rng = np.random.default_rng(2)
    table, other = rng.choice([0.0, 0.3, 0.5, 1.0], size=(2, GAMMA, WIDTH))
    ragged = Ragged(mode="cap-accept", budget=budget)
    admit = jax.jit(lambda proposal: ragged.admit(proposal).parent)
    ours = confidences(table, PATHS)
    seen = set()
    for beside in PATHS[::4]:
        theirs = confidences(other, beside[None])
        offered = []
        for path, sure in zip(PATHS, ours, strict=True):
            pair = chains(np.stack([path, beside]), np.stack([sure, theirs[0]]))
            parent = np.array(admit(pair))
            live = parent[:, 1:] != DEAD
            assert live.sum() == ragged.nodes(2, GAMMA + 1) - 2
            assert (np.diff(live.astype(int), axis=1) <= 0).all()
            offered.append(int(live[0].sum()))
        seen |= set(offered)
        for p, q in (laws(3), laws(4)):
            assert np.abs(emitted(p, q, offered) - plain(p)).max() < 1e-12
    assert len(seen) > 1


def test_ties_go_to_earlier_positions_and_then_to_earlier_rows():
    even = chains(PATHS[:3], np.ones((3, GAMMA + 1)))
    admitted = Ragged(mode="cap-accept", budget=4 / 3).admit(even)
    np.testing.assert_array_equal(counts(admitted), [2, 1, 1])


def test_a_row_that_drafts_nothing_leaves_its_share_to_others():
    proposal = chains(PATHS[:2], np.full((2, GAMMA + 1), 0.5))
    parent = proposal.parent.at[0].set(DEAD)
    proposal = dataclasses.replace(proposal, parent=parent)
    admitted = Ragged(mode="compact", budget=1.5).admit(proposal)
    np.testing.assert_array_equal(counts(admitted), [0, 3])


@pytest.mark.parametrize("mode", ["cap-accept", "compact"])
def test_greedy_text_is_plain_text_whatever_is_verified(mode):
    drafter, weights = made(gamma=4, ragged=mode, ragged_budget=1.5)
    prompts = [list(text) for text in blocks.TEXTS]
    params = dataclasses.replace(GREEDY, max_tokens=10)
    right = decode(target(), METHODS["none"](), None, prompts, params)
    done = decode(target(), drafter, weights, prompts, params)
    assert [d.tokens for d in done] == [d.tokens for d in right]
    first = [d.drafted[0] for d in done]
    assert sum(first) == 6 and len(set(first)) > 1


def test_both_modes_keep_the_same_tokens():
    wish = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    texts = [list(text) for text in blocks.TEXTS]
    found = []
    for mode in ("cap-accept", "compact"):
        drafter, weights = made(gamma=4, ragged=mode, ragged_budget=1.5)
        done = decode(target(), drafter, weights, texts, wish)
        found.append([(d.tokens, d.accepted, d.drafted) for d in done])
    assert found[0] == found[1]


def test_a_compact_pass_works_on_admitted_nodes_alone():
    rows = {}
    for mode in ("static", "cap-accept", "compact"):
        budget = {} if mode == "static" else {"ragged_budget": 1.5}
        drafter, weights = made(gamma=4, ragged=mode, **budget)
        loop, _ = blocks.prepared(target(), drafter, weights)
        step = functools.partial(steps.decode_round, drafter=drafter)
        order = np.arange(4, dtype=np.int32)
        seen = jax.make_jaxpr(step)(target(), weights, loop.state, order)
        # Products with the target's MLP, whose width no matrix of the drafter has.
        rows[mode] = [a[0] for a, b in products(seen.jaxpr) if b == (32, 48)]
    assert rows == {"static": [20] * 4, "cap-accept": [20] * 4, "compact": [10] * 4}


def products(jaxpr):
    for line in jaxpr.eqns:
        if line.primitive.name == "dot_general":
            yield tuple(v.aval.shape for v in line.invars)
        for value in line.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from products(inner)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ragged": "compact"}, "ragged_budget goes with"),
        ({"ragged_budget": 2.0}, "ragged_budget goes with"),
        ({"ragged": "compact", "ragged_budget": 0.0}, "ragged_budget must be above 0"),
    ],
)
def test_a_budget_without_a_mode_or_a_mode_without_one_is_refused(options, error):
    with pytest.raises(ValueError, match=error):
        made(**options)


@pytest.mark.slow
def test_sampled_text_follows_the_law_where_rows_share_a_budget():
    drafter, weights = made(gamma=3, ragged="compact", ragged_budget=1.2)
    params = SamplingParams(temperature=0.9, top_k=4)
    prompt = [1, 2, 3, 1, 2]
    texts = sample(target(), drafter, weights, prompt, params, draws=8000)
    check_law(texts, exact_law(target(), prompt, params))
