"""EAGLE heads for tests: random ones, and ones that are the target itself."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from jspec.drafters.eagle import Eagle
from jspec.drafters.eagle3 import Eagle3
from jspec.drafters.eagle3_config import Eagle3Config
from jspec.drafters.eagle_head import EagleConfig
from jspec.drafters.layers import LayerSizes
from jspec.drafters.multi_eagle import MultiEagle, MultiEagleConfig
from jspec.models.base import Rope

SIZES = LayerSizes(
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=4,
    num_key_heads=2,
    head_dim=8,
    norm_eps=1e-5,
    rope=Rope(),
)


def eagle(sizes=SIZES, config=None, **options):
    config = EagleConfig(sizes=sizes, **({"vocab_size": 64} | (config or {})))
    return Eagle(config=config, **options)


def eagle3(sizes=SIZES, config=None, **options):
    fields = {"vocab_size": 64, "target_hidden_size": 32, "taps": (0, 1, 2)}
    config = Eagle3Config(sizes=sizes, **(fields | (config or {})))
    return Eagle3(config=config, **options)


def multi_eagle(modules=3, **options):
    head = EagleConfig(sizes=SIZES, vocab_size=64)
    return MultiEagle(config=MultiEagleConfig(head=head, modules=modules), **options)


def weights_of(drafter, seed=0, dtype=jnp.float32):
    """Random weights; norms around one, the ids of a smaller vocabulary rising."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in drafter.weight_shapes().items():
        value = rng.standard_normal(shape)
        if name == "ids":
            vocab = drafter.config.vocab_size
            value = np.sort(rng.permutation(vocab)[: shape[0]])
            weights[name] = jnp.asarray(value, jnp.int32)
            continue
        if "norm" in name:
            value = 1 + 0.3 * value
        elif len(shape) == 2:
            value *= shape[-1 if name == "embed" else 0] ** -0.5
        else:
            value *= 0.1
        weights[name] = jnp.asarray(value, dtype)
    return weights


def sized(**changes):
    return dataclasses.replace(SIZES, **changes)
