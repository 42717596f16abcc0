import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import native
from jspec.models import layers
from jspec.native import build

SHAPES = [(576, 200), (33, 45), (7, 3), (130, 64), (64, 1)]

pytestmark = pytest.mark.skipif(
    native.load() is not None, reason=str(native.load() or "")
)


def matrices(rng, width, outputs, dtype, count=2):
    return tuple(
        jnp.asarray(rng.normal(size=(width, outputs)), dtype) for _ in range(count)
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("width", "outputs"), SHAPES)
def test_products_are_those_of_float64_and_rows_ignore_their_neighbours(
    width, outputs, dtype
):
    rng = np.random.default_rng(width)
    weights = matrices(rng, width, outputs, dtype)
    x = jnp.asarray(rng.normal(size=(130, width)), dtype)

    @jax.jit
    def products(x):
        turned = tuple(w.T for w in weights)
        straight = native.linear(x, weights, out=jnp.float32)
        return straight + native.linear(x, turned, transposed=True, out=jnp.float32)

    whole = products(x)
    for y, w in zip(whole, weights * 2, strict=True):
        right = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
        assert np.abs(y - right).max() < 2e-6 * width**0.5 * np.abs(right).max()
    for rows in (1, 2, 3, 7, 8, 9, 64, 65):
        for part, y in zip(products(x[:rows]), whole, strict=True):
            np.testing.assert_array_equal(part, y[:rows])


def test_a_bfloat16_product_is_rounded_once_to_nearest_even():
    rng = np.random.default_rng(3)
    (w,) = matrices(rng, 96, 70, jnp.bfloat16, count=1)
    x = jnp.asarray(rng.normal(size=(5, 96)), jnp.bfloat16)
    narrow, wide = (native.linear(x, (w,), out=out)[0] for out in (None, jnp.float32))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        np.asarray(narrow, np.float32), wide.astype(jnp.bfloat16).astype(np.float32)
    )


def test_nan_and_infinity_pass_through():
    x = jnp.array([[jnp.nan, 1.0], [jnp.inf, 1.0], [2.0, 1.0]])
    y = native.linear(x, (jnp.ones((2, 40)),))[0]
    assert np.isnan(y[0]).all() and np.isinf(y[1]).all() and (y[2] == 3).all()


def test_the_layers_product_is_native_and_has_the_derivative_of_a_product():
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(24, 16)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(2, 3, 24)), jnp.float32)

    def ours(x, w):
        return jnp.square(layers.linear(x, w)).sum()

    def plain(x, w):
        return jnp.square(jnp.matmul(x, w, precision="highest")).sum()

    assert build.TARGETS[0] in str(jax.make_jaxpr(ours)(x, w))
    for got, right in zip(
        jax.grad(ours, (0, 1))(x, w), jax.grad(plain, (0, 1))(x, w), strict=True
    ):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4)


def test_mixed_dtypes_are_left_to_xla():
    x = jnp.ones((1, 2, 8), jnp.bfloat16)
    y = layers.linear(x, jnp.ones((8, 4)), out=jnp.float32)
    np.testing.assert_array_equal(y, np.full((1, 2, 4), 8.0))


def test_without_a_compiler_one_sentence_says_so(monkeypatch, caplog):
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    reason = build.load.__wrapped__()
    assert reason == (
        "the CPU kernels could not be built: no C++ compiler (no-such-compiler) was "
        "found"
    )
    assert reason in caplog.text


def test_what_the_compiler_refuses_is_told_and_leaves_nothing_behind(
    monkeypatch, tmp_path
):
    source = tmp_path / "broken.cc"
    source.write_text("#error this cannot be built\n")
    monkeypatch.setattr(build, "SOURCES", (source,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reason = build.load.__wrapped__()
    assert reason is not None and "this cannot be built" in reason
    assert list((tmp_path / "cache").rglob("*.*")) == []
