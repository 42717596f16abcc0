"""Claim: block verification never keeps fewer drafts than standard verification.

Table: Sun et al. 2024 (arXiv:2403.10444), table 1: 5 to 8 % more tokens a call at
gamma = 8 with drawn drafts; and the example of its section 2, in which 11/9 drafts are
kept instead of 10/9.
Command: `python -m benchmarks.runs.block_vs_standard` (`--quick`: fewer prompts)
Expected: the example to the last bit of float32, no random law on which less is kept,
and on the embedded target with one shipped drafter, T = 0.7 and 1, K = 4 and 7: tokens
a round of block ÷ standard with a 95 % interval that reaches 1. The ratio itself, some
percent above 1 where drafts are refused often, is stated without a goal.

Both rules answer the same prompts with the same seeds. Their texts part at the first
draft that one keeps and the other does not, so a prompt, with all its seeds under both
rules, is one repeat of the bootstrap.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import jspec
from benchmarks import drafting, spread
from benchmarks.claims import RESULTS, Claim, record
from benchmarks.in_law import RULES, enumerated
from benchmarks.report import save_figure
from jspec import zoo

NAME = "block_vs_standard"
PREFERRED = ("eagle3", "draft_model", "dspark", "dflash")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
      method: whose drafts; `None`: the first of `PREFERRED` that is shipped.
      ks: drafted tokens.
      temperatures: of target and drafts.
      sets: of prompts.
      each: prompts of each set.
      seeds: of each prompt.
      tokens: of each text, at most.
      batch: rows.
      laws: random pairs of laws that are enumerated.
    """

    method: str | None = None
    ks: tuple[int, ...] = (4, 7)
    temperatures: tuple[float, ...] = (0.7, 1.0)
    sets: tuple[str, ...] = ("mt_bench", "nq_qa", "gsm8k", "translation")
    each: int = 8
    seeds: int = 2
    tokens: int = 64
    batch: int = 8
    laws: int = 500


QUICK = Settings(ks=(4,), temperatures=(1.0,), each=3, laws=100)


def shipped(target: Any) -> str:
    """The first method that draws its drafts and has a shipped drafter.

    Raises:
      ValueError: there is none.
    """
    for method in PREFERRED:
        if zoo.find(target, method) is not None:
            return method
    raise ValueError(
        f"none of {', '.join(PREFERRED)} is shipped for {str(target)!r}: train one "
        f"(jspec train) and give --drafter and --method"
    )


def measure(
    settings: Settings, target: Any = drafting.TARGET, drafter: Any = None
) -> dict[str, Any]:
    """Every prompt and seed under both rules: tokens and rounds."""
    began = time.perf_counter()
    law = enumerated(settings.laws)
    method = settings.method or shipped(target)
    texts: list[dict[str, Any]] = []
    for k in settings.ks:
        with contextlib.ExitStack() as stack:
            servers = {
                rule: stack.enter_context(
                    jspec.serve(
                        target,
                        method=method,
                        drafter=drafter,
                        num_speculative_tokens=k,
                        draft_sampling="probabilistic",
                        verification=rule,
                        max_batch=settings.batch,
                        max_model_len=512,
                    )
                )
                for rule in RULES
            }
            first = servers[RULES[0]]
            prompts = drafting.questions(first, settings.sets, settings.each, 384)
            asked = [
                (at, seed, prompt)
                for at, prompt in enumerate(prompts)
                for seed in range(settings.seeds)
            ]
            for temperature, rule in itertools.product(settings.temperatures, RULES):
                params = [
                    jspec.SamplingParams(
                        temperature=temperature,
                        max_tokens=settings.tokens,
                        seed=1000 * seed + at,
                    )
                    for at, seed, _ in asked
                ]
                done = servers[rule].generate([one[2] for one in asked], params)
                texts += [
                    {
                        "k": k,
                        "temperature": temperature,
                        "rule": rule,
                        "prompt": at,
                        "seed": seed,
                        "tokens": one.usage.completion_tokens,
                        "rounds": one.speculation.rounds,
                    }
                    for (at, seed, _), one in zip(asked, done, strict=True)
                ]
    return {
        "settings": dataclasses.asdict(settings) | {"method": method},
        "target": str(target),
        "law": law,
        "texts": texts,
        "seconds": round(time.perf_counter() - began),
    }


type Sums = Mapping[str, tuple[int, int]]
"""Tokens and rounds of one prompt by rule."""


