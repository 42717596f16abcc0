import dataclasses
import importlib.metadata
from typing import ClassVar

import pytest

import jspec
from jspec.drafters import LISTED, METHODS, About
from jspec.drafters.plugins import load_plugins
from jspec.server.methods import Asked

NGram, Suffix = METHODS["ngram"], METHODS["suffix"]


@pytest.fixture(autouse=True)
def table():
    before = dict(LISTED)
    yield
    LISTED.clear()
    LISTED.update(before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(NGram):
    about: ClassVar[About] = dataclasses.replace(NGram.about, idea="mine")


def asked(method, **changes):
    fields = {
        "drafter": None,
        "num_speculative_tokens": None,
        "draft_sampling": "auto",
        "options": None,
    }
    return Asked(method=method, **(fields | changes))


def test_a_registered_class_is_a_method_like_any_other():
    jspec.register("mine", Mine)
    jspec.register("mine", Mine)
    name, drafter = asked("mine", options={"longest": 3}).build(None)
    assert (name, drafter) == ("mine", Mine(longest=3))
    assert [m.idea for m in jspec.methods() if m.name == "mine"] == ["mine"]


@pytest.mark.parametrize("name", ["ngram", "suffix", "auto", "none"])
def test_builtin_names_cannot_be_shadowed(name):
    with pytest.raises(ValueError, match=f"'{name}' is built in"):
        jspec.register(name, Mine)


def test_a_name_is_given_once():
    jspec.register("mine", Mine)
    with pytest.raises(ValueError, match="registered already, as Mine"):
        jspec.register("mine", NGram)


@pytest.mark.parametrize("name", ["", "Mine", "a b", "1x", "a-b"])
def test_names_are_plain(name):
    with pytest.raises(ValueError, match="a method's name is small letters"):
        jspec.register(name, Mine)


class Empty:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bare:
    gamma: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(NGram):
    about: ClassVar[str] = "mine"
    gamma: float = 2.0
    feature_layers: ClassVar[list[str]] = ["last"]
    branching: ClassVar[int] = 0
    observe: ClassVar[int] = 3

    def propose(self, memory, anchor):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OddHost:
    about: ClassVar[About] = dataclasses.replace(Suffix.about, weights="a book")
    gamma: int = 2

    def leave(self, memory):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalfTrained(NGram):
    def configure(self, config):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needy(NGram):
    needed: int


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (Empty, ["it must be a frozen dataclass"]),
        (Mine(), ["it must be a frozen dataclass"]),
        (
            Bare,
            [
                "about is missing",
                "branching is missing",
                "feature_layers is missing",
                "check is missing",
                "init is missing",
                "propose is missing",
                "observe is missing",
            ],
        ),
        (
            Odd,
            [
                "about must be a jspec.drafters.About, not 'mine'",
                "gamma must be a field with an integer as its default",
                "feature_layers must be a tuple of integers, not ['last']",
                "branching must be a bool, not 0",
                "observe must be a method, not 3",
                "propose must take (self, weights, memory, anchor, keys, view), not "
                "(self, memory, anchor)",
            ],
        ),
        (
            OddHost,
            [
                "about.weights must be None: a host drafter is given no weights",
                "branching is missing",
                "admit is missing",
                "init is missing",
                "leave must take (self, memory, text), not (self, memory)",
            ],
        ),
        (
            HalfTrained,
            ["configure must be a classmethod", "weight_shapes is missing"],
        ),
        (Needy, ["Needy(), or it with gamma 0, cannot be made"]),
    ],
    ids=lambda case: getattr(case, "__name__", "-"),
)
def test_everything_that_is_wrong_is_listed_by_name(kind, faults):
    with pytest.raises(ValueError, match="cannot be method 'mine'") as refused:
        jspec.register("mine", kind)
    for fault in faults:
        assert fault in str(refused.value)
    assert "mine" not in METHODS


def test_the_builtin_methods_conform():
    for name, kind in list(METHODS.items()):
        jspec.register(f"{name}_again", kind)


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    value: str
    found: object

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_entry_points_are_registered_and_a_broken_one_stops_nobody(monkeypatch, caplog):
    entries = [
        Entry("broken", "package:Gone", ImportError("no module named 'package'")),
        Entry("bare", "package:Bare", Bare),
        Entry("ours", "package:Mine", Mine),
    ]
    asked_for = []

    def entry_points(group):
        asked_for.append(group)
        return entries

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    load_plugins.cache_clear()
    try:
        assert {method.name for method in jspec.methods()} >= {"ours", "ngram"}
        with pytest.raises(ValueError, match=r"'broken' is not available: .*no mod"):
            asked("broken")
        with pytest.raises(ValueError, match=r"'bare' is not available: .*about is m"):
            asked("bare")
        assert asked_for == ["jspec.methods"]
        assert "method 'broken' is not available" in caplog.text
    finally:
        load_plugins.cache_clear()
