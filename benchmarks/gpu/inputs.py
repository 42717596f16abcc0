"""Random inputs of a case, the kernel and its twin."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from benchmarks.gpu.cases import KEYS, Case
from jspec.rounds import DEAD

__all__ = ["Inputs", "functions", "make"]

PAGE = 16
BLOCK = 256
"""Tokens of a block of attention, of which a row's table holds whole ones."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "given"],
    meta_fields=["static", "changed"],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """What an operation is called with.

    Attributes:
      arrays: its arguments.
      given: arrays that it takes by name.
      static: the rest of what it takes by name.
      changed: whether its first argument is changed and given back, as a cache is by
        every round.
    """

    arrays: tuple[Any, ...]
    given: dict[str, Array] = dataclasses.field(default_factory=dict)
    static: tuple[tuple[str, Any], ...] = ()
    changed: bool = False


def make(case: Case) -> Inputs:
    """Inputs on the device, the same in every run, by one program."""
    return jax.jit(MAKERS[case.kernel], static_argnums=0)(case, jax.random.key(0))


def functions(case: Case, *, interpret: Any = None) -> dict[str, Callable[..., Any]]:
    """The kernel and its twin."""
    folder = f"jspec.pallas.{case.kernel}"
    ours = getattr(importlib.import_module(f"{folder}.gpu"), case.kernel)
    twin = getattr(importlib.import_module(f"{folder}.reference"), case.kernel)

    def kernel(*arrays: Any, **options: Any) -> Any:
        return ours(*arrays, interpret=interpret, **options)

    return {"gpu": kernel, "reference": twin}


def parents(case: Case) -> Int[Array, "B N"]:
    """A chain, or a tree of two children a node."""
    nodes = jnp.arange(case.nodes, dtype=jnp.int32)
    parent = (nodes + 1) // 2 - 1 if case.tree else nodes - 1
    return jnp.broadcast_to(parent.at[0].set(DEAD), (case.rows, case.nodes))


def ancestors(case: Case) -> Bool[Array, "B N N"]:
    """Of the same tree: a node's path is its own bit and those of its parent."""
    parent = parents(dataclasses.replace(case, rows=1))[0]

    def add(seen: Array, node: Array) -> tuple[Array, None]:
        return seen.at[node].set(seen[node] | seen[parent[node]]), None

    seen = jnp.eye(case.nodes, dtype=bool)
    seen, _ = jax.lax.scan(add, seen, jnp.arange(1, case.nodes))
    return jnp.broadcast_to(seen[None], (case.rows, case.nodes, case.nodes))


def paged(case: Case, key: Array, arrays: int) -> tuple[tuple[Array, ...], Array]:
    """Pages of `arrays` arrays, and tables in which each row's are scattered."""
    each = -(-(case.context + case.nodes) // BLOCK) * BLOCK // PAGE
    order, *keys = jax.random.split(key, arrays + 1)
    place = jax.random.permutation(order, case.rows * each).astype(jnp.int32)
    shape = (case.rows * each, KEYS, PAGE, case.width)
    pages = tuple(jax.random.normal(key, shape, jnp.bfloat16) for key in keys)
    return pages, place.reshape(case.rows, each)


def lengths(case: Case) -> Int[Array, " B"]:
    """All rows have the context of the case."""
    return jnp.full((case.rows,), case.context, jnp.int32)


def attention(case: Case, key: Array) -> Inputs:
    """Queries, pages and what the nodes descend from."""
    asked, key = jax.random.split(key)
    (k, v), table = paged(case, key, 2)
    shape = (case.rows, case.nodes, case.heads, case.width)
    q = jax.random.normal(asked, shape, jnp.bfloat16)
    static: tuple[tuple[str, Any], ...] = (
        ("window", None),
        ("scale", case.width**-0.5),
        ("block_pages", BLOCK // PAGE),
    )
    given = {"ancestors": ancestors(case)} if case.tree else {}
    if not case.tree:
        static += (("ancestors", None),)
    return Inputs(arrays=(q, k, v, table, lengths(case)), given=given, static=static)


def scored(case: Case, key: Array) -> tuple[Float[Array, "B N V"], Int[Array, "B N"]]:
    """Logits, and drafts that are the target's choices after the node before them."""
    shape = (case.rows, case.nodes, case.vocabulary)
    logits = 4 * jax.random.normal(key, shape, jnp.bfloat16)
    choice = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    before = jnp.maximum(parents(case), 0)
    return logits, jnp.take_along_axis(choice, before, axis=1)


def walking(case: Case, key: Array) -> Inputs:
    """A tree for greedy verification."""
    logits, tokens = scored(case, key)
    return Inputs(arrays=(logits, tokens, parents(case)))


def judging(case: Case, key: Array) -> Inputs:
    """A chain, noise by which some of the drafts are kept, and perhaps laws."""
    key, coins, last, drafted = jax.random.split(key, 4)
    logits, tokens = scored(case, key)
    noise = (
        0.3 * jax.random.uniform(coins, (case.rows, case.nodes - 1)),
        jax.random.uniform(last, (case.rows,)),
    )
    given = {}
    if case.dense:
        blurred = jax.random.normal(drafted, logits.shape) + logits
        given["q"] = jnp.roll(jax.nn.softmax(blurred, axis=-1), 1, axis=1)
    warmth = jnp.ones((case.rows,), jnp.float32)
    return Inputs(arrays=(logits, warmth, tokens, parents(case), *noise), given=given)


def drawing(case: Case, key: Array) -> Inputs:
    """Two laws, or logits and an id that is impossible."""
    key, other, last = jax.random.split(key, 3)
    shape = (case.rows, case.vocabulary)
    uniform = jax.random.uniform(last, (case.rows,))
    if case.dense:
        p, q = (
            jax.nn.softmax(4 * jax.random.normal(one, shape), axis=-1)
            for one in (key, other)
        )
        return Inputs(arrays=(p, uniform), given={"q": q})
    logits = 4 * jax.random.normal(key, shape, jnp.bfloat16)
    given = {
        "token": jnp.argmax(logits, axis=-1).astype(jnp.int32),
        "lse": jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1),
    }
    return Inputs(arrays=(logits, uniform), given=given)


def keeping(case: Case, key: Array) -> Inputs:
    """Paths that skip as many nodes at every step as the tree allows."""
    pages, table = paged(case, key, case.arrays)
    nodes = jnp.arange(case.nodes, dtype=jnp.int32)
    path = jnp.minimum(nodes * (case.nodes // case.kept), case.nodes - 1)
    path = jnp.broadcast_to(path, (case.rows, case.nodes))
    count = jnp.full((case.rows,), case.kept, jnp.int32)
    return Inputs(arrays=(pages, table, lengths(case), path, count), changed=True)


def masking(case: Case, key: Array) -> Inputs:
    """A tree, without anything random."""
    del key
    return Inputs(arrays=(parents(case),))


MAKERS: Mapping[str, Callable[[Case, Array], Inputs]] = MappingProxyType(
    {
        "paged_attention": attention,
        "greedy_verify": walking,
        "rejection_verify": judging,
        "block_verify": judging,
        "residual_draw": drawing,
        "keep_path": keeping,
        "tree_mask": masking,
    }
)
