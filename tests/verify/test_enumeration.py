"""Complete enumerations in float64: the law of what is emitted is the target's."""

import itertools

import numpy as np
import pytest

from tests.verify.laws import (
    Model,
    depths,
    emitted_law,
    mean_accepted,
    random_model,
    target_law,
)

CHAIN = (-1, 0, 1, 2)
TREES = {
    "chain": CHAIN,
    "siblings": (-1, 0, 0, 0),
    "two levels": (-1, 0, 0, 1, 2),
    "depth 3": (-1, 0, 0, 1, 1, 3),
}
KINDS = ("certain", "with replacement", "without replacement")
FORMS = ("dense", "sparse")


def worst(model, parent, rule, kind, **options):
    law = emitted_law(model, parent, rule, kind, **options)
    return np.abs(law - target_law(model, max(depths(parent)))).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("parent", TREES.values(), ids=TREES)
def test_standard_keeps_the_law_on_every_tree(parent, kind, form):
    model = random_model(0, 3, candidates=2 if form == "sparse" else None)
    assert worst(model, parent, "standard", kind, form=form) < 1e-10


@pytest.mark.parametrize("rule", ["standard", "target only"])
@pytest.mark.parametrize("parent", TREES.values(), ids=TREES)
def test_certain_drafts_keep_the_law_whatever_they_are(parent, rule):
    model = random_model(1, 3)
    for rest in [(0, 1, 2, 1, 0), (2, 2, 2, 2, 2), (1, 0, 0, 1, 2)]:
        tokens = (0, *rest[: len(parent) - 1])
        assert worst(model, parent, rule, "certain", tokens=tokens) < 1e-10


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("parent", TREES.values(), ids=TREES)
def test_target_only_keeps_the_law_whatever_the_draft_drew_from(parent, kind):
    assert worst(random_model(2, 3), parent, "target only", kind) < 1e-10


@pytest.mark.parametrize("rule", ["standard, vectorised", "block"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_rules_of_chains_keep_the_law(rule, form, gamma):
    model = random_model(3, 3, candidates=2 if form == "sparse" else None)
    parent = CHAIN[: gamma + 1]
    assert worst(model, parent, rule, "with replacement", form=form) < 1e-10
    for tokens in itertools.product(range(3), repeat=gamma):
        assert worst(model, parent, rule, "certain", tokens=(0, *tokens)) < 1e-10


@pytest.mark.parametrize("rule", ["standard", "standard, vectorised", "block"])
@pytest.mark.parametrize("kind", ["certain", "with replacement"])
def test_laws_that_are_points_or_have_holes_are_kept_as_well(rule, kind):
    model = random_model(4, 3)
    p, q = model.p.copy(), model.q.copy()
    p[1] = np.eye(3)[[1, 2, 0]]
    p[2, :, 0] = 0
    q[2, :, 1] = 0
    q[1, 0] = p[1, 0]
    p, q = (law / law.sum(-1, keepdims=True) for law in (p, q))
    options = {"tokens": (0, 1, 2, 2)} if kind == "certain" else {}
    assert worst(Model(p=p, q=q), CHAIN, rule, kind, **options) < 1e-10


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_logits_that_lie_80_apart_keep_the_law(rule):
    rng = np.random.default_rng(5)

    def table():
        logits = rng.choice([0.0, -40.0, -80.0], (4, 3, 3))
        law = np.exp(logits - logits.max(-1, keepdims=True))
        return law / law.sum(-1, keepdims=True)

    model = Model(p=table(), q=table())
    assert worst(model, CHAIN, rule, "with replacement") < 1e-10


@pytest.mark.parametrize("rule", ["standard", "standard, vectorised", "block"])
def test_a_law_that_is_not_the_one_drawn_from_is_found_out(rule):
    truth = random_model(6, 3)
    cold = truth.q**2 / (truth.q**2).sum(-1, keepdims=True)
    lie = Model(p=truth.p, q=truth.q, told=cold)
    assert worst(lie, CHAIN, rule, "with replacement") > 1e-3


def test_block_keeps_11_ninths_where_standard_keeps_10_ninths():
    p = np.broadcast_to([1 / 3, 2 / 3], (4, 2, 2))
    q = np.broadcast_to([2 / 3, 1 / 3], (4, 2, 2))
    model = Model(p=p, q=q)
    of_rule = {
        rule: mean_accepted(model, CHAIN[:3], rule, "with replacement")
        for rule in ("standard", "standard, vectorised", "block")
    }
    assert of_rule["standard"] == pytest.approx(10 / 9, abs=1e-12)
    assert of_rule["standard, vectorised"] == pytest.approx(10 / 9, abs=1e-12)
    assert of_rule["block"] == pytest.approx(11 / 9, abs=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_block_keeps_no_fewer_than_standard(form):
    gains = []
    for seed in range(30):
        model = random_model(seed, 3, candidates=2 if form == "sparse" else None)
        block, standard = (
            mean_accepted(model, CHAIN, rule, "with replacement", form=form)
            for rule in ("block", "standard, vectorised")
        )
        gains.append(block - standard)
    assert min(gains) > -1e-12
    assert max(gains) > 0.01


def test_siblings_drawn_without_replacement_are_kept_more_often():
    model = random_model(7, 3)
    apart, together = (
        mean_accepted(model, TREES["siblings"], "standard", kind) for kind in KINDS[1:]
    )
    assert together > apart + 0.01
