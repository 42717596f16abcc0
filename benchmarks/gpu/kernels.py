"""Times every kernel on a GPU against its twin in plain XLA and against its bytes.

Command: `python -m benchmarks.gpu.kernels`, under 8 minutes on an H100; one JSON and
one figure. Every case is first compared with its twin on the device. The floor is the
time in which the measured copy bandwidth moves what the operation must read and write
once. Times are medians of series of calls and include their dispatch, which is
measured too: what is shorter than that is not resolved. What is smaller than the
second-level cache (50 MB) may be read from there, as after a pass of a model.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu.cases import HEADS, KEYS, Case, cases, tiny

RESULTS = Path(__file__).resolve().parents[1] / "results"


def make(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random inputs on the device, and what is static."""
    import jax
    import jax.numpy as jnp

    size = case.sizes
    keys = iter(jax.random.split(jax.random.key(0), 8))
    if case.kernel == "paged_attention":
        rows, nodes, width = size["rows"], size["nodes"], size["width"]
        each = -(-(size["context"] + nodes) // 256) * 16
        shape = (rows * each, KEYS, 16, width)
        place = jax.random.permutation(next(keys), rows * each).astype(jnp.int32)
        k, v = (jax.random.normal(next(keys), shape, jnp.bfloat16) for _ in range(2))
        q = jax.random.normal(next(keys), (rows, nodes, HEADS, width), jnp.bfloat16)
        length = jnp.full((rows,), size["context"], jnp.int32)
        seen = jnp.tri(nodes, dtype=bool)
        if size["tree"]:
            # Every node hangs from the one at half its number.
            seen = jnp.eye(nodes, dtype=bool)
            for node in range(1, nodes):
                seen = seen.at[node].set(seen[node] | seen[node // 2])
        ancestors = jnp.broadcast_to(seen[None], (rows, nodes, nodes))
        arrays = (q, k, v, place.reshape(rows, each), length)
        static = {"window": None, "scale": width**-0.5, "block_pages": 16}
        return arrays, {"ancestors": ancestors, **static}
    rows, gamma, v = size["rows"], size["gamma"], size["vocabulary"]
    logits = 4 * jax.random.normal(next(keys), (rows, gamma + 1, v), jnp.bfloat16)
    tokens = jax.random.randint(next(keys), (rows, gamma + 1), 0, v, jnp.int32)
    chain = jnp.arange(-1, gamma, dtype=jnp.int32)
    parent = jnp.broadcast_to(chain[None], (rows, gamma + 1))
    if case.kernel == "greedy_verify":
        return (logits, tokens, parent), {}
    noise = (
        jax.random.uniform(next(keys), (rows, gamma)),
        jax.random.uniform(next(keys), (rows,)),
    )
    q = None
    if size["dense"]:
        drafted = jax.random.normal(next(keys), (rows, gamma + 1, v))
        q = jax.nn.softmax(4 * drafted, axis=-1)
    warmth = jnp.ones((rows,), jnp.float32)
    return (logits, warmth, tokens, parent, *noise), {"q": q}


def functions(case: Case, *, interpret: Any = None) -> dict[str, Callable[..., Any]]:
    """The kernel and its twin."""
    import functools
    import importlib

    folder = f"jspec.pallas.{case.kernel}"
    ours = getattr(importlib.import_module(f"{folder}.gpu"), case.kernel)
    twin = getattr(importlib.import_module(f"{folder}.reference"), case.kernel)
    return {"gpu": functools.partial(ours, interpret=interpret), "reference": twin}


def timed(call: Callable[[], Any], *, series: int = 7, seconds: float = 0.05) -> float:
    """Median seconds of a call, over series of so many seconds; 0: of one call."""
    import jax

    def run(times: int) -> float:
        out = None
        started = time.perf_counter()
        for _ in range(times):
            out = call()
        jax.block_until_ready(out)
        return (time.perf_counter() - started) / times

    jax.block_until_ready(call())
    times = max(1, min(1000, int(seconds / max(run(3), 1e-6)))) if seconds else 1
    return statistics.median(run(times) for _ in range(series))


def measure(case: Case, *, interpret: Any = None, series: int = 7) -> dict[str, Any]:
    """Numerics first, then times."""
    import jax
    import numpy as np

    arrays, options = make(case)
    static = {k: a for k, a in options.items() if not hasattr(a, "dtype")}
    given = {k: a for k, a in options.items() if hasattr(a, "dtype")}
    outs, seconds = {}, {}
    for name, function in functions(case, interpret=interpret).items():

        def run(*a: Any, function: Any = function, **k: Any) -> Any:
            return function(*a, **k, **static)

        compiled = run if interpret and name == "gpu" else jax.jit(run)
        outs[name] = jax.tree.leaves(compiled(*arrays, **given))
        seconds[name] = timed(
            lambda compiled=compiled: compiled(*arrays, **given),
            series=series,
            seconds=0.0 if interpret else 0.05,
        )
    apart = [
        float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))))
        for a, b in zip(outs["gpu"], outs["reference"], strict=True)
    ]
    return {
        "kernel": case.kernel,
        "label": case.label,
        "floor_bytes": case.floor,
        "largest_difference": max(apart),
        "seconds": seconds,
    }


