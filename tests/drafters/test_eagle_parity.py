"""EAGLE's and EAGLE-3's passes agree with a plain torch implementation."""

import dataclasses

import numpy as np
import pytest

from jspec.models.base import Rope
from jspec.rounds import SparseLaw
from jspec.testing import tiny_target
from tests.drafters.eagles import eagle, eagle3, multi_eagle, sized, weights_of
from tests.drafters.laws import angles, norm, proposed, turn

torch = pytest.importorskip("torch", reason="the second implementation is torch's")
F = torch.nn.functional

LLAMA3 = Rope(
    kind="llama3",
    theta=500.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position=8,
)
TWO = sized(num_layers=2)
CASES = {
    "eagle": eagle(),
    "eagle without bias, its own embedding and head": eagle(
        config={"fc_bias": False, "own_embedding": True, "own_head": True}
    ),
    "eagle of two layers, with biases": eagle(sized(num_layers=2, attention_bias=True)),
    "eagle, window in the config": eagle(sized(windows=(3,))),
    "eagle, window and sink as options": eagle(window=3, sink=2),
    "eagle3": eagle3(config={"draft_vocab_size": 40}),
    "eagle3, the whole vocabulary": eagle3(),
    "eagle3, each tap normed": eagle3(config={"tap_norms": True}),
    "eagle3, all taps normed": eagle3(config={"fuse_norm": True}),
    "eagle3, normed residual": eagle3(config={"normed_residual": True}),
    "eagle3, normed feed": eagle3(config={"normed_feed": True}),
    "eagle3, no final norm": eagle3(config={"final_norm": False}),
    "eagle3, tied": eagle3(
        config={"own_embedding": True, "own_head": False, "tied_head": True}
    ),
    "eagle3, borrowed head": eagle3(config={"own_head": False}),
    "eagle3, two layers of Qwen3": eagle3(
        dataclasses.replace(TWO, qk_norm=True, attention_bias=True, output_bias=True)
    ),
    "eagle3, wide heads, llama3 rope, mlp biases": eagle3(
        sized(head_dim=16, num_key_heads=1, rope=LLAMA3, mlp_bias=True)
    ),
    "multi_eagle": multi_eagle(),
    "eagle3, another width": eagle3(
        sized(hidden_size=24, num_heads=2),
        {"own_embedding": True, "draft_vocab_size": 40},
    ),
}
QUICK = ("eagle, window and sink as options", "eagle3", "multi_eagle")


def layer(sizes, w, l, read, residual, sink, window):
    def lin(x, name):
        y = x @ w[f"layers.{l}.{name}"]
        bias = w.get(f"layers.{l}.{name}_bias")
        return y if bias is None else y + bias

    n, d = len(read), sizes.head_dim
    q, k, v = (lin(read, name).view(n, -1, d) for name in "qkv")
    if sizes.qk_norm:
        q = norm(q, w[f"layers.{l}.q_norm"])
        k = norm(k, w[f"layers.{l}.k_norm"])
    a = angles(sizes.rope, d, torch.arange(n))
    group = sizes.num_heads // sizes.num_key_heads
    q, k = turn(q, a), turn(k, a).repeat_interleave(group, 1)
    v = v.repeat_interleave(group, 1)
    back = torch.arange(n)[:, None] - torch.arange(n)[None]
    seen = back >= 0
    if window is not None:
        seen &= (back < window) | (torch.arange(n) < sink)[None]
    scores = torch.einsum("qhd,khd->hqk", q, k) * d**-0.5
    scores = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    h = residual + lin(torch.einsum("hqk,khd->qhd", scores, v).reshape(n, -1), "o")
    y = norm(h, w[f"layers.{l}.mlp_norm"])
    return h + lin(F.silu(lin(y, "gate")) * lin(y, "up"), "down")


def hidden(drafter, w, target, features, tokens):
    """States of all pairs of one text; features are those of the pairs."""
    sizes, three = drafter.config.sizes, hasattr(drafter.config, "taps")
    table = w.get("embed", target["embed"])
    e = table[tokens]

    def window(l):
        return drafter.window or (sizes.windows[l] if sizes.windows else None)

    if not three:
        x = torch.cat([e, features], -1) @ w["fc"]
        x = x + w["fc_bias"] if "fc_bias" in w else x
        read = residual = x
    else:
        read = torch.cat(
            [
                norm(e, w["layers.0.attention_norm"]),
                norm(features, w["layers.0.feature_norm"]),
            ],
            -1,
        )
        residual = features
        if drafter.config.normed_residual:
            residual = norm(features, w["layers.0.feature_norm"])
    x = layer(sizes, w, 0, read, residual, drafter.sink, window(0))
    for l in range(1, sizes.num_layers):
        y = norm(x, w[f"layers.{l}.attention_norm"])
        x = layer(sizes, w, l, y, x, drafter.sink, window(l))
    return x


