"""Proposals of drafters of pairs, beside the laws that plain torch says they have."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import CacheLayout, KVCache, empty_pages
from jspec.drafters.base import View
from jspec.rounds import Evidence
from jspec.sampling import Sampling

torch = pytest.importorskip("torch", reason="the second implementation is torch's")

COUNTS = ((5, 3), (2, 4))
"""Committed tokens of two rows: of a piece of the prompt, then of a round."""


def norm(x, w, eps=1e-5):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def angles(rope, width, position):
    frequency = 1.0 / rope.theta ** (torch.arange(0, width, 2).double() / width)
    if rope.kind == "llama3":
        for i, f in enumerate(frequency.tolist()):
            wave = 2 * torch.pi / f
            o, low, high = 8, rope.low_freq_factor, rope.high_freq_factor
            s = min(max((o / wave - low) / (high - low), 0), 1)
            frequency[i] = (1 - s) * f / rope.factor + s * f
    a = position[:, None].double() * frequency
    return torch.cat([a, a], -1).float()


def turn(x, a):
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return x * a.cos()[:, None] + turned * a.sin()[:, None]


def quick(function):
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": "0"})


def pages_of(target, rows, room):
    config = target.config
    layout = CacheLayout(rows=rows, room=room, pages=rows * room // 4 + 1, page_size=4)
    pages = empty_pages(layout, layers=0, key_heads=1, head_dim=2, dtype=jnp.float32)
    order = np.random.default_rng(0).permutation(layout.pages)[: rows * room // 4]
    table = order.reshape(rows, -1).astype(np.int32)
    assert config.vocab_size == 64
    return layout, KVCache(
        pages=pages, table=jnp.asarray(table), length=jnp.zeros(rows, jnp.int32)
    )


def proposed(drafter, weights, target, drafted_laws):
    """What two rows are drafted, and torch's laws of a row's drafts.

    `drafted_laws(drafter, weights, target, taps, tokens, drafts)` is torch's: the laws
    of one text's drafts, its taps, tokens behind the first and the drafts given. The
    rows have observed a piece of a prompt and a round, of different counts.
    """
    rng = np.random.default_rng(1)
    rows, length = 2, np.zeros(2, np.int32)
    layout, cache = pages_of(target, rows, 16)
    sampling = Sampling(
        temperature=jnp.ones(rows),
        top_k=jnp.zeros(rows, jnp.int32),
        top_p=jnp.ones(rows),
        min_p=jnp.zeros(rows),
        seed=jnp.zeros((rows, 2), jnp.uint32),
    )
    texts, taps = [[], []], [[], []]
    anchor = rng.integers(0, 64, rows)
    memory, observe = drafter.init(weights, layout), quick(drafter.observe)
    for counts in COUNTS:
        t = 6
        tokens = rng.integers(0, 64, (rows, t))
        tokens[:, 0] = anchor
        wide = 32 * len(drafter.feature_layers)
        features = rng.standard_normal((rows, t, wide)).astype(np.float32)
        anchor = rng.integers(0, 64, rows)
        evidence = Evidence(
            tokens=jnp.asarray(tokens, jnp.int32),
            start=jnp.asarray(length),
            count=jnp.asarray(counts, jnp.int32),
            anchor=jnp.asarray(anchor, jnp.int32),
            features=jnp.asarray(features),
        )
        length = length + np.asarray(counts, np.int32)
        cache = dataclasses.replace(cache, length=jnp.asarray(length))
        view = View(target=target, cache=cache, sampling=sampling)
        memory = observe(weights, memory, evidence, view)
        for row, count in enumerate(counts):
            texts[row] += tokens[row, :count].tolist()
            taps[row].append(features[row, :count])
    keys = jax.random.split(jax.random.key(0), rows)
    proposal, _ = quick(drafter.propose)(
        weights, memory, jnp.asarray(anchor, jnp.int32), keys, view
    )
    theirs = {name: torch.tensor(np.asarray(a)) for name, a in weights.items()}
    lent = {
        "embed": torch.tensor(np.asarray(target.embed[...])),
        "head": torch.tensor(np.asarray(target.head[...])),
        "norm": torch.tensor(np.asarray(target.norm[...])),
    }

    def law_after(row, drafts):
        return drafted_laws(
            drafter,
            theirs,
            lent,
            torch.tensor(np.concatenate(taps[row])),
            [*texts[row][1:], int(anchor[row])],
            drafts,
        )

    return proposal, law_after
