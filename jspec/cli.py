"""The command `jspec`: generate, serve, demo, methods, cost, bench.

`calibrate` and `lab` are in `server/control_commands.py`, `distill` and `train` in
`cli_train.py`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from jspec import cli_train
from jspec.server import control_commands
from jspec.server.console import TARGET, errors
from jspec.server.control_commands import parse_options

__all__ = ["app", "main"]

app = typer.Typer(
    help="Exact speculative decoding of language models in JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli_train.add(app)

DEMO = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, then explain it "
    "line by line, quoting each line before you explain it.",
    "Repeat this sentence three times, word for word: The quick brown fox jumps over "
    "the lazy dog near the river bank while the old farmer watches from his porch.",
    "List the planets of the solar system with one fact each, then list them again in "
    "reverse order with the same facts.",
)


@app.command()
def generate(
    prompts: Annotated[list[str], typer.Argument(help="Texts to answer or go on.")],
    target: Annotated[
        str, typer.Option(help="Model directory, file or name.")
    ] = TARGET,
    method: Annotated[str, typer.Option(help="See `jspec methods`.")] = "auto",
    drafter: Annotated[str | None, typer.Option(help="The drafter's weights.")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Drafted tokens a round.")] = None,
    draft_sampling: Annotated[
        str, typer.Option(help="auto, greedy or probabilistic drafts.")
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(help="A field of the method, `tree_width=4`; may be repeated."),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="K by load: a file, `adaptive`, `goodput:FILE`.")
    ] = None,
    verification: Annotated[
        str, typer.Option(help="Which drafts are kept; `typical:epsilon=0.1`, say.")
    ] = "standard",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to emit.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; the checkpoint's if unset.")
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="gpu or reference; by platform if unset.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on from the text; no chat template.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a prompt, nothing else.")
    ] = False,
) -> None:
    """Streams the model's answer to each prompt."""
    with errors():
        import jspec

        params = jspec.SamplingParams(
            temperature=temperature, seed=seed, max_tokens=max_tokens
        )
        with jspec.serve(
            target,
            method=method,
            drafter=drafter,
            num_speculative_tokens=k,
            draft_sampling=draft_sampling,
            method_options=parse_options(option),
            schedule=schedule,
            verification=verification,
            dtype=dtype,
            kernels=kernels,
            max_batch=1,
        ) as server:
            for prompt in prompts:
                asked: Any = prompt
                if not raw and server.tokenizer.has_chat_template:
                    asked = [{"role": "user", "content": prompt}]
                _answer(server, prompt, asked, params, as_json=as_json)


def _answer(
    server: Any, prompt: str, asked: Any, params: Any, *, as_json: bool
) -> None:
    started = time.perf_counter()
    handle = server.submit(asked, params)
    first = None
    for chunk in handle:
        first = first or time.perf_counter()
        if not as_json:
            typer.echo(chunk.text, nl=False)
    ended = time.perf_counter()
    completion = handle.result()
    if completion.finish_reason == "error":
        typer.echo(f"jspec: {completion.error}", err=True)
        raise typer.Exit(1)
    numbers = completion.speculation
    rate = _rate(completion, first or started, ended)
    share = numbers.accepted / numbers.drafted if numbers.drafted else None
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "prompt": prompt,
                    "text": completion.text,
                    "token_ids": completion.token_ids,
                    "finish_reason": completion.finish_reason,
                    "method": server.method,
                    "num_speculative_tokens": server.num_speculative_tokens,
                    "verification": server.verification,
                    "lossy": numbers.lossy,
                    "tokens_per_second": round(rate, 2),
                    "tau": round(numbers.tau, 4),
                    "rounds": numbers.rounds,
                    "drafted": numbers.drafted,
                    "accepted": numbers.accepted,
                    "accepted_share": share,
                    "usage": {
                        "prompt_tokens": completion.usage.prompt_tokens,
                        "completion_tokens": completion.usage.completion_tokens,
                        "cached_tokens": completion.usage.cached_tokens,
                    },
                }
            )
        )
        return
    accepted = "nothing drafted" if share is None else f"{share:.0%} of drafts accepted"
    lossy = ", lossy" if numbers.lossy else ""
    typer.echo(f"\n[{rate:.1f} tokens/s, tau {numbers.tau:.2f}, {accepted}{lossy}]")


def _rate(completion: Any, first: float, ended: float) -> float:
    """Tokens a second after those that came first."""
    tokens = len(completion.token_ids)
    return (tokens - 1) / (ended - first) if tokens > 1 and ended > first else 0.0


