"""Attention of a block of drafts to a paged context and to itself."""

from jspec.pallas.block_attention.reference import block_attention

__all__ = ["block_attention"]
