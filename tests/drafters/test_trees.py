import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters.trees import (
    Candidates,
    StaticTree,
    draw_children,
    grow_tree,
    top_candidates,
)
from jspec.rounds import DEAD, ancestors_of

V = 6


def test_choices_of_medusa_make_a_tree_in_order_of_depth():
    tree = StaticTree.from_choices([(1,), (0,), (0, 2), (0, 0), (1, 0), (0, 0, 1)])
    assert tree.parent == (-1, 0, 0, 1, 1, 2, 3)
    assert tree.rank == (0, 0, 1, 0, 2, 0, 1)
    assert tree.depth == (0, 1, 1, 2, 2, 2, 3)
    assert (tree.gamma, tree.width, tree.nodes) == (3, 3, 7)


def test_a_full_tree_has_every_path():
    assert StaticTree.full([2, 2]).parent == (-1, 0, 0, 1, 1, 2, 2)
    assert StaticTree.full([1, 1, 1]).parent == (-1, 0, 1, 2)
    assert StaticTree.full([]).parent == (-1,)


def test_a_tree_is_cut_at_a_depth():
    tree = StaticTree.full([2, 2, 1])
    assert tree.up_to(2) == StaticTree.full([2, 2])
    assert tree.up_to(0) == StaticTree.full([])
    deep_first = StaticTree(parent=(-1, 0, 1, 0), rank=(0, 0, 0, 1))
    assert deep_first.up_to(1) == StaticTree.full([2])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StaticTree.from_choices([(0, 1)]), "without its parent"),
        (lambda: StaticTree.from_choices([()]), "without its parent"),
        (lambda: StaticTree.from_choices([(0,), (0,)]), "twice"),
        (lambda: StaticTree(parent=(-1, 1), rank=(0, 0)), "after its parent"),
        (lambda: StaticTree(parent=(-1, 0, 0), rank=(0, 0, 0)), "ranks of their own"),
        (lambda: StaticTree(parent=(0,), rank=(0,)), "anchor's parent"),
    ],
)
def test_what_is_no_tree_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_tree_is_cut_to_the_nodes_of_the_lowest_ranks():
    tree = StaticTree.full([3, 2, 1])
    assert tree.likeliest(tree.nodes) == tree
    assert tree.likeliest(1) == StaticTree.full([])
    chosen = [(0,), (1,), (0, 0), (0, 0, 0)]
    assert tree.likeliest(5) == StaticTree.from_choices(chosen)
    for nodes in range(1, tree.nodes + 1):
        assert tree.likeliest(nodes).nodes == nodes


def test_a_fixed_tree_takes_the_candidates_of_its_ranks():
    tree = StaticTree.from_choices([(0,), (1,), (0, 0), (1, 2)])
    ids = jnp.array([[[10, 11, 12], [20, 21, 22]]], jnp.int32)
    proposal = tree.propose(jnp.array([9], jnp.int32), ids)
    assert proposal.tokens.tolist() == [[9, 10, 11, 20, 22]]
    assert proposal.parent.tolist() == [[-1, 0, 0, 1, 2]]
    alone = tree.up_to(0).propose(jnp.array([9], jnp.int32), ids)
    assert alone.tokens.tolist() == [[9]]


def grown_by_hand(table, anchor, *, width, depth, nodes):
    """EAGLE-2 with Python lists: candidates as (score, depth, index, path)."""
    frontier, every, index = [(0.0, (anchor,))], [], 0
    for level in range(1, depth + 1):
        found = []
        for score, path in frontier:
            row = table[path[-1]]
            best = sorted(range(V), key=lambda token: (-row[token], token))[:width]
            for token in best:
                found.append((score + row[token], level, index, (*path, token)))
                index += 1
        every += found
        found.sort(key=lambda c: (-c[0], c[2]))
        frontier = [(score, path) for score, _, _, path in found[:width]]
    every.sort(key=lambda c: (-c[0], c[1], c[2]))
    return [path for _, _, _, path in every[: nodes - 1]]


def paths_of(proposal, row):
    tokens, parent = proposal.tokens[row].tolist(), proposal.parent[row].tolist()
    paths = [(tokens[0],)]
    for token, above in zip(tokens[1:], parent[1:], strict=True):
        paths.append((*paths[above], token))
    return paths[1:]


@functools.partial(jax.jit, static_argnames=("width", "depth", "nodes"))
def grow(table, anchor, *, width, depth, nodes):
    def step(seen, frontier):
        newest = frontier.tokens[:, -width:]
        return top_candidates(table.at[newest].get(), width), (*seen, frontier)

    first = top_candidates(table.at[anchor[:, None]].get(), width)
    return grow_tree(anchor, first, step, (), width=width, depth=depth, nodes=nodes)


SIZES = [(2, 3, 6), (3, 3, 10), (3, 2, 99), (2, 1, 3), (3, 3, 2)]


