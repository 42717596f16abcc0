"""Arithmetic on a CPU at the speed of memory: C++, built on first use."""

from jspec.native.attention import attention, supports
from jspec.native.build import load, ready
from jspec.native.linear import linear

__all__ = ["attention", "linear", "load", "ready", "supports"]
