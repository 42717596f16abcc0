"""What a host drafter is told, what it is asked, and what is no draft."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from jspec.drafters import METHODS, About, HostDraft
from jspec.engine.host import HostSide, ask
from jspec.engine.request import Emitted, Request
from jspec.params import SamplingParams
from jspec.rounds import DEAD
from jspec.testing import GREEDY, decode, tiny_target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noting:
    """Notes what it is told, and offers what it was made with."""

    about: ClassVar[About] = METHODS["suffix"].about
    gamma: int = 4
    branching: bool = False
    tokens: tuple[int, ...] = ()
    parent: tuple[int, ...] | None = None
    drafts: int | None = None

    def check(self, weights, target):
        pass

    def init(self):
        return []

    def admit(self, memory, text, prompt):
        memory.append(("admit", text, list(prompt)))

    def propose(self, memory, texts, gammas):
        memory.append(("propose", list(texts), list(gammas)))
        count = len(texts) if self.drafts is None else self.drafts
        return [HostDraft(tokens=self.tokens, parent=self.parent)] * count

    def observe(self, memory, text, tokens):
        memory.append(("observe", text, list(tokens)))

    def leave(self, memory, text):
        memory.append(("leave", text))


def request(name, prompt, **params):
    made = Request(name, prompt, SamplingParams(**({"max_tokens": 9} | params)))
    return made


def test_a_text_is_told_from_its_prompt_to_its_end():
    side = HostSide(Noting())
    one, two = request(1, [5, 6]), request(2, [7], num_speculative_tokens=2)
    side.draft([one], 4)
    one.take(Emitted(tokens=[8, 9]))
    side.draft([one, two], 4)
    one.take(Emitted(tokens=[3] * 5))
    two.take(Emitted(tokens=[4], finish_reason="stop"))
    side.draft([one], 4)
    one.end("abort")
    side.draft([], 4)
    assert side.memory == [
        ("admit", 1, [5, 6]),
        ("propose", [1], [4]),
        ("observe", 1, [8, 9]),
        ("admit", 2, [7]),
        ("propose", [1, 2], [4, 2]),
        ("observe", 1, [3] * 5),
        ("observe", 2, [4]),
        ("leave", 2),
        ("propose", [1], [1]),
        ("leave", 1),
    ]


def test_where_nothing_may_be_drafted_nobody_is_asked():
    side = HostSide(Noting())
    tokens, parent = side.draft([request(1, [5], num_speculative_tokens=0)], 4)
    assert tokens.shape == parent.shape == (1, 0)
    assert side.memory == [("admit", 1, [5])]


def test_drafts_are_as_wide_as_the_longest():
    drafter = METHODS["suffix"](max_spec_factor=2.0)
    memory = drafter.init()
    drafter.admit(memory, 0, [1, 2, 3, 1])
    drafter.admit(memory, 1, [4])
    tokens, parent = ask(drafter, memory, [0, 1], [4, 4])
    assert tokens.tolist() == [[2, 3], [0, 0]]
    assert parent.tolist() == [[0, 1], [DEAD, DEAD]]


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"tokens": (1, 2, 3, 4, 5)}, "Noting drafted 5 tokens; 4 were asked for"),
        ({"drafts": 3}, "Noting made 3 drafts for 1 texts"),
        (
            {"tokens": (1, 2), "parent": (0, 2), "branching": True},
            r"drafted 2 tokens with parents \[0, 2\]: each must follow the anchor",
        ),
        (
            {"tokens": (1, 2), "parent": (0, -1), "branching": True},
            "each must follow the anchor, 0, or a token before it",
        ),
        ({"tokens": (1, 2), "parent": (0,)}, "drafted 2 tokens with parents"),
        ({"tokens": (1, 2), "parent": (0, 0)}, "drafted a tree, and its branching is"),
    ],
    ids=str,
)
def test_what_is_no_draft_is_refused_by_name(members, sentence):
    with pytest.raises(ValueError, match=sentence):
        ask(Noting(**members), [], [0], [4])


def test_a_tree_of_the_host_keeps_greedy_text_and_the_right_branch():
    target, prompts = tiny_target(), [[1, 2, 3], [9]]
    plain = decode(target, METHODS["none"](), None, prompts, GREEDY)
    first = plain[0].tokens[0]
    other = (first + 1) % 64
    drafter = Noting(
        gamma=3, branching=True, tokens=(other, first, other), parent=(0, 0, 1)
    )
    ours = decode(target, drafter, None, prompts, GREEDY)
    assert [d.tokens for d in ours] == [d.tokens for d in plain]
    assert ours[0].accepted[0] == 1


def test_ids_that_are_no_tokens_are_not_offered():
    target, prompts = tiny_target(), [[1, 2, 3], [9]]
    drafter = Noting(gamma=3, branching=True, tokens=(64, -3), parent=(0, 0))
    plain = decode(target, METHODS["none"](), None, prompts, GREEDY)
    ours = decode(target, drafter, None, prompts, GREEDY)
    assert [d.tokens for d in ours] == [d.tokens for d in plain]
    assert np.sum([d.drafted for d in ours]) == 0


def test_a_host_drafter_that_fails_ends_its_requests_with_what_it_said(servers):
    with servers.new("suffix", max_batch=1, k=1) as server:

        def fail(*_):
            raise RuntimeError("the index is gone")

        server._engine.host.memory = []
        server._engine.host.drafter = type("Bad", (Noting,), {"propose": fail})()
        done = server.submit("a b a b", SamplingParams(max_tokens=5)).result(30)
        assert done.finish_reason == "error"
        assert "the index is gone" in done.error