@pytest.mark.parametrize(("width", "depth", "nodes"), SIZES, ids=str)
@pytest.mark.parametrize("ties", [False, True], ids=["untied", "tied"])
def test_a_grown_tree_is_the_one_grown_by_hand(width, depth, nodes, ties):
    rng = np.random.default_rng(5)
    table = rng.standard_normal((V, V))
    if ties:
        table = np.log(np.full((V, V), 1 / 8))
        table[:, 0] = np.log(3 / 8)
    table = np.asarray(jax.nn.log_softmax(jnp.asarray(table, jnp.float32)))
    anchor = jnp.arange(V, dtype=jnp.int32)
    proposal, score, _ = grow(
        jnp.asarray(table), anchor, width=width, depth=depth, nodes=nodes
    )
    by_hand = functools.partial(
        grown_by_hand, np.float32(table), width=width, depth=depth, nodes=nodes
    )
    for row in range(V):
        assert sorted(paths_of(proposal, row)) == sorted(by_hand(row))
    order = np.arange(1, proposal.parent.shape[1])
    assert (np.asarray(proposal.parent)[:, 1:] < order).all()
    assert (score[:, 0] == 0).all() and (score <= 0).all()
    assert proposal.q is None


def test_a_step_sees_the_whole_tree_it_grows_from():
    table = jnp.log(jnp.array(np.random.default_rng(0).dirichlet(np.ones(V), V)))
    anchor = jnp.array([3], jnp.int32)
    _, _, seen = grow(table, anchor, width=2, depth=3, nodes=7)
    assert [frontier.tokens.shape for frontier in seen] == [(1, 3), (1, 5)]
    last = seen[-1]
    see = ancestors_of(last.parent)[0, -2:]
    assert see[:, 0].all() and see.sum(-1).tolist() == [3, 3]
    first = jax.lax.top_k(table[3], 2)[1]
    assert last.tokens[0, 1:3].tolist() == first.tolist()


def test_long_unlikely_paths_do_not_underflow():
    table = jnp.full((V, V), -1000.0).at[:, 1].set(-100.0)

    def likeliest(tokens):
        score, ids = jax.lax.top_k(table.at[tokens].get(), 2)
        return Candidates(ids=ids.astype(jnp.int32), score=score)

    proposal, score, _ = grow_tree(
        jnp.array([0], jnp.int32),
        likeliest(jnp.array([[0]])),
        lambda carry, top: (likeliest(top.tokens[:, -2:]), carry),
        None,
        width=2,
        depth=8,
        nodes=9,
    )
    assert paths_of(proposal, 0)[-1] == (0,) + (1,) * 8
    assert score[0, -1] == -800


def test_what_cannot_be_is_not_offered():
    table = jnp.full((V, V), -jnp.inf).at[:, 2].set(0.0).at[2].set(jnp.nan)
    proposal, _, _ = grow(table, jnp.array([0], jnp.int32), width=2, depth=3, nodes=6)
    assert proposal.tokens[0, 1] == 2
    assert proposal.parent[0].tolist() == [DEAD, 0, DEAD, DEAD, DEAD, DEAD]


def test_no_levels_and_no_room_leave_the_anchor():
    table = jnp.zeros((V, V))
    for depth, nodes in ((0, 5), (3, 1)):
        proposal, score, _ = grow(
            table, jnp.array([4], jnp.int32), width=2, depth=depth, nodes=nodes
        )
        assert proposal.tokens.tolist() == [[4]]
        assert score.tolist() == [[0.0]]


def test_children_are_drawn_in_turn_without_those_before():
    law = jnp.array([0.5, 0.3, 0.2, 0.0])
    draws = 100_000
    keys = jax.random.split(jax.random.key(0), draws)
    drawn, q = draw_children(keys, jnp.broadcast_to(law, (draws, 1, 4)), 2)
    pairs = np.bincount(np.asarray(drawn[:, 0, 0] * 4 + drawn[:, 0, 1]), minlength=16)
    for first, second in itertools.product(range(3), repeat=2):
        mass = 0 if first == second else law[first] * law[second] / (1 - law[first])
        assert abs(pairs[first * 4 + second] / draws - mass) < 5e-3
    assert jnp.allclose(q[:, 0, 0], law[None])
    after = jnp.where(jnp.arange(4)[None] == drawn[:, 0, :1], 0, law[None])
    assert jnp.allclose(q[:, 0, 1], after / after.sum(-1, keepdims=True))


def test_more_children_than_tokens_leave_laws_without_mass():
    law = jnp.array([[[0.25, 0.75, 0.0]]])
    _, q = draw_children(jax.random.split(jax.random.key(0), 1), law, 3)
    assert q.sum(-1).tolist() == [[[1, 1, 0]]]
