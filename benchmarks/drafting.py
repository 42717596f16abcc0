"""Servers for research runs: shipped or untrained drafters, drafts kept at a rate."""

import contextlib
import dataclasses
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np

import jspec
from benchmarks import data
from jspec import checkpoint, zoo
from jspec.control import CostTable, Sample, Static
from jspec.control.calibration import from_rounds
from jspec.server import local
from jspec.server.lab import Meter, measure, round_costs
from jspec.server.load import load_model
from jspec.targets import resolve
from jspec.training import RECIPES
from jspec.training.start import configured, first_weights, frame_of, words_for
from jspec.verify import Synthetic, Verification

__all__ = [
    "GIVEN",
    "TARGET",
    "Contestant",
    "Steady",
    "about",
    "costs",
    "drafter_of",
    "one_model",
    "questions",
    "serve",
    "steady",
    "untrained",
]

TARGET = "smollm2-135m"
GIVEN = "suffix"
"""A method without a pass of its own: its rounds are the target's passes."""
TRAINED_LENGTH = 256
"""Tokens of the texts that the shipped drafters were trained on."""


class Steady(Synthetic):
    """Synthetic verification for every K up to as many as it has rates."""

    def refusal(self, method: str, *, branching: bool, gamma: int) -> str | None:
        """Judges chains that it has a rate for each draft of."""
        assert self.rates is not None and gamma <= len(self.rates)
        return self.about.shape_refusal(method, branching=branching)


def steady(alpha: float, k: int) -> Steady:
    """Every draft is kept with probability `alpha` if those before it were."""
    return Steady(rates=tuple(alpha**position for position in range(1, k + 1)))


def about(method: str) -> jspec.Method:
    """What a method says of itself.

    Raises:
      ValueError: there is no such method.
    """
    known = {one.name: one for one in jspec.methods()}
    if method not in known:
        raise ValueError(
            f"method {method!r} is not known; known are {', '.join(known)}"
        )
    return known[method]


def untrained(method: str, target: str | Path, folder: Path) -> Path:
    """A drafter of the shipped ones' sizes whose weights were never trained.

    What a round costs does not depend on the weights' values.

    Raises:
      ValueError: the method's sizes are in no recipe, or it drafts with a language
        model, which needs a tokenizer.
    """
    recipe = RECIPES.get(method)
    if recipe is None or recipe.language_model:
        raise ValueError(
            f"no drafter of method {method!r} is shipped for {str(target)!r}, and "
            f"without training none can be made: give another method"
        )
    model = load_model(resolve(target, progress=False))
    config = model.config
    counts = np.ones(config.vocab_size, np.int64)
    counts[config.tokens - 1] = 0  # a token that no text has can be the mask
    drafter = configured(
        method, recipe, recipe.plan(frame_of(config, counts, TRAINED_LENGTH)), model
    )
    words = words_for(drafter.weight_shapes(), counts, None)
    weights = {
        name: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a
        for name, a in first_weights(recipe, drafter, model, words, 0).items()
    }
    source = {"untrained": f"python -m benchmarks, {method} for {Path(target).name}"}
    checkpoint.save_drafter(
        folder, method, drafter.config.to_json(), weights, source=source
    )
    return folder


def drafter_of(method: str, target: str | Path, folder: Path) -> tuple[Any, str]:
    """What `drafter=` takes, and where it is from: "none", "shipped" or "untrained".

    Args:
      method: any.
      target: its name or path.
      folder: for an untrained drafter, kept there for the next time.
    """
    if about(method).weights is None:
        return None, "none"
    found = zoo.find(target, method)
    if found is not None:
        return found, "shipped"
    path = folder / method
    if not checkpoint.is_checkpoint(path):
        untrained(method, target, path)
    return path, "untrained"


@contextlib.contextmanager
def one_model() -> Generator[None]:
    """Servers made meanwhile share the arrays of the first one's target."""
    loaded: list[Any] = []

    def load(*args: Any, **kwargs: Any) -> Any:
        if not loaded:
            loaded.append(real(*args, **kwargs))
        return loaded[0]

    real = local.load_model
    with mock.patch.object(local, "load_model", load):
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """A server and the controller that measures it."""

    server: jspec.Server
    meter: Meter

    def read(self, k: int, prompts: Sequence[Any], tokens: int) -> dict[str, Any]:
        """Tokens a second, rounds and tau of one static K, and a round's time."""
        found = measure(self.server, self.meter, Static(k), prompts, tokens)
        rate = found["tokens_per_second"]
        return {
            "k": k,
            "tokens_per_second": rate,
            "tau": found["tau"],
            "rounds": found["rounds"],
            "round_ms": 1e3 * found["tau"] * len(prompts) / rate,
        }

    def time(self, *, batch: int, context: int, repeats: int) -> dict[int, list[float]]:
        """Milliseconds of its rounds by K, without any text."""
        table = round_costs(
            self.server, self.meter.palette, [batch], [context], repeats
        )
        times: dict[int, list[float]] = {}
        for one in table.samples["verify"]:
            times.setdefault(one.size // batch - 1, []).append(one.ms)
        return times


def serve(
    target: str | Path,
    method: str,
    ks: Sequence[int],
    *,
    drafter: Any = None,
    rule: str | Verification = "standard",
    batch: int = 1,
    room: int = 2048,
    **options: Any,
) -> Contestant:
    """A server whose every K of a palette can be measured.

    Args:
      target: as for `jspec.serve`, like `method`, `drafter` and `options`.
      method: which drafts.
      ks: its palette beside 0.
      drafter: the method's weights.
      rule: which drafts are kept.
      batch: rows.
      room: most tokens of a text.
      options: the rest.
    """
    meter = Meter(ks)
    server = jspec.serve(
        target,
        method=method,
        drafter=drafter,
        num_speculative_tokens=max(ks),
        schedule=meter,
        verification=rule,
        max_batch=batch,
        max_model_len=room,
        **options,
    )
    return Contestant(server=server, meter=meter)


def costs(
    rounds: dict[int, list[float]],
    passes: dict[int, list[float]],
    *,
    batch: int = 1,
    context: int,
) -> CostTable:
    """The cost table of timed rounds of a method and of passes without a drafter.

    Args:
      rounds: milliseconds by K, as `Contestant.time` gives them.
      passes: the same of `GIVEN`.
      batch: rows of both.
      context: tokens in the cache of each row.
    """

    def samples(times: dict[int, list[float]], size: Any) -> list[Sample]:
        return [
            Sample(ms=ms, batch=batch, size=size(k), context=context)
            for k, every in times.items()
            for ms in every
        ]

    of_passes = {k: every for k, every in passes.items() if k}
    return from_rounds(
        samples(rounds, lambda k: k),
        samples(of_passes, lambda k: batch * (k + 1)),
        {"measured": time.strftime("%Y-%m-%d")},
    )


def questions(
    server: jspec.Server, sets: Sequence[str], each: int, most: int
) -> list[list[int]]:
    """Token ids of the first prompts of each set that are no longer than `most`."""
    found = []
    for name in sets:
        ids = data.tokens(data.prompts(name), server.tokenizer)
        found += [one for one in ids if len(one) <= most][:each]
    return found
