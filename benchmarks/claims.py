"""What a research run concludes: measured values against stated goals."""

import dataclasses
import importlib.metadata
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, report, run, weights
from benchmarks.peers.setup import HOME

RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A number and the goal it should reach."""

    what: str
    value: float
    goal: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; `None` without a goal or a value."""
        if self.goal is None or math.isnan(self.value):
            return None
        return self.value >= self.goal

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; a value that was not measured is null."""
        value = None if math.isnan(self.value) else self.value
        return dataclasses.asdict(self) | {"value": value, "met": self.met}

    def sentence(self) -> str:
        """One line: what, the value, the goal, and whether it is met."""
        if math.isnan(self.value):
            return f"{self.what}: not measured."
        note = f", {self.note}" if self.note else ""
        if self.goal is None:
            return f"{self.what}: {self.value:.3g}{note}."
        end = "met" if self.met else "NOT met"
        return (
            f"{self.what}: {self.value:.3g}{note} (goal: at least {self.goal}), {end}."
        )


Judge = Callable[[dict[str, Any]], Iterable[Claim]]


def conclude(
    name: str,
    config: run.Config,
    judge: Judge,
    *,
    options: dict[str, Any] | None = None,
    results: Path = RESULTS,
) -> dict[str, Any]:
    """Runs, judges, and writes `NAME.json`, `NAME.md` and the figure.

    Args:
      name: of the files.
      config: what to run.
      judge: turns the result into claims.
      options: keyword arguments for `jspec.serve`.
      results: where the files go.
    """
    models = HOME / "models"
    model = weights.prepare(weights.embedded(models), models)
    console = Console(stderr=True)
    console.print(config)
    result = run.bench(config, model, options=options, progress=console.is_terminal)
    return write(name, result, judge, results=results)


def write(
    name: str, result: dict[str, Any], judge: Judge, *, results: Path = RESULTS
) -> dict[str, Any]:
    """Judges a result and writes its files."""
    claims = list(judge(result))
    result["claims"] = [claim.to_json() for claim in claims]
    run.save(result, results / f"{name}.json")
    if result["runs"]:
        report.figure(result, results / name)
    sentences = "\n".join(f"- {claim.sentence()}" for claim in claims)
    text = f"{report.markdown(result)}\n{sentences}\n"
    (results / f"{name}.md").write_text(text)
    print(text)
    return result


def record(
    name: str,
    result: dict[str, Any],
    claims: Iterable[Claim],
    *,
    draw: Callable[[Path], None] | None = None,
    table: str = "",
    results: Path = RESULTS,
) -> dict[str, Any]:
    """Writes the files of a run that measured by itself, and prints its claims.

    Args:
      name: of the files.
      result: what was measured; a value that is no number becomes null.
      claims: what follows.
      draw: draws the figure into a path; called with `NAME.svg` and `NAME.png`.
      table: Markdown that stands before the claims.
      results: where the files go.
    """
    claims = list(claims)
    result = {
        **machine.commit(),
        "machine": machine.describe(),
        "jax": importlib.metadata.version("jax"),
        **result,
        "claims": [claim.to_json() for claim in claims],
    }
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_without_nan(result), indent=1, allow_nan=False)
    (results / f"{name}.json").write_text(f"{text}\n")
    if draw is not None:
        for suffix in (".svg", ".png"):
            draw(results / f"{name}{suffix}")
    said = "\n".join(f"- {claim.sentence()}" for claim in claims)
    said = f"{table}\n\n{said}\n" if table else f"{said}\n"
    (results / f"{name}.md").write_text(said)
    print(said)
    return result


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
