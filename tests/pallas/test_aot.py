import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.gpu import aot

X = jax.ShapeDtypeStruct((256,), jnp.float32)
REPORT = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
    0 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 63 registers, used 2 barriers, 17 bytes smem
"""
SCRATCH = (
    "Resources(smem_scratch_bytes=1024, barrier_counts=Counter({"
    "Barrier(arrival_count=1, num_barriers=4, orders_tensor_core=False): 2, "
    "Barrier(arrival_count=1, num_barriers=1, orders_tensor_core=False): 1}))"
)


def multiply(x, *, by, interpret=None):
    def body(x_ref, out_ref, block, arrived):
        here = pl.ds(jax.lax.axis_index("block") * 128, 128)
        plgpu.copy_gmem_to_smem(x_ref.at[here], block, arrived)
        plgpu.barrier_wait(arrived)
        block[...] = block[...] * by
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(block, out_ref.at[here])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=X,
        grid=(2,),
        grid_names=("block",),
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
        interpret=interpret,
    )(x)


def total(x):
    return jnp.exp(x).sum()


def test_reports_say_registers_spills_and_shared_memory(tmp_path):
    for number, scratch in ((0, SCRATCH), (2, SCRATCH.replace("1024", "2048"))):
        (tmp_path / f"k_{number}.resources.txt").write_text(scratch)
    for number in (0, 1):
        (tmp_path / f"k_{number}.ptxas").write_text(REPORT)
        (tmp_path / f"k_{number}.ptx").write_text("code")
    first, second = aot._read(tmp_path)
    assert first == aot.Kernel(
        name="k", registers=63, spills=32, shared_memory=1024 + 8 * 9, ptx="code"
    )
    assert second.shared_memory == 2048 + 8 * 9


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(aot, "HOME", aot.ROOT / ".peers" / "nowhere")
    with pytest.raises(aot.PluginError, match=r"python -m benchmarks.gpu.aot"):
        aot.compile_for(total, X)


def test_the_interpreter_runs_a_kernel(interpreted):
    x = jnp.arange(256, dtype=jnp.float32)
    assert (interpreted(multiply, x, by=3) == 3 * x).all()


@pytest.mark.aot
@pytest.mark.slow
def test_functions_compile_without_a_gpu():
    twice, thrice, plain = aot.compile_many(
        [
            (functools.partial(multiply, by=2), [X]),
            (functools.partial(multiply, by=3), [X]),
            (total, [X]),
        ]
    )
    for figures in (twice, thrice):
        (kernel,) = figures.kernels
        assert 0 < figures.registers < 64 and figures.spills == 0
        assert figures.shared_memory == 1024 + 8
        assert "cp.async.bulk" in kernel.ptx and "mosaic_gpu" in figures.hlo_text
    assert plain.kernels == () and "fusion" in plain.hlo_text


@pytest.mark.aot
@pytest.mark.slow
def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="2 were given"):
        aot.compile_for(total, X, X)
