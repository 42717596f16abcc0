"""A shipped drafter is found by the names of its target and its method."""

import json

import pytest

from jspec import checkpoint, zoo
from jspec.server import local
from jspec.server.local import serve
from tests.drafters.eagles import eagle3, weights_of
from tests.serving import quick_compiler, write_checkpoint

TINY = {"max_batch": 1, "max_model_len": 64, "page_size": 4, "compilation_cache": False}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A zoo of one drafter for a target called tiny."""
    folder = tmp_path / "zoo"
    drafter = eagle3(config={"vocab_size": 512})
    checkpoint.save_drafter(
        folder / "tiny" / "eagle3",
        "eagle3",
        drafter.config.to_json(),
        weights_of(drafter),
        source={},
    )
    (folder / "tiny" / "eagle3" / "card.json").write_text(json.dumps({"tau": 2.0}))
    monkeypatch.setattr(zoo, "FOLDER", folder)
    return folder


def test_a_shipped_drafter_is_found_by_two_names_and_no_other_is(shelf):
    assert zoo.find("tiny", "eagle3") == shelf / "tiny" / "eagle3"
    assert zoo.shipped() == {"tiny": ("eagle3",)}
    assert zoo.card("tiny", "eagle3") == {"tau": 2.0}
    for target, method in (("tiny", "eagle"), ("..", "zoo"), (shelf, "eagle3")):
        assert zoo.find(target, method) is None
    with pytest.raises(ValueError, match="no drafter of method 'eagle' for 'tiny'"):
        zoo.card("tiny", "eagle")


@pytest.mark.slow
def test_serve_uses_a_shipped_drafter_unless_it_is_given_one(
    shelf, tmp_path, monkeypatch
):
    path = write_checkpoint(tmp_path / "target", num_layers=2)
    vocabulary = checkpoint.read_config(path).vocab_size
    drafter = eagle3(config={"vocab_size": vocabulary})
    checkpoint.save_drafter(
        shelf / "tiny" / "eagle",
        "eagle3",
        drafter.config.to_json(),
        weights_of(drafter),
        source={},
    )
    (shelf / "tiny" / "eagle3").rename(shelf / "other")
    (shelf / "tiny" / "eagle").rename(shelf / "tiny" / "eagle3")
    real = local.resolve
    monkeypatch.setattr(
        local, "resolve", lambda name, **how: path if name == "tiny" else real(name)
    )
    with quick_compiler(tmp_path / "xla"), serve("tiny", method="eagle3", **TINY) as s:
        assert s.settings["drafter"] == str(shelf / "tiny" / "eagle3")
        [done] = s.generate("ab cd")
    assert done.finish_reason in ("stop", "length")


def test_a_method_that_is_not_shipped_asks_for_a_drafter(shelf):
    with pytest.raises(ValueError, match="method 'medusa' needs drafter="):
        serve("tiny", method="medusa")
