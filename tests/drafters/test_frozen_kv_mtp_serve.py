"""Gemma 4 assistants through `jspec.serve`: what a checkpoint decides and refuses."""

import dataclasses

import jax
import pytest

import jspec
from jspec import checkpoint
from jspec.drafters import METHODS
from jspec.drafters.frozen_kv_mtp import FrozenKVMTP
from jspec.models import build
from jspec.testing import decode
from tests import serving
from tests.drafters.assistants import CONFIG, target_config, weights_of

VOCAB = serving.TOKENS + 5
PROMPT = "the cat and the cat and the"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Checkpoints of an assistant and of a target, and the target."""
    folder = tmp_path_factory.mktemp("gemma")
    config = target_config(
        vocab_size=VOCAB,
        token_count=serving.TOKENS,
        eos_token_ids=(serving.EOS,),
    )
    weights = weights_of(config.weight_shapes(), 1)
    checkpoint.save(
        folder / "target",
        config,
        jax.device_get(weights),
        source={"made_by": "tests"},
        tokenizer_files=serving.write_tokenizer(folder),
    )
    ours = dataclasses.replace(CONFIG, vocab_size=VOCAB)
    shapes = FrozenKVMTP(config=ours).weight_shapes()
    checkpoint.save_drafter(
        folder / "assistant",
        "frozen_kv_mtp",
        ours.to_json(),
        jax.device_get(weights_of(shapes, 2)),
        source={},
    )
    return folder, build(config, weights)


@pytest.mark.slow
def test_r62_an_assistant_is_served_by_its_checkpoints_own_method(pair, tmp_path):
    folder, target = pair
    with (
        serving.quick_compiler(tmp_path / "xla"),
        jspec.serve(
            str(folder / "target"),
            drafter=str(folder / "assistant"),
            num_speculative_tokens=2,
            max_batch=1,
            max_model_len=64,
            page_size=4,
            compilation_cache=False,
        ) as server,
    ):
        assert server.method == "frozen_kv_mtp"
        prompt = server.tokenizer.encode(PROMPT)
        wish = serving.greedy(24)
        for _ in range(2):
            [done] = server.generate([prompt], wish)
            [right] = decode(target, METHODS["none"](), None, [prompt], wish)
            assert done.token_ids == right.tokens
        assert server.metrics()["cached_prompt_tokens"] > 0
        assert server.metrics()["drafted_tokens"] > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "eagle"}, "made for method 'frozen_kv_mtp', not for 'eagle'"),
        ({"method": "mtp"}, "made for method 'frozen_kv_mtp', not for 'mtp'"),
        ({"method": "draft_model"}, "made for method 'frozen_kv_mtp', not for 'draft"),
        ({"method_options": {"tree_width": 2}}, "method_options has 'tree_width'"),
    ],
)
def test_r62_a_wrong_route_is_refused_before_anything_is_compiled(pair, options, why):
    folder, _ = pair
    with pytest.raises(ValueError, match=why):
        jspec.serve(
            str(folder / "target"), drafter=str(folder / "assistant"), **options
        )


def test_a_target_of_another_family_is_refused_by_one_sentence(pair, tmp_path):
    folder, _ = pair
    other = serving.write_checkpoint(tmp_path / "llama")
    with pytest.raises(ValueError, match="of the family 'gemma4'; this one is of 'lla"):
        jspec.serve(str(other), drafter=str(folder / "assistant"))