def copy_bandwidth(*, megabytes: int = 1024) -> float:
    """Bytes a second, read and written, of adding one to a large array."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros(megabytes * 2**20 // 4, jnp.float32)
    step = jax.jit(lambda a: a + 1)
    return 2 * x.nbytes / timed(lambda: step(x))


def results(wanted: Sequence[Case], *, minutes: float, small: bool) -> dict[str, Any]:
    """All measurements; cases for which no time was left are named."""
    import jax
    import jax.numpy as jnp

    interpret = None
    if small:
        from jax.experimental.pallas import mosaic_gpu as plgpu

        interpret = plgpu.InterpretGPUParams()
    started, found, left = time.monotonic(), [], []
    bandwidth = copy_bandwidth(megabytes=4 if small else 1024)
    one, add = jnp.float32(1), jax.jit(lambda a: a + 1)
    for case in wanted:
        if time.monotonic() - started > 60 * minutes:
            left.append(f"{case.kernel}: {case.label}")
            continue
        found.append(measure(case, interpret=interpret, series=1 if small else 7))
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "interpreted": small,
        "copy_bytes_per_second": bandwidth,
        "dispatch_seconds": timed(lambda: add(one), series=3, seconds=0.01),
        "cases": found,
        "not_measured": left,
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A sentence a case."""
    for one in result["cases"]:
        floor = one["floor_bytes"] / result["copy_bytes_per_second"]
        ours, twin = (one["seconds"][name] for name in ("gpu", "reference"))
        yield (
            f"{one['kernel']}, {one['label']}: {1e6 * ours:.1f} µs, its twin "
            f"{1e6 * twin:.1f} µs, the floor {1e6 * floor:.1f} µs; they differ by at "
            f"most {one['largest_difference']:.1e}"
        )
    for name in result["not_measured"]:
        yield f"{name}: no time was left"


def figure(result: dict[str, Any], path: Path) -> None:
    """Times against the floor: on the diagonal, bytes are all that is paid for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(figsize=(6, 5))
    for name, mark in (("gpu", "o"), ("reference", "x")):
        for color, kernel in enumerate(sorted({c["kernel"] for c in result["cases"]})):
            its = [c for c in result["cases"] if c["kernel"] == kernel]
            floors = [c["floor_bytes"] / result["copy_bytes_per_second"] for c in its]
            axes.plot(
                [1e6 * f for f in floors],
                [1e6 * c["seconds"][name] for c in its],
                mark,
                color=f"C{color}",
                label=f"{kernel}, {'kernel' if name == 'gpu' else 'plain XLA'}",
            )
    ends = axes.get_xlim()
    axes.plot(ends, ends, color="0.7")
    axes.set(xscale="log", yscale="log", xlabel="floor (µs)", ylabel="measured (µs)")
    axes.legend(fontsize=7)
    drawn.savefig(path, bbox_inches="tight")
    plt.close(drawn)


def main(
    out: Annotated[Path, typer.Option(help="Folder of the JSON and figure.")] = RESULTS,
    minutes: Annotated[float, typer.Option(help="No case begins later.")] = 6.5,
    dry_run: Annotated[bool, typer.Option(help="Lists the cases.")] = False,
    small: Annotated[bool, typer.Option(help="One case, interpreted.")] = False,
) -> None:
    """Measures, writes `gpu_kernels.json` and `gpu_kernels.svg`, prints a summary."""
    wanted = tiny() if small else cases()
    if dry_run:
        for case in wanted:
            print(f"{case.kernel}, {case.label}: at least {case.floor / 1e6:.3f} MB")
        return
    import jax

    if not small and jax.default_backend() != "gpu":
        raise typer.BadParameter("no GPU is at hand; --small interprets one case")
    result = results(wanted, minutes=minutes, small=small)
    (out / "gpu_kernels.json").write_text(json.dumps(result, indent=1) + "\n")
    figure(result, out / "gpu_kernels.svg")
    for line in lines(result):
        print(line)


if __name__ == "__main__":
    typer.run(main)
