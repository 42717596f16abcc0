"""The thin loop around the steps: batches in, a trained drafter out, resumable."""

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jspec import storage
from jspec.training.lessons import Words
from jspec.training.states import Teacher
from jspec.training.steps import Task, examine, optimizer, parted, update
from jspec.training.texts import Texts

__all__ = ["Course", "Held", "Point", "train"]

CURVE = "curve.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Course:
    """What a run reads, and when it stops to look.

    Attributes:
      batch: texts of an update.
      length: tokens of a text; longer ones are cut.
      seed: of the order of texts and of anchors.
      save_every: updates between two checkpoints, and between two examinations.
    """

    batch: int
    length: int
    seed: int
    save_every: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """How many anchors of the held-out texts have all drafts up to each place right."""

    right: tuple[int, ...]
    inside: tuple[int, ...]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """By place: the share of anchors whose drafts are right up to there."""
        return tuple(
            r / i if i else 0.0 for r, i in zip(self.right, self.inside, strict=True)
        )

    def tau(self, k: int) -> float:
        """Mean emitted per target pass, if every position were an anchor."""
        return 1 + sum(self.acceptance[:k])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """Where a run stands.

    Attributes:
      step: updates made.
      tokens: read so far, without padding.
      loss: mean since the last point; `None` before the first update.
      seconds: spent in updates so far, by all runs together.
      held: the examination, where there was one.
    """

    step: int
    tokens: int
    loss: float | None
    seconds: float
    held: Held | None = None


def train(
    task: Task,
    course: Course,
    weights: Mapping[str, Array],
    words: Words | None,
    teacher: Teacher,
    texts: Texts,
    folder: Path,
    *,
    tell: Callable[[int, float], None] = lambda step, loss: None,
    look: Callable[[Point], None] = lambda point: None,
) -> tuple[dict[str, Array], list[Point]]:
    """Trains, saving and examining at intervals; goes on where a run was stopped.

    A run that goes on has, bit for bit, the weights of one that was never stopped.

    Args:
      task: what is trained.
      course: on what.
      weights: the first ones.
      words: over which the loss is.
      teacher: shows what the target says of them.
      texts: the target's answers.
      folder: of checkpoints; the newest is kept.
      tell: is told of every update and its loss.
      look: is told of every examination.

    Returns:
      the weights, float32, and the curve.

    Raises:
      ValueError: the loss is not finite; the last checkpoint is before that.
    """
    one = jax.jit(update, static_argnames="task", donate_argnums=(0, 1))
    examined = jax.jit(examine, static_argnames="task")
    target, plain = teacher.target, Teacher(teacher.target, teacher.taps)
    learnt, fixed = parted(weights)
    learnt = jax.tree.map(jnp.array, learnt)
    moments = optimizer(task).init(learnt)
    # Bound to the device as the target is, and as a step's results are: a step of
    # arrays that are not would be another program, compiled for the first one alone.
    home = jax.devices()[0]
    learnt, fixed, moments = jax.device_put((learnt, fixed, moments), home)
    curve: list[Point] = []
    done, found = _restored(folder, learnt, moments)
    if found is not None:
        learnt, moments = jax.device_put(found, home)
        curve = _curve(folder / f"step-{done:07}")

    def held() -> Held:
        right = inside = np.zeros(task.examined, int)
        for i, batch in enumerate(texts.examination(course.batch, course.length)):
            key = jax.random.fold_in(jax.random.key(course.seed), i)
            lesson = plain(batch, tapped=bool(task.taps))
            r, n = examined(learnt, fixed, target, lesson, words, key, task=task)
            right, inside = right + np.asarray(r), inside + np.asarray(n)
        return Held(right=tuple(right.tolist()), inside=tuple(inside.tolist()))

    if not curve:
        curve.append(Point(step=0, tokens=0, loss=None, seconds=0.0, held=held()))
        look(curve[-1])
    losses: list[float] = []
    tokens, seconds = curve[-1].tokens, curve[-1].seconds
    for step in range(done, task.steps):
        began = time.perf_counter()
        batch = texts.training(step, course.batch, course.length, course.seed)
        key = jax.random.fold_in(jax.random.key(course.seed), step)
        lesson = teacher(batch, tapped=bool(task.taps))
        learnt, moments, report = one(
            learnt, moments, fixed, target, lesson, words, key, task=task
        )
        loss = float(report.loss)
        if not math.isfinite(loss + float(report.norm)):
            raise ValueError(
                f"the loss at step {step + 1} is {loss} and its gradient's norm "
                f"{float(report.norm)}: try a lower rate"
            )
        losses.append(loss)
        tokens += batch.real
        seconds += time.perf_counter() - began
        tell(step + 1, loss)
        if (step + 1) % course.save_every == 0 or step + 1 == task.steps:
            point = Point(
                step=step + 1,
                tokens=tokens,
                loss=sum(losses) / len(losses),
                seconds=seconds,
                held=held(),
            )
            curve.append(point)
            losses.clear()
            look(point)
            _save(folder, point.step, learnt, moments, curve)
    return learnt | fixed, curve


def _save(
    folder: Path, step: int, learnt: Any, moments: Any, curve: list[Point]
) -> None:
    with storage.staging(folder / f"step-{step:07}") as draft:
        storage.write(draft / "state", _named(learnt, moments))
        said = [dataclasses.asdict(point) for point in curve]
        (draft / CURVE).write_text(json.dumps(said), "utf-8")
    for old in folder.glob("step-*"):
        if old.name < f"step-{step:07}":
            shutil.rmtree(old)


def _named(learnt: Any, moments: Any) -> dict[str, Any]:
    """All arrays by names that say where they stand, whatever they mean."""
    leaves = jax.tree.leaves((learnt, moments))
    return {f"a{i:05}": np.asarray(leaf)[None] for i, leaf in enumerate(leaves)}


def _restored(folder: Path, learnt: Any, moments: Any) -> tuple[int, Any]:
    """The newest checkpoint's step and state; 0 and `None` if there is none."""
    saved = sorted(folder.glob("step-*"))
    if not saved:
        return 0, None
    shapes = {name: a.shape for name, a in _named(learnt, moments).items()}
    arrays = storage.read(saved[-1] / "state", shapes)
    structure = jax.tree.structure((learnt, moments))
    leaves = [arrays[name][0] for name in shapes]
    return int(saved[-1].name.split("-")[1]), jax.tree.unflatten(structure, leaves)


def _curve(saved: Path) -> list[Point]:
    points = json.loads((saved / CURVE).read_text("utf-8"))
    return [
        Point(
            **fields
            | {"held": None if fields["held"] is None else _held(fields["held"])}
        )
        for fields in points
    ]


def _held(fields: Mapping[str, Any]) -> Held:
    return Held(right=tuple(fields["right"]), inside=tuple(fields["inside"]))