@app.command()
def serve(
    target: Annotated[
        str, typer.Option(help="Model directory, file or name.")
    ] = TARGET,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--model-name", help="What requests call the model.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Bearer token that /v1 asks for.")
    ] = None,
    method: Annotated[str, typer.Option(help="See `jspec methods`.")] = "auto",
    drafter: Annotated[str | None, typer.Option(help="The drafter's weights.")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Drafted tokens a round.")] = None,
    draft_sampling: Annotated[
        str, typer.Option(help="auto, greedy or probabilistic drafts.")
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(help="A field of the method, `tree_width=4`; may be repeated."),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="K by load: a file, `adaptive`, `goodput:FILE`.")
    ] = None,
    verification: Annotated[
        str, typer.Option(help="Which drafts are kept; `typical:epsilon=0.1`, say.")
    ] = "standard",
    max_batch: Annotated[int, typer.Option(help="Answers that run at once.")] = 8,
    max_model_len: Annotated[
        int | None, typer.Option(help="Most tokens of a prompt and its answer.")
    ] = None,
    kv_pages: Annotated[int | None, typer.Option(help="Pages of the cache.")] = None,
    prefix_cache: Annotated[
        bool, typer.Option(help="Prompts that begin alike share their pages.")
    ] = True,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; the checkpoint's if unset.")
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="gpu or reference; by platform if unset.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of requests without one.")] = 0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds for running answers at the end.")
    ] = 10.0,
) -> None:
    """Serves OpenAI's HTTP interface until SIGTERM or SIGINT."""
    with errors():
        try:
            from jspec.server import http, http_run
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            if package == "jspec":
                raise
            raise ValueError(
                f"the HTTP server needs {package}: pip install 'jspec[server]'"
            ) from error
        import jspec

        if api_key is not None and not (api_key.isascii() and api_key.strip()):
            raise ValueError("--api-key must be ASCII and not empty")
        listener = http_run.bind(host, port)
        with (
            listener,
            jspec.serve(
                target,
                method=method,
                drafter=drafter,
                num_speculative_tokens=k,
                draft_sampling=draft_sampling,
                method_options=parse_options(option),
                schedule=schedule,
                verification=verification,
                max_batch=max_batch,
                max_model_len=max_model_len,
                kv_pages=kv_pages,
                prefix_cache=prefix_cache,
                dtype=dtype,
                kernels=kernels,
                seed=seed,
            ) as server,
        ):
            service = http.Service(server, name=name, api_key=api_key)
            at, port = listener.getsockname()[:2]
            at = f"[{at}]" if ":" in at else at

            def ready() -> None:
                typer.echo(
                    f"jspec serves {service.names[0]} at http://{at}:{port}/v1 "
                    f"(method {server.method}, K {server.num_speculative_tokens}"
                    f"{', lossy verification' if server.lossy else ''})"
                )
                sys.stdout.flush()

            http_run.run(service, listener, grace=grace, ready=ready)


@app.command()
def demo(
    max_tokens: Annotated[int, typer.Option(help="Most tokens an answer.")] = 96,
    k: Annotated[int, typer.Option("-k", help="Drafted tokens a round.")] = 5,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
) -> None:
    """Answers a few prompts with the embedded model, plain and speculatively."""
    with errors():
        from rich.console import Console
        from rich.table import Table

        import jspec

        started = time.perf_counter()
        console = Console()
        table = Table(title=f"{TARGET}, greedy, K = {k}; plain and n-gram in tokens/s")
        table.add_column("prompt", no_wrap=True)
        for column in ("tokens", "plain", "n-gram", "gain", "tau", "kept", "same"):
            table.add_column(column, justify="right", no_wrap=True)
        with jspec.serve(
            TARGET,
            method="ngram",
            num_speculative_tokens=k,
            max_batch=1,
            max_model_len=1024,
            dtype=dtype,
            prefix_cache=False,
        ) as server:
            console.print(
                f"[dim]ready after {time.perf_counter() - started:.1f} s[/]\n"
            )
            for prompt in DEMO:
                console.print(f"[bold]{prompt}[/]")
                runs = {}
                for name, own in (("plain", 0), ("n-gram", k)):
                    params = jspec.SamplingParams(
                        temperature=0.0,
                        max_tokens=max_tokens,
                        num_speculative_tokens=own,
                    )
                    handle = server.submit(
                        [{"role": "user", "content": prompt}], params
                    )
                    first = None
                    console.print(f"[dim]{name}:[/] ", end="")
                    for chunk in handle:
                        first = first or time.perf_counter()
                        console.out(chunk.text, end="", highlight=False)
                    ended = time.perf_counter()
                    done = handle.result()
                    rate = _rate(done, first or started, ended)
                    console.print(f"  [dim]({rate:.1f} tokens/s)[/]")
                    runs[name] = done, rate
                console.print()
                (plain, slow), (drafted, fast) = runs["plain"], runs["n-gram"]
                numbers = drafted.speculation
                share = numbers.accepted / numbers.drafted if numbers.drafted else 0
                table.add_row(
                    prompt if len(prompt) < 14 else prompt[:11] + "...",
                    str(len(drafted.token_ids)),
                    f"{slow:.1f}",
                    f"{fast:.1f}",
                    f"{fast / slow:.2f}x" if slow else "-",
                    f"{numbers.tau:.2f}",
                    f"{share:.0%}",
                    "yes" if plain.token_ids == drafted.token_ids else "NO",
                )
        console.print(table)


