"""What is timed on a GPU, and the bytes that each case must move."""

import dataclasses
import itertools
from collections.abc import Iterable

__all__ = ["BATCHES", "CONTEXTS", "KEYS", "Case", "cases", "in_turn", "tiny"]

VOCABULARIES = (32_000, 49_152, 128_256, 151_936, 262_144)
LLAMA = 128_256
BATCHES = (1, 8, 32, 128)
CONTEXTS = (512, 2048, 8192, 32768)
TREES = (8, 32, 60)
KEYS = 8
HALF, WORD = 2, 4
"""Bytes of bfloat16, and of float32, an id or a word of bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One operation at one size.

    Attributes:
      kernel: its folder in `jspec.pallas`.
      label: what varies.
      floor: bytes that must be moved.
      rows: of the batch.
      nodes: of a row's tree, or of its chain with the anchor.
      tree: whether nodes branch.
      context: committed tokens of a row.
      heads: query heads, of which as many belong to each of 8 key heads.
      width: of a head.
      vocabulary: ids of a row of logits.
      dense: whether drafts come with a law.
      kept: nodes of a kept path.
      arrays: keys and values, of half as many layers.
    """

    kernel: str
    label: str
    floor: int
    rows: int
    nodes: int = 1
    tree: bool = False
    context: int = 0
    heads: int = 32
    width: int = 128
    vocabulary: int = 0
    dense: bool = False
    kept: int = 0
    arrays: int = 0


def attention(
    rows: int,
    context: int,
    nodes: int,
    *,
    heads: int = 32,
    width: int = 128,
    tree: bool = False,
) -> Case:
    """Keys and values up to the rows' length once, queries and results once."""
    cached = 2 * rows * KEYS * (context + nodes) * width * HALF
    asked = 2 * rows * nodes * heads * width * HALF
    shape = "tree" if tree else "chain"
    return Case(
        kernel="paged_attention",
        label=f"B={rows} context={context} {shape} {nodes} D={width}",
        floor=cached + asked,
        rows=rows,
        nodes=nodes,
        tree=tree,
        context=context,
        heads=heads,
        width=width,
    )


def greedy(rows: int, nodes: int, vocabulary: int, *, tree: bool = False) -> Case:
    """The logits once."""
    shape = f"tree {nodes}" if tree else f"K={nodes - 1}"
    return Case(
        kernel="greedy_verify",
        label=f"B={rows} {shape} V={vocabulary}",
        floor=rows * nodes * vocabulary * HALF,
        rows=rows,
        nodes=nodes,
        tree=tree,
        vocabulary=vocabulary,
    )


def judging(
    kernel: str, rows: int, gamma: int, vocabulary: int, *, dense: bool = False
) -> Case:
    """The logits once, and of the draft laws what the rule must see.

    Of dense laws rejection needs one number a draft, and for the draw one row pair a
    row of the batch: a row of logits again, and one of `q`. Block verification weighs
    what every draft leaves, so it needs all laws of drafts, once; the anchor's is none.
    """
    floor = rows * (gamma + 1) * vocabulary * HALF
    if dense and kernel == "rejection_verify":
        floor += rows * vocabulary * (HALF + WORD)
    elif dense:
        floor += rows * gamma * vocabulary * WORD
    return Case(
        kernel=kernel,
        label=f"B={rows} K={gamma} V={vocabulary} {'dense' if dense else 'certain'}",
        floor=floor,
        rows=rows,
        nodes=gamma + 1,
        vocabulary=vocabulary,
        dense=dense,
    )


def drawing(rows: int, vocabulary: int, *, dense: bool = True) -> Case:
    """Two laws once; of a certain draft, its row of logits once."""
    return Case(
        kernel="residual_draw",
        label=f"B={rows} V={vocabulary} {'dense' if dense else 'certain'}",
        floor=rows * vocabulary * (2 * WORD if dense else HALF),
        rows=rows,
        vocabulary=vocabulary,
        dense=dense,
    )


