"""Every peer computes the same model: greedy float32 ids equal transformers'."""

import dataclasses

import pytest

from benchmarks import data, weights
from benchmarks.peers import client, setup
from benchmarks.peers.protocol import Load, Run

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def model():
    models = setup.HOME / "models"
    return weights.prepare(weights.embedded(models), models)


@pytest.fixture(scope="module")
def prompts(model):
    return data.tokens(data.select("summaries:1,gsm8k:1"), model.tokenizer)


def decode(model, prompts, tmp_path, engine, method="none", k=0, batch=1):
    load = Load(
        model=dataclasses.asdict(model),
        dtype="float32",
        method=method,
        k=k,
        max_batch=2,
    )
    try:
        worker = client.start(engine, threads=2, log=tmp_path / "log")
    except setup.SetupError as error:
        pytest.skip(str(error))
    with worker:
        worker.load(load)
        return worker.run(Run(prompts=prompts, max_tokens=32, batch=batch))["tokens"]


@pytest.fixture(scope="module")
def reference(model, prompts, tmp_path_factory):
    return decode(model, prompts, tmp_path_factory.mktemp("log"), "transformers")


@pytest.mark.parametrize(
    ("engine", "method", "k", "batch"),
    [
        ("transformers", "none", 0, 2),
        ("transformers", "ngram", 4, 1),
        ("llama_cpp", "none", 0, 1),
        ("llama_cpp", "none", 0, 2),
        ("llama_cpp", "ngram", 5, 1),
        ("vllm", "none", 0, 2),
        ("vllm", "ngram", 4, 2),
    ],
)
def test_ids_equal_those_of_transformers(
    model, prompts, reference, tmp_path, engine, method, k, batch
):
    assert decode(model, prompts, tmp_path, engine, method, k, batch) == reference
