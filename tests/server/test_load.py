"""From a checkpoint to a model on its devices."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.server.load import load_model, pick_dtype
from tests.serving import write_checkpoint


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None),
        ("float32", jnp.float32),
        ("bfloat16", jnp.bfloat16),
        (jnp.bfloat16, jnp.bfloat16),
        (np.float32, jnp.float32),
        (np.dtype("float32"), jnp.float32),
    ],
)
def test_a_dtype_is_named_or_given(given, meant):
    assert pick_dtype(given) == meant


@pytest.mark.parametrize("given", ["float16", "float64", "", int, object()])
def test_other_dtypes_are_refused(given):
    with pytest.raises(ValueError, match="dtype must be float32 or bfloat16, not"):
        pick_dtype(given)


def test_weights_are_read_as_they_are_or_as_asked(tmp_path):
    path = write_checkpoint(tmp_path / "m")
    assert load_model(path).dtype == jnp.float32
    assert load_model(path, dtype="bfloat16").dtype == jnp.bfloat16


MESH = """
import sys
import jax, numpy as np
import jspec
from pathlib import Path
from tests.serving import greedy, write_checkpoint

jax.config.update("jax_disable_most_optimizations", True)
path = write_checkpoint(Path("{folder}"), num_key_heads=4)
params = [greedy(12), jspec.SamplingParams(temperature=0.8, seed=1, max_tokens=12)]
for devices in (0, 2, 4):
    mesh = None
    if devices:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("model",))
    options = dict(max_batch=1, max_model_len=32, compilation_cache=False, mesh=mesh)
    with jspec.serve(
        path, "ngram", num_speculative_tokens=2, method_options=dict(shortest=1),
        **options,
    ) as server:
        done = server.generate(["a a a a", "mesh"], params)
        print([(d.token_ids, d.speculation) for d in done])
"""


@pytest.mark.slow
def test_on_two_and_four_devices_the_tokens_are_the_same(run_on_devices, tmp_path):
    text = MESH.replace("{folder}", str(tmp_path / "m"))
    one, two, four = run_on_devices(4, text).splitlines()
    assert one == two == four


DRAFTERS = """
import jax, numpy as np
import jspec
from pathlib import Path
from jspec import checkpoint
from tests.drafters.eagles import eagle3, weights_of
from tests.serving import TOKENS, greedy, write_checkpoint

jax.config.update("jax_disable_most_optimizations", True)
folder = Path("{folder}")
path = write_checkpoint(folder / "target", num_key_heads=4)
near = write_checkpoint(folder / "near", num_key_heads=4, noise=0.3)
head = eagle3(config=dict(
    vocab_size=TOKENS + 5, taps=(0, 1), tap_count=2, draft_vocab_size=60
))
checkpoint.save_drafter(
    folder / "head", "eagle3", head.config.to_json(), weights_of(head), source=dict()
)
params = [greedy(8), jspec.SamplingParams(temperature=0.8, seed=1, max_tokens=8)]
for drafter in (folder / "head", near):
    for mesh in (None, jax.sharding.Mesh(np.array(jax.devices()), ("model",))):
        options = dict(max_batch=1, max_model_len=24, compilation_cache=False)
        with jspec.serve(
            path, drafter=drafter, num_speculative_tokens=2, mesh=mesh, **options
        ) as server:
            done = server.generate(["a a a a", "mesh"], params)
            print(server.method, [(d.token_ids, d.speculation) for d in done])
"""


@pytest.mark.slow
def test_a_mesh_holds_the_drafter_whole_and_the_tokens_are_the_same(
    run_on_devices, tmp_path
):
    lines = run_on_devices(2, DRAFTERS.replace("{folder}", str(tmp_path))).splitlines()
    assert lines[0] == lines[1]
    assert lines[2] == lines[3]
    assert [line.split()[0] for line in lines[::2]] == ["eagle3", "draft_model"]
