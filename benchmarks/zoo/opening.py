"""Gets contestants ready: servers of one target in this process, peers beside it."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import jspec
from benchmarks import weights
from benchmarks.peers import client
from benchmarks.peers.protocol import Load
from benchmarks.peers.setup import HOME
from benchmarks.zoo.plan import PLAIN, Config, Contestant
from benchmarks.zoo.rivals import Ours, Peer, Rival
from jspec.server.measurements import Palette

PAGE = 16

type Refusals = dict[int, str]
"""The sentence that refused a K."""


class Open(Protocol):
    """Makes contestants ready; another one in tests."""

    def __call__(
        self, contestant: Contestant, ks: Sequence[int], refused: Refusals
    ) -> contextlib.AbstractContextManager[Rival]:
        """Ready at as many of these K as it can be; the others go to `refused`.

        Raises:
          Refused, WorkerError, SetupError: at none of them.
        """
        ...


class Refused(Exception):
    """A contestant that cannot take part; the message says why."""


class Opener:
    """Servers with one executable for each K; prompts are read once by each."""

    def __init__(self, config: Config, lengths: Sequence[int], *, room: int) -> None:
        """Plans the pages: all prompts, and the texts that grow.

        Args:
          config: what is measured.
          lengths: of all prompts.
          room: most tokens of a prompt and its text.
        """
        rows = max(config.batches)
        kept = sum(-(-length // PAGE) for length in lengths)
        self.config, self.room = config, room
        self.pages = kept + rows * -(-(room + 128) // PAGE)

    @contextlib.contextmanager
    def __call__(
        self, contestant: Contestant, ks: Sequence[int], refused: Refusals
    ) -> Generator[Rival]:
        """See `Open`."""
        if contestant.peer:
            with self._peer(contestant, ks[0]) as peer:
                yield peer
            return
        for most in sorted(ks, reverse=True):
            own = [k for k in ks if k <= most]
            try:
                rival = self._serve(contestant, own)
                break
            except ValueError as error:
                refused[most] = str(error)
        else:
            raise Refused(refused[min(ks)])
        with rival.server:
            yield rival

    def _serve(self, contestant: Contestant, ks: Sequence[int]) -> Ours:
        config = self.config
        palette = Palette((0, *ks))
        drafting: dict[str, Any] = {}
        if contestant.method != PLAIN:
            drafting = {
                "drafter": contestant.drafter,
                "num_speculative_tokens": max(ks),
                "schedule": palette,
                "method_options": dict(contestant.options),
            }
        server = jspec.serve(
            config.target,
            method=contestant.method,
            dtype=config.dtype,
            max_batch=max(config.batches),
            max_model_len=self.room,
            page_size=PAGE,
            kv_pages=self.pages,
            seed=config.seed,
            **drafting,
        )
        return Ours(server, palette, ks, config.max_tokens)

    @contextlib.contextmanager
    def _peer(self, contestant: Contestant, k: int) -> Generator[Peer]:
        config, models = self.config, HOME / "models"
        if config.target != Config.target:
            raise Refused(
                f"transformers runs the target {Config.target!r} alone, not "
                f"{config.target!r}"
            )
        worker = client.start(
            "transformers",
            threads=2,
            log=Path(tempfile.mkdtemp(prefix="jspec-zoo-")) / "worker.log",
        )
        with worker:
            options = {}
            try:
                if contestant.drafter is not None:
                    path = _exported(contestant, models / "assistants")
                    options["assistant"] = str(path)
                model = weights.prepare(weights.embedded(models), models)
            except ValueError as error:
                raise Refused(str(error)) from None
            worker.load(
                Load(
                    model=dataclasses.asdict(model),
                    dtype=config.dtype,
                    method=contestant.method,
                    k=k,
                    max_model_len=self.room,
                    options=options,
                )
            )
            yield Peer(worker, k, config.max_tokens)


def _exported(contestant: Contestant, folder: Path) -> Path:
    """A draft model's checkpoint as transformers loads it, written once."""
    from converters.export import export

    assert contestant.drafter is not None and contestant.digest is not None
    path = folder / contestant.digest
    if not path.exists():
        export(contestant.drafter, path)
    return path
