"""States of the target, kept on disk: every method after the first reads them there.

One file, a place of bfloat16 for every token of every text; what was not read yet is a
hole in it. A text's states are computed when it is first trained on.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec.training.lessons import Lesson, read
from jspec.training.texts import Batch

__all__ = ["States", "Teacher"]


class States:
    """The states of texts, `width` numbers a token, by the number of the text."""

    def __init__(
        self,
        folder: Path,
        texts: int,
        length: int,
        width: int,
        notes: Mapping[str, Any],
    ) -> None:
        """Opens the file, or makes it.

        Raises:
          ValueError: it is of other texts, or of another target.
        """
        folder.mkdir(parents=True, exist_ok=True)
        said = {"texts": texts, "length": length, "width": width} | dict(notes)
        file = folder / "states.json"
        if file.is_file() and json.loads(file.read_text("utf-8")) != said:
            raise ValueError(
                f"{folder} keeps other states: {file.read_text('utf-8').strip()}, not "
                f"{json.dumps(said)}; give another folder"
            )
        if not file.is_file():
            for name, size in (("states", texts * length * width * 2), ("read", texts)):
                with (folder / f"{name}.bin").open("wb") as made:
                    made.truncate(size)
            file.write_text(json.dumps(said) + "\n", "utf-8")
        shape = (texts, length, width)
        where = folder / "states.bin"
        self._states = np.memmap(where, np.uint16, mode="r+", shape=shape)
        self._read = np.memmap(folder / "read.bin", bool, mode="r+", shape=(texts,))

    def get(self, which: Sequence[int]) -> np.ndarray | None:
        """The states of these texts, bfloat16; `None` if one was never put."""
        rows = list(which)
        if not self._read[rows].all():
            return None
        return np.asarray(self._states[rows]).view(jnp.bfloat16)

    def put(self, which: Sequence[int], states: np.ndarray) -> None:
        """Keeps the states of these texts, then says that they are there."""
        rows = list(which)
        self._states[rows] = states.astype(jnp.bfloat16).view(np.uint16)
        self._states.flush()
        self._read[rows] = True
        self._read.flush()


class Teacher:
    """What the target shows of a batch: from its states where they are kept.

    Kept or not, a batch is the same every time: with `states`, what is computed is
    rounded to bfloat16 before its first use as well.
    """

    def __init__(
        self, target: Any, taps: tuple[int, ...], states: States | None = None
    ) -> None:
        self.target, self.taps, self.states = target, taps, states
        self.read = jax.jit(read, static_argnames="taps")

    def __call__(self, batch: Batch, *, tapped: bool) -> Lesson:
        """The lesson of a batch; without features if the drafter taps none."""
        if self.states is None:
            taps = self.taps if tapped else ()
            return self.read(self.target, batch.tokens, batch.answered, taps=taps)
        found = self.states.get(batch.which)
        if found is None:
            seen = self.read(self.target, batch.tokens, batch.answered, taps=self.taps)
            both = (np.asarray(seen.features), np.asarray(seen.state))
            self.states.put(batch.which, np.concatenate(both, axis=-1))
            found = self.states.get(batch.which)
        assert found is not None
        width = self.target.config.hidden_size
        both = jnp.asarray(found).astype(self.target.dtype)
        return Lesson(
            tokens=jnp.asarray(batch.tokens),
            answered=jnp.asarray(batch.answered),
            features=both[..., :-width] if tapped else None,
            state=both[..., -width:],
        )
