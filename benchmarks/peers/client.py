"""The runner's end of a worker process."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from benchmarks.peers import setup
from benchmarks.peers.protocol import Load, Run

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "jspec": "benchmarks.peers.jspec_worker",
        "transformers": "benchmarks.peers.transformers_worker",
        "vllm": "benchmarks.peers.vllm_worker",
        "llama_cpp": "benchmarks.peers.llama_cpp_worker",
    }
)


class WorkerError(RuntimeError):
    """A worker refused or died; the message says why."""


class Worker:
    """A process that holds one engine, asleep on stdin between requests."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._stderr = log.open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=setup.ROOT,
            env=os.environ | environment,
        )

    def load(self, load: Load) -> dict[str, str]:
        """Gets the engine ready; returns its versions."""
        return self._ask({"op": "load"} | dataclasses.asdict(load))["versions"]

    def run(self, run: Run) -> dict[str, Any]:
        """Decodes; returns tokens and timings."""
        return self._ask({"op": "run"} | dataclasses.asdict(run))

    def _ask(self, words: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(
                f"The worker ended with status {process.wait()}; see {self.log}."
            )
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{answer['error']} (more in {self.log})")
        return answer

    def close(self) -> None:
        """Asks the process to end, and ends it after ten seconds."""
        process = self._process
        if process.poll() is None and process.stdin:
            try:
                process.stdin.write('{"op": "close"}\n')
                process.stdin.close()
                process.wait(timeout=10)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, self._stderr):
            if pipe and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()


def start(engine: str, *, threads: int, log: Path) -> Worker:
    """Starts the worker of an engine in its own environment.

    Raises:
      SetupError: the peer is not installed.
      ValueError: there is no such engine.
    """
    if engine not in MODULES:
        raise ValueError(
            f"There is no engine {engine!r}; there are {', '.join(MODULES)}."
        )
    python = Path(sys.executable) if engine == "jspec" else setup.interpreter(engine)
    environment = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if engine == "vllm":
        environment |= _vllm_environment(python, threads)
    return Worker([str(python), "-m", MODULES[engine]], environment, log)


def _vllm_environment(python: Path, threads: int) -> dict[str, str]:
    """Intel's OpenMP and tcmalloc go before all other libraries, where present."""
    home = python.parents[1]
    found = [*home.glob("lib/libiomp5.so"), *_tcmalloc()]
    return {
        "LD_PRELOAD": ":".join(map(str, found)),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
    }


def _tcmalloc() -> list[Path]:
    found = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    return found[:1]
