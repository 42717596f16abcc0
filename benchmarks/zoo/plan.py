"""What a zoo run measures: contestants, kinds of prompts, and how much of each."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jspec
from benchmarks import data

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "chat": "mt_bench",
        "translation": "translation",
        "summarisation": "summaries",
        "rag": "nq_rag",
        "maths": "gsm8k",
        "qa": "nq_qa",
        "code": "humaneval",
    }
)
"""Kinds of prompts, as in Spec-Bench, and the set that each is drawn from."""

TREES: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "eagle2": ("eagle", {"tree_width": 2, "tree_nodes": 8}),
        "eagle3_tree": ("eagle3", {"tree_width": 2, "tree_nodes": 8}),
        "medusa_tree": (
            "medusa",
            {"choices": ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0))},
        ),
    }
)
"""Methods as trees: small ones, since two cores verify no more for nothing."""

FAIR: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"suffix": {"max_cached_requests": 0}}
)
"""Options without which a method would copy its answers to the same text before."""

PEERS: Mapping[str, str] = MappingProxyType(
    {
        "transformers": "none",
        "transformers_lookup": "ngram",
        "transformers_assisted": "draft_model",
    }
)
"""Contestants of another engine, and the method of ours that theirs is."""

PLAIN = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """What gets lines in the tables.

    Attributes:
      name: of the line.
      method: of jspec's.
      options: its fields.
      drafter: its checkpoint; `None`: it needs none.
      peer: whether transformers runs it.
      passes: draft passes of a round: "none", "one" or "gamma".
    """

    name: str
    method: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    drafter: Path | None = None
    peer: bool = False
    passes: str = "none"

    @property
    def tree(self) -> bool:
        """Whether a round verifies a tree, so other numbers of tokens than K + 1."""
        return self.name in TREES

    @property
    def digest(self) -> str | None:
        """Of the drafter's files: what was measured with others does not count."""
        if self.drafter is None:
            return None
        found = hashlib.blake2b(digest_size=8)
        for file in sorted(self.drafter.rglob("*")):
            if file.is_file():
                found.update(str(file.relative_to(self.drafter)).encode())
                found.update(file.read_bytes())
        return found.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """How much is measured. Printed with the result.

    Attributes:
      target: what all methods draft for.
      dtype: of the target.
      max_tokens: of a text.
      seed: of the choice of prompts and of sampled texts.
      kinds: of prompts; see `KINDS`.
      texts: of each kind at batch 1; more where they fill a larger batch.
      ks: drafted tokens of a round.
      temperatures: 0 is greedy.
      batches: texts that decode at once.
      passes: how often everything is measured.
    """

    target: str = "smollm2-135m"
    dtype: str = "bfloat16"
    max_tokens: int = 48
    seed: int = 0
    kinds: tuple[str, ...] = ("chat", "translation", "summarisation", "rag", "maths")
    texts: int = 3
    ks: tuple[int, ...] = (2, 4, 6)
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    batches: tuple[int, ...] = (1, 4, 8)
    passes: int = 2

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(
                    f"there is no kind {kind!r}; there are {', '.join(KINDS)}"
                )
        for what, values in (
            ("kinds", self.kinds),
            ("ks", self.ks),
            ("temperatures", self.temperatures),
            ("batches", self.batches),
        ):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{what} must be some, and distinct: {values}")
        least = min(*self.ks, *self.batches, self.texts, self.passes)
        if least < 1 or self.max_tokens < 2 or min(self.temperatures) < 0:
            raise ValueError(
                "K, batches, texts and passes start at 1, tokens at 2 and temperatures "
                f"at 0: {self}"
            )

    @property
    def fixed(self) -> dict[str, Any]:
        """What must be alike for a later start to go on with what is there."""
        names = ("target", "dtype", "max_tokens", "seed")
        return {name: getattr(self, name) for name in names}

    def asked(self, contestant: Contestant) -> tuple[int, ...]:
        """Its K: none for plain decoding, one for a peer, which is loaded with it."""
        if contestant.method == PLAIN:
            return (0,)
        if contestant.peer:
            return (4 if 4 in self.ks else max(self.ks),)
        return self.ks

    def prompts(self, kind: str) -> list[data.Prompt]:
        """Those of a kind, as many as the largest batch takes."""
        count = max(self.texts, *self.batches)
        return data.prompts(KINDS[kind], count, self.seed)

    def groups(self, batch: int) -> list[range]:
        """Which prompts of a kind decode at once."""
        count = -(-self.texts // batch)
        return [range(at * batch, (at + 1) * batch) for at in range(count)]

    def turns(self, contestant: Contestant) -> Iterator["Turn"]:
        """All that is measured of a contestant; greedy text and batch 1 come first."""
        for number in range(self.passes):
            for batch in self.batches:
                if contestant.peer and batch > 1:
                    continue
                for temperature in self.temperatures:
                    if contestant.peer and temperature > 0:
                        continue
                    for kind in self.kinds:
                        yield Turn(
                            number=number,
                            batch=batch,
                            temperature=temperature,
                            kind=kind,
                        )


QUICK = Config(
    kinds=("chat", "translation", "rag", "maths"),
    texts=1,
    ks=(2, 4),
    temperatures=(0.0, 1.0),
    batches=(1,),
    passes=1,
)
"""Texts that the whole run has too, so that tau can be compared."""

FULL = Config()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """What is measured side by side: plain decoding, and a contestant at every K."""

    number: int
    batch: int
    temperature: float
    kind: str


def contestants(
    wanted: Sequence[str] | None, shelf: Mapping[str, Path], *, target: str, peers: bool
) -> list[Contestant]:
    """Those that were named; without names, all that can be.

    Args:
      wanted: names of methods, of `TREES` and of `PEERS`.
      shelf: drafters' checkpoints by method.
      target: named in errors.
      peers: whether those of another engine take part where nobody is named.

    Raises:
      ValueError: there is no such contestant, or it lacks a drafter.
    """
    methods = {method.name: method for method in jspec.methods()}

    def ready(method: str) -> bool:
        return methods[method].weights is None or method in shelf

    names = [*methods, *TREES, *PEERS]
    if wanted is None:
        own = [name for name in methods if ready(name)]
        trees = [name for name, (method, _) in TREES.items() if ready(method)]
        theirs = [name for name, method in PEERS.items() if ready(method)]
        wanted = [*own, *trees, *(theirs if peers else ())]
    found = []
    for name in dict.fromkeys(wanted):
        if name not in names:
            raise ValueError(
                f"there is no contestant {name!r}; there are {', '.join(names)}"
            )
        alone = PEERS.get(name, name), FAIR.get(name, {})
        method, options = TREES.get(name, alone)
        if not ready(method):
            raise ValueError(
                f"{name!r} needs a drafter, and none is shipped for {target!r}: "
                f"`jspec train {method}` makes one, in a folder of --drafters"
            )
        found.append(
            Contestant(
                name=name,
                method=method,
                options=options,
                drafter=shelf.get(method),
                peer=name in PEERS,
                passes=methods[method].passes,
            )
        )
    return found
