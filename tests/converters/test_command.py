"""`jspec-convert`: exit status, one line on stderr, nothing left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

import converters.__main__ as command
from converters.check import Difference
from jspec import checkpoint


def run(*arguments):
    return CliRunner().invoke(command.app, [str(argument) for argument in arguments])


def test_there_and_back(tiny, tmp_path):
    there = run(tiny, tmp_path / "here")
    assert there.exit_code == 0
    assert "llama: 21 tensors" in there.stdout
    assert "float32, none unmapped" in there.stdout
    back = run(tmp_path / "here", tmp_path / "back")
    assert back.exit_code == 0
    assert (tmp_path / "back" / "model.safetensors").is_file()


def test_a_dry_run_prints_every_tensor_and_writes_nothing(tiny, tmp_path):
    ran = run(tiny, tmp_path / "here", "--dry-run", "--dtype", "bfloat16")
    assert ran.exit_code == 0
    (line,) = (row for row in ran.stdout.splitlines() if "layers.1.mlp.up_proj" in row)
    assert line.split() == [
        "model.layers.1.mlp.up_proj.weight",
        "layers.1.up",
        "(32,",
        "48)",
        "F32",
        "to",
        "bfloat16",
    ]
    assert "21 tensors, none unmapped; nothing was written" in ran.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_dry_run_of_the_way_back_prints_the_names_there(tiny, tmp_path):
    run(tiny, tmp_path / "here")
    ran = run(tmp_path / "here", tmp_path / "back", "--dry-run")
    assert "model.layers.0.self_attn.q_proj.weight" in ran.stdout
    assert not (tmp_path / "back").exists()


def test_a_check_compares_with_transformers(tiny, tmp_path):
    ran = run(tiny, tmp_path / "here", "--check")
    assert ran.exit_code == 0
    assert "largest difference of a logit from transformers" in ran.stdout


def test_a_failed_check_is_our_fault(tiny, tmp_path, monkeypatch):
    far = Difference(worst=0.1, largest=1.0)
    monkeypatch.setattr(command, "difference", lambda *_: far)
    assert run(tiny, tmp_path / "here", "--check").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent", "here"], "absent does not exist"),
        (["tiny", "here", "--family", "bert"], "the family 'bert' is not known"),
        (["tiny", "here", "--dtype", "int4"], "the dtype 'int4' is not known"),
        (["tiny", "tiny"], "exists already and is not an empty directory"),
        (["tiny", "here", "--family", "qwen3"], "q_norm.weight is missing"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(
    tiny, tmp_path, monkeypatch, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert sentence in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


SLOW_READER = """
import sys, time
import converters.convert as c
read = c._read
def slow(line, config):
    print("reading", flush=True)
    time.sleep(0.2)
    return read(line, config)
c._read = slow
from converters.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_conversion_that_is_told_to_end_leaves_nothing(tiny, tmp_path, number):
    code = [sys.executable, "-c", SLOW_READER, str(tiny), str(tmp_path / "here")]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait() != 0
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.slow
def test_a_killed_conversion_is_cleaned_up_by_the_next(tiny, tmp_path):
    code = [
        sys.executable,
        "-c",
        "import sys, time\n"
        "from pathlib import Path\n"
        "from jspec.checkpoint import staging\n"
        "with staging(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_text('half')\n"
        "    print('staged', flush=True)\n"
        "    time.sleep(60)\n",
        str(tmp_path / "here"),
    ]
    process = subprocess.Popen(code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.kill()
        process.wait()
    assert len(list(tmp_path.glob(".here.partial-*"))) == 1
    assert run(tiny, tmp_path / "here").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "tiny"]
    assert checkpoint.is_checkpoint(tmp_path / "here")


MEASURE = """
import sys
from pathlib import Path
import numpy as np
import converters, jspec.checkpoint
def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
converters.convert(Path(sys.argv[1]), Path(sys.argv[2]))
small = peak()
converters.convert(Path(sys.argv[3]), Path(sys.argv[4]))
print(peak() - small)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_peak_memory_is_the_model_and_about_one_tensor(make, tiny, tmp_path):
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "vocab_size": 16_384,
        "tie_word_embeddings": True,
    }
    make("llama", sizes, "bfloat16").save_pretrained(tmp_path / "big")
    model = (tmp_path / "big" / "model.safetensors").stat().st_size
    tensor = 16_384 * 1024 * 2
    code = [sys.executable, "-c", MEASURE, str(tiny), str(tmp_path / "a")]
    code += [str(tmp_path / "big"), str(tmp_path / "b")]
    started = time.monotonic()
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    grown = int(done.stdout)
    print(f"{grown / model:.2f} of the model in {time.monotonic() - started:.1f} s")
    assert grown < model + 2 * tensor + 64 * 2**20
    assert os.path.exists(tmp_path / "b" / "jspec.json")
