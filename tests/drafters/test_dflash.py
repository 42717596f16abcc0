import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters.block_layers import block_pass, over_target
from jspec.drafters.dflash import DFlash
from jspec.drafters.layers import borrowed_head
from jspec.rounds import Evidence
from jspec.testing import check_method, tiny_target
from tests.drafters import blocks

torch = pytest.importorskip("torch")

CASES = {
    "full": {},
    "sliding-causal-shorter-block": {
        "gamma": 2,
        "windows": (6, None),
        "causal": (True, False),
        "sinks": True,
        "attention_bias": True,
    },
    "sliding-both-ways-from-anchor": {
        "gamma": 4,
        "windows": (3, 5),
        "sample_from_anchor": True,
        "own_embedding": True,
        "own_head": True,
        "draft_vocab_size": 40,
        "logit_cap": 2.0,
    },
    "window-on-the-context": {
        "context_window": 5,
        "mask_embedding": True,
        "embedding_scale": 1.5,
        "value_scale": 0.7,
        "logit_scale": 0.5,
        "causal": (True, True),
    },
}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def made(**options):
    own = {f.name for f in dataclasses.fields(DFlash)}
    fields = {name: options.pop(name) for name in list(options) if name in own}
    drafter = DFlash.configure(blocks.block_config(**options).to_json(), **fields)
    return drafter, blocks.random_weights(drafter.weight_shapes())


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow if c == "full" else ()) for c in CASES],
)
def test_the_block_is_the_one_that_torch_computes(target, case):
    drafter, weights = made(**CASES[case])
    config = drafter.config
    loop, view = blocks.prepared(target, drafter, weights)

    @jax.jit
    def ours(weights, memory, anchor, view):
        hidden = block_pass(
            config,
            weights,
            memory,
            anchor,
            view,
            gamma=drafter.gamma,
            reach=drafter.context_window,
        )
        base = borrowed_head(weights, view.target, hidden)
        return hidden, over_target(config, weights, base, 64)

    anchor = loop.state.rows.anchor
    hidden, logits = ours(weights, loop.state.memory, anchor, view)
    there = blocks.torch_names(weights)
    embedding = there.get("embed_tokens.weight", torch.tensor(np.array(target.embed)))
    head = there.get("lm_head.weight", torch.tensor(np.array(target.head)).T)
    ahead = 0 if config.sample_from_anchor else 1
    for row, text in enumerate(blocks.TEXTS):
        taps = torch.tensor(blocks.tapped(target, text, config.taps))[:-1]
        ids = [text[-1]] + [config.mask_token_id] * (drafter.gamma - 1 + ahead)
        right = blocks.torch_hidden(
            there, config, taps, ids, embedding, reach=drafter.context_window
        )[ahead:]
        np.testing.assert_allclose(hidden[row], right, atol=2e-5)
        right = blocks.torch_logits(there, config, right @ head.T)
        np.testing.assert_allclose(logits[row], right, atol=2e-5)


