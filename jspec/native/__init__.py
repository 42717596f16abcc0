"""Arithmetic on a CPU at the speed of memory: C++, built on first use."""

from jspec.native.argmax import argmax
from jspec.native.attention import DEPTHS, attention, supports
from jspec.native.build import aside, load, ready
from jspec.native.layer import MATRICES, WEIGHTS, fusable, layer
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

__all__ = [
    "COLUMNS",
    "DEPTHS",
    "MATRICES",
    "WEIGHTS",
    "argmax",
    "aside",
    "attention",
    "fusable",
    "layer",
    "linear",
    "load",
    "pack",
    "packable",
    "packed",
    "panel_product",
    "ready",
    "repack",
    "supports",
    "unpack",
]