def fused(drafter, w, target, taps):
    config = drafter.config
    if not hasattr(config, "taps"):
        return norm(taps, target["norm"])
    if config.tap_norms:
        parts = [norm(x, w[f"tap_norms.{i}"]) for i, x in enumerate(taps.chunk(3, -1))]
        taps = torch.cat(parts, -1)
    if config.fuse_norm:
        taps = norm(taps, w["fuse_norm"])
    return taps @ w["fc"]


def drafted_laws(drafter, w, target, taps, tokens, drafts):
    """The law of each draft of one text, the drafts before it given."""
    config = drafter.config
    if hasattr(config, "modules"):
        return module_laws(drafter, w, target, taps, tokens, drafts)
    features = fused(drafter, w, target, taps)
    tokens, laws = list(tokens), []
    for draft in drafts:
        h = hidden(drafter, w, target, features, torch.tensor(tokens))[-1:]
        out = norm(h, w["norm"]) if "norm" in w else h
        if "head" in w:
            logits = out @ w["head"]
        elif getattr(config, "tied_head", False):
            logits = out @ w["embed"].T
        else:
            logits = out @ target["head"]
        laws.append(logits[0].softmax(-1).numpy())
        fed = out if getattr(config, "normed_feed", False) else h
        features, tokens = torch.cat([features, fed]), [*tokens, int(draft)]
    return laws


def module_laws(drafter, w, target, taps, tokens, drafts):
    """As `drafted_laws`; module `s` reads what the one before made of each token."""
    states, tokens, laws = norm(taps, target["norm"]), list(tokens), []
    for step, draft in enumerate(drafts):
        prefix = f"modules.{step}."
        own = {n.removeprefix(prefix): a for n, a in w.items() if n.startswith(prefix)}
        pair = torch.cat([target["embed"][torch.tensor(tokens[step:])], states], -1)
        x = pair @ own["fc"] + own["fc_bias"]
        states = layer(drafter.config.head.sizes, own, 0, x, x, 0, None)
        laws.append((states[-1] @ target["head"]).softmax(-1).numpy())
        tokens.append(int(draft))
    return laws


@pytest.mark.parametrize(
    "case",
    [
        case if case in QUICK else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_the_law_of_every_draft_is_that_of_torch(case):
    target = tiny_target()
    drafter = dataclasses.replace(CASES[case].fit(target), gamma=3)
    weights = weights_of(drafter)
    drafter.check(weights, target)
    proposal, law_after = proposed(drafter, weights, target, drafted_laws)
    q = proposal.q
    laws = q.probs if isinstance(q, SparseLaw) else q
    for row in range(2):
        drafts = np.asarray(proposal.tokens[row, 1:])
        right = law_after(row, drafts)
        np.testing.assert_allclose(laws[row, 1:], right, atol=2e-6)
        if isinstance(q, SparseLaw):
            assert set(drafts) <= set(np.asarray(weights["ids"]))


@pytest.mark.parametrize(
    "drafter",
    [
        eagle3(config={"draft_vocab_size": 40}),
        pytest.param(eagle(window=3, sink=1), marks=pytest.mark.slow),
    ],
    ids=["eagle3", "eagle, window and sink"],
)
def test_every_node_of_a_tree_is_among_the_likeliest_after_its_path(drafter):
    target = tiny_target()
    drafter = dataclasses.replace(
        drafter.fit(target), gamma=4, tree_width=3, tree_nodes=31
    )
    weights = weights_of(drafter)
    proposal, law_after = proposed(drafter, weights, target, drafted_laws)
    assert proposal.q is None
    ids = np.asarray(weights["ids"]) if "ids" in weights else np.arange(64)
    for row in range(2):
        tokens, parent = np.asarray(proposal.tokens[row]), np.asarray(proposal.parent)
        depths = []
        for node in range(1, len(tokens)):
            path, above = [], parent[row, node]
            while above > 0:
                path.insert(0, tokens[above])
                above = parent[row, above]
            best = np.argsort(law_after(row, [*path, 0])[-1])[-3:]
            assert tokens[node] in ids[best]
            depths.append(len(path) + 1)
        assert set(depths) == {1, 2, 3, 4}
