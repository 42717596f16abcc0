"""Speculative decoding of language models in JAX: exact, for every method."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jspec.drafters.plugins import register as register
    from jspec.params import Chunk as Chunk
    from jspec.params import Completion as Completion
    from jspec.params import SamplingParams as SamplingParams
    from jspec.params import Speculation as Speculation
    from jspec.params import Usage as Usage
    from jspec.server.local import Handle as Handle
    from jspec.server.local import Server as Server
    from jspec.server.local import serve as serve
    from jspec.server.methods import Method as Method
    from jspec.server.methods import methods as methods

__all__ = [
    "Chunk",
    "Completion",
    "Handle",
    "Method",
    "SamplingParams",
    "Server",
    "Speculation",
    "Usage",
    "methods",
    "register",
    "serve",
]

_HOMES = {
    "Chunk": "jspec.params",
    "Completion": "jspec.params",
    "Handle": "jspec.server.local",
    "Method": "jspec.server.methods",
    "SamplingParams": "jspec.params",
    "Server": "jspec.server.local",
    "Speculation": "jspec.params",
    "Usage": "jspec.params",
    "methods": "jspec.server.methods",
    "register": "jspec.drafters.plugins",
    "serve": "jspec.server.local",
}


def __getattr__(name: str) -> Any:
    """Imports a public name, or a module, when it is first asked for."""
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"jspec.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"jspec.{name}":
                raise
    raise AttributeError(f"module 'jspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
