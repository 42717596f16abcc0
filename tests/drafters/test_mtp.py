"""MTP modules that are the target itself are never refused, and what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.drafters.mtp_config import MTPConfig
from jspec.testing import GREEDY, Loop, TableTarget, decode, tiny_target
from tests.drafters.eagles import SIZES, sized, weights_of
from tests.drafters.mtps import MIMO, NEXT, mtp

V, ROUNDS = 16, 250


def cycle_target():
    """Each token has one successor, all of them in one cycle."""
    order = np.random.default_rng(0).permutation(V)
    follows = np.empty(V, int)
    follows[order] = np.roll(order, -1)
    table = np.full((V, V), -9.0, np.float32)
    table[np.arange(V), follows] = 9.0
    return TableTarget(table=jnp.asarray(table)), follows


def states_alone(modules=1, **options):
    """Modules that read the state handed to them and nothing else.

    A state is a token, one-hot; the layer turns it into the token's successor, and the
    head says the successor's successor. A state one place off drafts wrong tokens.
    """
    target, follows = cycle_target()
    sizes = sized(hidden_size=V, num_heads=2, num_key_heads=1, intermediate_size=V)
    config = {"own_embedding": True, "own_head": True, "modules": modules}
    drafter = mtp(sizes, config | {"vocab_size": V}, **options).fit(target)
    weights = {n: np.zeros(s, np.float32) for n, s in drafter.weight_shapes().items()}
    step, same = np.eye(V, dtype=np.float32)[follows], np.eye(V, dtype=np.float32)
    gate, unit = 4.0, V**0.5
    for name in weights:
        if "norm" in name:
            weights[name] += 1
    for k in range(modules):
        own = f"modules.{k}."
        weights[f"{own}fc"] = np.concatenate([np.zeros_like(same), same / unit])
        weights[f"{own}layers.0.gate"] += gate / unit
        weights[f"{own}layers.0.up"] = (step - same) / unit
        weights[f"{own}layers.0.down"] = same * np.float32((1 + np.exp(-gate)) / gate)
        weights[f"{own}head"] = 3 * step
    return target, drafter, jax.tree.map(jnp.asarray, weights)


def embedding_alone(modules=1, **options):
    """A target of one layer with a window, and modules that are that layer.

    They read embeddings alone, one pair for each token but the first ones: with a
    window all see the same tokens.
    """
    target = tiny_target(num_layers=1, windows=(4,), norm_eps=1e-9)
    rows = np.asarray(target.embed[...])
    rows = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True))
    mine = {"embed": jnp.asarray(rows), "head": target.head[...]}
    layer, same = target.layers[0], np.eye(32, dtype=np.float32)
    names = ("q", "k", "v", "o", "attention_norm", "mlp_norm", "gate", "up", "down")
    parts = {f"layers.0.{name}": getattr(layer, name)[...] for name in names}
    target = type(target)(target.config, mine | parts | {"norm": target.norm[...]})
    sizes = sized(windows=(4,), norm_eps=1e-9)
    drafter = mtp(sizes, MIMO | {"modules": modules}, **options).fit(target)
    own = parts | {
        "token_norm": jnp.ones(32),
        "feature_norm": jnp.ones(32),
        "fc": jnp.asarray(np.concatenate([np.zeros_like(same), same])),
        "norm": target.norm[...],
    }
    return (
        target,
        drafter,
        {f"modules.{k}.{n}": a for k in range(modules) for n, a in own.items()},
    )


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (states_alone, {}),
        (embedding_alone, {"modules": 2}),
        pytest.param(states_alone, {"modules": 2}, marks=pytest.mark.slow),
        pytest.param(states_alone, {"modules": 3}, marks=pytest.mark.slow),
        pytest.param(embedding_alone, {}, marks=pytest.mark.slow),
        pytest.param(
            embedding_alone, {"tree_width": 3, "tree_nodes": 22}, marks=pytest.mark.slow
        ),
    ],
)
def test_r38_modules_that_are_the_target_are_accepted_every_time(make, options):
    target, drafter, weights = make(gamma=3, draft_sampling="greedy", **options)
    room = 4 * ROUNDS + 40
    loop = Loop(target, drafter, weights, rows=4, room=room)
    for row, length in enumerate((5, 7, 9, 6)):
        wish = dataclasses.replace(
            GREEDY, max_tokens=room - 20, num_speculative_tokens=row or None
        )
        loop.admit(row, list(range(1, length + 1)), wish)
    loop.round()
    for _ in range(ROUNDS):
        assert loop.round().accepted.tolist() == [3, 1, 2, 3]


def test_a_row_that_paused_drafting_goes_on_as_if_it_never_had():
    target, drafter, weights = states_alone(2, gamma=3, draft_sampling="greedy")
    loop = Loop(target, drafter, weights, rows=3, room=256)
    idle = Loop(
        target, dataclasses.replace(drafter, gamma=0), weights, rows=3, room=256
    )
    for row, prompt in enumerate([[1, 2, 3], [7, 2], list(range(9))]):
        loop.admit(row, prompt, dataclasses.replace(GREEDY, max_tokens=200))
    loop.round()
    for pause in (1, 3, 40):
        idle.state = loop.state
        for _ in range(pause):
            assert idle.round().drafted.tolist() == [0] * 3
        loop.state = idle.state
        assert loop.round().accepted.tolist() == [3] * 3


@pytest.mark.slow
def test_chains_share_a_budget_and_greedy_text_stays():
    target = tiny_target()
    drafter = mtp(gamma=3, ragged="compact", ragged_budget=1.5).fit(target)
    prompts = [[1, 2, 3], [5, 6], [9, 4, 2, 7]]
    params = dataclasses.replace(GREEDY, max_tokens=8)
    right = decode(target, METHODS["none"](), None, prompts, params)
    done = decode(target, drafter, weights_of(drafter), prompts, params)
    assert [d.tokens for d in done] == [d.tokens for d in right]
    assert sum(d.drafted[0] for d in done) <= 5


def test_several_modules_are_all_used_unless_said():
    many = mtp(config={"modules": 4}).config.to_json()
    assert METHODS["mtp"].configure(many).gamma == 4
    assert METHODS["mtp"].configure(many, gamma=2).gamma == 2
    assert METHODS["mtp"].configure(mtp().config.to_json()).gamma == 3


def test_a_configuration_comes_back_from_json():
    config = mtp(NEXT, MIMO | {"modules": 2, "unit_norms": True}).config
    assert MTPConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: mtp(gamma=-1), "gamma must be an integer of at least 0"),
        (lambda: mtp(tree_nodes=9), "tree_nodes=9 needs tree_width above 1"),
        (lambda: mtp(sink=2), "sink=2 needs window="),
        (
            lambda: mtp(config={"modules": 2}, tree_width=2),
            "tree_width=2 needs a single MTP module; with 2 modules",
        ),
        (lambda: mtp(config={"modules": 0}), "modules must be at least 1, not 0"),
        (lambda: mtp(sized(num_layers=2)), "a module has one layer, not 2"),
        (lambda: mtp(sized(rotary_dim=3)), r"rotary_dim must be even and in 2\.\.8"),
        (lambda: mtp(config={"final_norm": False}), "normed_feed needs final_norm"),
        (lambda: METHODS["mtp"].configure({"norms": 1}), "unknown .* 'norms'"),
        (lambda: METHODS["mtp"].configure({"sizes": {}}), "lacks the key"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, why):
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("config", "changes", "why"),
    [
        ({}, {"hidden_size": 40}, "'mtp' .* of hidden size 32; this one has 40"),
        ({}, {"vocab_size": 65}, "'mtp' .* of vocabulary 64; this one has 65"),
        ({"target_layers": 4}, {}, "'mtp' reads layer 4, .* has 2"),
    ],
)
def test_another_target_is_refused(config, changes, why):
    target = tiny_target(**changes)
    drafter = mtp(config=config).fit(target)
    with pytest.raises(ValueError, match=why):
        drafter.check(weights_of(drafter), target)


def test_weights_of_another_shape_are_named():
    target, drafter = tiny_target(), mtp(config={"modules": 2})
    weights = weights_of(drafter)
    weights["modules.1.fc"] = weights["modules.1.fc"][:40]
    with pytest.raises(ValueError, match=r"weight modules.1.fc has shape \(40, 32\)"):
        drafter.check(weights, target)


def test_r55_what_is_the_targets_is_not_stored_twice():
    for sizes in (SIZES, NEXT):
        names = mtp(sizes).weight_shapes()
        assert not any(name.endswith(("embed", "head")) for name in names)
