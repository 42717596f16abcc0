import functools

import jax.numpy as jnp
import numpy as np
import pytest

from converters.config import from_hugging_face
from converters.families import HUGGING_FACE
from converters.tables import lines
from jspec.decode import Finish
from jspec.models import build
from jspec.models.base import weight_shapes
from jspec.models.layers import embed
from jspec.params import SamplingParams
from jspec.testing import GREEDY, Loop, text_logits, tiny_target

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama": ("llama", {}),
    "llama-one-key-head": ("llama", {"num_key_value_heads": 1}),
    "llama-all-key-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 20}),
    "llama-theta": ("llama", {"rope_theta": 500.0}),
    "llama-linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
    "llama-llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama-yarn": ("llama", {"rope_scaling": YARN}),
    "llama-yarn-factor": ("llama", {"rope_scaling": {**YARN, "attention_factor": 1.3}}),
    "llama-yarn-mscale": (
        "llama",
        {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}},
    ),
    "llama-yarn-whole": (
        "llama",
        {
            "rope_scaling": {
                **YARN,
                "truncate": False,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7, "head_dim": 12}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True, "rope_scaling": YARN}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-biases": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "qwen3-window": (
        "qwen3",
        {
            "head_dim": 8,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
}


@functools.cache
def pair(case):
    family, changes = CASES[case]
    config = transformers.AutoConfig.for_model(family, **(SIZES | changes))
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if value.ndim == 1:
                center = 0.0 if name.endswith("bias") else 1.0
                value.copy_(center + 0.2 * torch.randn_like(value))
            else:
                value.mul_(8.0)
    ours = from_hugging_face(config.to_dict(), family)
    arrays = {k: v.detach().numpy() for k, v in theirs.state_dict().items()}
    weights = {
        name: jnp.asarray(change(arrays[source], ours))
        for name, (source, change) in lines(HUGGING_FACE[family], ours).items()
    }
    assert set(weights) == set(weight_shapes(ours))
    return theirs, build(ours, weights)


@functools.cache
def recorded(case):
    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 64))
    with torch.no_grad():
        logits = pair(case)[0](torch.tensor(ids), use_cache=False).logits
    return ids.astype(np.int32), logits.numpy()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_at_every_position(case):
    ids, right = recorded(case)
    ours = text_logits(pair(case)[1], ids)
    assert np.abs(right).max() > 1
    np.testing.assert_allclose(ours, right, atol=1e-4)


@pytest.mark.parametrize("case", ["llama-yarn", "mistral-window", "qwen3-window"])
def test_a_prompt_read_in_pieces_gives_the_same_next_token(case):
    ids, right = recorded(case)
    from jspec.drafters import METHODS

    loop = Loop(pair(case)[1], METHODS["none"](), rows=4, room=80, chunk=5)
    for length in (1, 2, 5, 6, 17, 33, 63, 64):
        loop.admit(length % 4, ids[0, :length].tolist(), GREEDY)
        emission = loop.round([length % 4])
        assert emission.tokens[0, 0] == right[0, length - 1].argmax()
        assert emission.finish[0] == Finish.RUNNING


@pytest.mark.parametrize("case", ["llama", "qwen3-window"])
def test_bfloat16_stays_near_float32(case):
    ids, right = recorded(case)
    model = pair(case)[1]
    import jax

    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), model)
    ours = np.asarray(text_logits(half, ids))
    assert ours.dtype == np.float32
    assert np.corrcoef(ours.ravel(), right.ravel())[0, 1] > 0.99


def test_padding_rows_of_the_vocabulary_are_never_emitted():
    from jspec.drafters import METHODS

    padded = tiny_target(token_count=40)
    params = SamplingParams(temperature=5.0, max_tokens=64, seed=2)
    loop = Loop(padded, METHODS["none"](), rows=4)
    for row in range(4):
        loop.admit(row, [1, 2], params)
    tokens = np.concatenate([loop.round().tokens[:, 0] for _ in range(64)])
    assert tokens.max() < 40


def test_an_id_outside_the_table_gives_nan_and_no_other_tokens_row():
    table = jnp.arange(6.0).reshape(3, 2)
    rows = embed(table, jnp.array([[-1, 3, 1]], jnp.int32))
    assert jnp.isnan(rows[0, :2]).all()
    assert rows[0, 2].tolist() == [2, 3]
