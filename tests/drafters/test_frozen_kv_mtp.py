"""Gemma 4 assistants: their arithmetic, whose keys they read, what they refuse."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.drafters import METHODS
from jspec.drafters.base import View
from jspec.drafters.frozen_kv_mtp import FrozenKVMTP
from jspec.rounds import Evidence, SparseLaw
from jspec.sampling import Sampling
from jspec.testing import GREEDY, Loop, decode, tiny_config
from tests.drafters.assistants import (
    CONFIG,
    MARKERS,
    ORDERED,
    assistant,
    converted,
    knowing_pair,
    random_pair,
    target_config,
)

torch = pytest.importorskip("torch", reason="the second implementation is torch's")

LAYOUT = CacheLayout(rows=2, room=32, pages=17, page_size=4)
KINDS = ("sliding", "full", "sliding", "sliding", "full", "sliding")
"""Of a made-up target's layers; the last two read what layers 3 and 1 store."""


class Config(SimpleNamespace):
    family = "gemma4"
    vocab_size = tokens = 64
    hidden_size = 32
    num_layers = len(KINDS)
    cache_heads = ((2, 16), (1, 32), (2, 16), (2, 16))

    def layer_kind(self, layer):
        return KINDS[layer]

    def cache_layer(self, layer):
        return {4: 1, 5: 3}.get(layer, layer)


class MadeUp:
    """A target without layers, whose keys and values are given."""

    def __init__(self, seed=0, **changes):
        rng = np.random.default_rng(seed)
        self.config = Config(**changes)
        self.table = jnp.asarray(rng.standard_normal((64, 32)), jnp.float32)

    def embed_tokens(self, tokens):
        return self.table[tokens]

    def normed(self, x):
        return 2 * x


