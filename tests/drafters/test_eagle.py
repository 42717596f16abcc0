"""EAGLE heads that are the target itself are never refused, and what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import prefill
from jspec.drafters import METHODS
from jspec.params import SamplingParams
from jspec.testing import GREEDY, Loop, TableTarget, decode, tiny_target
from tests.drafters.eagles import eagle, eagle3, multi_eagle, sized, weights_of
from tests.drafters.mtps import MIMO, NEXT, mtp

V = 16


def walk(start, count):
    """So many tokens of the cycle."""
    follows, text = cycle_target()[1], [start]
    while len(text) < count:
        text.append(int(follows[text[-1]]))
    return text


def cycle_target():
    """Each token has one successor, all of them in one cycle."""
    order = np.random.default_rng(0).permutation(V)
    follows = np.empty(V, int)
    follows[order] = np.roll(order, -1)
    table = np.full((V, V), -9.0, np.float32)
    table[np.arange(V), follows] = 9.0
    return TableTarget(table=jnp.asarray(table)), follows


def features_alone(**options):
    """An EAGLE-3 head that reads the target's feature and nothing else.

    Its feature is a token, one-hot; its layer turns a token into its successor, and its
    head says the successor's successor. A feature one place off drafts wrong tokens.
    """
    target, follows = cycle_target()
    sizes = sized(hidden_size=V, num_heads=2, num_key_heads=1, intermediate_size=V)
    config = {"vocab_size": V, "target_hidden_size": V, "taps": (0,), "tap_count": 1}
    drafter = eagle3(sizes, config | {"own_embedding": True}, **options)
    weights = {n: np.zeros(s, np.float32) for n, s in drafter.weight_shapes().items()}
    step = np.eye(V, dtype=np.float32)[follows]
    for name in weights:
        if "norm" in name:
            weights[name] += 1
    weights["fc"] = np.eye(V, dtype=np.float32)
    gate, unit = 4.0, V**0.5
    weights["layers.0.gate"] += gate / unit
    weights["layers.0.up"] = (step - np.eye(V, dtype=np.float32)) / unit
    weights["layers.0.down"] = np.eye(V, dtype=np.float32) * np.float32(
        (1 + np.exp(-gate)) / gate
    )
    weights["head"] = 3 * step
    return target, drafter, jax.tree.map(jnp.asarray, weights)


def embedding_alone(**options):
    """A target of one layer with a window, and an EAGLE head that is that layer.

    The head reads embeddings alone, one pair for each token but the first: with a
    window both see the same tokens.
    """
    target = tiny_target(num_layers=1, windows=(4,), norm_eps=1e-9)
    rows = np.asarray(target.embed[...])
    rows = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True))
    mine = {"embed": jnp.asarray(rows), "head": target.head[...]}
    layer = target.layers[0]
    names = ("q", "k", "v", "o", "mlp_norm", "gate", "up", "down")
    parts = {f"layers.0.{name}": getattr(layer, name)[...] for name in names}
    ones = {"layers.0.attention_norm": jnp.ones(32), "norm": jnp.ones(32)}
    target = type(target)(target.config, mine | parts | ones)
    drafter = eagle(
        sized(windows=(4,), norm_eps=1e-9), {"fc_bias": False}, **options
    ).fit(target)
    fc = np.concatenate([np.eye(32), np.zeros((32, 32))]).astype(np.float32)
    return target, drafter, parts | {"fc": jnp.asarray(fc)}


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (features_alone, 1),
        pytest.param(embedding_alone, 3, marks=pytest.mark.slow),
        pytest.param(features_alone, 3, marks=pytest.mark.slow),
        pytest.param(embedding_alone, 1, marks=pytest.mark.slow),
    ],
)
def test_r38_a_head_that_is_the_target_is_accepted_every_time(make, width):
    nodes = 22 if width > 1 else None
    target, drafter, weights = make(
        gamma=3, draft_sampling="greedy", tree_width=width, tree_nodes=nodes
    )
    loop = Loop(target, drafter, weights, rows=4, room=1024)
    for row, prompt in enumerate([walk(1, 5), walk(6, 7), walk(3, 9), walk(5, 6)]):
        wish = dataclasses.replace(
            GREEDY, max_tokens=1000, num_speculative_tokens=row or None
        )
        loop.admit(row, prompt, wish)
    for _ in range(240):
        emission = loop.round()
        assert emission.accepted.tolist() == [3, 1, 2, 3]


def test_a_round_without_drafts_keeps_what_the_next_one_needs():
    target, drafter, weights = features_alone(gamma=3, draft_sampling="greedy")
    loop = Loop(target, drafter, weights, rows=4, room=512)
    idle = Loop(
        target, dataclasses.replace(drafter, gamma=0), weights, rows=4, room=512
    )
    for row, prompt in enumerate([walk(1, 3), [7], walk(2, 9), [2]]):
        loop.admit(row, prompt, dataclasses.replace(GREEDY, max_tokens=100))
    for _ in range(3):
        idle.state = loop.state
        assert idle.round().drafted.tolist() == [0] * 4
        loop.state = idle.state
        assert loop.round().accepted.tolist() == [3] * 4


def test_without_a_feature_nothing_is_drafted():
    target, drafter, weights = features_alone(gamma=3, draft_sampling="greedy")
    prompts = [[4], walk(4, 2)]
    done = decode(target, drafter, weights, prompts, GREEDY, rows=4, room=512)
    assert [d.drafted[:2] for d in done] == [[0, 3], [3, 3]]


def text_of(loop, row, count):
    table, pages = loop.state.rows.table[row], loop.state.pages.text
    return np.asarray(pages[table[table < len(pages)]]).reshape(-1)[:count].tolist()


def pairs_of(loop, row, count):
    """Keys and values of a row's pairs, and the feature of its last token."""
    memory, size = loop.state.memory.pages, loop.layout.page_size
    table = np.asarray(loop.state.rows.table[row])
    kept = []
    for lag, own in enumerate(memory if isinstance(memory, tuple) else [memory], 1):
        slots = np.arange(lag, count)
        at = table[slots // size], slice(None), slots % size
        kept += [np.asarray(a)[at] for a in (*own.k, *own.v)]
        if count > lag:
            kept.append(np.asarray(own.tail)[table[(count - 1) // size]])
    return kept


TREE = {"tree_width": 3, "tree_nodes": 8}
SMALL = {"draft_vocab_size": 40}


@pytest.mark.parametrize(
    "drafter",
    [
        eagle3(sized(num_layers=2), SMALL, gamma=3),
        pytest.param(
            eagle3(sized(num_layers=2), SMALL, gamma=3, **TREE), marks=pytest.mark.slow
        ),
        pytest.param(multi_eagle(), marks=pytest.mark.slow),
        pytest.param(
            mtp(NEXT, MIMO | {"modules": 2, "unit_norms": True}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["eagle3", "eagle3, a tree", "multi_eagle", "mtp"],
)
def test_r42_committed_pairs_come_from_the_targets_own_features(drafter):
    target = tiny_target()
    drafter = drafter.fit(target)
    weights = weights_of(drafter)
    loop = Loop(target, drafter, weights, rows=3, room=64)
    for row in range(3):
        wish = SamplingParams(temperature=2.0, seed=5 + row, max_tokens=60)
        loop.admit(row, [1 + row, 2, 3][: row + 1], wish)
    kept = sum(loop.round().accepted for _ in range(9))
    assert len(set(kept.tolist())) > 1, "rows accept different counts"
    for row in range(3):
        count = int(loop.state.rows.length[row])
        fresh = Loop(target, drafter, weights, rows=3, room=64, scatter=1)
        fresh.admit(row, [*text_of(loop, row, count), 0])
        for ours, right in zip(
            pairs_of(loop, row, count), pairs_of(fresh, row, count), strict=True
        ):
            np.testing.assert_allclose(ours, right, atol=1e-5)


@pytest.mark.parametrize(
    "drafter",
    [
        eagle3(config=SMALL, gamma=3),
        pytest.param(multi_eagle(), marks=pytest.mark.slow),
        pytest.param(mtp(config=MIMO), marks=pytest.mark.slow),
    ],
    ids=["eagle3", "multi_eagle", "mtp"],
)
def test_r40_a_row_on_cached_pages_writes_what_a_fresh_one_writes(drafter):
    target = tiny_target()
    drafter = drafter.fit(target)
    weights, prompt = weights_of(drafter), list(range(1, 18))
    loop = Loop(target, drafter, weights, rows=2, chunk=16)
    loop.admit(0, [*prompt[:8], 60, 61])
    loop.admit(1, [3])
    table = loop.state.rows.table
    shared = table.at[1].set(jnp.concatenate([table[0, :2], table[1, :-2]]))
    rows = dataclasses.replace(
        loop.state.rows, table=shared, length=loop.state.rows.length.at[1].set(8)
    )
    loop.state = prefill(
        target,
        weights,
        dataclasses.replace(loop.state, rows=rows),
        jnp.array([1]),
        jnp.array([[*prompt[8:16], *[0] * 8]]),
        jnp.array([8]),
        jnp.array([prompt[16]]),
        drafter=drafter,
    )
    fresh = Loop(target, drafter, weights, rows=2, chunk=16, scatter=1)
    fresh.admit(1, prompt)
    for ours, right in zip(pairs_of(loop, 1, 16), pairs_of(fresh, 1, 16), strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [eagle3(config=SMALL, gamma=3), mtp(config=MIMO | {"modules": 2})],
    ids=["eagle3", "mtp"],
)
def test_r43_the_first_drafts_do_not_depend_on_the_pieces_of_the_prompt(drafter):
    target = tiny_target()
    drafter = dataclasses.replace(drafter, draft_sampling="greedy").fit(target)
    found = []
    for chunk in (20, 7, 1):
        loop = Loop(target, drafter, weights_of(drafter), rows=1, chunk=chunk)
        loop.admit(0, list(range(1, 21)))
        found.append(pairs_of(loop, 0, 19))
    for other in found[1:]:
        for ours, right in zip(other, found[0], strict=True):
            np.testing.assert_allclose(ours, right, atol=1e-5)


def test_r57_the_taps_of_a_shallow_target_must_be_said():
    drafter = eagle3(config={"taps": None})
    with pytest.raises(ValueError, match=r"target of 2 layers would be .* give"):
        drafter.fit(tiny_target())
    deep = drafter.fit(tiny_target(num_layers=8))
    assert deep.feature_layers == (2, 4, 5)
    assert eagle3(config={"taps": None}, taps=[1, 0, 2]).feature_layers == (1, 0, 2)


def test_chains_share_a_budget_and_greedy_text_stays():
    aim, drafter = tiny_target(), eagle3(gamma=3, ragged="compact", ragged_budget=1.5)
    prompts = [[1, 2, 3], [5, 6], [9, 4, 2, 7]]
    params = dataclasses.replace(GREEDY, max_tokens=8)
    right = decode(aim, METHODS["none"](), None, prompts, params)
    done = decode(aim, drafter, weights_of(drafter), prompts, params)
    assert [d.tokens for d in done] == [d.tokens for d in right]
    assert sum(d.drafted[0] for d in done) == 5


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: eagle(gamma=-1), "gamma must be an integer of at least 0"),
        (lambda: eagle(tree_width=0), "tree_width must be an integer of at least 1"),
        (lambda: eagle(window=0), "window must be an integer of at least 1"),
        (lambda: eagle(sink=2), "needs window="),
        (lambda: eagle(tree_nodes=8), "tree_nodes=8 needs tree_width above 1"),
        (lambda: eagle3(tree_nodes=8), "tree_nodes=8 needs tree_width above 1"),
        (
            lambda: eagle(tree_width=2, draft_sampling="probabilistic"),
            "drafts a chain",
        ),
        (lambda: eagle(confidence_threshold=2.0), "must lie in 0..1"),
        (lambda: eagle(ragged_budget=2.0), "ragged_budget goes with"),
        (
            lambda: eagle(tree_width=2, ragged="compact", ragged_budget=2.0),
            "shares drafts among chains",
        ),
        (lambda: eagle3(config={"taps": (1, 2)}), "are 2, and .* made of 3"),
        (lambda: eagle3(config={"tap_norms": True, "fuse_norm": True}), "exclude"),
        (lambda: eagle3(config={"normed_feed": True, "final_norm": False}), "needs"),
        (lambda: multi_eagle(gamma=4), r"must lie in 0\.\.3, the modules there are"),
        (lambda: multi_eagle(modules=0), "modules must be at least 1"),
        (lambda: METHODS["eagle"].configure({"sizes": {}}), "lacks the key"),
        (lambda: METHODS["eagle3"].configure({"norms": 1}), "unknown .* 'norms'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, why):
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("drafter", "changes", "why"),
    [
        (eagle(), {"hidden_size": 40}, "of hidden size 32; this one has 40"),
        (eagle(), {"vocab_size": 65}, "of vocabulary 64; this one has 65"),
        (eagle3(), {"hidden_size": 40}, "of hidden size 32; this one has 40"),
        (eagle3(), {"num_layers": 1}, r"taps \(0, 1, 2\) must be .* in 0..1"),
        (eagle3(sized(hidden_size=24)), {}, "24 wide and lacks an embedding"),
        (eagle(config={"target_layers": 4}), {}, "reads layer 4, .* has 2"),
    ],
)
def test_another_target_is_refused(drafter, changes, why):
    target = tiny_target(**changes)
    if hasattr(drafter, "fit"):
        drafter = drafter.fit(target)
    with pytest.raises(ValueError, match=why):
        drafter.check(weights_of(drafter), target)


def test_weights_of_another_shape_are_named():
    target, drafter = tiny_target(), eagle3()
    weights = weights_of(drafter)
    weights["fc"] = weights["fc"][:64]
    with pytest.raises(ValueError, match=r"weight fc has shape \(64, 32\)"):
        drafter.check(weights, target)
    with pytest.raises(ValueError, match="needs drafter="):
        drafter.check(None, target)


def test_r55_a_borrowed_head_is_not_stored_twice():
    borrowed = {"own_head": False, "own_embedding": False}
    assert {"embed", "head"}.isdisjoint(eagle3(config=borrowed).weight_shapes())
