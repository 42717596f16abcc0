"""Prompts that a target asks itself: Magpie (Xu et al. 2024, arXiv:2406.08464, §2.1).

An instruction-tuned model that is given its chat template up to where a user's words
would begin goes on with such words, as it has seen them in training. No prompts of
others are needed, and what drafters then learn is spread as the target's chats are.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jspec.storage import write_file

__all__ = ["ask", "opening", "split"]

NAME, LONGEST, SHORTEST, ROUND = "own", 96, 4, 256

type Ids = Sequence[int]


def split(spec: str) -> tuple[str, int]:
    """The sets of a spec without the target's own questions, and how many of those.

    Raises:
      ValueError: `own` without a number.
    """
    others, many = [], 0
    for part in filter(None, (part.strip() for part in spec.split(","))):
        name, _, count = part.partition(":")
        if name != NAME:
            others.append(part)
        elif count.isdecimal() and int(count) and not many:
            many = int(count)
        else:
            raise ValueError(
                f"{part!r} should read {NAME}:COUNT, once: the target has no end of "
                f"questions"
            )
    return ",".join(others), many


def opening(chat: Callable[[list[dict[str, str]]], Ids]) -> list[int]:
    """The ids of a chat up to the user's first word: what all chats begin with.

    Args:
      chat: turns messages into ids.

    Raises:
      ValueError: the template puts nothing before a user's words.
    """
    texts = [chat([{"role": "user", "content": word}]) for word in ("7", "Zebra")]
    same = 0
    while texts[0][same] == texts[1][same]:
        same += 1
    if not same:
        raise ValueError(
            "the target's chat template begins with the user's words, so it cannot "
            "ask questions of its own; give --prompts without own"
        )
    return list(texts[0][:same])


def ask(
    begin: Ids,
    many: int,
    say: Callable[[Ids, range], Sequence[Any]],
    file: Path,
    *,
    told: Callable[[int], None] = lambda found: None,
) -> list[str]:
    """Questions that differ, in the order they came to the target; kept in a file.

    Args:
      begin: what `opening` found.
      many: how many.
      say: goes on from it with the seeds given: what `Server.generate` returns.
      file: holds them and the next seed, so that a stopped run goes on.
      told: hears how many there are.

    Raises:
      ValueError: the target repeats itself, or never comes to an end.
    """
    known: dict[str, None] = {}
    seed, barren = 0, 0
    if file.is_file():
        kept = json.loads(file.read_text("utf-8"))
        known, seed = dict.fromkeys(kept["questions"]), kept["next_seed"]
    file.parent.mkdir(parents=True, exist_ok=True)
    while len(known) < many:
        before = len(known)
        for one in say(begin, range(seed, seed + ROUND)):
            text = one.text.strip()
            if one.finish_reason == "stop" and len(one.token_ids) >= SHORTEST and text:
                known[text] = None
        seed += ROUND
        kept = {"next_seed": seed, "questions": list(known)}
        said = json.dumps(kept, ensure_ascii=False, indent=0) + "\n"
        write_file(file, said.encode())
        barren = barren + 1 if len(known) == before else 0
        if barren == 8:
            raise ValueError(
                f"the target asked {len(known)} questions and then none that was new "
                f"in {8 * ROUND}; ask for {len(known)} at most"
            )
        told(min(len(known), many))
    return list(known)[:many]
