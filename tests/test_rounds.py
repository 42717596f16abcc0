import jax.numpy as jnp
import numpy as np

from jspec.rounds import DEAD, Proposal, Verdict, ancestors_of, settle


def test_ancestors_are_found_at_every_depth():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 8, 9, 33):
        parent = np.array(
            [
                [DEAD, *(int(rng.integers(-1, i)) for i in range(1, n))],
                [DEAD, *range(n - 1)],
            ]
        )
        right = np.zeros((2, n, n), bool)
        for b in range(2):
            for node in range(n):
                here = node
                while here != DEAD:
                    right[b, node, here] = True
                    here = parent[b, here]
        ours = ancestors_of(jnp.asarray(parent, jnp.int32))
        np.testing.assert_array_equal(ours, right)


def test_the_path_lists_kept_nodes_first_and_in_order():
    kept = jnp.array(
        [[True, False, True, False, True], [True, False, False, False, False]]
    )
    verdict = Verdict(kept=kept, bonus=jnp.array([7, 8], jnp.int32))
    assert verdict.path.tolist() == [[0, 2, 4, 1, 3], [0, 1, 2, 3, 4]]
    assert verdict.accepted.tolist() == [2, 0]


def test_a_reader_sees_the_accepted_tokens_and_the_bonus():
    proposal = Proposal(
        tokens=jnp.array([[10, 11, 12, 13, 14]] * 3, jnp.int32),
        parent=jnp.array([[-1, 0, 0, 1, 2]] * 3, jnp.int32),
    )
    kept = jnp.array(
        [[True, False, True, False, True], [True] + [False] * 4, [True] * 5]
    )
    tokens, count = settle(
        proposal, Verdict(kept=kept, bonus=jnp.array([7, 8, 9], jnp.int32))
    )
    texts = [tokens[b, : count[b]].tolist() for b in range(3)]
    assert texts == [[12, 14, 7], [8], [11, 12, 13, 14, 9]]
