"""A whole run: from a method's name and the target's texts to a drafter and a card."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jspec import checkpoint
from jspec.models.base import ModelConfig
from jspec.storage import read, write_file
from jspec.training import RECIPES
from jspec.training.lessons import Words, words_of
from jspec.training.loop import Course, Point, train
from jspec.training.recipe import Recipe
from jspec.training.start import (
    configured,
    first_weights,
    frame_of,
    tap_sizes,
    words_for,
)
from jspec.training.states import States, Teacher
from jspec.training.steps import Task
from jspec.training.texts import Texts

__all__ = ["Settings", "run"]

CARD, NOTES, STATE, DRAFTER = "card.json", "run.json", "state", "drafter"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is asked for.

    Attributes:
      method: a key of `RECIPES`.
      tokens: of prompts and answers, read in all; texts are read again as needed.
      batch: texts of an update.
      length: tokens of a text.
      anchors: drawn from each text by methods that do not use every position.
      words: likeliest tokens over which the loss of a drafter with the target's
        vocabulary is summed; `None`: all. What it drafts is not limited to them.
      rate: the highest learning rate.
      warmup: share of updates while it rises.
      seed: of first weights, order and anchors.
      dtype: of the arithmetic.
      save_every: updates between checkpoints.
      init: a checkpoint whose weights are the first ones, name by name and shape by
        shape those of the drafter to be trained; `None`: they are drawn.
    """

    method: str
    tokens: int
    batch: int = 8
    length: int = 256
    anchors: int = 32
    words: int | None = 8192
    rate: float = 1e-3
    warmup: float = 0.03
    seed: int = 0
    dtype: str = "float32"
    save_every: int = 200
    init: str | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be trained."""
        if self.method not in RECIPES:
            raise ValueError(
                f"method {self.method!r} cannot be trained; those that can are "
                f"{', '.join(RECIPES)}"
            )
        for name in ("tokens", "batch", "anchors", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {getattr(self, name)}"
                )
        if self.length < 16:
            raise ValueError(f"length must be at least 16 tokens, not {self.length}")
        if self.words is not None and self.words < 1:
            raise ValueError(f"words must be at least 1, not {self.words}")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must lie between 0 and 1, not {self.rate}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must lie in 0..1, not {self.warmup}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be float32 or bfloat16, not {self.dtype!r}")


def run(
    settings: Settings,
    target: Any,
    texts: Texts,
    folder: Path,
    *,
    command: str,
    tokenizer_files: Mapping[str, Path],
    states: Path | None = None,
    begun: Callable[[int], None] = lambda steps: None,
    tell: Callable[[int, float], None] = lambda step, loss: None,
    look: Callable[[Point], None] = lambda point: None,
) -> dict[str, Any]:
    """Trains a drafter in `folder`; goes on if a run with these settings was stopped.

    Args:
      settings: what is asked for.
      target: the model.
      texts: its answers.
      folder: gets `drafter`, `card.json` and, while it runs, `state`.
      command: that made it, for the card.
      tokenizer_files: of the target, for a drafter that is a language model.
      states: where the target's states are kept, for other runs on these texts;
        `None`: they are computed again for every batch.
      begun: is told how many updates there will be.
      tell: is told of every update.
      look: is told of every examination.

    Returns:
      what `card.json` says.

    Raises:
      ValueError: the folder has another run, or a finished one; or `init` has other
        weights than this drafter.
    """
    recipe, config = RECIPES[settings.method], target.config
    counts = texts.counts(config.vocab_size, settings.length)
    frame = frame_of(config, counts, settings.length)
    sizes = recipe.plan(frame)
    drafter = configured(settings.method, recipe, sizes, target)
    shapes = drafter.weight_shapes()
    words = words_for(shapes, counts, settings.words)
    given = None
    if settings.init is not None:
        given = _given(Path(settings.init), settings.method, shapes)
        if "ids" in given:
            words = words_of(np.asarray(given["ids"]), config.vocab_size)
    _claim(folder, settings, texts)
    steps = _steps(settings, texts)
    taps = frame.taps if recipe.tapped else tuple(drafter.feature_layers)
    begun(steps)
    task = Task(
        recipe=recipe,
        drafter=drafter,
        own_words="ids" in shapes,
        anchors=settings.anchors,
        steps=steps,
        warmup=round(steps * settings.warmup),
        rate=settings.rate,
        dtype=settings.dtype,
        taps=() if taps == (config.num_layers,) else taps,
    )
    assert task.taps in ((), frame.taps), "a plan taps what its frame says, or the last"
    kept = None
    if states is not None:
        width = (len(frame.taps) + 1) * config.hidden_size
        notes = {"taps": list(frame.taps), "data": dict(texts.notes)}
        kept = States(states, len(texts.texts), settings.length, width, notes)
    teacher = Teacher(target, frame.taps, kept)
    if given is None:
        given = _drawn(settings, recipe, drafter, teacher, words, texts)
    weights, curve = train(
        task,
        Course(
            batch=settings.batch,
            length=settings.length,
            seed=settings.seed,
            save_every=settings.save_every,
        ),
        given,
        words,
        teacher,
        texts,
        folder / STATE,
        tell=tell,
        look=look,
    )
    _store(
        folder / DRAFTER, settings.method, drafter, weights, command, tokenizer_files
    )
    card = _card(settings, task, weights, texts, curve, command)
    write_file(folder / CARD, _json(card))
    return card


def _claim(folder: Path, settings: Settings, texts: Texts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CARD).is_file():
        raise ValueError(f"{folder} has a finished run already; give another folder")
    said = {"settings": dataclasses.asdict(settings), "texts": len(texts.texts)}
    said |= {"data": dict(texts.notes)}
    notes = folder / NOTES
    if not notes.is_file():
        write_file(notes, _json(said))
        return
    found = json.loads(notes.read_text("utf-8"))
    if found != said:
        raise ValueError(
            f"{folder} has a run with other settings or texts: {found}, not {said}; "
            f"give another folder"
        )


def _given(
    path: Path, method: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    checkpoint.read_manifest(path)
    try:
        return read(path / checkpoint.WEIGHTS, shapes, dtype=jnp.float32)
    except ValueError as error:
        raise ValueError(
            f"init: {path} is no beginning for a {method} of this target: {error}"
        ) from None


def _drawn(
    settings: Settings,
    recipe: Recipe,
    drafter: Any,
    teacher: Teacher,
    words: Words | None,
    texts: Texts,
) -> dict[str, Array]:
    sizes = None
    if recipe.fused is not None:
        first = texts.training(0, settings.batch, settings.length, settings.seed)
        sizes = tap_sizes(teacher(first, tapped=True))
    return first_weights(recipe, drafter, teacher.target, words, settings.seed, sizes)


def _steps(settings: Settings, texts: Texts) -> int:
    tokens = steps = 0
    while tokens < settings.tokens:
        batch = texts.training(steps, settings.batch, settings.length, settings.seed)
        tokens += batch.real
        steps += 1
    return steps


def _store(
    path: Path,
    method: str,
    drafter: Any,
    weights: Mapping[str, Array],
    command: str,
    tokenizer_files: Mapping[str, Path],
) -> None:
    kept = {
        name: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a
        for name, a in weights.items()
    }
    source = {"trained": command}
    if isinstance(drafter.config, ModelConfig):
        checkpoint.save(
            path,
            drafter.config,
            kept,
            source=source,
            tokenizer_files=tokenizer_files,
        )
        return
    checkpoint.save_drafter(path, method, drafter.config.to_json(), kept, source=source)


def _card(
    settings: Settings,
    task: Task,
    weights: Mapping[str, Array],
    texts: Texts,
    curve: list[Point],
    command: str,
) -> dict[str, Any]:
    last = curve[-1]
    assert last.held is not None
    return {
        "method": settings.method,
        "command": command,
        "loss": task.recipe.loss,
        "settings": dataclasses.asdict(settings),
        "data": dict(texts.notes) | {"texts": len(texts.texts)},
        "held_out_texts": texts.held_out,
        "parameters": sum(a.size for a in weights.values()),
        "updates": task.steps,
        "tokens": last.tokens,
        "tokens_per_second": last.tokens / last.seconds if last.seconds else None,
        "held_out_acceptance": last.held.acceptance,
        "held_out_tau": {k: last.held.tau(k) for k in range(1, task.examined + 1)},
        "curve": [dataclasses.asdict(point) for point in curve],
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
