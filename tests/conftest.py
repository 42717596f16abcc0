"""How every test runs: on the CPU, strictly, the shapes of arrays checked."""

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set in the environment, before jax is imported, so that what a test starts obeys too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import jaxtyping
import pytest

import tests.shapes

# Before any test imports jspec: only modules imported later are checked.
jaxtyping.install_import_hook("jspec", f"{tests.shapes.__name__}.check")


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> Iterator[Any]:
    """Tiny servers, each started when first asked for: see `tests.serving.Servers`."""
    from tests.serving import Servers

    with Servers(tmp_path_factory.mktemp("servers")) as made:
        yield made


@pytest.fixture
def run_on_devices() -> Callable[[int, str], str]:
    """Runs Python text where the CPU is so many devices; returns what it printed.

    In a process of its own: the number is fixed when jax starts, and more than one
    slows everything else by some percent.
    """

    def run(devices: int, script: str) -> str:
        flags = f"--xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


MAPPINGS = 40_000
"""Memory mappings beyond which compiled programs are dropped: a process may have
65,530, every program takes some, and XLA crashes where there are no more."""


@pytest.fixture(autouse=True)
def few_programs():
    """Drops compiled programs that no test holds before there are too many."""
    yield
    with open("/proc/self/maps") as mappings:
        if sum(1 for _ in mappings) > MAPPINGS:
            jax.clear_caches()
            gc.collect()