def filled(lengths, seed=0):
    """Pages in which every committed slot holds numbers, and no other one does."""
    rng = np.random.default_rng(seed)
    table = rng.permutation(17)[:16].reshape(2, 8).astype(np.int32)
    pages = layer_pages(LAYOUT, Config.cache_heads, jnp.float32)
    texts = []

    def write(empty, kind):
        a = np.full(empty.shape, np.nan, np.float32)
        for row, length in enumerate(lengths):
            new = rng.standard_normal((length, a.shape[1], a.shape[3]))
            for slot in range(length):
                a[table[row, slot // 4], :, slot % 4] = new[slot]
            texts[row].setdefault(kind, []).append(new.astype(np.float32))
        return jnp.asarray(a)

    texts += [{} for _ in lengths]
    pages = dataclasses.replace(
        pages,
        k=tuple(write(a, "k") for a in pages.k),
        v=tuple(write(a, "v") for a in pages.v),
    )
    length = jnp.asarray(lengths, jnp.int32)
    return KVCache(pages=pages, table=jnp.asarray(table), length=length), texts


def view_of(target, cache, temperature=1.0):
    sampling = Sampling(
        temperature=jnp.full(2, temperature),
        top_k=jnp.zeros(2, jnp.int32),
        top_p=jnp.ones(2),
        min_p=jnp.zeros(2),
        seed=jnp.zeros((2, 2), jnp.uint32),
    )
    return View(target=target, cache=cache, sampling=sampling)


def observed(drafter, weights, view, seed=1):
    features = np.random.default_rng(seed).standard_normal((2, 16, 32))
    evidence = Evidence(
        tokens=jnp.zeros((2, 16), jnp.int32),
        start=view.cache.length - 2,
        count=jnp.full(2, 2),
        anchor=jnp.array([3, 4], jnp.int32),
        features=jnp.asarray(features, jnp.float32),
    )
    memory = drafter.observe(weights, drafter.init(weights, LAYOUT), evidence, view)
    return memory, evidence.anchor, features[:, 1]


def laws_of_torch(model, target, text, state, tokens, place, window):
    """transformers' own forward, on the keys and values that a draft may see."""

    def cut(stored, reach=None):
        pair = (text["k"][stored], text["v"][stored])
        return tuple(
            torch.tensor(a[-reach if reach else 0 :].transpose(1, 0, 2)[None])
            for a in pair
        )

    shared = {
        "full_attention": cut(1),
        "sliding_attention": cut(3, window - 1),
    }
    hidden, laws = torch.tensor(2 * state, dtype=torch.float32)[None, None], []
    for token in tokens[:-1]:
        seen = torch.tensor(np.asarray(target.table[int(token)]))[None, None]
        with torch.no_grad():
            out = model(
                inputs_embeds=torch.cat([seen, hidden], dim=-1),
                position_ids=torch.tensor([[place]]),
                shared_kv_states=shared,
            )
        hidden, logits = out.last_hidden_state, out.logits[0, 0]
        if model.config.use_ordered_embeddings:
            logits[logits == logits.min()] = -torch.inf
        laws.append(logits.softmax(-1))
    return torch.stack(laws).numpy()


def dense(q):
    if not isinstance(q, SparseLaw):
        return np.asarray(q)
    b, n, _ = q.ids.shape
    whole = np.zeros((b, n, 64), np.float32)
    at = np.arange(b)[:, None, None], np.arange(n)[None, :, None], np.asarray(q.ids)
    np.add.at(whole, at, np.asarray(q.probs))
    return whole


CASES = {"one table": ({}, 0), "centroids, one place back": (ORDERED, -1)}


@pytest.mark.parametrize("case", CASES)
def test_r62_laws_are_those_of_transformers_on_the_last_stored_layer_of_each_type(case):
    ordered, offset = CASES[case]
    model = assistant(**ordered)
    drafter, weights = converted(model, gamma=3, position_offset=offset)
    target = MadeUp()
    drafter.check(weights, target)
    cache, texts = filled((21, 5))
    view = view_of(target, cache)
    memory, anchor, states = observed(drafter, weights, view)
    keys = jax.random.split(jax.random.key(0), 2)
    proposal, after = drafter.propose(weights, memory, anchor, keys, view)
    laws = dense(proposal.q)
    assert after is memory
    for row, length in enumerate((21, 5)):
        right = laws_of_torch(
            model,
            target,
            texts[row],
            states[row],
            proposal.tokens[row],
            place=length + offset,
            window=8,
        )
        np.testing.assert_allclose(laws[row, 1:], right, atol=2e-5)


PROMPTS = [[MARKERS[0], 1], [MARKERS[1], *range(20)], [MARKERS[2], 7, 9], [MARKERS[3]]]


def test_r62_a_copy_of_the_targets_last_layers_accepts_as_built_for_200_rounds():
    drafter, _, target = knowing_pair(gamma=2)
    wish = dataclasses.replace(GREEDY, max_tokens=620)
    options = {"room": 656, "page_size": 16, "chunk": 32}
    plain = decode(target, METHODS["none"](), None, PROMPTS, wish, **options)
    texts = [[*p, *d.tokens] for p, d in zip(PROMPTS, plain, strict=True)]
    unknown = sorted({text[-3] for text in texts})
    drafter, weights, target = knowing_pair(unknown, gamma=2, draft_sampling="greedy")
    loop = Loop(target, drafter, weights, rows=4, **options)
    for row, prompt in enumerate(PROMPTS):
        loop.admit(row, prompt, wish)
    place, counts = [len(prompt) - 1 for prompt in PROMPTS], []
    for _ in range(200):
        emission = loop.round()
        right = []
        for row, text in enumerate(texts):
            known = [t not in unknown for t in text[place[row] + 1 :][:2]]
            right.append([*known, False].index(False) if place[row] else 0)
            place[row] += right[row] + 1
        np.testing.assert_array_equal(emission.accepted, right)
        counts.append(right)
    assert set(np.ravel(counts)) == {0, 1, 2}
    assert len({tuple(right) for right in counts}) > 8


def test_n27_no_keys_are_kept_and_what_that_spares_is_counted_from_the_targets():
    drafter, weights, target = random_pair(gamma=3)
    layout = CacheLayout(rows=2, room=64, pages=9, page_size=16)
    memory = drafter.init(weights, layout)
    assert [a.shape for a in jax.tree.leaves(memory)] == [(9, 32)]
    pages = layer_pages(layout, target.config.cache_heads, jnp.float32)
    own = layer_pages(layout, ((2, 16), (1, 32)), jnp.float32)
    assert drafter.spared(pages, target) == own.bytes_per_token == 4 * 2 * (32 + 32)


def test_at_k_0_nothing_runs_but_the_stash_of_the_newest_state():
    drafter, weights, target = random_pair(gamma=0)
    cache, _ = filled((21, 5))
    view = view_of(target, cache)

    def both(weights, memory):
        keys = jax.random.split(jax.random.key(0), 2)
        return drafter.propose(weights, memory, jnp.zeros(2, jnp.int32), keys, view)[0]

    memory = drafter.init(weights, LAYOUT)
    traced = jax.make_jaxpr(both)(weights, memory)
    assert "dot_general" not in str(traced)
    assert both(weights, memory).tokens.shape == (2, 1)
    evidence = Evidence(
        tokens=jnp.zeros((2, 4), jnp.int32),
        start=cache.length - 4,
        count=jnp.full(2, 4),
        anchor=jnp.zeros(2, jnp.int32),
        features=jnp.ones((2, 4, 32)),
    )
    kept = jax.make_jaxpr(
        lambda weights: drafter.observe(weights, memory, evidence, view)
    )(weights)
    read = {v for e in kept.eqns for v in e.invars if not hasattr(v, "val")}
    assert read.isdisjoint(kept.jaxpr.invars)


def wider(kind, width):
    layer = dataclasses.replace(target_config().keys(kind), head_dim=width)
    return target_config(**{kind: layer})


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (tiny_config(), "of the family 'gemma4'; this one is of 'llama'"),
        (target_config(family="gemma3"), "this one is of 'gemma3'"),
        (
            target_config(kinds=("full", "full"), shared_layers=1),
            "reads the target's sliding layers; this target has none",
        ),
        (wider("full", 64), "in full layers, which 1 key heads of width 64"),
        (wider("sliding", 32), "in sliding layers, which 2 key heads of width 32"),
        (target_config(hidden_size=16), "a target of hidden size 32; this one has 16"),
        (target_config(vocab_size=80), "a target of vocabulary 64; this one has 80"),
    ],
)
def test_a_target_without_the_keys_it_reads_is_refused_at_start(config, why):
    drafter, weights, _ = random_pair()
    with pytest.raises(ValueError, match=why):
        drafter.check(weights, SimpleNamespace(config=config))


def test_heads_that_do_not_divide_are_refused_at_start():
    drafter, weights, target = random_pair(changes={"num_heads": 3})
    with pytest.raises(ValueError, match="3 heads of width 16 in sliding layers, whi"):
        drafter.check(weights, target)


def test_weights_that_are_not_its_own_are_named():
    drafter, weights, target = random_pair()
    with pytest.raises(ValueError, match="needs drafter="):
        drafter.check(None, target)
    with pytest.raises(ValueError, match=r"the weight layers.0.k has shape"):
        drafter.check(weights | {"layers.0.k": jnp.zeros((32, 32))}, target)
    del weights["post_projection"]
    with pytest.raises(ValueError, match="the weight post_projection has shape None"):
        drafter.check(weights, target)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gamma": -1}, "num_speculative_tokens must be at least 0"),
        ({"position_offset": 1}, "position_offset must be 0"),
        ({"confidence_threshold": 2}, "confidence_threshold must lie in 0..1"),
        ({"tree_width": 2}, "tree_width"),
    ],
)
def test_options_it_does_not_have_are_refused(options, why):
    with pytest.raises((ValueError, TypeError), match=why):
        FrozenKVMTP(config=CONFIG, **options)
