"""What a drafter is: one frozen dataclass, three pure methods."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self

from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout, KVCache
from jspec.models.base import Target
from jspec.rounds import Evidence, Proposal
from jspec.sampling import Sampling
from jspec.tree import pytree

__all__ = ["About", "Drafter", "HostDraft", "HostDrafter", "Memory", "Trained", "View"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What a method is, for people and for start-up checks.

    Attributes:
      paper: where it was published.
      idea: one sentence.
      weights: what it must be given; `None`: nothing.
      bundled: whether these may lie in the target's own checkpoint, beside it; then
        that is what is read unless another is named.
      passes: model passes that drafting `gamma` tokens takes.
      topology: what it proposes.
      q: "certain" drafts have no law; that of "dense" ones is over all tokens, that of
        "sparse" ones over a vocabulary of the drafter's own.
    """

    paper: str
    idea: str
    weights: str | None
    passes: Literal["none", "one", "gamma"]
    topology: Literal["none", "chain", "block", "tree"]
    q: tuple[Literal["certain", "dense", "sparse"], ...]
    bundled: bool = False

    @property
    def drawn(self) -> bool:
        """Whether drafts can be drawn from a law."""
        return not {"dense", "sparse"}.isdisjoint(self.q)


@pytree
class Memory:
    """What a drafter remembers between rounds.

    Attributes:
      rows: arrays with a leading axis of rows; a round sees those of its rows.
      pages: arrays with a leading axis of pages, addressed by the rows' page tables,
        so that a shared prefix is remembered once; a round sees all of them.
    """

    rows: Any = None
    pages: Any = None


@pytree
class View:
    """What a drafter may read and not change.

    Attributes:
      target: the target's own weights: an embedding or head borrowed from here is
        the same array, never a copy.
      cache: the target's committed text, keys and values.
      sampling: how each row turns logits into a law.
    """

    target: Any
    cache: KVCache
    sampling: Sampling


class Drafter(Protocol):
    """Implemented by frozen dataclasses, so a drafter is a static argument of `jit`.

    Another number of drafted tokens is `dataclasses.replace(drafter, gamma=...)` over
    the same memory: its shapes must not depend on `gamma`.
    """

    about: ClassVar[About]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def gamma(self) -> int:
        """Drafted tokens a round, along the longest path."""
        ...

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Residual-stream indices of the target to be handed to `observe`."""
        ...

    @property
    def branching(self) -> bool:
        """Whether a proposal may be more than a chain."""
        ...

    def check(self, weights: Any, target: Target) -> None:
        """Raises `ValueError` if these weights cannot draft for this target."""
        ...

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Memory of rows that have seen nothing."""
        ...

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts what may follow the anchor."""
        ...

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Takes in what became permanent; `view.cache` already holds it."""
        ...


class Trained(Drafter, Protocol):
    """A drafter with a checkpoint of its own (`jspec.checkpoint.save_drafter`).

    Its weights are a plain `dict[str, Array]` with dotted names, matrices `[in, out]`,
    in the target's dtype. What the checkpoint's JSON says is a frozen field, `config`,
    so a method with weights is built by `configure` and not by its bare class.

    A checkpoint may leave open what only the target knows (how many layers it has, so
    which states the default taps are). Such a drafter has a third member,
    `fit(self, target: Target) -> Self`, which fills it in; it is called once, before
    `check`.
    """

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """The drafter that a checkpoint's `config` describes.

        Args:
          config: as JSON has it; an unknown, missing or impossible entry is a
            `ValueError` that names it.
          options: the other fields: `gamma`, `draft_sampling`, and what users give as
            `method_options`.
        """
        ...

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly the weights that the configuration needs, by dotted name."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostDraft:
    """What a host drafter offers one text.

    Attributes:
      tokens: ids, at most as many as were asked for; none: nothing is offered.
      parent: of each token, the node it follows: 0 is the anchor, `i` the `i`-th
        token, counted from 1. `None`: a chain.
    """

    tokens: Sequence[int] = ()
    parent: Sequence[int] | None = None


class HostDrafter(Protocol):
    """A drafter in plain Python: the verbs of `Drafter`, outside `jit`.

    A frozen dataclass too; what changes lives in the memory that `init` makes, any
    object of its own. Its drafts are certain. All calls come from the engine's thread,
    and a text is named by a number that no other text of that memory ever has.

    The engine must read a round before it can ask for the next one, so device and host
    take turns: a round lasts as long as both together. No other method pays for that.
    """

    about: ClassVar[About]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def gamma(self) -> int:
        """Drafted tokens a round, those of all branches together."""
        ...

    @property
    def branching(self) -> bool:
        """Whether a draft may be more than a chain."""
        ...

    def check(self, weights: Any, target: Target) -> None:
        """Raises `ValueError` if it cannot draft for this target."""
        ...

    def init(self) -> Any:
        """Memory of no text."""
        ...

    def admit(self, memory: Any, text: int, prompt: Sequence[int]) -> None:
        """A text begins with its prompt; the prompt's last token is the anchor."""
        ...

    def propose(
        self, memory: Any, texts: Sequence[int], gammas: Sequence[int]
    ) -> Sequence[HostDraft]:
        """Drafts what may follow the newest token of each text, so many tokens each."""
        ...

    def observe(self, memory: Any, text: int, tokens: Sequence[int]) -> None:
        """A text went on with these tokens; the last one is the anchor now."""
        ...

    def leave(self, memory: Any, text: int) -> None:
        """A text has ended; nothing is said of it any more."""
        ...
