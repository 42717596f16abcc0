import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.rounds import DEAD, Proposal, settle
from jspec.testing import check_law
from jspec.verify import verify, verify_chain, verify_greedy

V = 4
DRAWS = 200_000


def tables(seed, nodes, *, sharp=1.0):
    rng = np.random.default_rng(seed)
    logits = sharp * rng.standard_normal((nodes, V))
    p = np.exp(logits)
    p /= p.sum(-1, keepdims=True)
    return p.astype(np.float32)


def emitted(p, q, k, *, judge, certain=False, first=3, seed=0, draws=DRAWS):
    """First tokens of rows whose target and draft laws are Markov tables."""
    p, q = jnp.asarray(p), jnp.asarray(q)
    keys = jax.random.split(jax.random.key(seed), 4 * draws).reshape(4, draws)
    anchor = jnp.zeros(draws, jnp.int32)
    texts = np.zeros((draws, first + 2 * k + 2), np.int32)
    length = np.zeros(draws, np.int32)

    @jax.jit
    def one_round(anchor, drafting, judging):
        def step(token, key):
            if certain:
                drawn = jnp.argmax(q.at[token].get(), -1).astype(jnp.int32)
                return drawn, drawn

            def pick(key, row):
                return jax.random.categorical(key, jnp.log(row))

            drawn = jax.vmap(pick)(key, q.at[token].get()).astype(jnp.int32)
            return drawn, drawn

        each = jnp.stack(
            [
                jax.vmap(jax.random.fold_in)(drafting, jnp.full(draws, i))
                for i in range(k)
            ]
        )
        _, drafted = jax.lax.scan(step, anchor, each)
        tokens = jnp.concatenate([anchor[:, None], drafted.T], axis=1)
        laws = jnp.roll(q.at[tokens].get(), 1, axis=1)
        proposal = Proposal(
            tokens=tokens,
            parent=jnp.broadcast_to(jnp.arange(k + 1) - 1, tokens.shape),
            q=None if certain else laws,
        )
        verdict = judge(judging, p.at[tokens].get(), proposal)
        return settle(proposal, verdict)

    for turn in range(first):
        drafting = jax.random.fold_in(jax.random.key(seed + 1), turn)
        tokens, count = map(
            np.asarray,
            one_round(anchor, jax.random.split(drafting, draws), keys[turn]),
        )
        for i in range(k + 1):
            new = (i < count) & (length < first)
            texts[new, length[new]] = tokens[new, i]
            length += new
        anchor = jnp.asarray(texts[np.arange(draws), length - 1])
    return texts[:, :first]


def markov(p, first=3):
    p = np.asarray(p, np.float64)
    p /= p.sum(-1, keepdims=True)
    joint = {}
    for text in itertools.product(range(V), repeat=first):
        mass, here = 1.0, 0
        for token in text:
            mass, here = mass * p[here, token], token
        joint[text] = mass
    return joint


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "k", [1, pytest.param(2, marks=SLOW), pytest.param(3, marks=SLOW), 4]
)
@pytest.mark.parametrize("certain", [False, True], ids=["dense", "one-hot"])
def test_the_first_three_emitted_tokens_follow_the_target_law(k, certain):
    p, q = tables(0, V), tables(1, V)
    texts = emitted(p, q, k, judge=verify_chain, certain=certain)
    check_law(texts, markov(p))


def test_a_tree_walk_on_a_chain_follows_the_law_too():
    p, q = tables(2, V), tables(3, V)
    check_law(emitted(p, q, 2, judge=verify, draws=100_000), markov(p))


