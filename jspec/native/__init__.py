"""Arithmetic on a CPU at the speed of memory: C++, built on first use."""

from jspec.native.attention import attention, supports
from jspec.native.build import aside, load, ready
from jspec.native.linear import linear

__all__ = ["aside", "attention", "linear", "load", "ready", "supports"]
