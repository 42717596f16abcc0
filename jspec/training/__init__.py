"""Training drafters for a target, on text the target wrote itself."""

from collections.abc import Mapping
from types import MappingProxyType

from jspec.training import (
    dflash,
    draft_model,
    dspark,
    eagle,
    eagle3,
    frozen_kv_mtp,
    medusa,
    mlp_speculator,
    mtp,
    p_eagle,
    pard,
)
from jspec.training.recipe import Recipe

__all__ = ["RECIPES"]

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "eagle3": eagle3.RECIPE,
        "eagle": eagle.RECIPE,
        "medusa": medusa.RECIPE,
        "draft_model": draft_model.RECIPE,
        "dflash": dflash.RECIPE,
        "dspark": dspark.RECIPE,
        "mlp_speculator": mlp_speculator.RECIPE,
        "p_eagle": p_eagle.RECIPE,
        "pard": pard.RECIPE,
        "mtp": mtp.RECIPE,
        "frozen_kv_mtp": frozen_kv_mtp.RECIPE,
    }
)
"""How each method is trained; a method that is not here cannot be."""
