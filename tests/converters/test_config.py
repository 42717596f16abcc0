"""Every spelling of a config.json says one thing, or is refused by its key."""

import pytest

from converters.config import from_hugging_face, to_hugging_face, unread_keys
from jspec.models.base import Rope

BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def read(family="llama", **changes):
    generation = changes.pop("generation", None)
    return from_hugging_face(BASE | changes, family, generation=generation)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 5e5, "rope_parameters": {"type": "llama3", **LLAMA3}},
    ],
)
def test_rope_is_the_same_in_every_spelling(spelling):
    assert read(**spelling).rope == Rope(
        kind="llama3",
        theta=5e5,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=64,
    )


def test_rope_defaults_are_those_of_transformers():
    assert read().rope == Rope()
    assert read(rope_scaling=None, rope_theta=1e6).rope == Rope(theta=1e6)
    yarn = read(rope_scaling={"type": "yarn", "factor": 4}).rope
    assert yarn == Rope(kind="yarn", factor=4.0, original_max_position=128)
    linear = read(rope_scaling={"type": "linear", "factor": 2}).rope
    assert linear == Rope(kind="linear", factor=2.0)


def test_what_is_absent_has_the_default_of_transformers():
    config = dict(BASE)
    del config["num_key_value_heads"], config["max_position_embeddings"]
    assert from_hugging_face(config, "llama").num_key_heads == 4
    assert from_hugging_face(config, "llama").max_position == 2048
    assert read(head_dim=None).head_dim == 8
    assert read(head_dim=16).head_dim == 16
    assert read("qwen3").head_dim == 128
    assert read("mistral").windows == (4096,) * 4
    assert read().eos_token_ids == (2,)
    assert read("qwen2").eos_token_ids == ()


def test_the_generation_config_has_the_fuller_list_of_ends():
    assert read(eos_token_id=7).eos_token_ids == (7,)
    assert read(eos_token_id=[7, 8]).eos_token_ids == (7, 8)
    fuller = {"eos_token_id": [7, 8, 9]}
    assert read(eos_token_id=7, generation=fuller).eos_token_ids == (7, 8, 9)
    assert read(eos_token_id=7, generation={}).eos_token_ids == (7,)


def test_qwen2_slides_exactly_where_transformers_does():
    window = {"sliding_window": 8, "max_window_layers": 2}
    assert read("qwen2", **window).windows == ()
    assert read("qwen2", **window, use_sliding_window=False).windows == ()
    slid = read("qwen2", **window, use_sliding_window=True).windows
    assert slid == (None, None, 8, 8)
    assert read("qwen2", use_sliding_window=True, sliding_window=8).windows == ()
    named = ["sliding_attention", "full_attention"] * 2
    both = read("qwen3", **window, use_sliding_window=True, layer_types=named)
    assert both.windows == (8, None, 8, None)


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu' changes what"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("llama", {"logits_scaling": 8.0}, "logits_scaling = 8.0"),
        ("llama", {"logit_scale": 0.1}, "logit_scale = 0.1"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"num_local_experts": 8}, "num_local_experts = 8"),
        ("llama", {"sliding_window": 8}, "sliding_window = 8 of a Llama"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic'"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "type 'linear' lacks factor"),
        ("llama", {"rope_scaling": {"mrope_section": [2, 1, 1]}}, "mrope_section"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2, "twist": 1}},
            "unknown key 'twist'",
        ),
        (
            "llama",
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "settings of its own for 'full_attention'",
        ),
        ("llama", {"vocab_size": None}, "vocab_size is None, not a number"),
        ("llama", {"eos_token_id": "</s>"}, "eos_token_id = '</s>' is not a token id"),
        ("llama", {"num_attention_heads": 3}, "not a multiple"),
        ("qwen2", {"layer_types": ["ring"] * 4}, "layer type 'ring'"),
        ("qwen2", {"layer_types": ["full_attention"]}, "names 1 layers of 4"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "give them no window"),
        (
            "mistral",
            {"layer_types": ["full_attention", "sliding_attention"] * 2},
            "layer_types of a Mistral",
        ),
    ],
)
def test_what_would_compute_something_else_is_refused(family, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(family, **changes)


def test_a_missing_size_is_named():
    config = {key: value for key, value in BASE.items() if key != "hidden_size"}
    with pytest.raises(ValueError, match=r"config\.json lacks hidden_size"):
        from_hugging_face(config, "llama")


def test_keys_that_nobody_reads_are_reported():
    assert unread_keys(BASE | {"dtype": "float32", "sparkle": 1}) == ["sparkle"]


def test_rows_beyond_the_tokenizer_are_padding():
    assert from_hugging_face(BASE, "llama", token_count=90).token_count == 90
    assert from_hugging_face(BASE, "llama", token_count=96).token_count is None


def test_what_a_family_cannot_say_is_refused_on_the_way_back():
    config = read("qwen2")
    assert from_hugging_face(to_hugging_face(config, "float32"), "qwen2") == config
    odd = read("mistral", sliding_window=None)
    windows = (8, None, 8, None)
    odd = type(odd)(**{**vars(odd), "windows": windows})
    with pytest.raises(ValueError, match=r"windows = .* cannot be said"):
        to_hugging_face(odd, "float32")
