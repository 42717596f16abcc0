"""Times every kernel on a GPU against its twin in plain XLA and against its bytes.

Command: `python -m benchmarks.gpu.kernels`, under 8 minutes on an H100; one JSON and
one figure. Every case is first compared with its twin on the device. The floor is the
time in which the measured copy bandwidth moves what the operation must read and write
once. Times are medians of series of calls and include their dispatch, which is
measured too: what is shorter than that is not resolved. What is smaller than the
second-level cache (50 MB) may be read from there, as after a pass of a model.

A case begins if the budget has room for one as slow as the slowest so far. Every
kernel's largest case comes first, so where time runs out the smallest are left out;
the JSON names them. It is written again after every case.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu.cases import Case, cases, tiny

RESULTS = Path(__file__).resolve().parents[1] / "results"
FIRST = 30.0
"""Seconds that the first case is expected to take."""

TOLERANCE = 0.02
"""Of what is not an integer: attention in bfloat16, of values around one."""


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


def compare(ours: Any, right: Any) -> dict[str, Any]:
    """Of the kernel's results and its twin's: how many differ, and by how much."""
    import jax
    import jax.numpy as jnp

    apart, differing, entries, agrees = 0.0, 0, 0, True
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(right), strict=True)
    for a, b in pairs:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(
                f"the kernel gives {a.dtype}{list(a.shape)} where its twin gives "
                f"{b.dtype}{list(b.shape)}"
            )
        exact = not jnp.issubdtype(a.dtype, jnp.floating)
        gap = jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32))
        largest = float(jnp.where(jnp.isnan(gap), jnp.inf, gap).max())
        apart, entries = max(apart, largest), entries + a.size
        differing += int((a != b).sum())
        agrees &= bool((a == b).all()) if exact else largest <= TOLERANCE
    return {
        "agrees": agrees,
        "largest_difference": apart,
        "differing": differing,
        "entries": entries,
    }


def caller(run: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    """Calls `run`; what it changes is given to the next call."""
    import jax
    import jax.numpy as jnp

    first, *others = inputs.arrays
    # Both implementations change an array of their own.
    state = jax.tree.map(jnp.copy, first) if inputs.changed else first

    def call() -> Any:
        nonlocal state
        out = run(state, *others, **inputs.given)
        if inputs.changed:
            state = out
        return out

    return call


def measure(case: Case, *, interpret: Any = None, series: int = 7) -> dict[str, Any]:
    """Numerics first, then times."""
    import jax

    from benchmarks.gpu.inputs import functions, make

    inputs, calls = make(case), {}
    for name, function in functions(case, interpret=interpret).items():

        def run(*a: Any, function: Any = function, **k: Any) -> Any:
            return function(*a, **k, **dict(inputs.static))

        if not (interpret and name == "gpu"):
            run = jax.jit(run, donate_argnums=(0,) if inputs.changed else ())
        calls[name] = caller(run, inputs)
    compared = compare(*(calls[name]() for name in ("gpu", "reference")))
    spent = 0.0 if interpret else 0.05
    return {
        "kernel": case.kernel,
        "label": case.label,
        "floor_bytes": case.floor,
        **compared,
        "seconds": {
            name: timed(call, series=series, seconds=spent)
            for name, call in calls.items()
        },
    }


def copy_bandwidth(*, megabytes: int = 1024) -> float:
    """Bytes a second, read and written, of adding one to a large array."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros(megabytes * 2**20 // 4, jnp.float32)
    step = jax.jit(lambda a: a + 1)
    return 2 * x.nbytes / timed(lambda: step(x))


def results(
    wanted: Sequence[Case],
    *,
    budget: float,
    small: bool = False,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """All measurements, in the order of the cases, as far as the budget goes.

    Args:
      wanted: the cases.
      budget: minutes, all included.
      small: interprets the kernels on a CPU.
      save: is given what is known after every case.
      clock: seconds.
    """
    import jax
    import jax.numpy as jnp

    interpret = None
    if small:
        from jax.experimental.pallas import mosaic_gpu as plgpu

        interpret = plgpu.InterpretGPUParams()
    started, longest = clock(), 0.0
    one, add = jnp.float32(1), jax.jit(lambda a: a + 1)
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "interpreted": small,
        "copy_bytes_per_second": copy_bandwidth(megabytes=4 if small else 1024),
        "dispatch_seconds": timed(lambda: add(one), series=3, seconds=0.01),
        "budget_minutes": budget,
        "cases": [],
        "failed": [],
        "left_out": [],
    }
    for case in wanted:
        begun = clock()
        named = {"kernel": case.kernel, "label": case.label}
        if begun + (longest or FIRST) > started + 60 * budget:
            result["left_out"].append(named)
            continue
        try:
            found = measure(case, interpret=interpret, series=1 if small else 7)
            result["cases"].append(found)
        except Exception as error:
            # Of compilers, the runtime or memory: the other kernels still have theirs.
            said = str(error).strip()[-1000:]
            result["failed"].append(
                {**named, "error": type(error).__name__ + ": " + said}
            )
        longest = max(longest, clock() - begun)
        save(result)
    return result


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A sentence a case."""
    for one in result["cases"]:
        floor = one["floor_bytes"] / result["copy_bytes_per_second"]
        ours, twin = (one["seconds"][name] for name in ("gpu", "reference"))
        yield (
            f"{one['kernel']}, {one['label']}: {1e6 * ours:.1f} µs, its twin "
            f"{1e6 * twin:.1f} µs, the floor {1e6 * floor:.1f} µs; "
            f"{one['differing']} of {one['entries']} numbers differ, by at most "
            f"{one['largest_difference']:.1e}{'' if one['agrees'] else ': WRONG'}"
        )
    for one in result["failed"]:
        yield f"{one['kernel']}, {one['label']}: FAILED, {one['error']}"
    for one in result["left_out"]:
        yield f"{one['kernel']}, {one['label']}: left out, no time was left"


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
    budget: Annotated[float, typer.Option(help="Minutes that it may take.")] = 7.0,
    dry_run: Annotated[bool, typer.Option(help="Lists the cases.")] = False,
    small: Annotated[bool, typer.Option(help="Small cases, interpreted.")] = False,
) -> None:
    """Measures, writes `gpu_kernels.json` and `gpu_kernels.svg`, prints a summary.

    Ends with status 1 where a kernel fails or differs from its twin.
    """
    wanted = tiny() if small else cases()
    if dry_run:
        for case in wanted:
            print(f"{case.kernel}, {case.label}: at least {case.floor / 1e6:.3f} MB")
        return
    import jax

    if not small and jax.default_backend() != "gpu":
        raise typer.BadParameter("no GPU is at hand; --small interprets small cases")
    out.mkdir(parents=True, exist_ok=True)

    def save(result: dict[str, Any]) -> None:
        (out / "gpu_kernels.json").write_text(json.dumps(result, indent=1) + "\n")

    result = results(wanted, budget=budget, small=small, save=save)
    save(result)
    for line in lines(result):
        print(line)
    if result["cases"]:
        figure(result, out / "gpu_kernels.svg")
    if result["failed"] or not all(one["agrees"] for one in result["cases"]):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
