"""The checker that jaxtyping's import hook puts on every function of jspec."""

from collections.abc import Callable
from typing import Any, Self, get_args, get_origin

from beartype import BeartypeConf, beartype

# An int is welcome where a float is asked for, as to every other type checker.
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check[F: Callable[..., Any]](function: F) -> F:
    """Checks arguments and result, but for hints that say nothing at run time."""
    for name, hint in function.__annotations__.items():
        if _is_static(hint):
            function.__annotations__[name] = Any
    return _beartype(function)


def _is_static(hint: Any) -> bool:
    """Whether only a static checker can judge it: a protocol, or `Self`."""
    kind = get_origin(hint) or hint
    protocol = getattr(kind, "_is_protocol", False)
    return (
        hint is Self
        or (protocol and not getattr(kind, "_is_runtime_protocol", False))
        or any(map(_is_static, get_args(hint)))
    )
