"""A Hugging Face directory, a torch or a GGUF file becomes a jspec checkpoint."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from converters import drafters, gguf_config, gguf_tokenizer
from converters.configs import architecture, from_hugging_face, unread_keys
from converters.drafters.mtp import without_modules
from converters.families import GGUF, HUGGING_FACE
from converters.plans import DTYPES, Plan, Report, match
from converters.recognise import read_config, read_json, recognise
from converters.sources import (
    TENSOR_SUFFIXES,
    Gguf,
    TensorFiles,
    beside,
    open_directory,
    open_file,
)
from converters.tables import idle_keys, ignored, lines
from converters.wrappers import Inside, inside, text_config
from jspec import checkpoint
from jspec.models import FAMILIES, weight_shapes
from jspec.tokenizer import Tokenizer

__all__ = ["TOKENIZER_FILES", "convert", "plan"]

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
      source: a Hugging Face directory, one file of tensors beside its config.json, or
        a GGUF file.
      target: a directory that does not exist yet, or is empty.
      family: where the source is to be read as one; `None`: as it says itself.
      dtype: of all weights; `None`: as stored, and bfloat16 for a quantised file.
      step: told after each tensor how many bytes of how many are read.

    Raises:
      ValueError: the source is no model and no drafter that is supported, in full; the
        sentence names the file, key or tensor.
    """
    made = plan(source, family=family, dtype=dtype)
    total = sum(line.bytes for line in made.lines)
    weights: dict[str, np.ndarray] = {}
    done = 0
    for line in made.lines:
        weights[line.weight] = line.read(made.config)
        done += line.bytes
        if step is not None:
            step(done, total)
    if made.kind == "drafter":
        checkpoint.save_drafter(
            target, made.family, made.config, weights, source=made.source
        )
    else:
        checkpoint.save(
            target,
            made.config,
            weights,
            source=made.source,
            tokenizer_files=made.tokenizer_files,
        )
    return Report(
        family=made.family,
        tensors=len(weights),
        bytes=total,
        dtypes=tuple(sorted({str(line.dtype) for line in made.lines})),
        notices=made.notices,
    )


def plan(source: Path, *, family: str | None = None, dtype: str | None = None) -> Plan:
    """Reads names, shapes and configuration, and checks that all of it fits.

    Raises:
      ValueError: as `convert`; nothing has been read but headers.
    """
    known = (*FAMILIES, *drafters.CONVERTERS)
    if family is not None and family not in known:
        raise ValueError(
            f"the family {family!r} is not known; known are {', '.join(known)}"
        )
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(
            f"the dtype {dtype!r} is not known; known are {', '.join(DTYPES)}"
        )
    if not source.exists():
        raise ValueError(f"{source} does not exist")
    if source.is_dir():
        return _plan_directory(source, None, family, dtype)
    if source.suffix in TENSOR_SUFFIXES:
        return _plan_directory(source.parent, source, family, dtype)
    return _plan_gguf(source, family, dtype)


def _plan_directory(
    source: Path, file: Path | None, family: str | None, dtype: str | None
) -> Plan:
    raw = read_config(source)
    if file is None:
        tensors = {**open_directory(source), **beside(source)}
    else:
        tensors = open_file(file)
    method = drafters.recognise(raw, tensors) if family is None else family
    if method in drafters.CONVERTERS:
        return drafters.plan(file or source, method, raw, tensors, dtype)
    family = family or recognise(source, tensors)
    where = inside(raw, tensors)
    raw = text_config(raw, architecture(family))
    fields, tensors, left = without_modules(raw, tensors)
    unread = unread_keys(fields, family)
    generation_file = source / "generation_config.json"
    generation = read_json(generation_file) if generation_file.is_file() else {}
    files = {
        name: source / name for name in TOKENIZER_FILES if (source / name).is_file()
    }
    notices = [
        *left,
        *where.notices,
        *(f"config.json has the key {key!r}, which is not read" for key in unread),
    ]
    tokens = None
    if files.keys() & {"tokenizer.json", "vocab.json", "tokenizer.model"}:
        tokens = Tokenizer(source).size
    else:
        notices.append(f"{source} holds no tokenizer: prompts must be token ids")
    config = from_hugging_face(
        fields, family, generation=generation, token_count=tokens
    )
    if config.tie_embeddings and where.head in tensors:
        tensors = _without_tied_head(tensors, where)
    table = {
        weight: (where.name(name), change)
        for weight, (name, change) in lines(HUGGING_FACE[family], config).items()
    }
    return Plan(
        kind="target",
        family=config.family,
        config=config,
        lines=match(
            source,
            tensors,
            table,
            weight_shapes(config),
            dtype,
            waived=[
                *ignored(tensors),
                *where.skipped,
                *map(where.name, idle_keys(config)),
            ],
        ),
        source={
            "container": "huggingface",
            "name": source.resolve().name,
            "config": raw,
            "unread_keys": unread,
            "conventions": {"matrices": "[out, in]", "rope": "half-split"},
        },
        tokenizer_files=files,
        notices=tuple(notices),
    )


def _without_tied_head(tensors: TensorFiles, where: Inside) -> TensorFiles:
    """A tied head that is written out all the same must be the embedding."""
    name = where.name("model.embed_tokens.weight")
    head, embed = tensors[where.head], tensors.get(name)
    if embed is not None and (
        head.shape != embed.shape or head.read().tobytes() != embed.read().tobytes()
    ):
        raise ValueError(
            f"{where.head} differs from {name}, although "
            "config.json says tie_word_embeddings; say false there to keep both"
        )
    return {name: t for name, t in tensors.items() if name != where.head}


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
        kind="target",
        family=config.family,
        config=config,
        lines=match(
            source,
            file.tensors,
            lines(GGUF[found], config),
            weight_shapes(config),
            dtype,
            waived=ignored(file.tensors),
        ),
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
