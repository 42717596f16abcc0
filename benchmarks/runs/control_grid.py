"""Claim: the goodput controller is as fast as the best static K, load by load.

Table: none in a paper; the RFC on schedules by batch and context asks for it.
Command: `python -m benchmarks.runs.control_grid`
Expected: at batch 1, 4, 8, 16 and contexts of about 128, 1024 and 4096 tokens, tokens/s
of the controller ÷ the best static K ≥ 0.97, and ÷ no drafts ≥ 0.99, in every cell. The
embedded model with prompt look-up, in its own dtype, on two cores of a server CPU.

One server measures everything: its rounds are timed first, which is the controller's
cost table; then every cell decodes the same texts, greedily, under each static K and
under the controller, in turns, every other turn in the reverse order. Only rounds of
the full batch count. The controller has one memory for all cells and decodes each
cell's texts twice before it is measured.

A ratio is the geometric mean over turns of the controller's reading ÷ a static K's of
the same turn. Which static K is the best of a turn is read off the other turns: the
highest of several noisy readings is above what it stands for, and the controller would
be held against luck.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import jspec
from benchmarks import data, machine
from benchmarks.claims import Claim, record
from benchmarks.report import save_figure
from jspec.control import Controller, Goodput, Static
from jspec.server.lab import Meter, measure, round_costs

NAME = "control_grid"
CONTROLLER = "goodput"
QUESTIONS = (
    "Summarise the text in three sentences.",
    "Quote the first sentence of the text, then say what it is about.",
    "List the names in the text, each with the sentence it stands in.",
    "What happens in the text? Answer in order.",
)
TEXTS = 4
LEARNING = 2
"""Times that the controller decodes a cell's texts before it is measured."""