def chains(seed, rows, nodes, *, q):
    rng = np.random.default_rng(seed)
    tokens = jnp.asarray(rng.integers(0, V, (rows, nodes)), jnp.int32)
    parent = np.tile(np.arange(nodes) - 1, (rows, 1))
    parent[rng.random((rows, nodes)) < 0.1] = DEAD
    parent[:, 0] = DEAD

    def laws(seed):
        return jnp.asarray(
            np.random.default_rng(seed).dirichlet(np.full(V, 0.5), (rows, nodes)),
            jnp.float32,
        )

    p = laws(seed + 1)
    cold = jnp.arange(rows) % 3 == 0
    p = jnp.where(cold[:, None, None], jax.nn.one_hot(jnp.argmax(p, -1), V), p)
    return p, Proposal(
        tokens=tokens,
        parent=jnp.asarray(parent, jnp.int32),
        q=laws(seed + 2) if q == "dense" else None,
    )


@pytest.mark.parametrize("q", ["dense", "one-hot"])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_chain_path_equals_the_tree_path_token_for_token(nodes, q):
    p, proposal = chains(7, 3000, nodes, q=q)
    keys = jax.random.split(jax.random.key(0), 3000)
    slow, fast = verify(keys, p, proposal), verify_chain(keys, p, proposal)
    np.testing.assert_array_equal(slow.kept, fast.kept)
    np.testing.assert_array_equal(slow.bonus, fast.bonus)


@pytest.mark.parametrize("judge", [verify, verify_chain])
def test_greedy_rows_do_what_greedy_verification_does(judge):
    p, proposal = chains(11, 3000, 4, q="one-hot")
    cold = jax.nn.one_hot(jnp.argmax(p, -1), V)
    keys = jax.random.split(jax.random.key(0), 3000)
    right = verify_greedy(jnp.argmax(p, -1).astype(jnp.int32), proposal)
    ours = judge(keys, cold, proposal)
    np.testing.assert_array_equal(ours.kept, right.kept)
    np.testing.assert_array_equal(ours.bonus, right.bonus)


SIBLINGS = ([-1, 0, 0], [-1, 0, 0, 0], [-1, 0, 0, 1, 2])


@pytest.mark.parametrize("parent", SIBLINGS, ids=str)
@pytest.mark.parametrize("certain", [False, True], ids=["dense", "one-hot"])
def test_a_tree_with_siblings_keeps_the_law_of_the_first_two_tokens(parent, certain):
    n, draws = len(parent), DRAWS
    p = tables(5, V, sharp=0.7)
    q = tables(6, n)
    rng = np.random.default_rng(0)
    if certain:
        drafted = np.broadcast_to([0, 1, 2, 2, 3][:n], (draws, n))
    else:
        drafted = np.stack(
            [rng.choice(V, draws, p=row / row.sum()) for row in q.astype(np.float64)], 1
        )
    tokens = jnp.asarray(drafted, jnp.int32).at[:, 0].set(0)
    proposal = Proposal(
        tokens=tokens,
        parent=jnp.broadcast_to(jnp.array(parent, jnp.int32), (draws, n)),
        q=None if certain else jnp.broadcast_to(jnp.asarray(q), (draws, n, V)),
    )
    keys = jax.random.split(jax.random.key(3), draws)
    laws = jnp.asarray(p).at[tokens].get()
    verdict = jax.jit(verify)(keys, laws, proposal)
    text, count = map(np.asarray, settle(proposal, verdict))
    short = count == 1
    follow = np.array(
        [
            rng.choice(V, p=np.float64(p[t]) / np.float64(p[t]).sum())
            for t in text[short, 0]
        ]
    )
    second = text[:, 1].copy()
    second[short] = follow
    check_law(np.stack([text[:, 0], second], 1), markov(p, first=2))


@pytest.mark.parametrize("judge", [verify, verify_chain])
def test_a_refusal_that_leaves_no_mass_falls_back_to_the_law(judge):
    rows = 200
    p = jnp.broadcast_to(jnp.array([0.25, 0.75, 0, 0]), (rows, 2, V))
    q = jnp.broadcast_to(jnp.array([0.5, 0.75, 0.5, 0.5]), (rows, 2, V))
    proposal = Proposal(
        tokens=jnp.full((rows, 2), 2, jnp.int32),
        parent=jnp.broadcast_to(jnp.array([-1, 0], jnp.int32), (rows, 2)),
        q=q,
    )
    verdict = judge(jax.random.split(jax.random.key(0), rows), p, proposal)
    assert not verdict.accepted.any()
    assert set(np.unique(verdict.bonus)) == {0, 1}


