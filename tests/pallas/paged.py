"""Rows of tokens in pages, for the attention kernel and its twin."""

import jax.numpy as jnp
import numpy as np

from jspec.rounds import DEAD, ancestors_of

HEADS, KEYS, D = 4, 2, 8
TREE = [DEAD, 0, 0, 1, 2, 2, DEAD, 4]


def scene(seed, lengths, nodes, size, *, room=40, dtype=jnp.float32, heads=HEADS, d=D):
    rng = np.random.default_rng(seed)
    b, each = len(lengths), -(-room // size)
    k = rng.standard_normal((b, room, KEYS, d)).astype(np.float32)
    v = rng.standard_normal((b, room, KEYS, d)).astype(np.float32)
    q = rng.standard_normal((b, nodes, heads, d)).astype(np.float32)
    k, v, q = (np.asarray(jnp.asarray(a, dtype), np.float32) for a in (k, v, q))
    pages = rng.permutation(b * each + 3)[: b * each].reshape(b, each)
    k_pages = np.full((b * each + 3, KEYS, size, d), np.nan, np.float32)
    v_pages = k_pages.copy()
    table = np.full((b, each), b * each + 3, np.int32)
    for row, length in enumerate(lengths):
        for slot in range(length + nodes):
            table[row, slot // size] = page = pages[row, slot // size]
            k_pages[page, :, slot % size] = k[row, slot]
            v_pages[page, :, slot % size] = v[row, slot]
    arrays = [jnp.asarray(a, dtype) for a in (q, k_pages, v_pages)]
    return (q, k, v), (*arrays, jnp.asarray(table), jnp.array(lengths, jnp.int32))


def kernel_scene(*, parents, lengths=(37, 130), size=16, d=64, room=256, **options):
    arrays, inputs = scene(
        4, list(lengths), len(parents), size, room=room, d=d, **options
    )
    parent = jnp.tile(jnp.array(parents, jnp.int32), (len(lengths), 1))
    return arrays, inputs, ancestors_of(parent)


def kernel_options(ancestors, *, d=64, window=None):
    return {
        "ancestors": ancestors,
        "window": window,
        "scale": d**-0.5,
        "block_pages": 1,
    }
