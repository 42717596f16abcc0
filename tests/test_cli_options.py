"""Options of a method on the command line."""

import sys

import pytest

import jspec
from jspec.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `jspec` until it would load a model: what it asked for, and stderr."""

    def call(*arguments):
        asked = {}

        def serve(target, **options):
            asked.update(options)
            raise ValueError("that is enough")

        monkeypatch.setattr(jspec, "serve", serve)
        monkeypatch.setattr(sys, "argv", ["jspec", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        return asked, capsys.readouterr().err

    return call


@pytest.mark.parametrize("command", [("generate", "hi"), ("serve", "--port", "0")])
def test_r68_options_of_the_method_reach_it(run, command):
    given = ["--option", "tree_width=4", "--option", "taps=[1, 2]", "--option", "a=b c"]
    asked, _ = run(*command, *given, "--draft-sampling", "greedy")
    assert asked["method_options"] == {"tree_width": 4, "taps": [1, 2], "a": "b c"}
    assert asked["draft_sampling"] == "greedy"


def test_without_options_the_method_has_its_own(run):
    asked, _ = run("generate", "hi")
    assert (asked["method_options"], asked["draft_sampling"]) == (None, "auto")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["tree_width"], "--option takes NAME=VALUE, not 'tree_width'"),
        (["=4"], "--option takes NAME=VALUE"),
        (["sink=1", "sink=2"], "--option sink is given twice"),
    ],
)
def test_what_is_no_option_is_refused(run, given, why):
    arguments = [part for pair in given for part in ("--option", pair)]
    asked, said = run("generate", "hi", *arguments)
    assert not asked
    assert why in said