@pytest.mark.parametrize("judge", [verify, verify_chain])
def test_a_draft_the_target_rules_out_is_never_kept(judge):
    rows = 2000
    p = jnp.broadcast_to(jnp.array([0.5, 0.5, 0, 0]), (rows, 3, V))
    proposal = Proposal(
        tokens=jnp.broadcast_to(jnp.array([0, 2, 1], jnp.int32), (rows, 3)),
        parent=jnp.broadcast_to(jnp.array([-1, 0, 1], jnp.int32), (rows, 3)),
    )
    verdict = judge(jax.random.split(jax.random.key(0), rows), p, proposal)
    assert not verdict.accepted.any()
    assert verdict.bonus.max() <= 1


@pytest.mark.parametrize("judge", [verify, verify_chain])
def test_the_same_law_twice_is_always_accepted(judge):
    rows = 5000
    q = jnp.asarray(tables(9, 1))
    laws = jnp.broadcast_to(q[:, None], (rows, 4, V))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, V, (rows, 4)), jnp.int32)
    proposal = Proposal(
        tokens=tokens,
        parent=jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32) - 1, (rows, 4)),
        q=laws,
    )
    verdict = judge(jax.random.split(jax.random.key(1), rows), laws, proposal)
    assert (verdict.accepted == 3).all()


@pytest.mark.parametrize("judge", [verify, verify_chain])
def test_a_row_that_offers_nothing_draws_what_plain_decoding_draws(judge):
    rows = 1000
    p = jnp.broadcast_to(jnp.asarray(tables(4, 1))[:, None], (rows, 3, V))
    keys = jax.random.split(jax.random.key(2), rows)

    def bonus(nodes):
        proposal = Proposal(
            tokens=jnp.zeros((rows, nodes), jnp.int32),
            parent=jnp.full((rows, nodes), DEAD, jnp.int32),
        )
        return judge(keys, p[:, :nodes], proposal)

    assert not bonus(3).accepted.any()
    np.testing.assert_array_equal(bonus(3).bonus, bonus(1).bonus)


def test_of_children_with_the_same_token_greedy_keeps_the_first():
    proposal = Proposal(
        tokens=jnp.array([[9, 5, 5, 6, 7]], jnp.int32),
        parent=jnp.array([[-1, 0, 0, 2, 1]], jnp.int32),
    )
    verdict = verify_greedy(jnp.array([[5, 7, 6, 0, 8]], jnp.int32), proposal)
    assert verdict.kept.tolist() == [[True, True, False, False, True]]
    assert verdict.bonus.tolist() == [8]


def test_accepting_recovering_and_bonus_do_not_share_random_numbers():
    rows = 20_000
    p = jnp.full((rows, 2, V), 0.25)
    proposal = Proposal(
        tokens=jnp.zeros((rows, 2), jnp.int32),
        parent=jnp.broadcast_to(jnp.array([-1, 0], jnp.int32), (rows, 2)),
        q=jnp.broadcast_to(jax.nn.one_hot(0, V), (rows, 2, V)),
    )
    keys = jax.random.split(jax.random.key(5), rows)
    verdict = verify_chain(keys, p, proposal)
    kept = np.asarray(verdict.accepted == 1)
    bonus = np.asarray(verdict.bonus)
    assert abs(kept.mean() - 0.25) < 0.015
    assert np.allclose(
        np.bincount(bonus[kept], minlength=V) / kept.sum(), 0.25, atol=0.03
    )
    assert np.allclose(
        np.bincount(bonus[~kept], minlength=V) / (~kept).sum(),
        [0, 1 / 3, 1 / 3, 1 / 3],
        atol=0.02,
    )