@app.command()
def methods(
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Lists every drafting method, what it needs, and what is refused."""
    import dataclasses

    import jspec

    listed = jspec.methods()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(method) for method in listed]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("method", "drafts", "weights", "passes", "shape", "q", "default K"):
        table.add_column(column)
    for method in listed:
        table.add_row(
            method.name,
            method.idea,
            method.weights or "none",
            method.passes,
            method.topology,
            ", ".join(method.q),
            str(method.num_speculative_tokens),
        )
    console = Console()
    console.print(table)
    for method in listed:
        for refusal in method.refused:
            console.print(f"{method.name}: {refusal}")


@app.command()
def cost(
    alpha: Annotated[list[float], typer.Option(help="Acceptance; may repeat.")],
    k: Annotated[list[int], typer.Option("-k", help="Drafted tokens; may repeat.")],
    c: Annotated[
        list[float],
        typer.Option("-c", help="A draft pass, in target steps; may repeat."),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(help="Count this method's passes; default: a chain, a block."),
    ] = None,
    modules: Annotated[
        bool, typer.Option("--modules", help="Each -c is one module's, one a step.")
    ] = False,
    t_star: Annotated[
        float | None, typer.Option(help="Tokens at which a step is compute-bound.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw break-even over cost; .png, .svg, .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Says when speculation pays: speed-up, break-even acceptance and batch."""
    with errors():
        import dataclasses

        from jspec.control import economics

        kinds = {"chain": "gamma", "block": "one"}
        if modules:
            kinds = {"modules": "modules"}
        elif method:
            import jspec

            passes = {each.name: each.passes for each in jspec.methods()}
            unknown = [name for name in method if name not in passes]
            if unknown:
                raise ValueError(f"method {unknown[0]!r} is not one of {list(passes)}")
            kinds = {name: passes[name] for name in method}
        cases = economics.tabulate(alpha, k, c, kinds=kinds, t_star=t_star)
        if figure is not None:
            from jspec.control.figure import draw

            if len(set(k)) > 1:
                raise ValueError("a figure is drawn for one K; give -k once")
            points = [
                (f"{each.name}, α {each.alpha:g}", each.drafts, each.alpha)
                for each in cases
            ]
            draw(figure, k=k[0], points=points)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in cases]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        caption="tokens, cost: of a round, in target steps; gain: at batch 1. Even: "
        "from this α, up to this batch, it pays. Tie: equals a chain at α. "
        "∞: the gain at any batch.",
    )
    table.add_column("drafts", no_wrap=True)
    for column in ("α", "K", "passes", "tokens", "cost", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("α even", "α tie", "B even", "∞"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in cases:
        each_c = f"{each.c:g}" if isinstance(each.c, float) else "modules"
        reach = each.break_even_batch
        table.add_row(
            each.name,
            f"{each.alpha:g}",
            str(each.k),
            f"{each.passes}×{each_c}" if each.passes else "none",
            f"{each.emitted:.3f}",
            f"{1 + each.drafts:.3f}",
            f"{each.speedup:.2f}×",
            "-" if each.pays_from is None else f"{each.pays_from:.3f}",
            "-" if each.ties_chain_at is None else f"{each.ties_chain_at:.3f}",
            "-" if reach is None else f"{reach:.0f}" if reach >= 1 else "none",
            f"{each.asymptotic_speedup:.2f}×",
        )
    Console().print(table)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Measures prompts x methods x K x batch side by side (`jspec bench --help`)."""
    if not Path(__file__).parents[1].joinpath("benchmarks", "__main__.py").is_file():
        typer.echo("jspec: this installation has no benchmarks", err=True)
        raise typer.Exit(2)
    from benchmarks.__main__ import app as benchmarks

    benchmarks(args=context.args, prog_name="jspec bench")


app.command()(control_commands.calibrate)
app.command()(control_commands.lab)


def main() -> None:
    """Runs the command; what the user got wrong is told in one line."""
    usage = typer.BadParameter.__mro__[1]  # of every wrong use, in each typer
    try:
        status = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except usage as error:
        said: Any = error
        typer.echo(f"jspec: {' '.join(said.format_message().split())}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
