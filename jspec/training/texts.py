"""Texts on disk: prompts and the target's answers, in shards that are made once.

texts.json          what they are: target, temperature, seed, sources, sizes
shard-00000.npz     tokens end to end, how long each text is and its prompt

Only whole shards exist, so a run that was stopped goes on behind the last one. The
target's states are not part of them: `states` keeps those of what was trained on.
"""

import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jspec.storage import write_file

__all__ = ["Batch", "Texts", "load_texts", "write_texts"]

SHARD = 64
"""Texts of a shard: what a stopped run loses at most."""
HELD_OUT = 32
"""The first so many texts are never trained on."""
NOTES = "texts.json"

type Ids = Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Texts side by side, padded with zeros.

    Attributes:
      which: their numbers.
      tokens: ids.
      answered: which of them the target wrote.
    """

    which: tuple[int, ...]
    tokens: np.ndarray
    answered: np.ndarray

    @property
    def real(self) -> int:
        """Tokens that are no padding, of prompts and answers."""
        return int(self._ends.sum())

    @property
    def _ends(self) -> np.ndarray:
        width = self.answered.shape[1]
        last = width - np.argmax(self.answered[:, ::-1], axis=1)
        return np.where(self.answered.any(1), last, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """All texts of a folder.

    Attributes:
      notes: what `texts.json` says.
      texts: the ids of each.
      prompts: how many of them are its prompt.
    """

    notes: Mapping[str, Any]
    texts: tuple[np.ndarray, ...]
    prompts: tuple[int, ...]

    @property
    def held_out(self) -> int:
        """The first so many are for examination: 32, or a fifth if they are few."""
        return min(HELD_OUT, max(1, len(self.texts) // 5))

    def batch(self, which: Sequence[int], length: int) -> Batch:
        """These texts, cut at `length`."""
        tokens = np.zeros((len(which), length), np.int32)
        answered = np.zeros((len(which), length), bool)
        for row, i in enumerate(which):
            text = self.texts[i][:length]
            tokens[row, : len(text)] = text
            answered[row, self.prompts[i] : len(text)] = True
        return Batch(which=tuple(which), tokens=tokens, answered=answered)

    def examination(self, size: int, length: int) -> Iterator[Batch]:
        """The held-out texts, each once; the last batch may be filled with nothing."""
        for start in range(0, self.held_out, size):
            some = range(start, min(start + size, self.held_out))
            whole = self.batch(some, length)
            missing = ((0, size - len(some)), (0, 0))
            yield Batch(
                which=whole.which,
                tokens=np.pad(whole.tokens, missing),
                answered=np.pad(whole.answered, missing),
            )

    def training(self, step: int, size: int, length: int, seed: int) -> Batch:
        """The batch of a step, a function of seed and step alone.

        Every text once in an order of its own, then once more in another.
        """
        many = len(self.texts) - self.held_out
        chosen = []
        for place in range(step * size, (step + 1) * size):
            order = np.random.default_rng((seed, place // many)).permutation(many)
            chosen.append(int(order[place % many]) + self.held_out)
        return self.batch(chosen, length)

    def counts(self, vocab_size: int, length: int) -> np.ndarray:
        """How often the target wrote each token in the texts that are trained on."""
        written = [
            text[prompt:length]
            for text, prompt in zip(
                self.texts[self.held_out :], self.prompts[self.held_out :], strict=True
            )
        ]
        return np.bincount(np.concatenate(written), minlength=vocab_size)


def write_texts(
    folder: Path,
    prompts: Sequence[Ids],
    answer: Callable[[Sequence[Ids]], Sequence[Ids]],
    notes: Mapping[str, Any],
    *,
    step: Callable[[int, int, int], None] = lambda done, all_, tokens: None,
) -> int:
    """Has every prompt answered, shard by shard; what is there already stays.

    Args:
      folder: of the shards.
      prompts: as ids.
      answer: the target: the ids that follow each of some prompts.
      notes: what the texts are; the same when a stopped run goes on.
      step: is told of texts that are done, of all, and of tokens just written.

    Returns:
      tokens of all answers made now.

    Raises:
      ValueError: the folder holds texts of another kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = dict(notes) | {"prompts": len(prompts)}
    file = folder / NOTES
    if file.is_file():
        found = json.loads(file.read_text("utf-8"))
        for name in sorted(said.keys() | found.keys()):
            if found.get(name) != said.get(name):
                raise ValueError(
                    f"{folder} holds texts of {name} {found.get(name)!r}, not "
                    f"{said.get(name)!r}; give another folder"
                )
    else:
        write_file(file, json.dumps(said, indent=2).encode() + b"\n")
    written = 0
    for start in range(0, len(prompts), SHARD):
        shard = folder / f"shard-{start // SHARD:05}.npz"
        some = prompts[start : start + SHARD]
        tokens = 0
        if not shard.is_file():
            answers = answer(some)
            tokens = sum(map(len, answers))
            whole = [[*p, *a] for p, a in zip(some, answers, strict=True)]
            _save(shard, whole, [len(p) for p in some])
        written += tokens
        step(start + len(some), len(prompts), tokens)
    return written


def _save(shard: Path, texts: Sequence[Ids], prompts: Sequence[int]) -> None:
    flat = np.concatenate([np.asarray(text, np.int64) for text in texts])
    kind = np.uint16 if flat.max(initial=0) < 2**16 else np.uint32
    whole = io.BytesIO()
    np.savez(
        whole,
        tokens=flat.astype(kind),
        lengths=np.asarray([len(text) for text in texts], np.int32),
        prompts=np.asarray(prompts, np.int32),
    )
    write_file(shard, whole.getvalue())


def load_texts(folder: Path) -> Texts:
    """Reads all shards that are there.

    Raises:
      ValueError: there are none, or too few to hold some out.
    """
    if not (folder / NOTES).is_file():
        raise ValueError(f"{folder} has no {NOTES}: make texts with `jspec distill`")
    notes = json.loads((folder / NOTES).read_text("utf-8"))
    texts: list[np.ndarray] = []
    prompts: list[int] = []
    for shard in sorted(folder.glob("shard-*.npz")):
        with np.load(shard) as found:
            ends = np.cumsum(found["lengths"])
            texts += np.split(found["tokens"].astype(np.int32), ends[:-1])
            prompts += found["prompts"].tolist()
    if len(texts) < 2:
        raise ValueError(
            f"{folder} holds {len(texts)} texts; at least 2 are needed, one of them to "
            f"be held out"
        )
    return Texts(notes=notes, texts=tuple(texts), prompts=tuple(prompts))
