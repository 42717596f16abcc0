"""Attention of a growing draft equals attention with a dense mask."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.draft_attention import draft_attention

B, M, N, H, K, D, SIZE = 3, 2, 5, 4, 2, 8, 4
LENGTH = np.array([0, 7, 22])


def dense(q, k, v, seen):
    k, v = (np.repeat(a, H // K, axis=1) for a in (k, v))
    scores = np.einsum("mhd,thd->hmt", q, k) * D**-0.5
    weights = np.exp(scores - scores.max()) * seen
    total = weights.sum(-1, keepdims=True)
    return np.einsum("hmt,thd->mhd", weights / np.where(total > 0, total, 1), v)


@pytest.mark.parametrize(
    ("window", "sink"), [(None, 0), (1, 0), (6, 0), (6, 3), (6, 9), (100, 2)]
)
def test_it_is_attention_with_a_dense_mask(window, sink):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    q, k, v = normal(B, M, H, D), normal(B, N, K, D), normal(B, N, K, D)
    k_pages, v_pages = normal(20, K, SIZE, D), normal(20, K, SIZE, D)
    table = rng.permutation(20)[:18].reshape(B, 6).astype(np.int32)
    table[0, 2:] = 20
    for row, page in ((0, 0), (1, 0), (2, 0)):
        k_pages[table[row, page], :, 0] = v_pages[table[row, page], :, 0] = np.nan
    seen = rng.random((B, M, N)) < 0.6
    place = LENGTH[:, None] + np.array([[1, 3]])
    found = draft_attention(
        *map(jnp.asarray, (q, k, v, k_pages, v_pages, table, LENGTH)),
        seen=jnp.asarray(seen),
        place=jnp.asarray(place),
        first=1,
        window=window,
        sink=sink,
        scale=D**-0.5,
        block_pages=2,
    )
    for row in range(B):
        slots = np.arange(1, max(LENGTH[row], 1))
        at = table[row, slots // SIZE], slice(None), slots % SIZE
        back = place[row][:, None] - slots[None]
        near = np.ones_like(back, bool) if window is None else back < window
        near |= (slots < 1 + sink)[None]
        right = dense(
            q[row],
            np.concatenate([k_pages[at], k[row]]),
            np.concatenate([v_pages[at], v[row]]),
            np.concatenate([near, seen[row]], axis=1),
        )
        np.testing.assert_allclose(found[row], right, atol=1e-5)
