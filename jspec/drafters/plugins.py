"""Drafters from elsewhere: registered by hand or as entry points, always checked."""

import dataclasses
import functools
import importlib.metadata
import inspect
import logging
import re
from collections.abc import Iterator
from typing import Any

from jspec.drafters import LISTED, METHODS
from jspec.drafters.base import About, Drafter, HostDrafter
from jspec.drafters.given import is_host

__all__ = ["GROUP", "load_plugins", "register"]

GROUP = "jspec.methods"
"""The group of entry points: a name is a method's, its value the class."""

BUILTIN = frozenset(METHODS)

LOG = logging.getLogger("jspec")


def register(name: str, drafter_type: Any) -> None:
    """Makes a drafter of yours a method like any other, under a name of its own.

    Args:
      name: what `method=` takes.
      drafter_type: a frozen dataclass with all members of `jspec.drafters.Drafter`, or
        of `jspec.drafters.HostDrafter` if it drafts on the host.

    Raises:
      ValueError: the name is taken, or members are missing or of the wrong type: the
        sentence lists all of them.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"a method's name is small letters, digits and '_', not {name!r}"
        )
    if name in BUILTIN or name == "auto":
        raise ValueError(f"method {name!r} is built in and cannot be replaced")
    known = METHODS.get(name)
    if known is not None and known is not drafter_type:
        raise ValueError(
            f"method {name!r} is registered already, as {known.__qualname__}"
        )
    faults = list(_faults(drafter_type))
    if faults:
        title = getattr(drafter_type, "__qualname__", repr(drafter_type))
        raise ValueError(f"{title} cannot be method {name!r}: {'; '.join(faults)}")
    LISTED[name] = drafter_type


@functools.cache
def load_plugins() -> dict[str, str]:
    """Registers what installed packages bring, once.

    One that fails does not stop the others: a warning says so, and who asks for it by
    name is told why.

    Returns:
      why an entry point's method is not there, by its name.
    """
    failed = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            register(entry.name, entry.load())
        except Exception as error:
            failed[entry.name] = f"{entry.value}: {error}"
            LOG.warning("method %r is not available: %s", entry.name, error)
    return failed


def _faults(kind: Any) -> Iterator[str]:
    """What keeps a class from being a drafter."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        yield "it must be a frozen dataclass"
        return
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    if not parameters.frozen:
        yield "the dataclass must be frozen"
    host = is_host(kind)
    protocol: Any = HostDrafter if host else Drafter
    yield from _wrong_about(kind)
    if host and getattr(getattr(kind, "about", None), "weights", None) is not None:
        yield "about.weights must be None: a host drafter is given no weights"
    if type(getattr(kind, "gamma", None)) is not int:
        yield "gamma must be a field with an integer as its default"
    for name in ("branching",) if host else ("branching", "feature_layers"):
        if not hasattr(kind, name):
            yield f"{name} is missing"
    verbs = ("check", "init", "propose", "observe")
    for name in (*verbs, "admit", "leave") if host else verbs:
        yield from _wrong_verb(kind, name, getattr(protocol, name))
    yield from _wrong_training(kind)
    if not hasattr(kind, "configure"):
        yield from _wrong_values(kind, host=host)


def _wrong_about(kind: Any) -> Iterator[str]:
    about = getattr(kind, "about", None)
    if about is None:
        yield "about is missing"
    elif not isinstance(about, About):
        yield f"about must be a jspec.drafters.About, not {about!r}"
    else:
        passes, shapes = ("none", "one", "gamma"), ("none", "chain", "block", "tree")
        if about.passes not in passes:
            yield f"about.passes must be one of {passes}, not {about.passes!r}"
        if about.topology not in shapes:
            yield f"about.topology must be one of {shapes}, not {about.topology!r}"
        laws = ("certain", "dense", "sparse")
        if not about.q or set(about.q).difference(laws):
            yield f"about.q must be of {laws}, not {about.q!r}"


def _wrong_verb(kind: Any, name: str, wanted: Any) -> Iterator[str]:
    own = getattr(kind, name, None)
    if own is None:
        yield f"{name} is missing"
        return
    asked = list(inspect.signature(wanted).parameters)
    if not callable(own):
        yield f"{name} must be a method, not {own!r}"
        return
    signature = inspect.signature(own)
    try:
        signature.bind(*asked)
    except TypeError:
        yield f"{name} must take ({', '.join(asked)}), not {signature}"


def _wrong_training(kind: Any) -> Iterator[str]:
    """`configure` and `weight_shapes` come together, or not at all."""
    pair = ("configure", "weight_shapes")
    there = [name for name in pair if hasattr(kind, name)]
    for name in pair:
        if there and name not in there:
            yield f"{name} is missing, which goes with {there[0]}"
    if "configure" in there and not inspect.ismethod(kind.configure):
        yield "configure must be a classmethod"


def _wrong_values(kind: Any, *, host: bool) -> Iterator[str]:
    """What only an instance shows; a method is made with its defaults."""
    try:
        made = kind()
        hash(made)
        idle = dataclasses.replace(made, gamma=0)
    except Exception as error:
        yield f"{kind.__name__}(), or it with gamma 0, cannot be made: {error}"
        return
    if idle.gamma != 0:
        yield "gamma must be the field that dataclasses.replace(..., gamma=0) sets"
    if type(getattr(made, "branching", False)) is not bool:
        yield f"branching must be a bool, not {made.branching!r}"
    layers = getattr(made, "feature_layers", ())
    ints = isinstance(layers, tuple) and all(type(layer) is int for layer in layers)
    if not host and not ints:
        yield f"feature_layers must be a tuple of integers, not {layers!r}"
