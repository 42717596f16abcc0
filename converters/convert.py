"""A Hugging Face directory or a GGUF file becomes a jspec checkpoint."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from converters import gguf_config, gguf_tokenizer
from converters.config import from_hugging_face, unread_keys
from converters.families import GGUF, HUGGING_FACE
from converters.recognise import read_json, recognise
from converters.sources import Gguf, Tensor, TensorFiles, open_directory
from converters.tables import IGNORED, Change, lines, source_shape
from jspec import checkpoint
from jspec.models.base import FAMILIES, ModelConfig, weight_shapes
from jspec.tokenizer import Tokenizer

__all__ = ["DTYPES", "TOKENIZER_FILES", "Plan", "Report", "convert", "plan"]

DTYPES: Mapping[str, np.dtype] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tekken.json",
    "generation_config.json",
)
"""What is copied as it is, where it is there."""

type Step = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One tensor's way: its name there, its name here, and what it becomes."""

    name: str
    weight: str
    tensor: Tensor
    change: Change
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A conversion that has been checked and can be carried out."""

    config: ModelConfig
    lines: tuple[Line, ...]
    source: Mapping[str, Any]
    tokenizer_files: Mapping[str, Path | bytes]
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a conversion wrote."""

    family: str
    tensors: int
    bytes: int
    dtypes: tuple[str, ...]
    notices: tuple[str, ...] = ()


def convert(
    source: Path,
    target: Path,
    *,
    family: str | None = None,
    dtype: str | None = None,
    step: Step | None = None,
) -> Report:
    """Converts `source` and writes the jspec checkpoint `target`, whole or not at all.

    Args:
      source: a Hugging Face directory or a GGUF file.
      target: a directory that does not exist yet, or is empty.
      family: where the source is to be read as one; `None`: as it says itself.
      dtype: of all weights; `None`: as stored, and bfloat16 for a quantised file.
      step: told after each tensor how many bytes of how many are read.

    Raises:
      ValueError: the source is not a model that is supported, in full; the sentence
        names the file, key or tensor.
    """
    made = plan(source, family=family, dtype=dtype)
    total = sum(_bytes(line) for line in made.lines)
    weights: dict[str, np.ndarray] = {}
    done = 0
    for line in made.lines:
        weights[line.weight] = _read(line, made.config)
        done += _bytes(line)
        if step is not None:
            step(done, total)
    checkpoint.save(
        target,
        made.config,
        weights,
        source=made.source,
        tokenizer_files=made.tokenizer_files,
    )
    return Report(
        family=made.config.family,
        tensors=len(weights),
        bytes=total,
        dtypes=tuple(sorted({str(line.dtype) for line in made.lines})),
        notices=made.notices,
    )


def _bytes(line: Line) -> int:
    return line.dtype.itemsize * int(np.prod(line.shape))


def _read(line: Line, config: ModelConfig) -> np.ndarray:
    array = line.tensor.read()
    if array.dtype != line.dtype:
        with np.errstate(over="ignore"):
            cast = array.astype(line.dtype)
        if line.dtype == np.float16 and np.isinf(cast).sum() > np.isinf(array).sum():
            raise ValueError(f"{line.name} has values beyond the range of float16")
        array = cast
    return line.change(array, config)


def plan(source: Path, *, family: str | None = None, dtype: str | None = None) -> Plan:
    """Reads names, shapes and configuration, and checks that all of it fits.

    Raises:
      ValueError: as `convert`; nothing has been read but headers.
    """
    if family is not None and family not in FAMILIES:
        raise ValueError(
            f"the family {family!r} is not known; known are {', '.join(FAMILIES)}"
        )
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(
            f"the dtype {dtype!r} is not known; known are {', '.join(DTYPES)}"
        )
    if not source.exists():
        raise ValueError(f"{source} does not exist")
    if source.is_dir():
        return _plan_directory(source, family, dtype)
    return _plan_gguf(source, family, dtype)


def _plan_directory(source: Path, family: str | None, dtype: str | None) -> Plan:
    if family is None:
        recognise(source)
    tensors = open_directory(source)
    family = family or recognise(source, tensors)
    raw = read_json(source / "config.json")
    generation_file = source / "generation_config.json"
    generation = read_json(generation_file) if generation_file.is_file() else {}
    files = {
        name: source / name for name in TOKENIZER_FILES if (source / name).is_file()
    }
    notices = [
        f"config.json has the key {key!r}, which is not read"
        for key in unread_keys(raw)
    ]
    tokens = None
    if files.keys() & {"tokenizer.json", "vocab.json", "tokenizer.model"}:
        tokens = Tokenizer(source).size
    else:
        notices.append(f"{source} holds no tokenizer: prompts must be token ids")
    config = from_hugging_face(raw, family, generation=generation, token_count=tokens)
    if config.tie_embeddings and "lm_head.weight" in tensors:
        tensors = _without_tied_head(tensors)
    return Plan(
        config=config,
        lines=_lines(
            source, tensors, lines(HUGGING_FACE[family], config), config, dtype
        ),
        source={
            "container": "huggingface",
            "name": source.resolve().name,
            "config": raw,
            "unread_keys": unread_keys(raw),
            "conventions": {"matrices": "[out, in]", "rope": "half-split"},
        },
        tokenizer_files=files,
        notices=tuple(notices),
    )


