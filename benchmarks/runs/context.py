"""Claim: at every length of text, from 128 to 8k tokens, some method pays.

Table: none in a paper; the papers' prompts are short. Engines turn drafting off at long
contexts by hand-written tables.
Command: `python -m benchmarks.runs.context` (`--quick`: look-up and two contexts)
Expected: at 128, 1024, 4096 and 7936 tokens of context, tokens/s of the best method ÷
plain decoding ≥ 1.0, batch 1, K = 4, greedy. What each method keeps of its tokens a
round at the longest context, of those at the shortest, is stated without a goal: the
shipped drafters were trained on texts of 256 tokens and need not hold out; look-up
finds more the longer the text. Two cores of a server CPU; turns of plain and drafted
rounds, medians, the spread stated.

Prompts are real articles, joined to the length, and a question about them. The embedded
model was made for 8192 tokens. Pages of a prompt are read once and shared by all turns.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import drafting, spread
from benchmarks.claims import RESULTS, Claim, record
from benchmarks.report import save_figure
from benchmarks.runs.control_grid import texts
from jspec import zoo
from jspec.control import economics

NAME = "context"
SPARE = 240
"""Slots behind a prompt for what one reading may write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
      methods: of which those without weights and those shipped take part.
      contexts: tokens of a prompt.
      k: drafted tokens.
      tokens: of one reading.
      texts: prompts of each context.
      passes: turns that count.
    """

    methods: tuple[str, ...] = (
        *("ngram", "suffix", "eagle3", "dflash", "draft_model", "frozen_kv_mtp"),
    )
    contexts: tuple[int, ...] = (128, 1024, 4096, 7936)
    k: int = 4
    tokens: int = 32
    texts: int = 1
    passes: int = 2


QUICK = Settings(methods=("ngram",), contexts=(128, 2048), passes=1)


def measure(settings: Settings, target: Any = drafting.TARGET) -> dict[str, Any]:
    """Every method at every context: plain and drafted rounds in turns."""
    began = time.perf_counter()
    read: list[dict[str, Any]] = []
    left_out = []
    for method in settings.methods:
        drafter = zoo.find(target, method)
        if drafter is None and drafting.about(method).weights is not None:
            left_out.append(method)
            continue
        one = drafting.serve(
            target,
            method,
            [settings.k],
            drafter=drafter,
            room=max(settings.contexts) + SPARE,
        )
        with one.server:
            for context in settings.contexts:
                prompts = texts(one.server.tokenizer, context, settings.texts)
                cells = [
                    (at, prompt, k)
                    for at, prompt in enumerate(prompts)
                    for k in (0, settings.k)
                ]
                for turn, (at, prompt, k) in spread.turns(cells, settings.passes):
                    found = one.read(k, [prompt], settings.tokens)
                    if turn:
                        where = {"method": method, "context": context, "text": at}
                        where |= {"length": len(prompt), "turn": turn}
                        read.append({**where, **found})
    return {
        "settings": dataclasses.asdict(settings),
        "target": str(target),
        "not_shipped": left_out,
        "read": read,
        "seconds": round(time.perf_counter() - began),
    }


def summarise(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of each method and context: tokens a round, acceptance and speed-up."""
    k = result["settings"]["k"]
    read = result["read"]
    for method, context in dict.fromkeys((o["method"], o["context"]) for o in read):
        its = [o for o in read if (o["method"], o["context"]) == (method, context)]
        pairs = []
        for turn, text in dict.fromkeys((o["turn"], o["text"]) for o in its):
            both = {o["k"]: o for o in its if (o["turn"], o["text"]) == (turn, text)}
            pairs.append((both[0], both[k]))
        gains = [
            drafted["tokens_per_second"] / plain["tokens_per_second"]
            for plain, drafted in pairs
        ]
        rounds = sum(drafted["rounds"] for _, drafted in pairs)
        tau = sum(d["tau"] * d["rounds"] for _, d in pairs) / rounds
        low, high = spread.interval(gains, statistics.median)
        yield {
            "method": method,
            "context": context,
            "tau": tau,
            "alpha": economics.alpha_for(min(tau, k + 1.0), k, 0.0),
            "plain": statistics.median(p["tokens_per_second"] for p, _ in pairs),
            "speedup": statistics.median(gains),
            "low": low,
            "high": high,
        }


def judge(found: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """The best method of each context, and what each keeps over all of them."""
    contexts = sorted({one["context"] for one in found})
    for context in contexts:
        best = max(
            (one for one in found if one["context"] == context),
            key=lambda one: one["speedup"],
        )
        yield Claim(
            what=f"{context} tokens: best method ÷ plain decoding",
            value=best["speedup"],
            goal=1.0,
            note=f"{best['method']}, 95 % within {best['low']:.2f} to "
            f"{best['high']:.2f}",
        )
    for method in dict.fromkeys(one["method"] for one in found):
        its = {one["context"]: one for one in found if one["method"] == method}
        short, long = its[contexts[0]], its[contexts[-1]]
        yield Claim(
            what=f"{method}: tokens a round at {contexts[-1]} ÷ at {contexts[0]}",
            value=long["tau"] / short["tau"],
            goal=None,
            note=f"{long['tau']:.2f} ÷ {short['tau']:.2f}",
        )


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a method: tau, acceptance and speed-up by context."""
    contexts = sorted({one["context"] for one in found})
    lines = [
        "| τ, α, speed-up | " + " | ".join(map(str, contexts)) + " |",
        "|---" * (1 + len(contexts)) + "|",
    ]
    for method in dict.fromkeys(one["method"] for one in found):
        its = {one["context"]: one for one in found if one["method"] == method}
        cells = [
            f"{its[c]['tau']:.2f}, {its[c]['alpha']:.2f}, {its[c]['speedup']:.2f}"
            for c in contexts
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Acceptance and speed-up over the context."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(8.4, 3.6), layout="constrained")
    panels = zip(
        drawing.subplots(1, 2),
        (("alpha", "acceptance α"), ("speedup", "speed-up over plain decoding")),
        strict=True,
    )
    for axes, (field, label) in panels:
        for method in dict.fromkeys(one["method"] for one in found):
            its = [one for one in found if one["method"] == method]
            contexts = [one["context"] for one in its]
            axes.plot(contexts, [one[field] for one in its], "o-", label=method)
        axes.set(xscale="log", xlabel="tokens of context", ylabel=label)
    drawing.axes[0].set_ylim(0, 1)
    drawing.axes[1].axhline(1.0, color="0.6")
    drawing.axes[0].legend(fontsize=7)
    save_figure(drawing, path)


def main(
    quick: Annotated[bool, typer.Option(help="Look-up at two contexts.")] = False,
    methods: Annotated[str | None, typer.Option(help="With commas between.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
) -> None:
    """Measures, writes JSON, table and figure, prints the claims."""
    settings = QUICK if quick else Settings()
    if methods is not None:
        settings = dataclasses.replace(settings, methods=tuple(methods.split(",")))
    try:
        result = measure(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    found = result["summary"] = list(summarise(result))
    record(
        f"{NAME}_quick" if quick else NAME,
        result,
        judge(found),
        draw=lambda path: figure(found, path),
        table=table(found),
        results=out,
    )


if __name__ == "__main__":
    typer.run(main)
