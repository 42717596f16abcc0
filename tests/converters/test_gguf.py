"""GGUF files arrive as the gguf package reads them, rows in Hugging Face's order."""

import gguf
import ml_dtypes
import numpy as np
import pytest

from converters import convert, plan
from converters.check import difference
from converters.sources import Gguf
from jspec import checkpoint
from jspec.models.base import Rope

KINDS = gguf.GGMLQuantizationType
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PLAIN = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    if name in PLAIN:
        return PLAIN[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{LAYER[stem]}.{kind}"


def permute(array, heads):
    return (
        array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        .swapaxes(1, 2)
        .reshape(array.shape)
    )


def write(file, model, architecture, kind=KINDS.F32, keys=None, extra=None):
    """Writes a model as llama.cpp's converter does; quantised rows need width 32."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    if hasattr(config, "head_dim"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for key, value in (keys or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        if isinstance(value, int):
            add = writer.add_uint32
        add(key, value)
    written = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        if architecture == "llama" and ".q_proj." in name:
            array = permute(array, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            array = permute(array, config.num_key_value_heads)
        used = kind if array.ndim > 1 else KINDS.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(array), used)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=used)
        written[gguf_name(name)] = gguf.quants.dequantize(packed, used)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


@pytest.fixture
def llama(make):
    return make("llama", SIZES)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_every_architecture_arrives_exactly(make, tmp_path, family, options):
    sizes = SIZES if family != "qwen2" else {**SIZES, "head_dim": 16}
    model = make(family, sizes | options)
    write(tmp_path / "m.gguf", model, family)
    convert(tmp_path / "m.gguf", tmp_path / "here")
    model.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "straight")
    _, ours = checkpoint.load(tmp_path / "here")
    config, straight = checkpoint.load(tmp_path / "straight")
    assert ours.keys() == straight.keys()
    for name in straight:
        assert np.array_equal(ours[name], straight[name]), name
    read = checkpoint.read_config(tmp_path / "here")
    assert read.tie_embeddings == config.tie_embeddings
    assert read.norm_eps == config.norm_eps
    assert read.attention_bias == config.attention_bias


def test_it_computes_what_transformers_computes(llama, tmp_path):
    write(tmp_path / "m.gguf", llama, "llama")
    llama.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "m.gguf", tmp_path / "here")
    assert difference(tmp_path / "here", tmp_path / "theirs").worst < 1e-4


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_values_are_those_of_the_gguf_package(llama, tmp_path, kind):
    written = write(tmp_path / "m.gguf", llama, "llama", KINDS[kind])
    convert(tmp_path / "m.gguf", tmp_path / "here")
    convert(tmp_path / "m.gguf", tmp_path / "exact", dtype="float32")
    _, exact = checkpoint.load(tmp_path / "exact")
    _, ours = checkpoint.load(tmp_path / "here")
    assert np.array_equal(exact["embed"], written["token_embd.weight"])
    assert np.array_equal(exact["layers.1.down"], written["blk.1.ffn_down.weight"].T)
    back = permute(np.asarray(exact["layers.0.k"]).T, 2)
    assert np.array_equal(back, written["blk.0.attn_k.weight"])
    for name in exact:
        narrow = np.asarray(exact[name]).astype(ml_dtypes.bfloat16)
        assert np.asarray(ours[name]).tobytes() == narrow.tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32")]
)
def test_plain_files_keep_the_dtype_of_their_matrices(make, tmp_path, kind, dtype):
    model = make("qwen2", SIZES, dtype)
    write(tmp_path / "m.gguf", model, "qwen2", KINDS[kind])
    report = convert(tmp_path / "m.gguf", tmp_path / "here")
    assert report.dtypes == (dtype,)
    _, ours = checkpoint.load(tmp_path / "here")
    there = model.state_dict()["model.layers.1.mlp.up_proj.weight"].float().numpy()
    assert np.array_equal(np.asarray(ours["layers.1.up"], np.float32).T, there)


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({}, Rope()),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            Rope(kind="linear", factor=2.0),
        ),
        ({"llama.rope.scale_linear": 4.0}, Rope(kind="linear", factor=4.0)),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            Rope(kind="yarn", factor=4.0, original_max_position=32, beta_fast=16.0),
        ),
    ],
)
def test_rope_comes_out_of_the_metadata(llama, tmp_path, keys, rope):
    write(tmp_path / "m.gguf", llama, "llama", keys=keys)
    assert plan(tmp_path / "m.gguf").config.rope == rope


@pytest.mark.parametrize(
    ("theta", "factor", "low", "high", "original"),
    [(500_000.0, 32.0, 1.0, 4.0, 8192), (10_000.0, 4.0, 1.0, 2.5, 48)],
)
def test_llama3_rope_comes_out_of_the_factors(
    make, tmp_path, theta, factor, low, high, original
):
    wave = 2 * np.pi * theta ** (np.arange(0, 64, 2) / 64)
    s = np.clip((original / wave - low) / (high - low), 0, 1)
    factors = (1 / ((1 - s) / factor + s)).astype(np.float32)
    model = make("llama", SIZES | {"head_dim": 64, "max_position_embeddings": 131_072})
    keys = {"llama.rope.freq_base": theta}
    extra = {"rope_freqs.weight": factors}
    write(tmp_path / "m.gguf", model, "llama", keys=keys, extra=extra)
    rope = plan(tmp_path / "m.gguf").config.rope
    assert (rope.kind, rope.theta, rope.factor) == ("llama3", theta, factor)
    assert rope.original_max_position == original
    assert rope.high_freq_factor == pytest.approx(high, rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "extra", "sentence"),
    [
        ({"llama.rope.scaling.type": "longrope"}, {}, "rope type 'longrope'"),
        ({"llama.expert_count": 8}, {}, r"llama\.expert_count = 8 changes"),
        ({"llama.logit_scale": 0.5}, {}, r"llama\.logit_scale = 0\.5 changes"),
        ({"llama.rope.dimension_count": 8}, {}, "rope.dimension_count = 8 is not the"),
        ({"llama.attention.sliding_window": 8}, {}, "does not say which layers slide"),
        ({}, {"blk.0.more.weight": np.zeros(2, np.float32)}, "blk.0.more.* left over"),
        (
            {},
            {"rope_freqs.weight": np.full(8, 3, np.float32)},
            "not the scaling of Llama 3",
        ),
        ({"split.count": 2}, {}, "one of 2 parts"),
        ({"tokenizer.ggml.model": "bert"}, {}, None),
    ],
)
def test_what_would_compute_something_else_is_refused(
    llama, tmp_path, keys, extra, sentence
):
    write(tmp_path / "m.gguf", llama, "llama", keys=keys, extra=extra)
    if sentence is None:
        assert convert(tmp_path / "m.gguf", tmp_path / "here").notices
        return
    with pytest.raises(ValueError, match=sentence):
        convert(tmp_path / "m.gguf", tmp_path / "here")


def test_another_architecture_is_refused_by_name(llama, tmp_path):
    write(tmp_path / "m.gguf", llama, "gemma")
    with pytest.raises(ValueError, match="GGUF architecture 'gemma' is not supported"):
        convert(tmp_path / "m.gguf", tmp_path / "here")


def test_what_is_no_gguf_is_one_sentence(llama, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="is not a GGUF file"):
        convert(tmp_path / "a.gguf", tmp_path / "here")
    write(tmp_path / "m.gguf", llama, "llama")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"m\.gguf"):
        convert(tmp_path / "m.gguf", tmp_path / "here")


DEQUANTISED = [
    kind for kind in KINDS if kind in gguf.quants._type_traits and kind != KINDS.BF16
]


@pytest.mark.parametrize("kind", DEQUANTISED, ids=lambda kind: kind.name)
def test_every_type_that_the_gguf_package_dequantises_is_read(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, width = 6, max(256, block)
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (rows, width // block * size), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("packed", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = Gguf(tmp_path / "q.gguf")
    with np.errstate(all="ignore"):
        ours = source.tensors["packed"].read()
        theirs = gguf.quants.dequantize(packed, kind)
    assert source.quantised
    assert ours.shape == (rows, width)
    assert ours.tobytes() == theirs.astype(np.float32).tobytes()
