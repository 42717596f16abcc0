"""Drafting methods: one a file, listed once."""

from collections.abc import Mapping
from types import MappingProxyType

from jspec.drafters.base import About, Drafter, Memory, Trained, View
from jspec.drafters.dflash import DFlash
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.dspark import DSpark
from jspec.drafters.eagle import Eagle
from jspec.drafters.eagle3 import Eagle3
from jspec.drafters.medusa import Medusa
from jspec.drafters.mlp_speculator import MLPSpeculator
from jspec.drafters.multi_eagle import MultiEagle
from jspec.drafters.ngram import NGram
from jspec.drafters.pard import PARD
from jspec.drafters.peagle import PEagle
from jspec.drafters.plain import Plain

__all__ = ["METHODS", "About", "Drafter", "Memory", "Trained", "View"]

METHODS: Mapping[str, type[Drafter]] = MappingProxyType[str, type[Drafter]](
    {
        "none": Plain,
        "ngram": NGram,
        "draft_model": DraftModel,
        "dflash": DFlash,
        "dspark": DSpark,
        "pard": PARD,
        "peagle": PEagle,
        "eagle": Eagle,
        "eagle3": Eagle3,
        "multi_eagle": MultiEagle,
        "medusa": Medusa,
        "mlp_speculator": MLPSpeculator,
    }
)
