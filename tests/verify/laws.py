"""The exact law of what a rule emits, by enumerating drafts and coins in float64.

A rule keeps a node if its coin falls below a chance that the rule tells. So coins of 0
and 1 reach every outcome, and the chances weigh it.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jspec.rounds import DEAD
from jspec.verify.block import judge_block
from jspec.verify.standard import walk_chain, walk_tree
from jspec.verify.target_only import walk_target_only

NODES = 6
CHUNK = 2048


def _target_only(u, p, q, tokens, parent):
    return walk_target_only(u, p, tokens, parent, 1.0, 1.0)


RULES: dict[str, Callable[..., Any]] = {
    "standard": walk_tree,
    "standard, vectorised": walk_chain,
    "block": judge_block,
    "target only": _target_only,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Laws of the next token by depth and token: the target's, and the draft's.

    `told` is what the rule hears of the draft's; `None`: the truth.
    """

    p: np.ndarray
    q: np.ndarray
    told: np.ndarray | None = None

    @property
    def width(self):
        return self.p.shape[-1]


def random_model(seed, width, *, candidates=None, sharp=1.5, depth=4):
    """Random laws; of the draft's, all but `candidates` tokens have no mass."""
    rng = np.random.default_rng(seed)

    def table():
        law = np.exp(sharp * rng.standard_normal((depth, width, width)))
        return law / law.sum(-1, keepdims=True)

    p, q = table(), table()
    if candidates is not None:
        order = rng.random(q.shape).argsort(-1)
        q = np.where(order < candidates, q, 0)
        q /= q.sum(-1, keepdims=True)
    return Model(p=p, q=q)


def depths(parent):
    depth = [0]
    for above in parent[1:]:
        depth.append(depth[above] + 1)
    return depth


def drafts(model, parent, kind, tokens=None) -> Iterator[tuple[float, Any, Any, Any]]:
    """Every way to fill a tree: its weight, tokens, parents, the law of each node.

    A node for which no token is left is not offered.
    """
    depth = depths(parent)
    told = model.q if model.told is None else model.told
    for rest in itertools.product(range(model.width), repeat=len(parent) - 1):
        filled, weight = (0, *rest), 1.0
        above = np.full(NODES, DEAD, np.int32)
        q = np.zeros((NODES, model.width))
        q[:, 0] = 1
        for node in range(1, len(parent)):
            at = depth[node] - 1, filled[parent[node]]
            law, says = model.q[at].copy(), told[at].copy()
            if kind == "without replacement":
                elder = [i for i in range(1, node) if parent[i] == parent[node]]
                law[[filled[i] for i in elder]] = 0
                says[[filled[i] for i in elder]] = 0
            if law.sum() > 0:
                above[node] = parent[node]
                q[node] = says / says.sum()
                weight *= law[filled[node]] / law.sum()
            else:
                weight *= filled[node] == 0
        if kind == "certain":
            weight = float(tokens is None or filled == tokens)
            above[1 : len(parent)] = parent[1:]
        if weight > 0:
            yield weight, filled, above, q


@functools.partial(jax.jit, static_argnames=("rule",))
def run(u, p, q, tokens, parent, *, rule):
    return jax.vmap(RULES[rule])(u, p, q, tokens, parent)


def outcomes(model, parent, rule, kind, *, form="dense", tokens=None):
    """Every outcome: its weight, the kept nodes, the law of the last token, tokens."""
    n = len(parent)
    cases = list(drafts(model, parent, kind, tokens))
    patterns = np.array(list(itertools.product((0.0, 1.0), repeat=n - 1)))
    u = np.ones((len(patterns), NODES))
    u[:, 1:n] = patterns
    u = np.tile(u, (len(cases), 1))
    padded = np.zeros((len(cases), NODES), np.int32)
    padded[:, :n] = [filled for _, filled, _, _ in cases]
    above = np.stack([above for _, _, above, _ in cases])
    depth = np.zeros(NODES, np.int32)
    depth[:n] = depths(parent)
    p = model.p[depth[None], padded]
    q = np.stack([q for *_, q in cases])
    each = [np.repeat(a, len(patterns), axis=0) for a in (padded, p, q, above)]
    weight = np.repeat([weight for weight, *_ in cases], len(patterns))
    results = []
    for at in range(0, len(u), CHUNK):
        part = [_pad(a[at : at + CHUNK]) for a in (u, *each)]
        law = part[3]
        if kind == "certain":
            law = None
        elif form == "sparse":
            law = _sparse(law)
        with jax.enable_x64(True):
            done = run(part[0], part[2], law, part[1], part[4], rule=rule)
            results.append([np.asarray(a) for a in done])
    kept, r, refused, odds = (
        np.concatenate(parts)[: len(u)] for parts in zip(*results, strict=True)
    )
    assert r.dtype == odds.dtype == np.float64
    chance = np.where(u == 0, odds, 1 - odds)[:, 1:n].prod(1)
    return weight * chance, kept, r / r.sum(-1, keepdims=True), each[0], refused


def _pad(a):
    return np.pad(a, ((0, CHUNK - len(a)), *((0, 0),) * (a.ndim - 1)), mode="edge")


def _sparse(q):
    """The candidates in an order of their own; what has no mass has any id."""
    order = np.argsort(-q, axis=-1, kind="stable")
    most = max(1, int((q > 0).sum(-1).max()))
    ids = order[..., :most]
    probs = np.take_along_axis(q, ids, axis=-1)
    return np.where(probs > 0, ids, 0).astype(np.int32), probs


def emitted_law(model, parent, rule, kind, **options):
    """The law of the first tokens, one more than the tree is deep."""
    depth = max(depths(parent))
    law = np.zeros((model.width,) * (depth + 1))
    for weight, kept, r, tokens, _ in zip(
        *outcomes(model, parent, rule, kind, **options), strict=True
    ):
        if weight == 0:
            continue
        path = [tokens[node] for node in np.flatnonzero(kept)][1:]
        law[tuple(path)] += weight * _go_on(model, len(path), depth, r)
    return law


def _go_on(model, kept, depth, r):
    """The law of the last token and, after it, of what plain decoding adds."""
    law = r
    for at in range(kept + 1, depth + 1):
        law = law[..., None] * model.p[at]
    return law


def target_law(model, depth):
    return _go_on(model, 0, depth, model.p[0, 0])


def mean_accepted(model, parent, rule, kind, **options):
    weight, kept, *_ = outcomes(model, parent, rule, kind, **options)
    assert np.isclose(weight.sum(), 1)
    return float((weight * (kept.sum(1) - 1)).sum())
