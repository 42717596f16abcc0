"""Medusa and the MLP speculator: arithmetic, what they accept, what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import CacheLayout, KVCache, empty_pages
from jspec.drafters.base import View
from jspec.drafters.layers import check_draft_sampling
from jspec.drafters.medusa import Medusa, MedusaConfig
from jspec.drafters.mlp_speculator import MLPSpeculator, MLPSpeculatorConfig
from jspec.rounds import Evidence, SparseLaw
from jspec.sampling import Sampling
from jspec.testing import GREEDY, Loop, check_method, tiny_target
from tests.drafters.eagles import weights_of

torch = pytest.importorskip("torch", reason="the second implementation is torch's")


def medusa(config=None, **options):
    fields = {"hidden_size": 32, "vocab_size": 64, "heads": 3} | (config or {})
    return Medusa(config=MedusaConfig(**fields), **({"gamma": 3} | options))


def speculator(config=None, **options):
    fields = {"hidden_size": 32, "vocab_size": 64, "inner_size": 24, "steps": 3}
    config = MLPSpeculatorConfig(**(fields | (config or {})))
    return MLPSpeculator(config=config, **options)


def medusa_laws(config, w, state, tokens):
    laws = []
    for h in range(len(tokens) - 1):
        x = state
        for l in range(config.blocks):
            y = x @ w[f"blocks.{h}.{l}.linear"] + w.get(f"blocks.{h}.{l}.bias", 0)
            x = x + torch.nn.functional.silu(y)
        head = w["heads.0" if config.shared_head else f"heads.{h}"]
        laws.append((config.logit_scale * (x @ head)).softmax(-1))
    return laws


def speculator_laws(config, w, state, tokens):
    def rms(x):
        return x * torch.rsqrt(x.pow(2).mean() + 1e-6)

    laws, n = [], config.steps
    weight = 0.5 ** (0.5 / n)
    other = ((1 - weight**2) * config.inner_size / 2) ** 0.5
    x = rms(state) / 2**0.5 if config.scaled_input else state
    for i in range(len(tokens) - 1):
        shared, own = (0, min(i, 1)) if config.tied else (i, i)
        e = w[f"steps.{shared}.embed"][int(tokens[i])]
        x = rms(x @ w[f"steps.{own}.project"] + other / weight * e)
        x = x * w[f"steps.{shared}.norm"] + w[f"steps.{shared}.norm_bias"]
        x = torch.nn.functional.gelu(x)
        laws.append((x @ w[f"steps.{shared}.head"]).softmax(-1))
    return laws


CASES = {
    "medusa": (medusa(), medusa_laws),
    "medusa, smaller and scaled": (
        medusa({"draft_vocab_size": 40, "logit_scale": 0.5, "block_bias": False}),
        medusa_laws,
    ),
    "medusa, one head matrix, two blocks": (
        medusa({"shared_head": True, "blocks": 2}),
        medusa_laws,
    ),
    "MLP speculator": (speculator(), speculator_laws),
    "MLP speculator, tied and scaled": (
        speculator({"tied": True, "scaled_input": True}),
        speculator_laws,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_law_of_every_draft_is_that_of_torch(case):
    drafter, reference = CASES[case]
    target = tiny_target()
    drafter = drafter.fit(target)
    weights = weights_of(drafter)
    drafter.check(weights, target)
    rng = np.random.default_rng(0)
    layout = CacheLayout(rows=2, room=16, pages=9, page_size=4)
    none = empty_pages(layout, layers=0, key_heads=1, head_dim=2, dtype=jnp.float32)
    table = rng.permutation(9)[:8].reshape(2, 4).astype(np.int32)
    length = np.array([5, 4], np.int32)
    features = rng.standard_normal((2, 6, 32)).astype(np.float32)
    evidence = Evidence(
        tokens=jnp.zeros((2, 6), jnp.int32),
        start=jnp.zeros(2, jnp.int32),
        count=jnp.asarray(length),
        anchor=jnp.array([3, 4], jnp.int32),
        features=jnp.asarray(features),
    )
    sampling = Sampling(
        temperature=jnp.ones(2),
        top_k=jnp.zeros(2, jnp.int32),
        top_p=jnp.ones(2),
        min_p=jnp.zeros(2),
        seed=jnp.zeros((2, 2), jnp.uint32),
    )
    cache = KVCache(pages=none, table=jnp.asarray(table), length=jnp.asarray(length))
    view = View(target=target, cache=cache, sampling=sampling)
    memory = drafter.observe(weights, drafter.init(weights, layout), evidence, view)
    keys = jax.random.split(jax.random.key(0), 2)
    proposal, _ = drafter.propose(weights, memory, evidence.anchor, keys, view)
    theirs = {name: torch.tensor(np.asarray(a)) for name, a in weights.items()}
    gain = torch.tensor(np.asarray(target.norm[...]))
    laws = proposal.q.probs if isinstance(proposal.q, SparseLaw) else proposal.q
    for row in range(2):
        x = torch.tensor(features[row, length[row] - 1])
        state = x * torch.rsqrt(x.pow(2).mean() + 1e-5) * gain
        right = reference(drafter.config, theirs, state, proposal.tokens[row])
        np.testing.assert_allclose(laws[row, 1:], torch.stack(right), atol=2e-6)


def cycle():
    """A target that reads its last token alone, and the step of its one cycle."""
    target = tiny_target(vocab_size=32, num_layers=1)
    order = np.random.default_rng(0).permutation(32)
    step = np.zeros((32, 32), np.float32)
    step[order, np.roll(order, -1)] = 1
    layer = target.layers[0]
    names = ("q", "k", "v", "attention_norm", "mlp_norm", "gate", "up")
    weights = {f"layers.0.{name}": getattr(layer, name)[...] for name in names}
    weights |= {"layers.0.o": jnp.zeros((32, 32)), "layers.0.down": jnp.zeros((48, 32))}
    weights |= {"embed": jnp.eye(32), "norm": jnp.ones(32), "head": jnp.asarray(step)}
    return type(target)(target.config, weights), step, order.tolist()


def ahead(**options):
    """Medusa heads that know the cycle."""
    target, step, order = cycle()
    drafter = medusa({"vocab_size": 32}, **options).fit(target)
    shapes = drafter.weight_shapes()
    weights = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    for h in range(3):
        weights[f"heads.{h}"] = np.linalg.matrix_power(step, h + 2)
    return target, drafter, jax.tree.map(jnp.asarray, weights), order


def onward(**options):
    """An MLP speculator that knows the cycle, from the token before."""
    target, step, order = cycle()
    sizes = {"vocab_size": 32, "inner_size": 32}
    drafter = speculator(sizes, **options).fit(target)
    shapes = drafter.weight_shapes()
    weights = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    for i in range(3):
        weights[f"steps.{i}.embed"] += np.eye(32, dtype=np.float32)
        weights[f"steps.{i}.norm"] += 1
        weights[f"steps.{i}.head"] += step
    return target, drafter, jax.tree.map(jnp.asarray, weights), order


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ahead, {"widths": (2, 2, 1)}),
        (ahead, {"widths": (2, 2, 1), "tree_nodes": 6}),
        (onward, {"draft_sampling": "greedy"}),
        pytest.param(ahead, {"draft_sampling": "greedy"}, marks=pytest.mark.slow),
    ],
)
def test_heads_that_know_the_text_are_accepted_every_time(make, options):
    target, drafter, weights, order = make(gamma=3, **options)
    loop = Loop(target, drafter, weights, rows=3, room=1024)
    for row in range(3):
        wish = dataclasses.replace(
            GREEDY, max_tokens=1000, num_speculative_tokens=row or None
        )
        loop.admit(row, order[row : row + 3 + 2 * row], wish)
    for _ in range(240):
        assert loop.round().accepted.tolist() == [3, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter",
    [
        medusa({"draft_vocab_size": 40}),
        speculator(),
    ],
    ids=["medusa", "MLP speculator"],
)
def test_the_four_questions(drafter):
    target = tiny_target()
    drafter = drafter.fit(target)
    check_method(drafter, weights_of(drafter), target, tokens=16, draws=4000)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: medusa(gamma=4), r"must lie in 0\.\.3, the heads there are, not 4"),
        (lambda: speculator(gamma=4), r"must lie in 0\.\.3, the steps"),
        (lambda: medusa(widths=(2,), choices=((0,),)), "give one"),
        (
            lambda: medusa(widths=(2,), draft_sampling="probabilistic"),
            "a tree is of the likeliest tokens",
        ),
        (lambda: medusa(tree_nodes=3), "tree_nodes=3 needs a tree"),
        (lambda: medusa(widths=(2,), tree_nodes=4), r"tree_nodes must lie in 1\.\.3"),
        (lambda: medusa(widths=(1, 1, 1, 1)), "a tree of depth 4 needs as many heads"),
        (lambda: medusa(confidence_threshold=3.0), r"must lie in 0\.\.1"),
        (lambda: speculator(confidence_threshold=3.0), r"must lie in 0\.\.1"),
        (lambda: Medusa.configure({"headz": 1}), "unknown configuration key 'headz'"),
        (lambda: medusa({"vocab_size": 65}).fit(tiny_target()), "of vocabulary 65"),
        (lambda: speculator({"hidden_size": 8}).fit(tiny_target()), "of hidden size 8"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, why):
    with pytest.raises(ValueError, match=why):
        drafter = make()
        drafter.check(weights_of(drafter), tiny_target())


def test_a_way_of_drafting_that_a_method_does_not_know_is_refused():
    check_draft_sampling("auto", "auto", "greedy", "probabilistic")
    with pytest.raises(ValueError, match="must be 'auto', 'greedy' or 'probabilistic'"):
        check_draft_sampling("soft", "auto", "greedy", "probabilistic")
    with pytest.raises(ValueError, match="must be 'greedy' or 'probabilistic', not "):
        check_draft_sampling("auto", "greedy", "probabilistic")
