import sys

import jax
import pytest

import jspec
from jspec.cli import main
from jspec.pallas.choice import check_kernels


def test_a_word_that_is_no_implementation_is_refused():
    with pytest.raises(ValueError, match="'reference' or 'gpu' or left out, not 'tpu'"):
        check_kernels("tpu")
    check_kernels(None)
    check_kernels("reference")


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_kernels_are_refused_at_start_up_where_nothing_could_run_them():
    with pytest.raises(ValueError, match=r"kernels='gpu' needs an NVIDIA GPU"):
        jspec.serve("smollm2-135m", kernels="gpu")


@pytest.mark.parametrize("command", [("generate", "hi"), ("serve", "--port", "0")])
def test_the_word_reaches_serve_from_the_command_line(command, monkeypatch):
    asked = {}

    def serve(target, **options):
        asked.update(options)
        raise ValueError("that is enough")

    monkeypatch.setattr(jspec, "serve", serve)
    monkeypatch.setattr(sys, "argv", ["jspec", *command, "--kernels", "reference"])
    with pytest.raises(SystemExit):
        main()
    assert asked["kernels"] == "reference"
