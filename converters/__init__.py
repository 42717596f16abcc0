"""Checkpoints of others into jspec's format, and back."""

from converters.convert import Report, convert, plan
from converters.export import export

__all__ = ["Report", "convert", "export", "plan"]