def compare(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens a round of both rules and their ratio, for every K and temperature."""
    found = []
    texts = result["texts"]
    for k, temperature in dict.fromkeys((o["k"], o["temperature"]) for o in texts):
        its = [o for o in texts if (o["k"], o["temperature"]) == (k, temperature)]
        repeats: list[Sums] = [
            {rule: _sums(its, prompt, rule) for rule in RULES}
            for prompt in sorted({one["prompt"] for one in its})
        ]
        low, high = spread.interval(repeats, _ratio)
        taus = {}
        for rule in RULES:
            ends = spread.interval(repeats, lambda some, rule=rule: _tau(some, rule))
            taus[rule] = [_tau(repeats, rule), *ends]
        found.append(
            {
                "k": k,
                "temperature": temperature,
                "tau": taus,
                "ratio": _ratio(repeats),
                "low": low,
                "high": high,
                "prompts": len(repeats),
            }
        )
    return found


def judge(law: Mapping[str, Any], found: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """The example, random laws, and the measured ratios."""
    for rule, wanted in zip(RULES, (10 / 9, 11 / 9), strict=True):
        yield Claim(
            what=f"the example under {rule}: 1 - |kept - {round(9 * wanted)}/9|",
            value=1 - abs(law["example"][rule] - wanted),
            goal=1 - 1e-6,
            note=f"{law['example'][rule]:.6f} kept",
        )
    yield Claim(
        what=f"least gain of block in law, {law['laws']} random laws enumerated",
        value=law["least_gain"],
        goal=-1e-6,
        note=f"{law['mean_gain']:.4f} drafts a round on average",
    )
    for one in found:
        where = f"K={one['k']}, T={one['temperature']:g}"
        yield Claim(
            what=f"{where}: tokens a round, block ÷ standard, upper end of 95 %",
            value=one["high"],
            goal=1.0,
            note=f"{one['prompts']} prompts",
        )
        yield Claim(
            what=f"{where}: tokens a round, block ÷ standard",
            value=one["ratio"],
            goal=None,
            note=f"95 % within {one['low']:.3f} to {one['high']:.3f}",
        )


def table(found: Sequence[dict[str, Any]]) -> str:
    """Tokens a round of both, with intervals."""
    lines = ["| K | T | standard | block | block ÷ standard |", "|---|---|---|---|---|"]
    for one in found:
        taus = ("{:.3f} ({:.3f} to {:.3f})".format(*one["tau"][rule]) for rule in RULES)
        lines.append(
            f"| {one['k']} | {one['temperature']:g} | {' | '.join(taus)} | "
            f"{one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f}) |"
        )
    return "\n".join(lines)


def figure(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Ratios with their intervals."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(4.8, 3.2), layout="constrained")
    axes = drawing.add_subplot()
    names = [f"K={one['k']}\nT={one['temperature']:g}" for one in found]
    middle = [one["ratio"] for one in found]
    axes.errorbar(
        range(len(found)),
        middle,
        yerr=[
            [max(0.0, one["ratio"] - one["low"]) for one in found],
            [max(0.0, one["high"] - one["ratio"]) for one in found],
        ],
        fmt="o",
        capsize=4,
    )
    axes.axhline(1.0, color="0.6")
    axes.set(
        xticks=range(len(found)),
        xticklabels=names,
        ylabel="tokens a round, block ÷ standard",
    )
    save_figure(drawing, path)


def main(
    quick: Annotated[bool, typer.Option(help="Fewer prompts, K and laws.")] = False,
    method: Annotated[str | None, typer.Option(help="Whose drafts.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="Its checkpoint.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
) -> None:
    """Measures, writes JSON, table and figure, prints the claims."""
    settings = dataclasses.replace(QUICK if quick else Settings(), method=method)
    try:
        result = measure(settings, drafter=drafter)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    found = result["compared"] = compare(result)
    record(
        f"{NAME}_quick" if quick else NAME,
        result,
        judge(result["law"], found),
        draw=lambda path: figure(found, path),
        table=table(found),
        results=out,
    )


def _sums(texts: Sequence[Mapping[str, Any]], prompt: int, rule: str):
    its = [o for o in texts if o["prompt"] == prompt and o["rule"] == rule]
    return sum(one["tokens"] for one in its), sum(one["rounds"] for one in its)


def _tau(repeats: Sequence[Sums], rule: str) -> float:
    tokens = sum(one[rule][0] for one in repeats)
    return tokens / max(1, sum(one[rule][1] for one in repeats))


def _ratio(repeats: Sequence[Sums]) -> float:
    return _tau(repeats, "block") / _tau(repeats, "standard")


if __name__ == "__main__":
    typer.run(main)
