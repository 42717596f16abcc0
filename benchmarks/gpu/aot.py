"""Compiles functions for an H100 on a machine without a GPU, and reads the report.

XLA, Mosaic and ptxas come in two wheels, jax's CUDA plugin and its runtime library,
which need neither a driver nor CUDA's own tools. They live beside the environment
(`python -m benchmarks.gpu.aot` installs them), because jax would look for a GPU in
every process that could import them; each compilation is a process of its own that
can.
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Figures", "PluginError", "compile_for", "compile_many", "install"]

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".peers" / "aot"
WHEELS = ("jax-cuda12-plugin", "jax-cuda12-pjrt")

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The device to compile for, as XLA describes it."""


class PluginError(RuntimeError):
    """The compiler for NVIDIA GPUs is missing; the message says how to get it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """What the assembler said of one Mosaic kernel.

    Attributes:
      name: of the function that is its body.
      registers: of one thread.
      spills: bytes stored to and loaded from memory for want of registers.
      shared_memory: bytes of one block, barriers included.
      ptx: its code, before the assembler.
    """

    name: str
    registers: int
    spills: int
    shared_memory: int
    ptx: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """What a compiled function is made of.

    Attributes:
      kernels: its Mosaic kernels, in the order of compilation, each different one once.
      hlo_text: the optimised program: one fusion, copy or library call an instruction.
      temporary: bytes of intermediate arrays in the GPU's memory.
    """

    kernels: tuple[Kernel, ...]
    hlo_text: str
    temporary: int

    @property
    def registers(self) -> int:
        """Of a thread of the hungriest kernel."""
        return max((kernel.registers for kernel in self.kernels), default=0)

    @property
    def spills(self) -> int:
        """Bytes, of all kernels."""
        return sum(kernel.spills for kernel in self.kernels)

    @property
    def shared_memory(self) -> int:
        """Bytes of a block of the hungriest kernel."""
        return max((kernel.shared_memory for kernel in self.kernels), default=0)


def compile_for(fn: Callable[..., Any], *shapes: Any) -> Figures:
    """Compiles `fn` for an H100 (sm_90a), in a process of its own: about 3 seconds.

    Args:
      fn: a function of a module, or a `functools.partial` of one that holds what is
        static: the process that compiles it finds it by name.
      *shapes: a `jax.ShapeDtypeStruct` for each argument, or pytrees of them.

    Raises:
      PluginError: the compiler is not installed for this version of jax.
      RuntimeError: the function does not compile; the message ends with the reason.
    """
    plugin = _folder()
    if not plugin.is_dir():
        raise PluginError(
            f"there is no compiler for NVIDIA GPUs in {plugin.relative_to(ROOT)}; "
            "`python -m benchmarks.gpu.aot` installs it"
        )
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked"), Path(folder, "answered")
        asked.write_bytes(pickle.dumps((fn, shapes)))
        paths = [str(plugin), str(ROOT), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.aot", str(asked), str(answered)],
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
                "MOSAIC_GPU_DUMP_TO": folder,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not answered.exists():
            raise RuntimeError(
                f"compiling for sm_90a failed: {_tail(done.stdout + done.stderr)}"
            )
        return pickle.loads(answered.read_bytes())


def compile_many(
    cases: Sequence[tuple[Callable[..., Any], Sequence[Any]]],
) -> list[Figures]:
    """Compiles several functions, each in a process of its own.

    In one process a kernel that two of them share would be compiled, and reported,
    for the first alone.
    """
    return [compile_for(fn, *shapes) for fn, shapes in cases]


def install() -> Path:
    """Installs the compiler that belongs to this version of jax, if it is missing."""
    folder = _folder()
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        making = folder.with_suffix(".part")
        shutil.rmtree(making, ignore_errors=True)
        version = importlib.metadata.version("jax")
        wanted = [f"{name}=={version}" for name in WHEELS]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        try:
            subprocess.run([*pip, "--target", str(making), *wanted], check=True)
        except subprocess.CalledProcessError as error:
            raise PluginError(
                f"installing {' and '.join(wanted)} ended with status "
                f"{error.returncode}"
            ) from error
        making.rename(folder)
    return folder


def _folder() -> Path:
    return HOME / f"jax-{importlib.metadata.version('jax')}"


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-40:])


def _compile(fn: Callable[..., Any], shapes: Sequence[Any], dumps: Path) -> Figures:
    import jax
    import numpy as np
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="cuda", target_config=H100, topology="1x1x1"
    )
    mesh = jax.sharding.Mesh(np.array(described.devices).reshape(1), ("x",))
    here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), tuple(shapes)
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        traced = jax.jit(fn).trace(*placed)
        compiled = traced.lower(lowering_platforms=("cuda",)).compile()
    used = compiled.memory_analysis()
    if used is None:
        raise RuntimeError("XLA does not say what memory the function needs")
    return Figures(
        kernels=_read(dumps),
        hlo_text=compiled.as_text() or "",
        temporary=used.temp_size_in_bytes,
    )


def _read(dumps: Path) -> tuple[Kernel, ...]:
    """What Mosaic left of each kernel: the report, its scratch memory, its code.

    The assembler knows the block's static memory only; what the kernel asks for when
    it is launched stands in Mosaic's own list. Lists and reports are numbered apart;
    equal kernels have several lists and one report.
    """
    lists: dict[str, list[str]] = {}
    for path in sorted(dumps.glob("*.resources.txt"), key=_number):
        lists.setdefault(_name(path), []).append(path.read_text())
    # Of equal names the lists follow each other as the reports do.
    following = {name: iter(dict.fromkeys(said)) for name, said in lists.items()}
    found = []
    for report in sorted(dumps.glob("*.ptxas"), key=_number):
        said, name = report.read_text(), _name(report)
        # Different kernels may ask for the same: then there is no list left.
        scratch = next(following[name], lists[name][-1])
        used = re.search(r"Used (\d+) registers", said)
        dynamic = re.search(r"smem_scratch_bytes=(\d+)", scratch)
        if used is None or dynamic is None:
            raise RuntimeError(f"no figures in the assembler's report: {said}")
        barriers = sum(
            int(each) * int(times)
            for each, times in re.findall(r"num_barriers=(\d+)[^}]*?\): (\d+)", scratch)
        )
        found.append(
            Kernel(
                name=name,
                registers=int(used[1]),
                spills=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
                shared_memory=int(dynamic[1]) + 8 * barriers,
                ptx=report.with_suffix(".ptx").read_text(),
            )
        )
    return tuple(found)


def _name(path: Path) -> str:
    return re.sub(r"_\d+$", "", path.name.split(".")[0])


def _number(path: Path) -> int:
    return int(path.name.split(".")[0].rpartition("_")[2])


def _answer(asked: Path, answered: Path) -> None:
    fn, shapes = pickle.loads(asked.read_bytes())
    answered.write_bytes(pickle.dumps(_compile(fn, shapes, asked.parent)))


def main(words: Sequence[str]) -> None:
    """Installs the compiler, or compiles the function in the file that is named."""
    if words:
        # Pickled figures name their class by module: not by `__main__`.
        from benchmarks.gpu import aot

        aot._answer(*map(Path, words))
    else:
        with contextlib.suppress(BrokenPipeError):
            print(install().relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
