"""What kernels are compiled at, and what came of it: `python -m tests.pallas.figures`.

Without a GPU the figures are all that is known of a kernel's speed: registers and
shared memory say how many blocks a multiprocessor holds, a spill says it waits for
memory that nobody meant to touch. The command compiles every case and records it in
`figures.json`; a test compares, and another the table in `docs/kernels.md`.
"""

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu import aot
from jspec.pallas.paged_attention import gpu as attention
from tests.pallas import verification

RECORD = Path(__file__).with_name("figures.json")
type Case = tuple[Callable[..., Any], tuple[Any, ...]]


def attend(*arrays: Any) -> Any:
    """The kernel with the tree's ancestors as the last of its arrays.

    A window changes the bits that say what a node sees, and not the kernel.
    """
    *cached, ancestors = arrays
    return attention.paged_attention(
        *cached, ancestors=ancestors, window=None, scale=0.1, block_pages=16
    )


def attention_case(
    *,
    rows: int = 8,
    nodes: int = 8,
    heads: int = 32,
    width: int = 128,
    size: int = 16,
    dtype: Any = jnp.bfloat16,
) -> Case:
    """Eight key heads, and a room of 4096 tokens a row."""
    shape = jax.ShapeDtypeStruct
    pages = shape((rows * 4096 // size, 8, size, width), dtype)
    return attend, (
        shape((rows, nodes, heads, width), dtype),
        pages,
        pages,
        shape((rows, 4096 // size), jnp.int32),
        shape((rows,), jnp.int32),
        shape((rows, nodes, nodes), jnp.bool_),
    )


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "attention, plain decoding": attention_case(nodes=1),
        "attention, tree of 8": attention_case(),
        "attention, tree of 48": attention_case(nodes=48),
        "attention, tree of 60": attention_case(nodes=60),
        "attention, tree of 64, groups of 8": attention_case(nodes=64, heads=64),
        "attention, pages of 128": attention_case(size=128),
        "attention, heads of 64": attention_case(width=64),
        "attention, heads of 64, tree of 64": attention_case(width=64, nodes=64),
        "attention, heads of 256": attention_case(width=256),
        "attention, heads of 256, tree of 60": attention_case(width=256, nodes=60),
        "attention, float16": attention_case(dtype=jnp.float16),
        "attention, float32": attention_case(dtype=jnp.float32),
        "attention, float32, tree of 60": attention_case(nodes=60, dtype=jnp.float32),
        "attention, float32, heads of 64": attention_case(width=64, dtype=jnp.float32),
        **verification.CASES,
    }
)


def compiled() -> dict[str, dict[str, dict[str, int]]]:
    """Registers, spills and shared memory of each case's kernels."""
    names = list(CASES)
    return {
        name: {
            kernel.name: {
                "registers": kernel.registers,
                "spills": kernel.spills,
                "shared_memory": kernel.shared_memory,
            }
            for kernel in figures.kernels
        }
        for name, figures in zip(
            names, aot.compile_many([CASES[name] for name in names]), strict=True
        )
    }


def main() -> None:
    """Compiles and records."""
    found = {"jax": importlib.metadata.version("jax"), "cases": compiled()}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    # Pickled functions name their module: not `__main__`.
    from tests.pallas import figures

    figures.main()
