"""Gemma 4 assistants against transformers' own loop of candidates, round by round."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters.base import About, Memory
from jspec.testing import GREEDY, Loop
from jspec.verify import Synthetic
from tests.drafters.assistants import assistant, converted
from tests.models.gemmas import SIZES, pair

torch = pytest.importorskip("torch", reason="the second implementation is torch's")

CASE = "gemma4-inputs"
GAMMA, ROUNDS, WINDOW = 3, 200, SIZES["sliding_window"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """Another drafter, whose memory also holds what it drafted last."""

    drafter: Any
    about = About(
        paper="-",
        idea="drafts are written down",
        weights="a drafter's",
        passes="gamma",
        topology="chain",
        q=("certain",),
    )
    branching = False

    @property
    def gamma(self):
        return self.drafter.gamma

    @property
    def feature_layers(self):
        return self.drafter.feature_layers

    def check(self, weights, target):
        self.drafter.check(weights, target)

    def init(self, weights, layout):
        drafts = jnp.zeros((layout.rows, self.gamma + 1), jnp.int32)
        return Memory(rows=drafts, pages=self.drafter.init(weights, layout).pages)

    def propose(self, weights, memory, anchor, keys, view):
        proposal, _ = self.drafter.propose(weights, memory, anchor, keys, view)
        return proposal, dataclasses.replace(memory, rows=proposal.tokens)

    def observe(self, weights, memory, evidence, view):
        return self.drafter.observe(weights, memory, evidence, view)


def candidates_of(model, target):
    """transformers' loop, as it is, for texts of which all but the last is committed.

    Its mask counts a window from the newest key, both ends included; said so, it shows
    what a sliding layer of the target sees from the place behind it.
    """
    from transformers.generation.candidate_generator import (
        SinglePositionMultiTokenCandidateGenerator,
    )

    model.config.get_text_config().sliding_window = WINDOW - 2
    model.generation_config.num_assistant_tokens = GAMMA
    settings = SimpleNamespace(max_length=10_000)
    loop = SinglePositionMultiTokenCandidateGenerator(
        model, target.get_input_embeddings(), settings
    )

    def drafts(text, seen):
        committed = len(text) - 1
        cut = {
            kind: tuple(a[:, :, :committed] for a in both)
            for kind, both in seen.shared_kv_states.items()
        }
        outputs = SimpleNamespace(
            hidden_states=(seen.hidden_states[-1][:, :committed],), shared_kv_states=cut
        )
        loop.is_main_model_prefill = True
        found, _ = loop.get_candidates(torch.tensor(text)[None], {}, outputs, False, 0)
        return found[0, len(text) :].tolist()

    return drafts


@pytest.mark.slow
def test_every_draft_is_that_of_transformers_in_rows_that_accept_different_counts():
    theirs, target = pair(CASE)
    text = {"vocab_size": 61, "head_dim": 8, "global_head_dim": 16}
    text |= {"attention_k_eq_v": False, "sliding_window": WINDOW}
    model = assistant(text)
    drafter, weights = converted(model, gamma=GAMMA, draft_sampling="greedy")
    drafter = Recorded(drafter=drafter.fit(target))
    prompts = [[1, 2, 3], [5] * 11 + [7], [4, 8]]
    rules = Synthetic(rates=(0.7, 0.4, 0.2))
    loop = Loop(target, drafter, weights, rows=3, room=640, verification=rules)
    for row, prompt in enumerate(prompts):
        wish = dataclasses.replace(GREEDY, max_tokens=620, seed=row)
        loop.admit(row, prompt, wish)
    texts, rounds = [list(prompt) for prompt in prompts], []
    for _ in range(ROUNDS):
        before = [len(text) for text in texts]
        emission = loop.round()
        rounds.append((before, np.asarray(loop.state.memory.rows)[:, 1:]))
        for row, count in enumerate(emission.count):
            texts[row] += emission.tokens[row, :count].tolist()
    ends = np.array([before for before, _ in rounds])
    assert len({tuple(step) for step in np.diff(ends, axis=0)}) > 20
    drafts = candidates_of(model, theirs)
    for row, text in enumerate(texts):
        with torch.no_grad():
            seen = theirs(
                torch.tensor(text)[None],
                use_cache=False,
                output_hidden_states=True,
                return_shared_kv_states=True,
            )
        for before, drafted in rounds:
            right = drafts(text[: before[row]], seen)
            assert drafted[row].tolist() == right, before[row]
