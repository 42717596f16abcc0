"""Prompts for a target to answer, so that drafters can be trained on its answers."""

import dataclasses
import gzip
import json
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from benchmarks.data import FOLDER

__all__ = [
    "DEFAULT",
    "SETS",
    "TrainingPrompt",
    "licences",
    "mixed",
    "read",
    "select",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """What a set holds, and what its licence passes on."""

    count: int
    licence: str


SETS: Mapping[str, TrainingSet] = MappingProxyType(
    {
        "train_mixed": TrainingSet(
            count=10_789, licence="MIT, CC-BY-4.0, Apache-2.0, public domain"
        ),
        "train_pydocs": TrainingSet(count=1_294, licence="PSF-2.0"),
        "train_handbook": TrainingSet(count=330, licence="CC-BY-SA-3.0"),
        "train_mbpp": TrainingSet(count=380, licence="CC-BY-4.0"),
        "train_wikipedia": TrainingSet(count=617, licence="CC-BY-SA-4.0"),
        "train_selfinstruct": TrainingSet(count=252, licence="Apache-2.0"),
    }
)

DEFAULT = (
    "own:6000,train_mixed:1200,train_pydocs:400,train_handbook,train_mbpp,"
    "train_wikipedia,train_selfinstruct"
)
"""Mostly what the target asks itself; of the largest set, seven tenths of which is
arithmetic, a part."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPrompt:
    """One question as its set has it."""

    id: str
    set: str
    category: str
    text: str

    @property
    def request(self) -> list[dict[str, str]]:
        """What a chat template takes."""
        return [{"role": "user", "content": self.text}]


def read(name: str) -> list[TrainingPrompt]:
    """All prompts of a set, in the order of the file."""
    if name not in SETS:
        raise ValueError(f"There is no set {name!r}; there are {', '.join(SETS)}.")
    with gzip.open(FOLDER / name / "prompts.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [
        TrainingPrompt(
            id=record["id"],
            set=name,
            category=record["category"],
            text=record["turns"][0],
        )
        for record in records
    ]


def select(spec: str, seed: int = 0) -> list[TrainingPrompt]:
    """Prompts by a spec, `train_mbpp:100,train_pydocs`, in an order drawn once.

    The same spec and seed give the same order everywhere, sets mixed.
    """
    chosen: list[TrainingPrompt] = []
    for part in spec.split(","):
        name, _, count = part.strip().partition(":")
        if count and not count.isdecimal():
            raise ValueError(f"{part!r} should read NAME:COUNT.")
        found = read(name)
        random.Random(f"{seed} {name}").shuffle(found)
        many = int(count) if count else len(found)
        if not 1 <= many <= len(found):
            raise ValueError(f"{name} has {len(found)} prompts; {many} were asked for.")
        chosen += found[:many]
    random.Random(f"{seed}").shuffle(chosen)
    return chosen


def mixed(
    chosen: Sequence[TrainingPrompt], own: Sequence[str], seed: int
) -> list[TrainingPrompt]:
    """Prompts of sets and a target's own questions, in an order drawn once."""
    asked = [
        TrainingPrompt(id=f"own-{i}", set="own", category="own", text=text)
        for i, text in enumerate(own)
    ]
    both = [*chosen, *asked]
    random.Random(f"{seed}").shuffle(both)
    return both


def licences(chosen: Sequence[TrainingPrompt]) -> dict[str, str]:
    """The licence of every set that prompts were taken from; own ones need none."""
    names = {prompt.set for prompt in chosen} & SETS.keys()
    return {name: SETS[name].licence for name in sorted(names)}
