import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import aot
from jspec.pallas.lse import summarise
from tests.pallas.test_reads import reads


@pytest.mark.parametrize("vocabulary", [5, 640, 128256])
def test_a_row_is_summarised_as_in_double_precision(vocabulary):
    x = 3 * jax.random.normal(jax.random.key(0), (2, 3, vocabulary), jnp.bfloat16)
    found = summarise(x)
    wide = np.asarray(x, np.float64)
    top = wide.max(-1)
    right = top + np.log(np.exp(wide - top[..., None]).sum(-1))
    np.testing.assert_allclose(found.lse, right, rtol=2e-6)
    np.testing.assert_array_equal(found.top, top)
    np.testing.assert_array_equal(found.best, wide.argmax(-1))


def test_ties_go_to_the_lowest_id_and_broken_rows_show():
    x = jnp.zeros((4, 512)).at[0, jnp.array([3, 300])].set(7)
    x = x.at[1, 400].set(jnp.nan).at[2].set(-jnp.inf).at[3, 1:].set(-jnp.inf)
    found = summarise(x)
    assert found.best.tolist()[:2] == [3, 400]
    assert found.top.tolist() == [7, jnp.inf, -jnp.inf, 0]
    assert found.lse[3] == 0 and not jnp.isfinite(found.lse[1:3]).any()


@pytest.mark.aot
@pytest.mark.slow
def test_plain_xla_reads_the_logits_once_for_all_three_on_a_gpu():
    logits = jax.ShapeDtypeStruct((8, 5, 128256), jnp.bfloat16)
    assert reads(aot.compile_for(summarise, logits).hlo_text) == 1