def keeping(
    rows: int,
    nodes: int,
    kept: int,
    *,
    context: int = 512,
    arrays: int = 16,
    width: int = 128,
) -> Case:
    """Every kept node but the first, which stands in place, read and written."""
    return Case(
        kernel="keep_path",
        label=f"B={rows} {kept} of {nodes} nodes, {arrays} arrays D={width}",
        floor=2 * arrays * rows * (kept - 1) * KEYS * width * HALF,
        rows=rows,
        nodes=nodes,
        context=context,
        width=width,
        kept=kept,
        arrays=arrays,
    )


def masking(rows: int, nodes: int) -> Case:
    """Parents read, a word for every 32 nodes written."""
    return Case(
        kernel="tree_mask",
        label=f"B={rows} tree {nodes}",
        floor=rows * nodes * WORD * (1 + -(-nodes // 32)),
        rows=rows,
        nodes=nodes,
        tree=True,
    )


def cases() -> list[Case]:
    """What is measured: rows, contexts, K, trees and vocabularies, a few at a time."""
    rejection, block = "rejection_verify", "block_verify"
    found = [attention(b, c, 4) for c in CONTEXTS for b in BATCHES]
    found += [attention(8, 8192, nodes) for nodes in (1, 2, 8)]
    found += [attention(8, 8192, nodes, tree=True) for nodes in TREES]
    found += [attention(8, 8192, 48, tree=True), attention(1, 2048, 512)]
    found += [attention(8, 8192, 64, width=64, tree=True)]
    found += [attention(8, 2048, 4, width=width) for width in (64, 256)]
    found += [greedy(b, 4, LLAMA) for b in BATCHES]
    found += [greedy(8, nodes, LLAMA) for nodes in (2, 8)]
    found += [greedy(8, nodes, LLAMA, tree=True) for nodes in TREES]
    found += [greedy(8, 4, v) for v in VOCABULARIES]
    for dense in (False, True):
        found += [judging(rejection, b, 3, LLAMA, dense=dense) for b in BATCHES]
        found += [judging(rejection, 8, k, LLAMA, dense=dense) for k in (1, 7)]
    found += [judging(rejection, 8, 3, v) for v in VOCABULARIES]
    found += [judging(block, b, 3, LLAMA, dense=True) for b in BATCHES]
    found += [judging(block, 8, k, LLAMA, dense=True) for k in (1, 7)]
    found += [judging(block, 8, 3, LLAMA)]
    found += [judging(block, 8, 3, v, dense=True) for v in VOCABULARIES]
    found += [drawing(b, LLAMA) for b in BATCHES] + [drawing(8, LLAMA, dense=False)]
    found += [drawing(8, v) for v in VOCABULARIES]
    found += [keeping(b, 32, 6) for b in BATCHES]
    found += [keeping(8, nodes, kept) for nodes, kept in ((8, 4), (60, 8))]
    found += [masking(b, 60) for b in BATCHES]
    found += [masking(8, nodes) for nodes in TREES]
    return in_turn({(case.kernel, case.label): case for case in found}.values())


def in_turn(found: Iterable[Case]) -> list[Case]:
    """The largest case of every kernel, then the second largest, and so on.

    Where time runs out, the smallest cases of kernels with many are left out: what
    they take is mostly their dispatch.
    """
    large = sorted(found, key=lambda case: -case.floor)
    kernels = dict.fromkeys(case.kernel for case in large)
    ranked = ([case for case in large if case.kernel == kernel] for kernel in kernels)
    rounds = itertools.zip_longest(*ranked)
    return [case for turn in rounds for case in turn if case is not None]


def tiny() -> list[Case]:
    """A small case of every kernel and kind of draft, for an interpreter."""
    found = [attention(1, 70, 3, heads=16, width=64, tree=True)]
    found += [greedy(2, 3, 384, tree=True)]
    for kernel in ("rejection_verify", "block_verify"):
        found += [judging(kernel, 2, 2, 384, dense=dense) for dense in (False, True)]
    found += [drawing(2, 384, dense=dense) for dense in (False, True)]
    found += [keeping(2, 6, 3, context=20, arrays=2, width=16), masking(2, 8)]
    return in_turn(found)