def test_context_stands_at_committed_positions_and_nowhere_else(target):
    drafter, weights = made()
    loop, _ = blocks.prepared(target, drafter, weights)
    for _ in range(2):
        loop.round()
    rows, pages = loop.state.rows, loop.state.memory.pages
    none, size = pages.text.shape
    held = np.zeros((none, size), bool)
    for table, length in zip(np.array(rows.table), np.array(rows.length), strict=True):
        for slot in range(length):
            held[table[slot // size], slot % size] = True
    for a in (*pages.k, *pages.v):
        written = ~np.isnan(np.array(a)).any((1, 3))
        np.testing.assert_array_equal(written, held)


def products(jaxpr):
    """Shapes of every matrix product, those in inner programs included."""
    found = []
    for line in jaxpr.eqns:
        if line.primitive.name == "dot_general":
            found.append(tuple(v.aval.shape for v in line.invars))
        for value in line.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += products(inner)
    return found


def test_observing_is_three_projections_and_no_pass(target):
    drafter, weights = made()
    loop, view = blocks.prepared(target, drafter, weights)
    b, n = len(blocks.TEXTS), drafter.gamma + 1
    evidence = Evidence(
        tokens=jnp.zeros((b, n), jnp.int32),
        start=view.cache.length,
        count=jnp.ones(b, jnp.int32),
        anchor=loop.state.rows.anchor,
        features=jnp.zeros((b, n, 2 * blocks.WIDTH)),
        accepted=jnp.zeros(b, jnp.int32),
    )
    seen = jax.make_jaxpr(drafter.observe)(weights, loop.state.memory, evidence, view)
    right = [weights["fc"].shape]
    right += [weights[f"layers.{l}.{name}"].shape for l in (0, 1) for name in "kv"]
    assert [shapes[1] for shapes in products(seen.jaxpr)] == right


def test_drafting_is_one_pass_whatever_the_block_holds(target):
    counted = []
    for gamma in (1, 4):
        drafter, weights = made(gamma=gamma)
        loop, view = blocks.prepared(target, drafter, weights)
        args = (
            weights,
            loop.state.memory,
            loop.state.rows.anchor,
            blocks.keys(4),
            view,
        )
        counted.append(len(products(jax.make_jaxpr(drafter.propose)(*args).jaxpr)))
    # Per layer: seven matrices, and scores and values of the block and the context.
    assert counted == [2 * (7 + 4) + 1] * 2


def test_embedding_and_head_are_the_targets_own_arrays(target):
    drafter, weights = made()
    assert not {"embed", "head"} & weights.keys()
    loop, view = blocks.prepared(target, drafter, weights)
    args = (weights, loop.state.memory, loop.state.rows.anchor, blocks.keys(4), view)
    seen = jax.make_jaxpr(drafter.propose)(*args)
    assert not any(np.size(constant) >= 64 * 32 for constant in seen.consts)
    used = {id(v) for line in seen.jaxpr.eqns for v in line.invars}
    flat = zip(seen.jaxpr.invars, jax.tree.leaves(args), strict=True)
    read = {id(array) for v, array in flat if id(v) in used}
    lent = read & {id(array) for array in jax.tree.leaves(target)}
    assert lent == {id(target.embed[...]), id(target.head[...])}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"taps": (0, 3)}, "taps layers"),
        ({"hidden_size": 16}, "16 wide and lacks"),
        ({"vocab_size": 70}, "vocabulary 70; this one has 64"),
        ({"mask_token_id": 64}, "mask_token_id 64 is no row"),
    ],
)
def test_a_drafter_for_another_target_is_refused(target, change, error):
    drafter, weights = made(**change)
    with pytest.raises(ValueError, match=error):
        drafter.check(weights, target)


def test_ids_that_are_no_ids_are_refused(target):
    drafter, weights = made(own_head=True, draft_vocab_size=40)
    offsets = weights["ids"] - jnp.arange(40)
    with pytest.raises(ValueError, match="its d2t holds no offsets"):
        drafter.check(weights | {"ids": offsets}, target)


def test_a_missing_and_a_left_over_weight_are_named(target):
    drafter, weights = made()
    less = {name: value for name, value in weights.items() if name != "layers.1.up"}
    with pytest.raises(ValueError, match=r"weight layers\.1\.up has shape None"):
        drafter.check(less, target)
    with pytest.raises(ValueError, match="weight mask_embedding has shape"):
        drafter.check(weights | {"mask_embedding": jnp.zeros(32)}, target)
    with pytest.raises(ValueError, match="needs drafter="):
        drafter.check(None, target)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"gamma": 5}, r"lie in 0\.\.4"),
        ({"context_window": 0}, "context_window must be"),
        ({"confidence_threshold": 1.5}, "confidence_threshold must lie"),
    ],
)
def test_options_that_cannot_be_are_refused(options, error):
    with pytest.raises(ValueError, match=error):
        made(**options)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"speed": 1}, "unknown configuration key 'speed'"),
        ({"rope": {"base": 1}}, "unknown configuration key 'base'"),
        ({"taps": []}, "taps must name"),
        ({"block_size": 1}, "drafts nothing"),
        ({"windows": [4]}, "windows names 1 layers"),
        ({"draft_vocab_size": 8}, "needs a head of its own"),
        ({"num_key_heads": 3}, "cannot attend"),
    ],
)
def test_configurations_that_cannot_be_are_refused(change, error):
    with pytest.raises(ValueError, match=error):
        DFlash.configure(blocks.block_config().to_json() | change)


def test_a_configuration_without_a_needed_key_is_refused():
    fields = blocks.block_config().to_json()
    del fields["block_size"]
    with pytest.raises(ValueError, match="lacks the key 'block_size'"):
        DFlash.configure(fields)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
def test_the_four_questions(target, sampling):
    drafter, weights = made(
        windows=(None, 5),
        causal=(False, True),
        gamma=3,
        draft_sampling=sampling,
        confidence_threshold=0.01,
    )
    check_method(drafter, weights, target, tokens=16, draws=4000)
