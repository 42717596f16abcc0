import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.greedy_verify import gpu, greedy_verify
from jspec.pallas.tiles import Tiles
from jspec.rounds import DEAD, Proposal
from jspec.verify import verify_greedy

TREE = [DEAD, 0, 0, 1, 2, 4]
CHAIN = [DEAD, 0, 1, DEAD, 3, 4]
SMALL = Tiles(chunk=256, stages=2, programs=8)
twin = jax.jit(greedy_verify)


def scene(seed, parent, vocabulary, rows=3):
    ids = jax.random.randint(
        jax.random.key(seed), (rows, len(parent), vocabulary), 0, 40
    )
    logits = ids.astype(jnp.bfloat16)
    choice = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    tokens = jnp.stack([choice[:, max(node, 0)] for node in parent], axis=1)
    tokens = tokens.at[1, 1].set((tokens[1, 1] + 1) % vocabulary)
    return logits, tokens, jnp.tile(jnp.array(parent, jnp.int32), (rows, 1))


@pytest.mark.parametrize("parent", [TREE, CHAIN])
def test_the_twin_judges_as_greedy_verification_does(parent):
    logits, tokens, parent = scene(0, parent, 7, rows=64)
    tokens = tokens.at[::3, 2].set(0)
    choice = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    right = verify_greedy(choice, Proposal(tokens=tokens, parent=parent))
    kept, bonus, sound = twin(logits, tokens, parent)
    np.testing.assert_array_equal(kept, right.kept)
    np.testing.assert_array_equal(bonus, right.bonus)
    assert sound.all()


@pytest.mark.parametrize("parent", [TREE, CHAIN])
def test_the_kernel_agrees_with_its_twin_token_by_token(interpreted, parent):
    logits, tokens, parent = scene(1, parent, 640)
    logits = logits.at[2, 0, jnp.array([5, 300, 639])].set(77)
    tokens = tokens.at[2, 1].set(5)
    ours = interpreted(gpu.greedy_verify, logits, tokens, parent, tiles=SMALL)
    right = twin(logits, tokens, parent)
    assert right[0][0].sum() > 2 and right[0][2, 1]
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_node_without_a_law_ends_the_walk_of_its_row_alone(interpreted, value):
    logits, tokens, parent = scene(2, [DEAD, 0, 1], 384)
    whole = twin(logits, tokens, parent)
    at = jnp.arange(384) if value == -jnp.inf else jnp.array([380])
    broken = logits.at[0, 1, at].set(value)
    right = twin(broken, tokens, parent)
    ours = interpreted(gpu.greedy_verify, broken, tokens, parent, tiles=SMALL)
    for a, b, c in zip(ours, right, whole, strict=True):
        np.testing.assert_array_equal(a[1:], c[1:])
        np.testing.assert_array_equal(b[1:], c[1:])
    for kept, bonus, sound in (ours, right):
        assert kept[0].tolist() == [True, True, False] and not sound[0]
        assert 0 <= bonus[0] < 384


def test_a_vocabulary_that_cannot_be_cut_is_refused():
    logits, tokens, parent = scene(3, CHAIN, 130)
    with pytest.raises(ValueError, match="whole 128 ids, not 130"):
        greedy_verify(logits, tokens, parent, implementation="gpu")
    narrow = logits[:, :, :128].astype(jnp.float8_e4m3fn)
    with pytest.raises(ValueError, match="reads bfloat16"):
        gpu.greedy_verify(narrow, tokens, parent)
    with pytest.raises(ValueError, match="no implementation 'triton'"):
        greedy_verify(logits, tokens, parent, implementation="triton")


def test_a_chunk_that_the_copy_engine_cannot_fetch_is_refused():
    with pytest.raises(ValueError, match="whole 256 ids, at most 32768, not 128"):
        Tiles(chunk=128)
