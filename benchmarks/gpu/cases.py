"""What is timed on a GPU, and the bytes that each case must move."""

import dataclasses
from typing import Any

__all__ = ["BATCHES", "HEADS", "KEYS", "Case", "cases", "tiny"]

VOCABULARIES = (32_000, 49_152, 128_256, 151_936, 262_144)
BATCHES = (1, 8, 32, 128)
CONTEXTS = (512, 2048, 8192, 32768)
HEADS, KEYS = 32, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One operation at one size.

    Attributes:
      kernel: its folder in `jspec.pallas`.
      label: what varies.
      sizes: what `make` needs.
      floor: bytes that must be moved.
    """

    kernel: str
    label: str
    sizes: dict[str, Any]
    floor: int


def attention(
    rows: int, context: int, nodes: int, *, width: int = 128, tree: bool = False
) -> Case:
    """Keys and values up to the rows' length once, queries and results once."""
    cached = 2 * rows * KEYS * (context + nodes) * width * 2
    asked = 2 * rows * nodes * HEADS * width * 2
    return Case(
        kernel="paged_attention",
        label=f"B={rows} context={context} {'tree' if tree else 'chain'} {nodes} "
        f"D={width}",
        sizes={
            "rows": rows,
            "context": context,
            "nodes": nodes,
            "width": width,
            "tree": tree,
        },
        floor=cached + asked,
    )


def judging(
    kernel: str, rows: int, gamma: int, vocabulary: int, *, dense: bool = False
) -> Case:
    """The logits once; with a draft law it once, and of both one row again."""
    logits = rows * (gamma + 1) * vocabulary * 2
    law = rows * gamma * vocabulary * 4 + rows * vocabulary * 6 if dense else 0
    return Case(
        kernel=kernel,
        label=f"B={rows} K={gamma} V={vocabulary} {'dense' if dense else 'certain'}",
        sizes={
            "rows": rows,
            "gamma": gamma,
            "vocabulary": vocabulary,
            "dense": dense,
        },
        floor=logits + law,
    )


def cases() -> list[Case]:
    """What is measured, the most telling first: time may run out."""
    found = [attention(8, 8192, nodes) for nodes in (1, 2, 4, 8)]
    found += [attention(8, 8192, nodes, tree=True) for nodes in (8, 32, 60)]
    found += [judging("greedy_verify", b, 3, 128_256) for b in BATCHES]
    found += [judging("rejection_verify", b, 3, 128_256) for b in BATCHES]
    found += [judging("rejection_verify", b, 3, 128_256, dense=True) for b in BATCHES]
    found += [attention(b, c, 4) for c in CONTEXTS for b in BATCHES]
    found += [judging("block_verify", b, 3, 128_256, dense=True) for b in BATCHES]
    for kernel in ("greedy_verify", "rejection_verify"):
        found += [judging(kernel, 8, gamma, 128_256) for gamma in (1, 7)]
        found += [judging(kernel, 8, 3, v) for v in VOCABULARIES if v != 128_256]
    found += [attention(8, 2048, 4, width=width) for width in (64, 256)]
    return list({(case.kernel, case.label): case for case in found}.values())


def tiny() -> list[Case]:
    """One small case, for an interpreter."""
    return [attention(1, 70, 3, width=64, tree=True)]
