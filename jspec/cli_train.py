"""The commands `jspec distill` and `jspec train`: texts of a target's, and drafters."""

import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jspec.server.console import TARGET, errors

__all__ = ["add"]

MINUTE = 60.0


def distill(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the texts.")],
    target: Annotated[
        str, typer.Option(help="Model directory, file or name.")
    ] = TARGET,
    prompts: Annotated[
        str,
        typer.Option(
            help="Sets of prompts and how many of each, NAME:COUNT,...; `own` are "
            "questions that the target asks itself."
        ),
    ] = "",
    texts: Annotated[
        int | None, typer.Option(help="The first so many of them; all if unset.")
    ] = None,
    length: Annotated[
        int, typer.Option(help="Most tokens of prompt and answer.")
    ] = 256,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the choice and order of prompts.")] = 0,
    max_batch: Annotated[int, typer.Option(help="Answers that run at once.")] = 16,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; the checkpoint's if unset.")
    ] = None,
) -> None:
    """Has the target answer training prompts; goes on where it was stopped."""
    with errors():
        import jspec
        from benchmarks import training_prompts as sets
        from jspec.training import questions
        from jspec.training.texts import write_texts

        if length < 16:
            raise ValueError(f"--length must be at least 16 tokens, not {length}")
        if texts is not None and texts < 2:
            raise ValueError(
                f"--texts must be at least 2, one of them to be held out, not {texts}"
            )
        others, own = questions.split(prompts or sets.DEFAULT)
        chosen = sets.select(others, seed) if others else []
        with jspec.serve(
            target,
            method="none",
            max_batch=max_batch,
            max_model_len=length,
            dtype=dtype,
            seed=seed,
        ) as server:
            if own:
                chosen = sets.mixed(chosen, _asked(server, own, out, length), seed)
            ids = [server.tokenizer.chat(prompt.request) for prompt in chosen]
            ids = [each for each in ids if len(each) <= length // 2]
            if texts is not None and texts > len(ids):
                raise ValueError(
                    f"--texts {texts} are more than the {len(ids)} prompts that leave "
                    f"room for an answer in --length {length}"
                )
            ids = ids[:texts]

            def answer(some: Sequence[Sequence[int]]) -> list[Sequence[int]]:
                params = [
                    jspec.SamplingParams(
                        temperature=temperature, max_tokens=length - len(each)
                    )
                    for each in some
                ]
                done = server.generate([list(each) for each in some], params)
                broken = next((d.error for d in done if d.error), None)
                if broken is not None:
                    raise ValueError(f"an answer failed: {broken}")
                return [d.token_ids for d in done]

            notes = {
                "target": target,
                "dtype": server.settings["dtype"],
                "temperature": temperature,
                "length": length,
                "seed": seed,
                "sets": prompts or sets.DEFAULT,
                "licences": sets.licences(chosen),
            }
            with _bar() as bar:
                task, made, began = (
                    bar.add_task("answers", said=""),
                    0,
                    time.perf_counter(),
                )

                def step(done: int, whole: int, tokens: int) -> None:
                    nonlocal made
                    made += tokens
                    rate = made / (time.perf_counter() - began)
                    bar.update(
                        task, completed=done, total=whole, said=f"{rate:.0f} tokens/s"
                    )
                    if not bar.console.is_terminal:
                        bar.console.print(
                            f"{done} of {whole} answers, {rate:.0f} tokens/s"
                        )

                written = write_texts(out, ids, answer, notes, step=step)
        seconds = time.perf_counter() - began
        typer.echo(
            f"{len(ids)} texts in {out}; {written} tokens written now, in "
            f"{seconds:.0f} s"
        )


def _asked(server: Any, many: int, out: Path, length: int) -> list[str]:
    """Questions of the target's own; drawn at temperature 1, kept beside the texts."""
    import jspec
    from jspec.training import questions

    def say(begin: Sequence[int], seeds: range) -> Sequence[Any]:
        most = min(questions.LONGEST, length - len(begin))
        params = [
            jspec.SamplingParams(
                temperature=1.0, top_p=0.95, max_tokens=most, seed=seed
            )
            for seed in seeds
        ]
        return server.generate([list(begin) for _ in seeds], params)

    with _bar() as bar:
        task = bar.add_task("questions", total=many, said="")

        def told(found: int) -> None:
            bar.update(task, completed=found)
            if not bar.console.is_terminal:
                bar.console.print(f"{found} of {many} questions")

        begin = questions.opening(server.tokenizer.chat)
        return questions.ask(begin, many, say, out / "questions.json", told=told)


def train(
    method: Annotated[str, typer.Argument(help="Of the drafter to be trained.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder of drafter, card and curve.")
    ],
    data: Annotated[Path, typer.Option(help="Texts that `jspec distill` made.")],
    target: Annotated[
        str, typer.Option(help="Model directory, file or name.")
    ] = TARGET,
    tokens: Annotated[int, typer.Option(help="To read in all, epochs counted.")] = 10
    ** 6,
    batch: Annotated[int, typer.Option(help="Texts of an update.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens of a text.")] = 256,
    anchors: Annotated[int, typer.Option(help="Drawn from a text, if drawn.")] = 32,
    words: Annotated[
        int, typer.Option(help="Tokens the loss is over, if not the drafter's; 0: all.")
    ] = 8192,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of weights, order and anchors.")] = 0,
    dtype: Annotated[
        str, typer.Option(help="Of the arithmetic: float32 or bfloat16.")
    ] = "float32",
    states: Annotated[
        bool,
        typer.Option(help="Keep the target's states in DATA: 8 bytes x width a token."),
    ] = True,
    save_every: Annotated[
        int, typer.Option(help="Updates between checkpoints and examinations.")
    ] = 200,
    init: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint to begin from, with the same weights by name and shape: "
            "a drafter of this method, or for pard a small model."
        ),
    ] = None,
) -> None:
    """Trains a drafter on a target's answers; goes on where it was stopped."""
    with errors():
        from jspec.server.load import load_model
        from jspec.targets import resolve
        from jspec.training.figure import draw
        from jspec.training.run import Settings, run
        from jspec.training.texts import load_texts

        settings = Settings(
            method=method,
            tokens=tokens,
            batch=batch,
            length=length,
            anchors=anchors,
            words=words or None,
            rate=rate,
            seed=seed,
            dtype=dtype,
            save_every=save_every,
            init=None if init is None else str(init),
        )
        texts = load_texts(data)
        if texts.notes["target"] != target:
            raise ValueError(
                f"the texts in {data} were written by {texts.notes['target']!r}, "
                f"not by {target!r}"
            )
        path = resolve(target)
        model = load_model(path, dtype=dtype)
        files = {
            file.name: file
            for file in path.iterdir()
            if file.is_file() and file.name != "jspec.json"
        }
        command = shlex.join(["jspec", *sys.argv[1:]])
        with _bar() as bar:
            task, held = bar.add_task(method, total=None, said=""), ""
            say, all_ = _minutely(bar), 0

            def begun(steps: int) -> None:
                nonlocal all_
                all_ = steps
                bar.update(task, total=steps)

            def tell(step: int, loss: float) -> None:
                bar.update(task, completed=step, said=f"loss {loss:.3f}{held}")
                say(f"step {step} of {all_}: loss {loss:.3f}{held}")

            def look(point: Any) -> None:
                nonlocal held
                assert point.held is not None
                shares = " ".join(f"{a:.2f}" for a in point.held.acceptance)
                held = f", tau {point.held.tau(4):.2f}"
                loss = "" if point.loss is None else f"loss {point.loss:.3f}, "
                rate = point.tokens / point.seconds if point.seconds else 0
                bar.console.print(
                    f"step {point.step}, {point.tokens} tokens at {rate:.0f} a second: "
                    f"{loss}held-out acceptance by position {shares}{held} at K = 4",
                    soft_wrap=True,
                )

            card = run(
                settings,
                model,
                texts,
                out,
                command=command,
                tokenizer_files=files,
                states=data / "states" if states else None,
                begun=begun,
                tell=tell,
                look=look,
            )
        draw(out / "curve.svg", card)
    speed = card["tokens_per_second"]
    typer.echo(
        f"{out / 'drafter'}: {card['parameters']} parameters, {card['tokens']} tokens "
        f"at {speed:.0f} tokens/s, tau {card['held_out_tau'][4]:.2f} at K = 4"
    )


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
        console=Console(stderr=True),
    )


def _minutely(bar: Any) -> Callable[[str], None]:
    """Prints a line at once and then one a minute, where no terminal shows the bar."""
    before = -math.inf

    def say(line: str) -> None:
        nonlocal before
        now = time.perf_counter()
        if not bar.console.is_terminal and now - before >= MINUTE:
            before = now
            bar.console.print(line, soft_wrap=True)

    return say


def add(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command()(distill)
    app.command()(train)
