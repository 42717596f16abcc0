"""Shapes of models that are measured without their weights."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from jspec.models.base import ModelConfig, Rope
from jspec.testing import tiny_config

__all__ = ["LLAMA_1B", "LLAMA_8B", "SHAPES", "SMOLLM2"]

SMOLLM2 = ModelConfig(
    family="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_key_heads=3,
    head_dim=64,
    norm_eps=1e-5,
    rope=Rope(theta=100_000.0),
    max_position=8192,
    tie_embeddings=True,
)
LLAMA_8B = ModelConfig(
    family="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_key_heads=8,
    head_dim=128,
    norm_eps=1e-5,
    rope=Rope(theta=500_000.0),
    max_position=8192,
    tie_embeddings=False,
)
LLAMA_1B = dataclasses.replace(
    LLAMA_8B,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    head_dim=64,
    tie_embeddings=True,
)
SHAPES: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "smollm2-135m": SMOLLM2,
        "llama-3-8b": LLAMA_8B,
        "tiny": tiny_config(num_layers=8),
    }
)
"""Targets by their shapes; the last is for rehearsals."""
