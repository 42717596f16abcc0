"""Drafting methods: one a file, listed once."""

from collections.abc import Mapping
from types import MappingProxyType

from jspec.drafters.base import (
    About,
    Drafter,
    HostDraft,
    HostDrafter,
    Memory,
    Trained,
    View,
)
from jspec.drafters.dflash import DFlash
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.dspark import DSpark
from jspec.drafters.eagle import Eagle
from jspec.drafters.eagle3 import Eagle3
from jspec.drafters.frozen_kv_mtp import FrozenKVMTP
from jspec.drafters.medusa import Medusa
from jspec.drafters.mlp_speculator import MLPSpeculator
from jspec.drafters.mtp import MTP
from jspec.drafters.ngram import NGram
from jspec.drafters.p_eagle import PEagle
from jspec.drafters.pard import PARD
from jspec.drafters.plain import Plain
from jspec.drafters.suffix import Suffix

__all__ = [
    "LISTED",
    "METHODS",
    "About",
    "Drafter",
    "HostDraft",
    "HostDrafter",
    "Memory",
    "Trained",
    "View",
]

LISTED: dict[str, type[Drafter] | type[HostDrafter]] = {
    "none": Plain,
    "ngram": NGram,
    "suffix": Suffix,
    "draft_model": DraftModel,
    "dflash": DFlash,
    "dspark": DSpark,
    "pard": PARD,
    "p_eagle": PEagle,
    "eagle": Eagle,
    "eagle3": Eagle3,
    "mtp": MTP,
    "medusa": Medusa,
    "mlp_speculator": MLPSpeculator,
    "frozen_kv_mtp": FrozenKVMTP,
}
"""The methods of this version, and behind them what `jspec.register` adds."""

METHODS: Mapping[str, type[Drafter] | type[HostDrafter]] = MappingProxyType(LISTED)
"""The table that everyone reads."""
