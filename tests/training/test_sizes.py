"""What a zoo of all methods weighs for the embedded target."""

import math
from types import SimpleNamespace

from benchmarks.gpu.shapes import SMOLLM2
from jspec.training import RECIPES
from jspec.training.recipe import Frame
from jspec.training.start import configured

TOKENIZER = 3_523_000
"""Bytes that come with a language model: its tokenizer."""


def bytes_of(method):
    recipe = RECIPES[method]
    frame = Frame(target=SMOLLM2, known=30_000, mask_token_id=5, length=256)
    target = SimpleNamespace(config=SMOLLM2)
    drafter = configured(method, recipe, recipe.plan(frame), target)
    shapes = drafter.weight_shapes()
    weights = sum(
        (4 if name == "ids" else 2) * math.prod(shape) for name, shape in shapes.items()
    )
    return weights + (TOKENIZER if recipe.language_model else 0)


def test_a_zoo_in_bfloat16_takes_120_megabytes_and_no_method_more_than_15():
    sizes = {method: bytes_of(method) for method in RECIPES}
    assert len(sizes) == 11
    assert max(sizes.values()) <= 15_000_000
    assert sizes["mtp"] <= 8_000_000
    assert sizes["frozen_kv_mtp"] <= 5_000_000
    assert sum(sizes.values()) <= 119_500_000
