"""Tiny models of every family, made by transformers and saved as it saves them."""

import pytest

pytest.importorskip("torch", reason="torch makes the models that are converted")
pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
CASES = {
    "llama": ("llama", {}),
    "llama, one key head, tied": (
        "llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "llama, all biases, wide heads": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn rope": ("llama", {"rope_parameters": YARN}),
    "llama, linear rope": ("llama", {"rope_parameters": LINEAR}),
    "mistral, sliding": ("mistral", {"sliding_window": 8}),
    "mistral, full": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied, last layer slides": (
        "qwen2",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, biases, layers named": (
        "qwen3",
        {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def build(family, options, dtype="float32"):
    import torch
    import transformers

    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    config = getattr(transformers, f"{names[family]}Config")(**(SIZES | options))
    torch.manual_seed(0)
    model = getattr(transformers, f"{names[family]}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
            else:
                parameter.normal_(0.0, 0.15)
    return model.to(getattr(torch, dtype))


@pytest.fixture(scope="session", autouse=True)
def quiet():
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def make():
    return build


@pytest.fixture(params=list(CASES), scope="session")
def case(request, tmp_path_factory):
    """(model, directory) of every family with every option."""
    family, options = CASES[request.param]
    model = build(family, options)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def tiny(tmp_path):
    """A directory with one plain Llama, to be harmed."""
    folder = tmp_path / "tiny"
    build("llama", {}).save_pretrained(folder)
    return folder
