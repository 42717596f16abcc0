"""The names that users rely on."""

import inspect
import re
from pathlib import Path

import pytest

import jspec


def test_every_public_name_is_there():
    assert set(jspec.__all__) <= set(dir(jspec))
    for name in jspec.__all__:
        assert getattr(jspec, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = jspec.nothing
    assert jspec.testing.tiny_config().vocab_size == 64


def test_serve_takes_what_the_surface_says():
    found = inspect.signature(jspec.serve).parameters
    defaults = {
        "method": "auto",
        "drafter": None,
        "num_speculative_tokens": None,
        "schedule": None,
        "verification": "standard",
        "draft_sampling": "auto",
        "max_batch": 8,
        "max_model_len": None,
        "page_size": 16,
        "kv_pages": None,
        "prefix_cache": True,
        "dtype": None,
        "seed": 0,
        "lora": None,
        "mesh": None,
        "method_options": None,
    }
    assert {name: found[name].default for name in defaults} == defaults


def test_servers_and_handles_have_the_methods_of_the_surface():
    for name in ("generate", "stream", "submit", "agenerate", "astream", "metrics"):
        assert callable(getattr(jspec.Server, name))
    for name in ("result", "abort", "__iter__", "__aiter__"):
        assert callable(getattr(jspec.Handle, name))


def test_methods_say_what_they_need_and_refuse():
    listed = {method.name: method for method in jspec.methods()}
    assert listed["draft_model"].weights
    assert listed["ngram"].weights is listed["none"].weights is None
    assert listed["none"].num_speculative_tokens == 0
    for method in listed.values():
        assert method.idea
        assert any("logprobs" in sentence for sentence in method.refused)


def test_every_test_that_the_docs_name_is_there():
    tests = Path(__file__).parent
    text = (tests.parent / "docs" / "failures.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+\*?)`", text)
    assert len(named) > 40
    for file, name in named:
        wanted = name.replace("*", r"\w*") + r"\("
        assert re.search(f"def {wanted}", (tests / file).read_text()), (file, name)
