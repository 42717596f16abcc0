import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters.dflash import DFlash
from jspec.drafters.dspark import DSpark
from jspec.drafters.markov import bias
from jspec.params import SamplingParams
from jspec.sampling import Sampling, law
from jspec.testing import check_method, tiny_target
from tests.drafters import blocks

torch = pytest.importorskip("torch")

CASES = {
    "vanilla": {"markov_head": "vanilla"},
    "gated-without-anchor": {
        "markov_head": "gated",
        "confidence_head": True,
        "block": {"sample_from_anchor": False},
    },
    "rnn-own-vocabulary": {
        "markov_head": "rnn",
        "confidence_head": True,
        "confidence_with_markov": True,
        "confidence_temperatures": [1.0, 0.5, 2.0, 1.5],
        "block": {
            "block_size": 4,
            "own_head": True,
            "draft_vocab_size": 40,
            "logit_scale": 0.5,
        },
    },
}


@functools.cache
def target():
    return tiny_target()


def made(*, block=None, gamma=3, **options):
    own = {f.name for f in dataclasses.fields(DSpark)}
    fields = {name: options.pop(name) for name in list(options) if name in own}
    sizes = blocks.block_config(**{"sample_from_anchor": True} | (block or {}))
    config = {"block": sizes.to_json(), "markov_rank": 6} | options
    drafter = DSpark.configure(config, gamma=gamma, **fields)
    return drafter, blocks.random_weights(drafter.weight_shapes(), seed=1)


def torch_walk(w, config, hidden, base, tokens, heat):
    """Corrected logits and confidences of one block whose tokens are known."""
    state = torch.zeros(config.markov_rank)
    logits, sure = [], []
    for step, (h, own, before) in enumerate(zip(hidden, base, tokens, strict=False)):
        e = w["markov_head.markov_w1.weight"][before]
        low = e
        if config.markov_head == "gated":
            gate = w["markov_head.gate_proj.weight"] @ torch.cat([h, e])
            low = torch.sigmoid(gate + w["markov_head.gate_proj.bias"]) * e
        if config.markov_head == "rnn":
            joint = w["markov_head.joint_proj.weight"] @ torch.cat([state, e, h])
            g, c, o = (joint + w["markov_head.joint_proj.bias"]).chunk(3)
            state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
            low = torch.tanh(o)
        push = w["markov_head.markov_w2.weight"] @ low
        logits.append(blocks.torch_logits(w, config.block, own + push))
        if config.confidence_head:
            x = torch.cat([h, e]) if config.confidence_with_markov else h
            logit = w["confidence_head.proj.weight"] @ x
            logit = (logit + w["confidence_head.proj.bias"]) / heat[step]
            sure.append(torch.sigmoid(logit)[0])
        else:
            sure.append(logits[-1].softmax(-1).max())
    return torch.stack(logits), torch.stack(sure)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow if c == "vanilla" else ()) for c in CASES],
)
def test_the_corrected_laws_are_those_that_torch_computes(case):
    drafter, weights = made(**CASES[case])
    config, block = drafter.config, drafter.config.block
    aim = target()
    wish = SamplingParams(temperature=0.7, max_tokens=16)
    loop, view = blocks.prepared(aim, drafter, weights, params=wish)
    hot = jnp.array([0.7, 0.0, 1.3, 0.7])
    sampling = dataclasses.replace(view.sampling, temperature=hot)
    view = dataclasses.replace(view, sampling=sampling)
    anchor = loop.state.rows.anchor
    proposal, _ = jax.jit(drafter.propose)(
        weights, loop.state.memory, anchor, blocks.keys(4), view
    )
    there = blocks.torch_names(weights)
    head = there.get("lm_head.weight", torch.tensor(np.array(aim.head)).T)
    ahead = 0 if block.sample_from_anchor else 1
    heat = drafter.confidence_temperatures or [1.0] * 4
    for row, text in enumerate(blocks.TEXTS):
        taps = torch.tensor(blocks.tapped(aim, text, block.taps))[:-1]
        ids = [text[-1]] + [block.mask_token_id] * (drafter.gamma - 1 + ahead)
        embedding = torch.tensor(np.array(aim.embed))
        hidden = blocks.torch_hidden(there, block, taps, ids, embedding)[ahead:]
        tokens = np.array(proposal.tokens[row])
        logits, sure = torch_walk(
            there, config, hidden, hidden @ head.T, tokens.tolist(), heat
        )
        np.testing.assert_allclose(proposal.confidence[row, 1:], sure, atol=1e-5)
        if hot[row] == 0:
            np.testing.assert_array_equal(tokens[1:], logits.argmax(-1))
            q = torch.nn.functional.one_hot(logits.argmax(-1), 64)
        else:
            q = (logits / float(hot[row])).softmax(-1)
        np.testing.assert_allclose(proposal.q[row, 1:], q, atol=1e-5)
    assert (np.array(proposal.confidence[:, 0]) == 1).all()


