"""Builds the C++ of this folder once per machine, and tells XLA of it."""

import contextlib
import contextvars
import ctypes
import functools
import hashlib
import logging
import os
import platform
import secrets
import shutil
import subprocess
from collections.abc import Generator, Iterable
from pathlib import Path

import jax
import jaxlib

__all__ = ["TARGETS", "aside", "load", "ready"]

KERNELS = ("linear", "attention", "panels", "layers", "argmax")
TARGETS = tuple(f"jspec_{name}" for name in KERNELS)
SOURCES = tuple(Path(__file__).with_name(f"{name}.cc") for name in KERNELS)
HEADERS = tuple(
    Path(__file__).with_name(f"{name}.h") for name in ("common", "panels", "attention")
)
FLAGS = ("-O3", "-march=native", "-std=c++20", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")

_ASIDE = contextvars.ContextVar("aside", default=False)

log = logging.getLogger(__name__)


@functools.cache
def load() -> str | None:
    """Makes the products ready for `linear`; built once, then kept in the cache.

    Returns:
      `None` if they are ready; else a sentence that says why not. It is logged as a
      warning too: without them XLA's own operations serve, several times slower.
    """
    try:
        _register()
    except (OSError, RuntimeError) as error:
        reason = f"the CPU kernels could not be built: {error}"
        log.warning("%s; XLA's own products serve instead", reason)
        return reason
    return None


def ready() -> bool:
    """Whether what is traced now should use the kernels: on a CPU, if they were built.

    What they compute for a row has the same bits whatever rows are beside it; XLA's own
    products promise nothing of the kind.
    """
    return not _ASIDE.get() and jax.default_backend() == "cpu" and load() is None


@contextlib.contextmanager
def aside() -> Generator[None]:
    """What is traced inside leaves the kernels aside.

    For training: of hundreds of rows XLA's products are faster, and attention by the
    kernel has no gradient.
    """
    before = _ASIDE.set(True)
    try:
        yield
    finally:
        _ASIDE.reset(before)


def _register() -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise RuntimeError(f"no C++ compiler ({', '.join(COMPILERS)}) was found")
    include = jax.ffi.include_dir()
    key = " ".join((jaxlib.__version__, compiler, *FLAGS, _processor()))
    code = b"".join(file.read_bytes() for file in (*HEADERS, *SOURCES))
    name = hashlib.sha256(code + key.encode()).hexdigest()[:24]
    library = _cache() / f"{name}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{secrets.token_hex(4)}")
        objects = [draft.with_suffix(f"{draft.suffix}.{f.stem}.o") for f in SOURCES]
        try:
            _run(
                [compiler, *FLAGS, f"-I{include}", "-c", str(source), "-o", str(to)]
                for source, to in zip(SOURCES, objects, strict=True)
            )
            _run([[compiler, "-shared", *map(str, objects), "-o", str(draft)]])
            draft.replace(library)
        finally:
            for file in (draft, *objects):
                file.unlink(missing_ok=True)
    loaded = ctypes.CDLL(str(library))
    for target in TARGETS:
        capsule = jax.ffi.pycapsule(getattr(loaded, target))
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")


def _run(commands: Iterable[list[str]]) -> None:
    """Side by side; what the first that fails says is the error."""
    pipe = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    running = [
        (Path(command[0]).name, subprocess.Popen(command, text=True, **pipe))
        for command in commands
    ]
    said = [(name, p.communicate()[1], p.returncode) for name, p in running]
    for name, text, code in said:
        if code:
            first = next((l for l in text.splitlines() if "error" in l), "")
            raise RuntimeError(f"{name} says {first.strip()!r}")


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "jspec" / "native"


def _processor() -> str:
    """What `-march=native` stands for: a cache may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    features = [l for l in lines if l.startswith(("flags", "Features", "model name"))]
    return " ".join((platform.machine(), *features[:2]))
