"""Prompts for measuring: real texts, chosen the same way every time."""

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

FOLDER = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSet:
    """What a set holds; token counts by the SmolLM2 tokenizer, no chat template."""

    count: int
    median_tokens: int
    longest_tokens: int
    licence: str
    raw: bool = False


SETS: Mapping[str, PromptSet] = MappingProxyType(
    {
        "mt_bench": PromptSet(
            count=64, median_tokens=60, longest_tokens=386, licence="CC-BY-4.0"
        ),
        "gsm8k": PromptSet(
            count=240, median_tokens=60, longest_tokens=147, licence="MIT"
        ),
        "humaneval": PromptSet(
            count=132, median_tokens=122, longest_tokens=395, licence="MIT", raw=True
        ),
        "mbpp": PromptSet(
            count=120, median_tokens=58, longest_tokens=185, licence="CC-BY-4.0"
        ),
        "nq_qa": PromptSet(
            count=64, median_tokens=11, longest_tokens=17, licence="CC-BY-SA-3.0"
        ),
        "nq_rag": PromptSet(
            count=64, median_tokens=724, longest_tokens=874, licence="CC-BY-SA-3.0"
        ),
        "summaries": PromptSet(
            count=80, median_tokens=495, longest_tokens=1353, licence="public domain"
        ),
        "translation": PromptSet(
            count=96, median_tokens=103, longest_tokens=415, licence="CC-BY-SA-4.0"
        ),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """One question as its set has it; a raw prompt is completed, not answered."""

    id: str
    set: str
    category: str
    turns: tuple[str, ...]
    raw: bool

    @property
    def request(self) -> str | list[dict[str, str]]:
        """What `Server.generate` takes: the text, or the first turn as a message."""
        if self.raw:
            return self.turns[0]
        return [{"role": "user", "content": self.turns[0]}]


class Tokenizer(Protocol):
    """The two ways in; `jspec.tokenizer.Tokenizer` has both."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw text."""
        ...

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins."""
        ...


def read(name: str) -> list[Prompt]:
    """All prompts of a set, in the order of the file."""
    if name not in SETS:
        raise ValueError(f"There is no set {name!r}; there are {', '.join(SETS)}.")
    lines = (FOLDER / name / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    records = map(json.loads, lines)
    return [
        Prompt(
            id=record["id"],
            set=name,
            category=record["category"],
            turns=tuple(record["turns"]),
            raw=SETS[name].raw,
        )
        for record in records
    ]


def prompts(name: str, count: int | None = None, seed: int = 0) -> list[Prompt]:
    """`count` prompts of a set or of a category, drawn without replacement.

    The same name, count and seed give the same prompts everywhere, and a smaller count
    gives the beginning of a larger one's.

    Args:
      name: a key of `SETS`, or a category such as `math`, which may span sets.
      count: all of them when `None`.
      seed: of the draw.
    """
    if name in SETS:
        found = read(name)
    else:
        found = [p for each in SETS for p in read(each) if p.category == name]
    if not found:
        raise ValueError(
            f"{name!r} is neither a set ({', '.join(SETS)}) nor a category."
        )
    count = len(found) if count is None else count
    if not 1 <= count <= len(found):
        raise ValueError(f"{name} has {len(found)} prompts; {count} were asked for.")
    random.Random(f"{seed} {name}").shuffle(found)
    return found[:count]


def select(spec: str, seed: int = 0) -> list[Prompt]:
    """Prompts by a spec: `summaries:8,gsm8k:4`; no number means the whole set."""
    chosen: list[Prompt] = []
    for part in spec.split(","):
        name, _, count = part.strip().partition(":")
        if count and not count.isdecimal():
            raise ValueError(f"{part!r} should read NAME:COUNT.")
        chosen += prompts(name, int(count) if count else None, seed)
    return chosen


def tokens(chosen: Sequence[Prompt], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids: raw prompts as they are, the rest through the chat template."""
    return [
        tokenizer.encode(prompt.turns[0])
        if prompt.raw
        else tokenizer.chat([{"role": "user", "content": prompt.turns[0]}])
        for prompt in chosen
    ]
