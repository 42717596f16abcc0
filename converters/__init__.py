"""Checkpoints of others into jspec's format, and back."""

from converters.convert import convert, plan
from converters.export import export
from converters.plans import Report

__all__ = ["Report", "convert", "export", "plan"]
