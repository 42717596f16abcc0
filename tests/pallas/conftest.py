"""How kernels run on a CPU: interpreted, with every race reported."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclasses.dataclass(frozen=True)
class Interpreted:
    """Runs a kernel's function and fails where two accesses were not ordered."""

    params: Any

    def __call__(self, fn: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
        out = jax.block_until_ready(fn(*arrays, interpret=self.params, **options))
        # Version 0.11.2 prints a race and goes on; later ones raise.
        assert not interpreter.get_races().races_found
        return out


@pytest.fixture
def interpreted() -> Iterator[Interpreted]:
    """Calls `fn(*arrays, interpret=..., **options)` with race detection on."""
    yield Interpreted(plgpu.InterpretGPUParams(detect_races=True))
    # What a kernel that raised has left would be found by the next one.
    interpreter.reset_gpu_interpret_mode_state()