@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
def test_r63_a_markov_head_of_rank_0_leaves_dflash(sampling):
    drafter, weights = made(markov_rank=0, draft_sampling=sampling)
    plain = DFlash(config=drafter.config.block, gamma=3, draft_sampling=sampling)
    assert drafter.weight_shapes() == plain.weight_shapes()
    wish = SamplingParams(temperature=0.9, max_tokens=16)
    loop, view = blocks.prepared(target(), drafter, weights, params=wish)
    args = (weights, loop.state.memory, loop.state.rows.anchor, blocks.keys(4), view)
    ours, _ = jax.jit(drafter.propose)(*args)
    right, _ = jax.jit(plain.propose)(*args)
    np.testing.assert_array_equal(ours.tokens, right.tokens)
    np.testing.assert_allclose(ours.confidence, right.confidence, atol=1e-6)
    if sampling == "probabilistic":
        np.testing.assert_allclose(ours.q, right.q, atol=1e-6)
    else:
        assert ours.q is None and right.q is None


def test_drafts_follow_the_law_that_is_reported_given_the_token_before():
    drafter, weights = made(markov_head="rnn", gamma=2)
    _, view = blocks.prepared(target(), drafter, weights, texts=[[3, 14, 15, 9]])
    b, config = 20_000, drafter.config
    hidden = jax.random.normal(jax.random.key(0), (1, 2, blocks.WIDTH))
    hot = Sampling(
        temperature=jnp.full(b, 0.6),
        top_k=jnp.full(b, 3),
        top_p=jnp.ones(b),
        min_p=jnp.zeros(b),
        seed=jnp.zeros((b, 2), jnp.uint32),
    )
    view = dataclasses.replace(view, sampling=hot)

    def many(a):
        return jnp.broadcast_to(a, (b, *a.shape[1:]))

    base = many(3 * jax.random.normal(jax.random.key(1), (1, 2, 64)))
    walk = jax.jit(drafter._walk)
    anchor = jnp.full(b, 9)
    tokens, q, _ = walk(weights, anchor, blocks.keys(b), view, many(hidden), base)
    tokens = np.array(tokens)
    for first in np.unique(tokens[:, 0]):
        chosen = tokens[:, 0] == first
        laws = np.array(q[chosen])
        assert (laws == laws[0]).all()
        share = np.bincount(tokens[chosen, 1], minlength=64) / chosen.sum()
        np.testing.assert_allclose(share, laws[0, 1], atol=4 / chosen.sum() ** 0.5)
    start = jnp.zeros((b, config.markov_rank))
    push, *_ = bias(config, weights, start, anchor, many(hidden)[:, 0])
    right = law((base[:, 0] + push)[:, None], hot)[0, 0]
    np.testing.assert_allclose(q[0, 0], right, atol=1e-6)
    assert len(np.unique(tokens[:, 0])) == 3


def test_walking_the_block_takes_no_pass():
    sizes = []
    for gamma in (1, 4):
        drafter, weights = made(markov_head="vanilla", gamma=gamma)
        loop, view = blocks.prepared(target(), drafter, weights)
        args = (
            weights,
            loop.state.memory,
            loop.state.rows.anchor,
            blocks.keys(4),
            view,
        )
        seen = jax.make_jaxpr(drafter.propose)(*args)
        sizes.append([v.shape for v in _weights_read(seen.jaxpr)])
    layer = 7 * blocks.LAYERS
    assert sizes[0] == sizes[1] and len(sizes[0]) == layer + 2


def _weights_read(jaxpr):
    """The right-hand matrix of every product of rows with a matrix."""
    for line in jaxpr.eqns:
        if line.primitive.name == "dot_general" and line.invars[1].aval.ndim == 2:
            yield line.invars[1].aval
        for value in line.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _weights_read(inner)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"markov_rank": -1}, "markov_rank must be at least 0"),
        ({"confidence_with_markov": True}, "needs a confidence head"),
        (
            {"markov_rank": 0, "confidence_head": True, "confidence_with_markov": True},
            "markov_rank above 0",
        ),
        ({"confidence_temperatures": [1.0]}, "need a confidence head"),
        (
            {"confidence_head": True, "confidence_temperatures": [1.0, 2.0]},
            "must be 5 numbers above 0",
        ),
        ({"gamma": 6}, r"lie in 0\.\.5"),
        ({"block": {"block_size": 0}}, "drafts nothing"),
        ({"speed": 2}, "unknown configuration key 'speed'"),
    ],
)
def test_r63_heads_that_do_not_go_together_are_refused(change, error):
    fields = {"markov_rank": 6} | change
    with pytest.raises(ValueError, match=error):
        made(**fields)


def test_a_wrong_head_is_named():
    drafter, weights = made(markov_head="gated")
    other, _ = made(markov_head="vanilla")
    with pytest.raises(ValueError, match=r"weight markov\.gate has shape \(38, 6\)"):
        other.check(weights, target())
    drafter.check(weights, target())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rnn", "gated"])
def test_the_four_questions(case):
    options = {
        "rnn": {"confidence_head": True, "confidence_with_markov": True},
        "gated": {"block": {"sample_from_anchor": False}, "draft_sampling": "greedy"},
    }
    drafter, weights = made(markov_head=case, confidence_threshold=0.1, **options[case])
    check_method(drafter, weights, target(), tokens=16, draws=4000)
