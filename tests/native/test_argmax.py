import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import native, sampling

pytestmark = pytest.mark.skipif(
    native.load() is not None, reason=str(native.load() or "")
)


@pytest.mark.parametrize("width", [1, 15, 16, 1003])
def test_the_place_is_that_of_the_first_of_equals_and_nan_comes_before_all(width):
    rng = np.random.default_rng(width)
    x = rng.integers(-9, 9, (7, 3, width)).astype(np.float32)
    x[1, 0] = -np.inf
    x[2, 1, width // 2 :: 5] = np.nan
    x[3, 2, width // 3 :: 7] = np.inf
    got = jax.jit(sampling.greedy)(jnp.asarray(x))
    assert "jspec_argmax" in str(jax.make_jaxpr(sampling.greedy)(x))
    np.testing.assert_array_equal(got, np.argmax(x, axis=-1))