def texts(tokenizer: Any, context: int, count: int) -> list[list[int]]:
    """Prompts of about `context` tokens: real articles, and a question about them.

    There are four texts; rows beyond the fourth ask another question about one.
    """
    articles = [prompt.turns[0] for prompt in data.prompts("summaries")]
    share = len(articles) // TEXTS
    prompts = []
    for row in range(count):
        text, question = row % TEXTS, QUESTIONS[row // TEXTS % len(QUESTIONS)]
        words = " ".join(articles[text * share : (text + 1) * share]).split(" ")
        low, high = 1, len(words)
        while low < high:
            middle = (low + high + 1) // 2
            ids = _ask(tokenizer, words[:middle], question)
            low, high = (middle, high) if len(ids) <= context else (low, middle - 1)
        prompts.append(_ask(tokenizer, words[:low], question))
    return prompts


def _ask(tokenizer: Any, words: Sequence[str], question: str) -> list[int]:
    content = f"{' '.join(words)}\n\n{question}"
    return tokenizer.chat([{"role": "user", "content": content}])


def judge(cells: Sequence[dict[str, Any]]) -> list[Claim]:
    """The controller against the best static K and against none, cell by cell."""
    claims = []
    mean = statistics.geometric_mean
    for cell in cells:
        rates = {
            name: [one["tokens_per_second"] for one in readings]
            for name, readings in cell["read"].items()
        }
        own = rates.pop(CONTROLLER)
        best = max(rates, key=lambda name: mean(rates[name]))
        rivals = _rivals(rates)
        where = f"batch {cell['batch']}, context {cell['context']}"
        ks = cell["read"][CONTROLLER][-1]["ks"]
        mostly = max(ks, key=ks.__getitem__)
        claims.append(
            Claim(
                what=f"{where}: controller ÷ best static K",
                value=mean(a / b for a, b in zip(own, rivals, strict=True)),
                goal=0.97,
                note=f"best {best} ({mean(rates[best]) / mean(rates['K=0']):.2f} of "
                f"none), it was mostly at K={mostly}",
            )
        )
        claims.append(
            Claim(
                what=f"{where}: controller ÷ no drafts",
                value=mean(a / b for a, b in zip(own, rates["K=0"], strict=True)),
                goal=0.99,
                note=f"{mean(rates['K=0']):.1f} tokens/s without",
            )
        )
    return claims


def _rivals(rates: Mapping[str, Sequence[float]]) -> list[float]:
    """Of each turn, the reading of the K that is the best of all other turns."""
    turns = range(len(next(iter(rates.values()))))
    found = []
    for turn in turns:
        others = [other for other in turns if other != turn] or [turn]
        best = max(
            rates,
            key=lambda name: statistics.geometric_mean(rates[name][t] for t in others),
        )
        found.append(rates[best][turn])
    return found


def figure(
    cells: Sequence[dict[str, Any]], claims: Sequence[Claim], path: Path
) -> None:
    """Maps of both ratios over batch and context."""
    from matplotlib.figure import Figure

    batches = sorted({cell["batch"] for cell in cells})
    contexts = sorted({cell["context"] for cell in cells})
    drawing = Figure(figsize=(8, 3), layout="constrained")
    panels = zip(
        drawing.subplots(1, 2), ("÷ best static K", "÷ no drafts"), strict=True
    )
    for at, (axes, title) in enumerate(panels):
        values = {
            (cell["context"], cell["batch"]): claims[2 * i + at].value
            for i, cell in enumerate(cells)
        }
        lines = [[values[c, b] for b in batches] for c in contexts]
        axes.imshow(lines, cmap="RdYlGn", vmin=0.8, vmax=1.2)
        for y, line in enumerate(lines):
            for x, value in enumerate(line):
                axes.text(x, y, f"{value:.2f}", ha="center", va="center")
        axes.set(
            xticks=range(len(batches)),
            xticklabels=batches,
            yticks=range(len(contexts)),
            yticklabels=contexts,
            xlabel="batch",
            ylabel="context",
            title=title,
        )
    save_figure(drawing, path)


def main(
    batches: Annotated[str, typer.Option(help="Rows.")] = "1,4,8,16",
    contexts: Annotated[str, typer.Option(help="Tokens.")] = "128,1024,4096",
    ks: Annotated[str, typer.Option(help="Static K beside 0.")] = "1,2,4",
    tokens: Annotated[
        str, typer.Option(help="Of each row, by batch.")
    ] = "128,64,48,32",
    passes: Annotated[int, typer.Option(help="Turns of all contestants.")] = 4,
    method: Annotated[str, typer.Option(help="Without weights.")] = "ngram",
) -> None:
    """Measures every cell of the grid and writes JSON, table and figure."""
    started = time.perf_counter()
    rows, lengths, drafts = (
        [int(one) for one in words.split(",")] for words in (batches, contexts, ks)
    )
    each = [int(one) for one in tokens.split(",")]
    room = max(lengths) + 512
    meter = Meter(drafts)
    cells: list[dict[str, Any]] = []
    with jspec.serve(
        "smollm2-135m",
        method=method,
        num_speculative_tokens=max(drafts),
        schedule=meter,
        max_batch=max(rows),
        max_model_len=room,
        kv_pages=max(rows) * room // 16,
    ) as server:
        costs = round_costs(server, meter.palette, rows, lengths, repeats=4)
        controller = Goodput(costs, palette=drafts)
        rivals: dict[str, Controller] = {
            **{f"K={k}": Static(k) for k in meter.palette},
            CONTROLLER: controller,
        }
        for context, (batch, count) in itertools.product(
            lengths, zip(rows, each, strict=True)
        ):
            prompts = texts(server.tokenizer, context, batch)
            read: dict[str, list[dict[str, Any]]] = {name: [] for name in rivals}
            for _ in range(LEARNING):
                measure(server, meter, controller, prompts, count)
            for turn in range(passes):
                order = list(rivals)
                for name in order if turn % 2 == 0 else order[::-1]:
                    load = machine.Load()
                    began = time.perf_counter()
                    reading = measure(server, meter, rivals[name], prompts, count)
                    used = load.core_seconds()
                    spent = time.perf_counter() - began
                    reading["cores_busy"] = None if used is None else used / spent
                    read[name].append(reading)
            cells.append({"batch": batch, "context": context, "read": read})
            medians = {
                name: round(statistics.median(r["tokens_per_second"] for r in one), 1)
                for name, one in read.items()
            }
            spent = time.perf_counter() - started
            print(f"{spent:.0f} s: batch {batch}, context {context}: {medians}")
        settings = dict(server.settings) | {"schedule": CONTROLLER}
    claims = judge(cells)
    result = {
        "settings": settings,
        "tokens": dict(zip(rows, each, strict=True)),
        "seconds": round(time.perf_counter() - started),
        "costs": costs.to_json(),
        "cells": cells,
    }
    record(NAME, result, claims, draw=lambda path: figure(cells, claims, path))


if __name__ == "__main__":
    typer.run(main)
