"""The table of methods as users see it: what each needs, and what is refused."""

import dataclasses

from jspec.drafters import METHODS
from jspec.params import UNSUPPORTED

__all__ = ["Method", "methods"]


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
      q: whether drafts are certain or drawn from a dense law; the default first.
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
    """Every method of this version."""
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
        if "dense" not in about.q:
            certain = "draft_sampling='probabilistic' is refused: drafts are certain"
            refused += (certain,)
        listed.append(
            Method(
                name=name,
                paper=about.paper,
                idea=about.idea,
                weights=about.weights,
                passes=about.passes,
                topology=about.topology,
                q=about.q,
                num_speculative_tokens=drafter().gamma,
                refused=refused,
            )
        )
    return tuple(listed)
