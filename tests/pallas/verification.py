"""The sizes at which the kernels of verification are compiled."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from jspec.pallas.block_verify import gpu as block
from jspec.pallas.greedy_verify import gpu as greedy
from jspec.pallas.keep_path import gpu as keep
from jspec.pallas.rejection_verify import gpu as rejection
from jspec.pallas.residual_draw import gpu as residual
from jspec.pallas.tree_mask import gpu as mask

type Case = tuple[Callable[..., Any], tuple[Any, ...]]
SHAPE = jax.ShapeDtypeStruct
ROWS = 8


def judge(kernel: Callable[..., Any], *arrays: Any) -> Any:
    """A rule's kernels; the draft law, if there is one, as the last of the arrays."""
    *inputs, q = arrays if len(arrays) == 7 else (*arrays, None)
    return kernel(*inputs, q=q)


def judge_case(
    kernel: Callable[..., Any],
    vocabulary: int = 128_256,
    *,
    dense: bool = False,
    dtype: Any = jnp.bfloat16,
) -> Case:
    """Four drafts a row."""
    nodes = 5
    shapes = (
        SHAPE((ROWS, nodes, vocabulary), dtype),
        SHAPE((ROWS,), jnp.float32),
        SHAPE((ROWS, nodes), jnp.int32),
        SHAPE((ROWS, nodes), jnp.int32),
        SHAPE((ROWS, nodes - 1), jnp.float32),
        SHAPE((ROWS,), jnp.float32),
    )
    law = (SHAPE((ROWS, nodes, vocabulary), jnp.float32),) if dense else ()
    return functools.partial(judge, kernel), shapes + law


def greedy_case(nodes: int, vocabulary: int = 128_256) -> Case:
    """A chain or a tree of so many nodes."""
    ids = SHAPE((ROWS, nodes), jnp.int32)
    logits = SHAPE((ROWS, nodes, vocabulary), jnp.bfloat16)
    return greedy.greedy_verify, (logits, ids, ids)


def draw(p: Any, uniform: Any, q: Any) -> Any:
    """From two laws."""
    return residual.residual_draw(p, uniform, q=q)


LAW = SHAPE((ROWS, 128_256), jnp.float32)
MOVED = (
    tuple(SHAPE((2048, 8, 16, 128), jnp.bfloat16) for _ in range(16)),
    SHAPE((ROWS, 256), jnp.int32),
    SHAPE((ROWS,), jnp.int32),
    SHAPE((ROWS, 60), jnp.int32),
    SHAPE((ROWS,), jnp.int32),
)

CASES: Mapping[str, Case] = MappingProxyType(
    {
        **{
            f"greedy, vocabulary {vocabulary}": greedy_case(5, vocabulary)
            for vocabulary in (32_000, 49_152, 128_256, 151_936, 262_144)
        },
        "greedy, tree of 60": greedy_case(60),
        **{
            f"rejection, vocabulary {vocabulary}": judge_case(
                rejection.rejection_verify, vocabulary
            )
            for vocabulary in (32_000, 49_152, 128_256, 151_936, 262_144)
        },
        "rejection, float32": judge_case(rejection.rejection_verify, dtype=jnp.float32),
        "rejection, dense": judge_case(rejection.rejection_verify, dense=True),
        "block": judge_case(block.block_verify),
        "block, dense": judge_case(block.block_verify, dense=True),
        "residual draw": (draw, (LAW, SHAPE((ROWS,), jnp.float32), LAW)),
        "keep path, 16 arrays": (keep.keep_path, MOVED),
        "tree mask, 32 nodes": (mask.tree_mask, (SHAPE((ROWS, 32), jnp.int32),)),
        "tree mask, 64 nodes": (mask.tree_mask, (SHAPE((ROWS, 64), jnp.int32),)),
    }
)
