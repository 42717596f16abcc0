"""A bench of counting workers, in place of engines."""

import sys
from pathlib import Path

import pytest

from benchmarks import weights
from benchmarks.peers import client

FAKE = Path(__file__).with_name("fake_worker.py")


class WordTokenizer:
    """A token per character."""

    def encode(self, text: str) -> list[int]:
        """Code points."""
        return list(map(ord, text))

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Code points behind a zero."""
        return [0, *self.encode(messages[0]["content"])]


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer()


@pytest.fixture
def model() -> weights.Model:
    sizes = {"float32": 4_000, "bfloat16": 2_000, "q4_1": 600}
    return weights.Model(sha256="0" * 64, gguf={}, huggingface="", step_bytes=sizes)


@pytest.fixture
def start():
    def starter(engine: str, *, threads: int, log: Path) -> client.Worker:
        if engine == "vllm":
            raise client.setup.SetupError("The peer vllm is not installed.")
        path = {"PYTHONPATH": str(client.setup.ROOT)}
        return client.Worker([sys.executable, str(FAKE)], path, log)

    return starter
