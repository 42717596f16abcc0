"""Frozen dataclasses that JAX sees as pytrees."""

import dataclasses
from collections.abc import Iterable
from typing import Any, dataclass_transform

import jax

__all__ = ["pytree"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree[T](cls: type[T]) -> type[T]:
    """Makes `cls` a frozen, keyword-only dataclass whose fields are its children.

    Flattened and rebuilt without `__init__`, so that transformations may put
    anything in the fields (tracers, shardings, `ShapeDtypeStruct`s, `None`)
    without run-time shape checks rejecting it.
    """
    frozen: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(frozen))

    def flatten(tree: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(tree, name) for name in names), None

    def flatten_with_keys(tree: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(
            (jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names
        ), None

    def unflatten(_: None, children: Iterable[Any]) -> Any:
        tree = object.__new__(frozen)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(tree, name, child)
        return tree

    jax.tree_util.register_pytree_with_keys(
        frozen, flatten_with_keys, unflatten, flatten
    )
    return frozen
