"""Attention of drafted nodes, kept apart, and of a window of committed slots."""

from jspec.pallas.draft_attention.reference import draft_attention

__all__ = ["draft_attention"]
