"""The peers' environments: what is said when something is missing."""

import sys

import pytest

from benchmarks.peers import setup


def test_an_unknown_peer_is_refused_by_name():
    with pytest.raises(setup.SetupError, match="no peer 'ollama'"):
        setup.install("ollama")


def test_a_missing_python_is_named():
    with pytest.raises(setup.SetupError, match=r"No Python 2\.3 or 2\.4"):
        setup.find_python(("2.3", "2.4"))


def test_this_python_is_found():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert setup.find_python((version,)).exists()


def test_a_candidate_that_does_not_run_is_passed_over(tmp_path, monkeypatch):
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.SetupError, match=r"No Python 3\.99"):
        setup.find_python(("3.99",))


def test_a_peer_that_is_not_installed_says_how(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "HOME", tmp_path)
    with pytest.raises(setup.SetupError, match=r"benchmarks\.peers\.setup vllm"):
        setup.interpreter("vllm")


@pytest.mark.parametrize(
    ("line", "name"),
    [("torch>=2.13", "torch"), ("Torch_Audio ; x", "torch-audio"), ("a[b]==1", "a")],
)
def test_the_project_of_a_requirement(line, name):
    assert setup._project(line) == name
