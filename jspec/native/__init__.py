"""Arithmetic on a CPU at the speed of memory: C++, built on first use."""

from jspec.native.argmax import argmax
from jspec.native.attention import DEPTHS, attention, supports
from jspec.native.build import aside, load, ready
from jspec.native.layers import WEIGHTS, fusable, layers, stack
from jspec.native.linear import linear
from jspec.native.panels import (
    COLUMNS,
    pack,
    packable,
    packed,
    panel_product,
    repack,
    unpack,
)
from jspec.native.room import held, room

__all__ = [
    "COLUMNS",
    "DEPTHS",
    "WEIGHTS",
    "argmax",
    "aside",
    "attention",
    "fusable",
    "held",
    "layers",
    "linear",
    "load",
    "pack",
    "packable",
    "packed",
    "panel_product",
    "ready",
    "repack",
    "room",
    "stack",
    "supports",
    "unpack",
]