def _without_tied_head(tensors: TensorFiles) -> TensorFiles:
    """A tied head that is written out all the same must be the embedding."""
    head, embed = tensors["lm_head.weight"], tensors.get("model.embed_tokens.weight")
    if embed is not None and (
        head.shape != embed.shape or head.read().tobytes() != embed.read().tobytes()
    ):
        raise ValueError(
            "lm_head.weight differs from model.embed_tokens.weight, although "
            "config.json says tie_word_embeddings; say false there to keep both"
        )
    return {name: t for name, t in tensors.items() if name != "lm_head.weight"}


def _plan_gguf(source: Path, family: str | None, dtype: str | None) -> Plan:
    file = Gguf(source)
    found = gguf_config.family_of(file)
    if family is not None and family != found:
        raise ValueError(f"{source} is of the GGUF architecture {found}, not {family}")
    tokens = gguf_tokenizer.token_count(file)
    config = gguf_config.from_gguf(file, token_count=tokens)
    if dtype is None:
        dtype = _gguf_dtype(file)
    unread = gguf_config.unread_keys(file)
    notices = [
        f"{source.name} has the key {key!r}, which is not read" for key in unread
    ]
    tokenizer_files = gguf_tokenizer.tokenizer_files(file)
    if not tokenizer_files:
        notices.append(f"{source} holds no tokenizer: prompts must be token ids")
    stored = Counter(tensor.stored for tensor in file.tensors.values())
    return Plan(
        config=config,
        lines=_lines(source, file.tensors, lines(GGUF[found], config), config, dtype),
        source={
            "container": "gguf",
            "name": source.name,
            "model": file.metadata.get("general.name"),
            "licence": file.metadata.get("general.license"),
            "tensor_types": dict(stored),
            "unread_keys": unread,
            "conventions": {
                "matrices": "[out, in]",
                "rope": "interleaved" if found == "llama" else "half-split",
            },
        },
        tokenizer_files=dict(tokenizer_files),
        notices=tuple(notices),
    )


def _gguf_dtype(file: Gguf) -> str:
    """bfloat16 for a quantised file; else the matrices' own, for the norms as well.

    llama.cpp keeps norms in float32 whatever they were; the originals of its files
    are as narrow as the matrices.
    """
    if file.quantised:
        return "bfloat16"
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            sizes[str(tensor.dtype)] += int(np.prod(tensor.shape))
    return sizes.most_common(1)[0][0]


def _lines(
    source: Path,
    tensors: TensorFiles,
    table: Mapping[str, tuple[str, Change]],
    config: ModelConfig,
    dtype: str | None,
) -> tuple[Line, ...]:
    found: list[Line] = []
    for weight, shape in weight_shapes(config).items():
        name, change = table[weight]
        tensor = tensors.get(name)
        if tensor is None:
            raise ValueError(f"{source}: the tensor {name} is missing")
        wanted = source_shape(shape, change)
        if tensor.shape != wanted:
            raise ValueError(
                f"{source}: the tensor {name} has shape {tensor.shape}; the "
                f"configuration says {wanted}"
            )
        if tensor.dtype not in DTYPES.values() and (
            dtype is None or tensor.dtype.kind != "f"
        ):
            raise ValueError(
                f"{source}: the tensor {name} is {tensor.dtype}, which is no dtype for "
                f"weights; {', '.join(DTYPES)} are"
            )
        found.append(
            Line(
                name=name,
                weight=weight,
                tensor=tensor,
                change=change,
                shape=shape,
                dtype=tensor.dtype if dtype is None else DTYPES[dtype],
            )
        )
    used = {line.name for line in found}
    ignored = [
        re.compile(re.escape(name).replace(r"\{l\}", r"\d+")) for name in IGNORED
    ]
    for name in tensors:
        if name not in used and not any(rule.fullmatch(name) for rule in ignored):
            raise ValueError(
                f"{source}: the tensor {name} is left over: the configuration has no "
                "place for it"
            )
    return tuple(found)
