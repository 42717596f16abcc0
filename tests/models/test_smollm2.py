import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.models import logits
from jspec.server.load import load_model
from jspec.targets import resolve
from jspec.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "data" / "nq_rag" / "prompts.jsonl"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    import torch

    from converters import export

    path = resolve("smollm2-135m", progress=False)
    folder = tmp_path_factory.mktemp("smollm2") / "hf"
    export(path, folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return load_model(path, dtype="float32"), theirs.eval(), Tokenizer(path)


@pytest.mark.parametrize("length", [1, 2, 33, 257, 500])
def test_the_embedded_models_logits_are_those_of_transformers(both, length):
    import torch

    ours, theirs, tokenizer = both
    text = json.loads(PROMPTS.read_text().splitlines()[0])["turns"][0]
    ids = np.array([tokenizer.encode(text)[:length]])
    assert ids.shape == (1, length)
    with torch.no_grad():
        right = theirs(torch.tensor(ids)).logits.numpy()
    assert (
        np.abs(np.asarray(logits(ours, jnp.asarray(ids, jnp.int32))) - right).max()
        < 1e-4
    )
