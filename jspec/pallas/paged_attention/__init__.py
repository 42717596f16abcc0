"""Attention of a tree of tokens over a paged cache."""

from jspec.pallas.paged_attention.reference import paged_attention

__all__ = ["paged_attention"]
