"""Which implementation of an operation runs: by the caller, or by measurement."""

from collections.abc import Set
from typing import Literal, get_args

import jax

__all__ = ["Implementation", "choose"]

Implementation = Literal["reference", "gpu"]

FASTER_ON_GPU: Set[str] = frozenset()
"""Operations whose kernel a benchmark on a GPU showed to beat its twin. None was
measured yet, so `None` means the twin on every platform."""


def choose(operation: str, implementation: str | None) -> Implementation:
    """The implementation asked for, or with `None` the one known to be faster here.

    A kernel that was asked for by name and does not take the shapes raises; nothing
    falls back to the twin silently.

    Raises:
      ValueError: there is no such implementation.
    """
    if implementation is None:
        fast = operation in FASTER_ON_GPU and jax.default_backend() == "gpu"
        return "gpu" if fast else "reference"
    for known in get_args(Implementation):
        if implementation == known:
            return known
    raise ValueError(
        f"{operation} has no implementation {implementation!r}; there are "
        f"{', '.join(get_args(Implementation))}"
    )
