"""Which implementation of an operation runs: by the caller, or by measurement."""

from collections.abc import Set
from typing import Literal, get_args

import jax

__all__ = ["Implementation", "check_kernels", "choose"]

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


def check_kernels(kernels: str | None) -> None:
    """Refuses a word that is none, and kernels where nothing could run them.

    Raises:
      ValueError: what `kernels` may be, or which device it needs.
    """
    known = get_args(Implementation)
    if kernels is not None and kernels not in known:
        raise ValueError(
            f"kernels must be {' or '.join(map(repr, known))} or left out, not "
            f"{kernels!r}"
        )
    if kernels != "gpu":
        return
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", "none"))
    if device.platform != "gpu" or capability.split(".")[0] != "9":
        raise ValueError(
            f"kernels='gpu' needs an NVIDIA GPU of compute capability 9 (H100, H200), "
            f"and JAX runs on {device.device_kind} here: leave it out"
        )
