"""Features handed to a drafter are the target's states at the committed positions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.drafters.base import Memory
from jspec.testing import GREEDY, Loop, Scripted, decode, script, tiny_target
from tests.drafters.eagles import eagle

TAPS = (0, 2, 3)
PROMPTS = ([1, 2, 3, 4, 5], [6], [7, 8, 9, 10, 11, 12, 13, 14, 15, 16])


def identity_target():
    """A target whose layer `i` adds `i + 1` to what it reads, and whose head varies."""
    target = tiny_target(num_layers=3, mlp_bias=True)
    weights = {}
    for l, layer in enumerate(target.layers):
        for name in (
            *("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"),
            *("gate_bias", "up_bias", "down_bias"),
        ):
            weights[f"layers.{l}.{name}"] = getattr(layer, name)[...]
        weights[f"layers.{l}.o"] *= 0
        weights[f"layers.{l}.down"] *= 0
        weights[f"layers.{l}.down_bias"] = jnp.full(32, l + 1.0)
    lent = {name: getattr(target, name)[...] for name in ("embed", "norm", "head")}
    return type(target)(target.config, weights | lent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spy(Scripted):
    """Offers what a script says, and keeps every feature in its token's slot."""

    feature_layers = TAPS

    def init(self, weights, layout):
        shape = (layout.pages, layout.page_size, 32 * len(TAPS))
        return dataclasses.replace(
            super().init(weights, layout), pages=jnp.zeros(shape)
        )

    def observe(self, weights, memory, evidence, view):
        steps = jnp.arange(evidence.tokens.shape[1])[None]
        slot = evidence.start[:, None] + steps
        none, size = memory.pages.shape[:2]
        page = jnp.take_along_axis(view.cache.table, slot // size, axis=1, mode="clip")
        page = jnp.where(steps < evidence.count[:, None], page, none)
        pages = memory.pages.at[page, slot % size].set(evidence.features, mode="drop")
        return Memory(rows=memory.rows, pages=pages)


@pytest.mark.parametrize("parents", [None, (0, 0, 1, 1, 2, 3)])
def test_r57_features_are_the_named_states_of_the_committed_tokens(parents):
    target = identity_target()
    params = dataclasses.replace(GREEDY, max_tokens=24)
    plain = decode(target, METHODS["none"](), None, PROMPTS, params)
    texts = [[*p, *d.tokens] for p, d in zip(PROMPTS, plain, strict=True)]
    right = np.asarray(script(texts, gamma=3))
    depth = [1, 2, 3] if parents is None else [1, 1, 2, 2, 2, 3]
    lines = right[:, :, np.array(depth) - 1]
    wrong = np.random.default_rng(0).random(lines.shape) < 0.4
    lines = np.where(wrong & (lines >= 0), (lines + 1) % 64, lines)
    drafter = Spy(gamma=3, parents=parents)
    loop = Loop(target, drafter, jnp.asarray(lines), rows=3, room=48)
    for row, prompt in enumerate(PROMPTS):
        loop.admit(row, prompt, params)
    counts = np.stack([loop.round().accepted for _ in range(6)])
    assert any(len(set(rows)) > 1 for rows in counts.tolist())
    rows, pages = loop.state.rows, np.asarray(loop.state.memory.pages)
    for row, text in enumerate(texts):
        count = int(rows.length[row])
        table = np.asarray(rows.table[row])
        kept = pages[table[table < len(pages)]].reshape(-1, 32 * len(TAPS))[:count]
        embedded = np.asarray(target.embed[...])[text[:count]]
        states = [embedded + added for added in (0, 1 + 2, 1 + 2 + 3)]
        np.testing.assert_allclose(kept, np.concatenate(states, axis=1), atol=1e-5)


def test_eagle_reads_the_last_state_whatever_the_targets_depth():
    for layers in (1, 3):
        assert eagle().fit(tiny_target(num_layers=layers)).feature_layers == (layers,)
