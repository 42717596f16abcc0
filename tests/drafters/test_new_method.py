"""The document that says how to add a method is right: its code runs."""

import importlib.util
import re
from pathlib import Path

import pytest

import jspec
from jspec.drafters import LISTED

DOCUMENT = Path(__file__).parents[2] / "docs" / "new-method.md"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    code = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    file = tmp_path_factory.mktemp("docs") / "new_method.py"
    file.write_text("\n\n".join(code), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("new_method", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for name in ("recall", "parrot"):
            LISTED.pop(name, None)


def test_a_complete_drafter_fits_on_a_page():
    [drafter, *_] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(drafter.partition("@dataclasses")[2].splitlines()) <= 60


def test_the_document_registers_its_methods(document):
    listed = {method.name: method for method in jspec.methods()}
    assert listed["recall"].idea == "what followed the most similar state"
    assert listed["parrot"].topology == "chain"
    jspec.register("recall", document.Recall)


def test_recall_is_handed_hidden_states_and_drafts(document):
    document.test_recall_drafts_what_is_said_again()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recall", "parrot"])
def test_the_documents_drafters_are_lossless(document, name):
    getattr(document, f"test_{name}_answers_the_four_lossless_questions")()
