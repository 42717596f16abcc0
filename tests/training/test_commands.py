"""`jspec distill` and `jspec train`: what they refuse, and one small run of both."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

import jspec
from benchmarks import training_prompts
from jspec import checkpoint, cli_train
from jspec.cli import main
from jspec.training.run import Settings
from tests.serving import quick_compiler, write_checkpoint


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["jspec", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "ngram"}, "method 'ngram' cannot be trained; those that can are"),
        ({"tokens": 0}, "tokens must be at least 1, not 0"),
        ({"length": 4}, "length must be at least 16 tokens, not 4"),
        ({"words": 0}, "words must be at least 1, not 0"),
        ({"rate": 2.0}, "rate must lie between 0 and 1, not 2.0"),
        ({"warmup": 1.0}, r"warmup must lie in 0..1, not 1.0"),
        ({"dtype": "float16"}, "dtype must be float32 or bfloat16, not 'float16'"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Settings(**{"method": "eagle", "tokens": 10} | changes)


def test_wrong_input_of_a_command_is_one_line(command, tmp_path):
    status, out, err = command("train", "eagle3", "-o", tmp_path, "--data", tmp_path)
    assert (status, out) == (2, "")
    assert (
        err == f"jspec: {tmp_path} has no texts.json: make texts with `jspec distill`\n"
    )
    status, _, err = command("distill", "-o", tmp_path / "x", "--prompts", "poems:3")
    assert (status, err.count("\n")) == (2, 1)
    status, _, err = command("distill", "-o", tmp_path / "x", "--texts", 1)
    assert status == 2
    assert "--texts must be at least 2, one of them to be held out, not 1" in err


def test_where_no_terminal_shows_the_bar_one_line_a_minute_does(monkeypatch):
    seconds = iter((0.0, 30.0, 61.0, 62.0))
    clock = SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr(cli_train, "time", clock)
    file = io.StringIO()
    say = cli_train._minutely(Progress(console=Console(file=file, width=8)))
    for line in ("one and more", "two", "three", "four"):
        say(line)
    assert file.getvalue() == "one and more\nthree\n"


@pytest.mark.slow
def test_texts_are_distilled_and_a_drafter_is_trained_and_serves(
    command, tmp_path, monkeypatch
):
    target = write_checkpoint(tmp_path / "target", num_layers=2)
    prompts = [
        training_prompts.TrainingPrompt(
            id=str(i), set="train_mbpp", category="", text=t
        )
        for i, t in enumerate(("ab", "cd ef", "a b c", "ef gh", "gh ab", "b d") * 3)
    ]
    monkeypatch.setattr(training_prompts, "select", lambda spec, seed: prompts)
    data, out = tmp_path / "data", tmp_path / "out"
    shape = ["--target", target, "--length", "32"]
    with quick_compiler(tmp_path / "xla"):
        status, said, err = command(
            *("distill", "-o", data, *shape, "--max-batch", 4, "--dtype", "float32"),
            *("--texts", 16, "--prompts", "train_mbpp"),
        )
        assert status == 0, err
        assert "16 texts" in said
        assert "16 of 16 answers" in err
        options = ["--tokens", "300", "--batch", "2", "--rate", "0.01"]
        status, said, err = command(
            "train", "eagle3", "-o", out, "--data", data, *shape, *options
        )
        assert status == 0, err
        lines = err.splitlines()
        assert any(line.startswith("step 1 of ") for line in lines)
        [*_, last] = [line for line in lines if "held-out acceptance" in line]
        assert "tokens at" in last
        assert last.endswith("at K = 4")
        card = json.loads((out / "card.json").read_text())
        assert card["command"].startswith("jspec train eagle3")
        assert card["data"]["licences"] == {"train_mbpp": "CC-BY-4.0"}
        assert (out / "curve.svg").stat().st_size > 1000
        assert checkpoint.read_drafter(out / "drafter")[0] == "eagle3"
        status, said, err = command(
            "train", "eagle3", "-o", out, "--data", data, *shape
        )
        assert status == 2
        with jspec.serve(
            target,
            method="eagle3",
            drafter=out / "drafter",
            max_batch=1,
            max_model_len=32,
            compilation_cache=False,
        ) as server:
            params = jspec.SamplingParams(temperature=0.0, max_tokens=8)
            [done] = server.generate("ab cd", params)
    assert done.speculation.drafted > 0
