"""A server whose draft model has another tokenizer."""

import pytest

from tests.serving import PROMPTS, greedy, write_checkpoint


@pytest.fixture
def swapped(servers, tmp_path):
    """The target's own model, two of whose tokens have each other's ids."""
    servers.paths["swapped"] = write_checkpoint(tmp_path / "m", swap=(7, 97))
    return "swapped"


def test_another_tokenizer_is_refused_with_what_would_be_right(servers, swapped):
    with pytest.raises(ValueError, match=r"not the target's: token 7 is .*'shared'"):
        servers.new("self", drafter=swapped)


def test_it_drafts_with_the_tokens_that_both_have(servers, swapped):
    options = {"vocabulary": "shared"}
    kind = {"max_batch": 1, "k": 2, "draft_sampling": "greedy"}
    with servers.new("self", drafter=swapped, method_options=options, **kind) as server:
        for prompt in PROMPTS[:3]:
            [done] = server.generate(prompt, greedy(16))
            assert done.token_ids == servers.plain(prompt, greedy(16)).token_ids
            assert done.speculation.accepted > 4
