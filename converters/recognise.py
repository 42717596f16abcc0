"""What a directory holds, in the order in which the marks are reliable."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from converters import wrappers
from converters.configs import ARCHITECTURES, MODEL_TYPES

__all__ = ["read_config", "read_json", "recognise"]

ALSO = {"MiMoForCausalLM": "qwen2"}
"""Architectures that are another's, but for the MTP modules beside their layers."""

FAMILY = {**ARCHITECTURES, **wrappers.ARCHITECTURES, **ALSO}
TYPES = {**MODEL_TYPES, **wrappers.MODEL_TYPES}


def read_json(file: Path) -> dict[str, Any]:
    """An object out of a JSON file.

    Raises:
      ValueError: it is missing, or is no JSON object.
    """
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{file} holds no JSON object")
    return parsed


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a Hugging Face directory, target or drafter.

    Raises:
      ValueError: there is none, or it is an adapter's directory.
    """
    if (folder / "adapter_config.json").is_file():
        raise _refusal(folder, "a LoRA adapter")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} has no config.json: it is no Hugging Face model")
    return read_json(folder / "config.json")


def recognise(folder: Path, tensors: Iterable[str] = ()) -> str:
    """The family of the target in a Hugging Face directory.

    Args:
      folder: holds config.json.
      tensors: names of its tensors, which tell drafters that the JSON does not.

    Raises:
      ValueError: it is no target of a supported family; the sentence says what it is.
    """
    config = read_config(folder)
    architectures = config.get("architectures") or []
    drafter = _drafter(config, architectures, set(tensors))
    if drafter is not None:
        raise _refusal(folder, drafter)
    for name in architectures:
        if name in FAMILY:
            return FAMILY[name]
    if architectures:
        raise ValueError(
            f"{folder}: the architecture {architectures[0]} is not supported; "
            f"{', '.join(FAMILY)} are"
        )
    kind = config.get("model_type")
    if kind in TYPES:
        return TYPES[kind]
    raise ValueError(
        f"{folder}: the model type {kind!r} is not supported; {', '.join(TYPES)} are"
    )


def _refusal(folder: Path, what: str) -> ValueError:
    return ValueError(
        f"{folder} is {what}, not a target model; converting it is not supported yet"
    )


def _drafter(
    config: Mapping[str, Any], architectures: list[str], tensors: set[str]
) -> str | None:
    speculators = config.get("speculators_model_type")
    if speculators is not None:
        return f"a drafter of the speculators family {speculators!r}"
    kinds = {
        "gemma4_assistant": "a Gemma 4 assistant (frozen-KV MTP drafter)",
        "medusa": "a Medusa drafter",
        "mlp_speculator": "an MLP speculator",
        "eagle": "an EAGLE drafter",
    }
    if config.get("model_type") in kinds:
        return kinds[config["model_type"]]
    for name in architectures:
        for mark, what in (
            ("DFlash2", "a DFlash2 drafter"),
            ("DFlash", "a DFlash drafter"),
            ("DSpark", "a DSpark drafter"),
            ("Eagle3", "an EAGLE-3 drafter"),
            ("Eagle", "an EAGLE drafter"),
            ("Medusa", "a Medusa drafter"),
        ):
            if mark in name:
                return what
    if "dflash_config" in config:
        return "a DFlash drafter"
    if "pard_token" in config:
        return "a PARD drafter"
    if "medusa_num_heads" in config:
        return "a Medusa drafter"
    if any(key.startswith("dspark_") for key in config):
        return "a DSpark drafter"
    bare = {name.removeprefix("model.") for name in tensors}
    if "mask_hidden" in bare:
        return "a P-EAGLE drafter"
    if "d2t" in bare or any(name.startswith("midlayer.") for name in bare):
        return "an EAGLE-3 drafter"
    if any(name.startswith("candidate_selector") for name in bare):
        return "a DFlash2 drafter"
    if any(name.startswith("markov_head") for name in bare):
        return "a DSpark drafter"
    if "fc.weight" in bare:
        if "hidden_norm.weight" in bare and "embed_tokens.weight" not in bare:
            return "a DFlash drafter"
        return "an EAGLE drafter"
    return None
