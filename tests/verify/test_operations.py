"""Rules by the operations of `jspec.pallas`: the same laws, from logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.rounds import DEAD, Proposal, SparseLaw
from jspec.sampling import Sampling, greedy, law
from jspec.verify import Block, Standard, TargetOnly, Typical
from jspec.verify.operations import wanted

V, B, NODES = 4, 100_000, 3
RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(0, 1.5, (V, V)), jnp.float32)
Q = jnp.asarray(RNG.dirichlet(np.ones(V), V), jnp.float32)


def sampling(rows, *, temperature=0.8, top_k=0, top_p=1.0):
    def full(value, dtype=jnp.float32):
        return jnp.broadcast_to(jnp.asarray(value, dtype), (rows,))

    return Sampling(
        temperature=full(temperature),
        top_k=full(top_k, jnp.int32),
        top_p=full(top_p),
        min_p=full(0.0),
        seed=jnp.zeros((rows, 2), jnp.uint32),
    )


def drafted(key, kind, rows):
    """Chains behind token 0; logits and draft laws follow the token before."""
    first, second = jax.random.split(key)
    one = jax.random.categorical(first, jnp.log(Q[0]), shape=(rows,))
    two = jax.random.categorical(second, jnp.log(Q[one]))
    tokens = jnp.stack([jnp.zeros_like(one), one, two], axis=1).astype(jnp.int32)
    before = jnp.stack([jnp.zeros_like(one), jnp.zeros_like(one), one], axis=1)
    q = {
        "certain": None,
        "dense": Q[before],
        "sparse": SparseLaw(
            ids=jnp.array([2, 0, 3, 1], jnp.int32)[None, None],
            probs=Q[before][..., jnp.array([2, 0, 3, 1])],
        ),
    }[kind]
    parent = jnp.broadcast_to(jnp.array([DEAD, 0, 1], jnp.int32), tokens.shape)
    return TABLE[tokens], Proposal(tokens=tokens, parent=parent, q=q)


@functools.partial(jax.jit, static_argnames=("rule", "kind", "kernels", "rows"))
def judged(key, wishes, *, rule, kind, kernels="reference", rows=B):
    noise, drafts = jax.random.split(key)
    logits, proposal = drafted(drafts, kind, rows)
    verdict = rule.judge(
        jax.random.split(noise, rows),
        logits,
        greedy(logits),
        proposal,
        wishes,
        branching=False,
        kernels=kernels,
    )
    return proposal.tokens, verdict.accepted, verdict.bonus


def emitted(tokens, accepted, bonus):
    first = jnp.where(accepted > 0, tokens[:, 1], bonus)
    second = jnp.where(accepted > 1, tokens[:, 2], bonus)
    return first, jnp.where(accepted > 0, second, -1)


@pytest.mark.parametrize("kind", ["certain", "dense", "sparse"])
@pytest.mark.parametrize("rule", [Standard(), Block()], ids=["standard", "block"])
def test_emitted_tokens_follow_the_requests_own_law(rule, kind):
    for filters in ({}, {"top_k": 2}, {"top_p": 0.7, "temperature": 1.2}):
        wishes = sampling(B, **filters)
        right = law(TABLE[None], sampling(1, **filters))[0]
        first, second = emitted(
            *judged(jax.random.key(1), wishes, rule=rule, kind=kind)
        )
        np.testing.assert_allclose(
            jnp.bincount(first, length=V) / B, right[0], atol=8e-3
        )
        for token in range(V):
            here = (first == token) & (second >= 0)
            if here.sum() > 5_000:
                seen = jnp.bincount(jnp.where(here, second, V), length=V) / here.sum()
                np.testing.assert_allclose(seen, right[token], atol=3e-2)


@pytest.mark.parametrize("rule", [Standard(), Block()], ids=["standard", "block"])
def test_a_row_beside_filtered_and_greedy_rows_draws_what_it_draws_alone(rule):
    rows = 128
    third = jnp.arange(rows) % 3
    options = {"rule": rule, "kind": "dense", "rows": rows}
    alone = judged(jax.random.key(2), sampling(rows), **options)
    mixed = sampling(
        rows,
        temperature=jnp.where(third == 1, 0.0, 0.8),
        top_k=jnp.where(third == 2, 2, 0),
    )
    beside = judged(jax.random.key(2), mixed, **options)
    for a, b in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(a[::3], b[::3])


@pytest.mark.parametrize(
    "rule", [Standard(), TargetOnly(), Typical()], ids=["standard", "only", "typical"]
)
def test_greedy_rows_of_a_tree_are_walked_alike_by_the_operation(rule):
    rows, parents = 64, [DEAD, 0, 0, 1, 2, 2]
    logits = jax.random.normal(jax.random.key(3), (rows, len(parents), V))
    tokens = jax.random.randint(jax.random.key(4), (rows, len(parents)), 0, V)
    parent = jnp.broadcast_to(jnp.array(parents, jnp.int32), tokens.shape)
    keys = jax.random.split(jax.random.key(5), rows)
    proposal = Proposal(tokens=tokens, parent=parent)
    asked = (keys, logits, greedy(logits), proposal, sampling(rows, temperature=0.0))
    ours, right = (
        rule.judge(*asked, branching=True, kernels=kernels)
        for kernels in ("reference", None)
    )
    assert right.accepted.max() == 2
    np.testing.assert_array_equal(ours.kept, right.kept)
    np.testing.assert_array_equal(ours.bonus, right.bonus)


def test_without_a_measured_kernel_the_rules_of_laws_judge():
    assert wanted("rejection_verify", None) is None
    assert wanted("rejection_verify", "reference") == "reference"
    with pytest.raises(ValueError, match="there are reference, gpu"):
        wanted("rejection_verify", "fast")
