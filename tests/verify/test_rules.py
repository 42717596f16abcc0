"""The rules by hand, their edges, and that every rule takes every kind of draft."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.rounds import DEAD, Proposal, SparseLaw
from jspec.sampling import Sampling
from jspec.verify import (
    VERIFICATIONS,
    Block,
    Fly,
    Standard,
    Synthetic,
    TargetOnly,
    Typical,
    check_pair,
    cut_broken,
    make_verification,
    spell,
    verify,
    verify_block,
    verify_chain,
    verify_fly,
    verify_greedy,
    verify_synthetic,
    verify_target_only,
    verify_typical,
)
from jspec.verify.synthetic import conditional_rates, rates_of_length

V = 5
ROWS = 2000

RULES = {
    "standard": Standard(),
    "block": Block(),
    "target_only": TargetOnly(),
    "synthetic": Synthetic(length=2.5),
    "typical": Typical(),
    "fly": Fly(window=1),
}
CHAIN = (-1, 0, 1, 2)
TREE = (-1, 0, 0, 1, 1, 3)
SHAPES = {"chain": CHAIN, "tree": TREE}
PAIRS = [
    (name, shape)
    for name, rule in RULES.items()
    for shape in SHAPES
    if shape == "chain" or rule.about.topology == "tree"
]


KINDS = ("certain", "dense", "sparse")
MATRIX = [
    pytest.param(
        name,
        shape,
        q,
        marks=[pytest.mark.slow]
        if q != "certain" and name in ("target_only", "typical")
        else [],
    )
    for name, shape in PAIRS
    for q in KINDS
]


def laws(seed, *shape):
    law = np.random.default_rng(seed).dirichlet(np.full(V, 0.7), shape)
    return jnp.asarray(law, jnp.float32)


def drafts(parent, q, rows=ROWS, seed=0):
    """Random trees of one shape; rows of a third of them end early."""
    n = len(parent)
    rng = np.random.default_rng(seed)
    tokens = jnp.asarray(rng.integers(0, V, (rows, n)), jnp.int32)
    above = np.tile(np.array(parent, np.int32), (rows, 1))
    above[::3, -1] = DEAD
    law = None
    if q == "dense":
        law = laws(seed + 1, rows, n)
    elif q == "sparse":
        dense = laws(seed + 1, rows, n)
        probs, ids = jax.lax.top_k(dense, 3)
        law = SparseLaw(
            ids=ids.astype(jnp.int32), probs=probs / probs.sum(-1, keepdims=True)
        )
    return Proposal(tokens=tokens, parent=jnp.asarray(above), q=law)


def dense(proposal):
    q = proposal.q
    rows, nodes = (jnp.arange(a) for a in proposal.tokens.shape)
    full = jnp.zeros((*proposal.tokens.shape, V))
    ids = jnp.broadcast_to(q.ids, q.probs.shape)
    full = full.at[rows[:, None, None], nodes[None, :, None], ids].add(q.probs)
    return dataclasses.replace(proposal, q=full)


def how(temperature):
    rows = len(temperature)
    return Sampling(
        temperature=jnp.asarray(temperature, jnp.float32),
        top_k=jnp.zeros(rows, jnp.int32),
        top_p=jnp.ones(rows),
        min_p=jnp.zeros(rows),
        seed=jnp.zeros((rows, 2), jnp.uint32),
    )


@functools.partial(
    jax.jit,
    static_argnames=("rule", "branching"),
    compiler_options={"xla_backend_optimization_level": "0"},
)
def judged(keys, logits, proposal, sampling, *, rule, branching):
    choice = jnp.argmax(logits, -1).astype(jnp.int32)
    verdict = rule.judge(keys, logits, choice, proposal, sampling, branching=branching)
    return verdict.kept, verdict.bonus


@functools.cache
def inputs(shape, q):
    parent = SHAPES[shape]
    logits = np.random.default_rng(7).normal(0, 2, (300, len(parent), V))
    keys = jax.random.split(jax.random.key(0), 300)
    return keys, jnp.asarray(logits, jnp.float32), drafts(parent, q, 300)


def case(name, shape, q):
    def run(*args):
        done = judged(*args, rule=RULES[name], branching=shape == "tree")
        return [np.asarray(a) for a in done]

    return run, *inputs(shape, q)


@functools.cache
def warmth(first, second):
    return how(np.where(np.arange(300) % 2, second, first))


@pytest.mark.parametrize(("name", "shape", "q"), MATRIX)
def test_rows_of_a_mixed_batch_do_what_they_do_among_their_like(name, shape, q):
    run, keys, logits, proposal = case(name, shape, q)
    mixed = run(keys, logits, proposal, warmth(0.0, 0.8))
    for odd, temperature in enumerate((0.0, 0.8)):
        alike = run(keys, logits, proposal, warmth(temperature, temperature))
        own = np.arange(300) % 2 == odd
        for ours, theirs in zip(mixed, alike, strict=True):
            np.testing.assert_array_equal(ours[own], theirs[own])
    assert mixed[0][:, 0].all()
    assert mixed[1].min() >= 0 and mixed[1].max() < V


@functools.cache
def greedy_verdict(shape):
    _, logits, proposal = inputs(shape, "certain")
    return jax.device_get(
        verify_greedy(jnp.argmax(logits, -1).astype(jnp.int32), proposal)
    )


@pytest.mark.parametrize(
    ("name", "shape", "q"),
    [one for one in MATRIX if one.values[0] not in ("synthetic", "fly")],
)
def test_greedy_rows_keep_what_greedy_verification_keeps(name, shape, q):
    run, keys, logits, proposal = case(name, shape, q)
    if q == "dense":
        points = jax.nn.one_hot(proposal.tokens, V)
        proposal = dataclasses.replace(proposal, q=points)
    elif q == "sparse":
        ids = (proposal.tokens[..., None] + jnp.arange(3)[None, None]) % V
        points = SparseLaw(ids=ids, probs=(ids == proposal.tokens[..., None]) * 1.0)
        proposal = dataclasses.replace(proposal, q=points)
    kept, bonus = run(keys, logits, proposal, warmth(0.0, 0.8))
    right = greedy_verdict(shape)
    np.testing.assert_array_equal(kept[::2].sum(1), right.kept[::2].sum(1))
    np.testing.assert_array_equal(bonus[::2], right.bonus[::2])


@pytest.mark.parametrize("judge", [verify, verify_chain, verify_block])
def test_a_sparse_law_is_judged_as_the_dense_law_it_stands_for(judge):
    proposal = drafts(CHAIN, "sparse")
    p = laws(3, ROWS, 4)
    keys = jax.random.split(jax.random.key(0), ROWS)
    ours, full = judge(keys, p, proposal), judge(keys, p, dense(proposal))
    np.testing.assert_array_equal(ours.kept, full.kept)
    np.testing.assert_array_equal(ours.bonus, full.bonus)


def test_candidates_that_all_rows_and_nodes_share_need_be_written_once():
    shared = jnp.array([[[4, 0, 2]]], jnp.int32)
    proposal = drafts(TREE, "sparse")
    probs = proposal.q.probs
    once = dataclasses.replace(proposal, q=SparseLaw(ids=shared, probs=probs))
    each = dataclasses.replace(
        proposal, q=SparseLaw(ids=jnp.broadcast_to(shared, probs.shape), probs=probs)
    )
    keys = jax.random.split(jax.random.key(0), ROWS)
    ours, right = (verify(keys, laws(3, ROWS, 6), drafted) for drafted in (once, each))
    np.testing.assert_array_equal(ours.kept, right.kept)
    np.testing.assert_array_equal(ours.bonus, right.bonus)


@pytest.mark.parametrize("q", ["certain", "sparse"])
@pytest.mark.parametrize("judge", [verify, verify_chain, verify_block])
def test_no_dense_law_is_built_of_drafts_that_have_none(judge, q):
    b, n, v, c = 2, 32, 4096, 4

    ids = jnp.zeros((b, n), jnp.int32)
    sparse = SparseLaw(ids=jnp.zeros((b, n, c), jnp.int32), probs=jnp.zeros((b, n, c)))
    proposal = Proposal(tokens=ids, parent=ids, q=sparse if q == "sparse" else None)
    keys = jax.random.split(jax.random.key(0), b)
    compiled = jax.jit(judge).lower(keys, jnp.zeros((b, n, v)), proposal).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < b * n * v * 4 / 2


@pytest.mark.parametrize("name", RULES)
def test_a_round_without_drafts_is_plain_decoding(name):
    proposal = drafts((-1,), "certain", 300)
    logits = jnp.log(laws(2, 300, 1))
    keys = jax.random.split(jax.random.key(0), 300)
    sampling = warmth(1.0, 1.0)
    run = functools.partial(judged, branching=False)
    kept, bonus = run(keys, logits, proposal, sampling, rule=RULES[name])
    assert kept.shape == (300, 1) and kept.all()
    right = run(keys, logits, proposal, sampling, rule=Standard())[1]
    np.testing.assert_array_equal(bonus, right)


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_r52_a_token_that_is_none_is_never_kept(name, shape):
    run, keys, logits, proposal = case(name, shape, "certain")
    for wrong in (-1, V, 2**30):
        tokens = jnp.full_like(proposal.tokens, wrong)
        placeholders = dataclasses.replace(proposal, tokens=tokens)
        kept, bonus = run(keys, logits, placeholders, warmth(0.7, 0.7))
        assert not kept[:, 1:].any()
        assert bonus.min() >= 0 and bonus.max() < V


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_padding_and_banned_tokens_are_never_kept_nor_emitted(name, shape):
    run, keys, logits, proposal = case(name, shape, "certain")
    logits = logits.at[..., 3:].set(-jnp.inf)
    kept, bonus = run(keys, logits, proposal, warmth(1.5, 1.5))
    assert proposal.tokens[:, 1:].max() >= 3
    assert not (kept & (np.asarray(proposal.tokens) >= 3))[:, 1:].any()
    assert bonus.max() < 3


@pytest.mark.parametrize("broken", [np.nan, -np.inf], ids=str)
@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_a_broken_row_leaves_its_neighbours_bit_for_bit(name, shape, broken):
    run, keys, logits, proposal = case(name, shape, "dense")
    sampling = warmth(0.0, 0.7)
    sound = jnp.ones(proposal.tokens.shape, bool).at[2, 1].set(False)
    before = run(keys, logits, proposal, sampling)
    cut = cut_broken(proposal, sound)
    after = run(keys, logits.at[2, 1].set(broken), cut, sampling)
    others = np.arange(300) != 2
    for ours, theirs in zip(after, before, strict=True):
        np.testing.assert_array_equal(ours[others], theirs[others])
    children = np.asarray(proposal.parent)[2] == 1
    assert children.any() and not after[0][2][children].any()


def test_block_is_stable_where_logits_lie_80_apart_and_laws_are_zero():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.choice([0.0, -40.0, -80.0], (ROWS, 9, V)), jnp.float32)
    p = jax.nn.softmax(logits)
    q = jax.nn.softmax(jnp.asarray(rng.choice([0.0, -80.0], (ROWS, 9, V)), jnp.float32))
    p = p.at[::5, :, 0].set(0)
    tokens = jnp.asarray(rng.integers(0, V, (ROWS, 9)), jnp.int32)
    proposal = Proposal(
        tokens=tokens,
        parent=jnp.broadcast_to(jnp.arange(9, dtype=jnp.int32) - 1, (ROWS, 9)),
        q=q,
    )
    verdict = verify_block(jax.random.split(jax.random.key(0), ROWS), p, proposal)
    at = verdict.accepted[:, None, None]
    law = jnp.take_along_axis(p, at, axis=1)[:, 0]
    emitted = jnp.take_along_axis(law, verdict.bonus[:, None], axis=1)
    assert (emitted > 0).all()
    assert 0 < verdict.accepted.mean() < 8


def test_block_accepts_a_whole_block_that_was_drawn_from_the_target():
    q = laws(5, ROWS, 5)
    proposal = dataclasses.replace(
        drafts((-1, 0, 1, 2, 3), "certain"), q=jnp.roll(q, 1, 1)
    )
    parent = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32) - 1, (ROWS, 5))
    proposal = dataclasses.replace(proposal, parent=parent)
    verdict = verify_block(jax.random.split(jax.random.key(0), ROWS), q, proposal)
    assert (verdict.accepted == 4).all()


def test_target_only_with_thresholds_keeps_what_they_say():
    p = jnp.broadcast_to(jnp.array([0.5, 0.3, 0.1, 0.1, 0.0]), (ROWS, 4, V))
    proposal = Proposal(
        tokens=jnp.broadcast_to(jnp.array([0, 2, 1, 4], jnp.int32), (ROWS, 4)),
        parent=jnp.broadcast_to(jnp.array([-1, 0, 0, 0], jnp.int32), (ROWS, 4)),
    )
    keys = jax.random.split(jax.random.key(0), ROWS)

    def shares(**thresholds):
        verdict = verify_target_only(keys, p, proposal, **thresholds)
        return np.asarray(verdict.kept.mean(0))

    np.testing.assert_allclose(shares()[1:], [0.1, 0.3, 0], atol=0.03)
    np.testing.assert_allclose(shares(threshold_acc=0.5)[1:], [0.2, 0.6, 0], atol=0.03)
    np.testing.assert_allclose(
        shares(threshold_single=0.3)[1:], [0.1, 0.9, 0], atol=0.03
    )


def test_synthetic_rates_are_kept_whatever_is_drafted():
    assert rates_of_length(3.25, 4) == (1, 1, 0.25, 0)
    assert rates_of_length(5, 4) == (1, 1, 1, 1)
    assert rates_of_length(1, 4) == (0, 0, 0, 0)
    assert rates_of_length(3.5, 2) == (1, 1)
    assert conditional_rates((0.8, 0.4, 0.0, 0.0)) == (0.8, 0.5, 0.0, 0.0)
    proposal = dataclasses.replace(
        drafts(CHAIN, "certain"),
        parent=jnp.broadcast_to(jnp.array(CHAIN, jnp.int32), (ROWS, 4)),
    )
    p = jax.nn.one_hot(jnp.zeros((ROWS, 4), jnp.int32), V)
    keys = jax.random.split(jax.random.key(0), ROWS)
    verdict = verify_synthetic(keys, p, proposal, rates=(0.9, 0.5, 0.1))
    reached = np.asarray(verdict.kept.mean(0))
    np.testing.assert_allclose(reached, [1, 0.9, 0.5, 0.1], atol=0.04)
    assert (verdict.bonus == 0).all()


def test_typical_keeps_the_longest_likely_path():
    p = jnp.full((1, 6, V), 0.2)
    p = p.at[0, 0].set(jnp.array([0.03, 0.46, 0.47, 0.02, 0.02]))
    p = p.at[0, 2].set(jnp.array([0.96, 0.01, 0.01, 0.01, 0.01]))
    proposal = Proposal(
        tokens=jnp.array([[9, 0, 1, 2, 3, 0]], jnp.int32) % 9,
        parent=jnp.array([[-1, 0, 0, 0, 2, 2]], jnp.int32),
    )
    keys = jax.random.split(jax.random.key(0), 1)
    verdict = verify_typical(keys, p, proposal)
    assert verdict.kept[0].tolist() == [True, False, True, False, False, True]
    short = dataclasses.replace(proposal, parent=proposal.parent.at[0, 5].set(DEAD))
    verdict = verify_typical(keys, p, short)
    assert verdict.kept[0].tolist() == [True, False, False, True, False, False]
    sure = jnp.full((1, 6, V), 0.01).at[..., 4].set(0.96)
    assert verify_typical(keys, sure, proposal).kept[0].tolist() == [True] + [False] * 5


quick_fly = jax.jit(verify_fly, static_argnames="window")


def fly(tokens, *, window, unsure, choice=(1, 2, 3, 4, 0)):
    n = len(tokens) + 1
    p = jax.nn.one_hot(jnp.array([choice[:n]]), V)
    proposal = Proposal(
        tokens=jnp.array([[0, *tokens]], jnp.int32),
        parent=jnp.arange(n, dtype=jnp.int32)[None] - 1,
    )
    verdict = quick_fly(
        jax.random.split(jax.random.key(0), 1),
        p,
        proposal,
        window=window,
        unsure=jnp.array([[node in unsure for node in range(n)]]),
        belief=jnp.full_like(p, 0.2).at[..., 0].set(0),
    )
    return int(verdict.accepted[0]), int(verdict.bonus[0])


def test_fly_forgives_where_the_target_is_unsure_and_the_window_passes():
    assert fly((1, 2, 3, 4), window=1, unsure=()) == (4, 0)
    assert fly((1, 4, 3, 4), window=1, unsure=()) == (1, 2)
    assert fly((1, 4, 3, 4), window=1, unsure=(1,)) == (4, 0)
    assert fly((1, 4, 3, 4), window=2, unsure=(1,)) == (4, 0)
    assert fly((1, 4, 3, 1), window=2, unsure=(1,)) == (1, 2)
    assert fly((1, 4, 3, 1), window=1, unsure=(1,)) == (3, 4)
    assert fly((1, 4, 3, 4), window=3, unsure=(1,)) == (1, 2)
    assert fly((1, 0, 3, 4), window=1, unsure=(1,)) == (1, 2)
    assert fly((4, 4, 3, 4), window=1, unsure=(0, 1)) == (0, 1)
    assert fly((4, 2, 1, 4), window=1, unsure=(0, 2)) == (4, 0)


def test_fly_asks_a_greedy_row_for_the_doubt_behind_its_choice():
    logits = jnp.array([[[1.0, 0.9, 0, -9, -9], [0, 9, 0, 0, 0], [0, 0, 9, 0, 0]]])
    proposal = Proposal(
        tokens=jnp.array([[4, 1, 1]], jnp.int32),
        parent=jnp.array([[-1, 0, 1]], jnp.int32),
    )
    keys = jax.random.split(jax.random.key(0), 1)
    for threshold, accepted in ((0.3, 2), (1.2, 0)):
        rule = Fly(window=1, threshold=threshold)
        kept, _ = judged(keys, logits, proposal, how([0.0]), rule=rule, branching=False)
        assert kept.sum() - 1 == accepted


def test_names_and_fields_make_verifications_and_back():
    for text in ("standard", "block", "typical:epsilon=0.1", "fly:window=2,top=4"):
        assert spell(make_verification(text)) == text
    rates = make_verification("synthetic:rates=(0.5,0.2)")
    assert rates == Synthetic(rates=(0.5, 0.2))
    assert make_verification(rates) is rates
    assert make_verification("target_only:threshold_acc=0.5").lossy
    assert not make_verification("target_only").lossy
    assert list(VERIFICATIONS) == list(RULES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec", "known are standard, block, target_only, synthetic, typical, fly"),
        ("typical:epsilon", "written as 'field=value'"),
        ("typical:0.1", "written as 'field=value'"),
        ("typical:epsilon=__import__('os')", "written as 'field=value'"),
        ("typical:eps=0.1", "has no field 'eps'; it takes epsilon, delta"),
        ("block:x=1", "has no field 'x'; it takes none"),
        ("typical:delta=0", "delta of verification 'typical' must lie above 0"),
        ("target_only:threshold_acc=1.5", "threshold_acc of verification"),
        ("synthetic", "needs either rates or length"),
        ("synthetic:length=2,rates=(1.0,)", "needs either rates or length"),
        ("synthetic:rates=(0.2,0.5)", "must not rise"),
        ("synthetic:rates=(2.0,)", "must be numbers in 0..1"),
        ("synthetic:length=0.5", "at least 1"),
        ("fly:window=0", "window of verification 'fly' must be an integer"),
        ("fly:threshold=-1", "threshold of verification 'fly'"),
    ],
)
def test_what_is_no_verification_is_refused(text, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        make_verification(text)


@pytest.mark.parametrize("name", ["block", "synthetic:length=2", "fly:window=2"])
def test_a_branching_method_and_a_rule_of_chains_are_refused_by_both_names(name):
    rule = make_verification(name)
    said = f"{rule.about.name!r} judges chains, and method 'medusa' drafts trees"
    with pytest.raises(ValueError, match=said):
        check_pair(rule, "medusa", branching=True, gamma=4)
    check_pair(rule, "medusa", branching=False, gamma=4)
    with pytest.raises(ValueError, match="nothing to judge"):
        check_pair(rule, "none", branching=False, gamma=0)


def test_rates_and_windows_must_suit_the_number_of_drafts():
    for text, said in (
        ("synthetic:length=6.5", "emits at most 5"),
        ("synthetic:rates=(1.0,0.5)", "needs one for each"),
        ("fly:window=4", "nothing would ever be forgiven"),
    ):
        with pytest.raises(ValueError, match=said):
            check_pair(make_verification(text), "ngram", branching=False, gamma=4)
