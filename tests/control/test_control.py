"""The package as a whole: no jax, and one protocol for every controller."""

import subprocess
import sys

import pytest

from jspec import control


def test_nothing_in_it_imports_jax():
    script = (
        "import importlib, pkgutil, sys, jspec.control as package\n"
        "for module in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module(f'jspec.control.{module.name}')\n"
        "assert not {'jax', 'flax', 'torch', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == 0


def table():
    return control.Schedule.parse(
        [[1, 4, 2], [5, 8, 0]], max_batch=8, max_model_len=64, max_k=2
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: control.Static(2),
        table,
        lambda: control.Corrected(table()),
        lambda: control.Adaptive(graph_batches=(1, 8)),
        lambda: control.Adaptive(graph_batches=(1, 8), compat="sglang"),
    ],
)
def test_every_controller_chooses_from_its_palette_and_hears_of_rounds(make):
    controller = make()
    for turn in range(50):
        batch = 1 + turn % 8
        k = controller.k(batch, 32)
        assert k in controller.palette
        controller.update([min(k, 1)] * batch, batch, k)


def test_a_constant_k_is_a_natural_number():
    for wrong in (True, -1):
        with pytest.raises(ValueError, match="K "):
            control.Static(wrong)
