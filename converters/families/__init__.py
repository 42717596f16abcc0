"""One table per family: how its tensors are called elsewhere."""

from collections.abc import Mapping
from types import MappingProxyType

from converters.families import gemma, llama, mistral, qwen2, qwen3
from converters.tables import Table

__all__ = ["GGUF", "HUGGING_FACE"]

HUGGING_FACE: Mapping[str, Table] = MappingProxyType(
    {
        "llama": llama.HUGGING_FACE,
        "mistral": mistral.HUGGING_FACE,
        "qwen2": qwen2.HUGGING_FACE,
        "qwen3": qwen3.HUGGING_FACE,
        "gemma2": gemma.GEMMA_2,
        "gemma3": gemma.GEMMA_3,
        "gemma4": gemma.GEMMA_4,
    }
)
GGUF: Mapping[str, Table] = MappingProxyType(
    {"llama": llama.GGUF, "qwen2": qwen2.GGUF, "qwen3": qwen3.GGUF}
)
