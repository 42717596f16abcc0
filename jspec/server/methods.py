"""The table of methods as users see it: what each needs, and what is refused."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jspec.checkpoint import read_drafter, read_manifest
from jspec.drafters import METHODS
from jspec.drafters.plugins import load_plugins
from jspec.params import UNSUPPORTED
from jspec.verify import VERIFICATIONS

__all__ = ["Asked", "Method", "fitted", "methods"]

ELSEWHERE = {"gamma", "draft_sampling", "config"}
"""Fields of methods that `method_options` does not give."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A drafting method.

    Attributes:
      name: what `method=` takes.
      paper: where it was published.
      idea: one sentence.
      weights: what `drafter=` must be; `None`: nothing.
      passes: model passes that drafting takes: "none", "one", or "gamma" of them.
      topology: what it proposes.
      q: whether drafts are certain or drawn, and from a law over all tokens ("dense")
        or over a drafter's own ("sparse"); the default first.
      num_speculative_tokens: K if none is asked for.
      refused: what it cannot be combined with, a sentence each.
    """

    name: str
    paper: str
    idea: str
    weights: str | None
    passes: str
    topology: str
    q: tuple[str, ...]
    num_speculative_tokens: int
    refused: tuple[str, ...]


def methods() -> tuple[Method, ...]:
    """Every method of this version, and those of plug-ins behind them."""
    load_plugins()
    listed = []
    requests = tuple(
        f"a request's {field} ({reason}) is refused"
        for field, reason in UNSUPPORTED.items()
    )
    for name, drafter in METHODS.items():
        about = drafter.about
        refused = requests
        if about.weights is None:
            refused += (f"drafter= is refused: {name!r} has no weights",)
        if not about.drawn:
            certain = "draft_sampling='probabilistic' is refused: drafts are certain"
            refused += (certain,)
        refused += _unjudged(name, drafter)
        listed.append(
            Method(
                name=name,
                paper=about.paper,
                idea=about.idea,
                weights=about.weights,
                passes=about.passes,
                topology=about.topology,
                q=about.q,
                num_speculative_tokens=_default_gamma(drafter),
                refused=refused,
            )
        )
    return tuple(listed)


def _unjudged(name: str, drafter: Any) -> tuple[str, ...]:
    """The verifications that cannot judge what a method drafts.

    A class whose `branching` is no constant drafts trees or chains as its options say.
    """
    topology = drafter.about.topology
    if topology == "none":
        return ("verification= is refused, but for 'standard': nothing is drafted",)
    refused = []
    for rule, kind in VERIFICATIONS.items():
        refusal = kind.about.shape_refusal(name, branching=topology == "tree")
        if refusal is not None and drafter.branching is not True:
            refusal = f"verification {rule!r} is refused as a tree: it judges chains"
        if refusal is not None:
            refused.append(refusal)
    return tuple(refused)


def _default_gamma(drafter: Any) -> int:
    return drafter.gamma


def _trained(kind: Any) -> bool:
    """Whether a method reads drafters' checkpoints, and not language models."""
    return hasattr(kind, "configure")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The part of `jspec.serve` that chooses a method, refused where it cannot work.

    Attributes:
      method: a name, or "auto".
      drafter: the method's weights, as named by the caller.
      num_speculative_tokens: K.
      draft_sampling: "auto", "greedy" or "probabilistic".
      options: fields of the method.
    """

    method: str
    drafter: Any
    num_speculative_tokens: int | None
    draft_sampling: str
    options: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        """Refuses what needs no checkpoint to be refused."""
        failed = load_plugins()
        known = ("auto", *METHODS)
        if not isinstance(self.method, str) or self.method not in known:
            if isinstance(self.method, str) and self.method in failed:
                raise ValueError(
                    f"method {self.method!r} is not available: {failed[self.method]}"
                )
            raise ValueError(
                f"method {self.method!r} is not known; known are {', '.join(known)}"
            )
        if self.draft_sampling not in ("auto", "greedy", "probabilistic"):
            raise ValueError(
                f"draft_sampling must be 'auto', 'greedy' or 'probabilistic', not "
                f"{self.draft_sampling!r}"
            )
        if self.options is not None and not isinstance(self.options, Mapping):
            raise ValueError(f"method_options must be a mapping, not {self.options!r}")
        if self.method == "auto" and self.drafter is not None:
            return
        name = "ngram" if self.method == "auto" else self.method
        wanted = METHODS[name].about.weights
        if wanted is None and self.drafter is not None:
            raise ValueError(f"method {name!r} has no weights; drafter= must be None")
        if wanted is not None and self.drafter is None and self.bundled is None:
            raise ValueError(f"method {name!r} needs drafter=, {wanted}")
        self._fields(name)

    @property
    def bundled(self) -> str | None:
        """The method, if its weights may lie in the target's own checkpoint."""
        kind = METHODS.get(self.method)
        return self.method if kind is not None and kind.about.bundled else None

    def build(self, path: Path | None) -> tuple[str, Any]:
        """The method's name and the drafter.

        Args:
          path: the checkpoint of `drafter`; `None`: there is none.

        Raises:
          ValueError: the checkpoint is not one that the method can use.
        """
        if path is None:
            name, config = "ngram" if self.method == "auto" else self.method, None
        else:
            name, config = self._read(path)
        kind: Any = METHODS[name]
        fields = self._fields(name)
        try:
            if config is not None:
                return name, kind.configure(config, **fields)
            return name, kind(**fields)
        except TypeError as error:
            raise ValueError(f"method_options {fields!r} cannot be: {error}") from None

    def _read(self, path: Path) -> tuple[str, Mapping[str, Any] | None]:
        kind = read_manifest(path)["kind"]
        if kind == "target":
            if self.method == "auto":
                return "draft_model", None
            if _trained(METHODS[self.method]):
                out = f": jspec-convert --family {self.bundled} reads its source"
                raise ValueError(
                    f"drafter {str(self.drafter or path)!r} is a language model; "
                    f"method {self.method!r} needs "
                    f"{METHODS[self.method].about.weights}{out if self.bundled else ''}"
                )
            return self.method, None
        name, config = read_drafter(path)
        if self.method not in ("auto", name):
            raise ValueError(
                f"drafter {str(self.drafter)!r} was made for method {name!r}, not for "
                f"{self.method!r}"
            )
        return name, config

    def _fields(self, name: str) -> dict[str, Any]:
        kind: Any = METHODS[name]
        fields = dict(self.options or {})
        known = {field.name for field in dataclasses.fields(kind) if field.init}
        for field in fields:
            if field not in known - ELSEWHERE:
                raise ValueError(
                    f"method_options has {field!r}; method {name!r} takes "
                    f"{', '.join(sorted(known - ELSEWHERE)) or 'none'}"
                )
        k = self.num_speculative_tokens
        if k is not None:
            fields["gamma"] = k
        if self.draft_sampling != "auto":
            sampling = self.draft_sampling
            about, drawn = kind.about, sampling == "probabilistic"
            if not (about.drawn if drawn else "certain" in about.q):
                raise ValueError(
                    f"draft_sampling={sampling!r} does not work with method {name!r}, "
                    f"whose drafts are {' or '.join(about.q)}"
                )
            if "draft_sampling" in known:
                fields["draft_sampling"] = sampling
        return fields


def fitted(drafter: Any, target: Any) -> Any:
    """The drafter with what its checkpoint leaves to the target filled in."""
    fit = getattr(drafter, "fit", None)
    return drafter if fit is None else fit(target)
