"""Whether a converted checkpoint computes what transformers computes."""

import tempfile
from pathlib import Path

import numpy as np

from converters.export import export

__all__ = ["BOUND", "difference"]

BOUND = 1e-4
"""The largest difference of a logit, in float32, that rounding explains."""


def difference(
    path: Path, source: Path | None = None, *, rows: int = 2, length: int = 48
) -> float:
    """The largest difference of a logit, in float32, over random texts.

    Args:
      path: a jspec checkpoint of a target.
      source: the Hugging Face directory that it came from; `None`: its own Hugging
        Face form, which checks the arithmetic and not the reading.
      rows: how many texts.
      length: tokens of each.

    Raises:
      ValueError: torch or transformers is missing, or cannot load the model.
    """
    if source is None:
        with tempfile.TemporaryDirectory() as folder:
            form = export(path, Path(folder) / "model") and Path(folder) / "model"
            return difference(path, form, rows=rows, length=length)
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ValueError(
            f"--check needs {error.name}: pip install 'jspec[convert]'"
        ) from None
    import jax.numpy as jnp

    from jspec import checkpoint, models

    config, weights = checkpoint.load(path, dtype=jnp.float32)
    length = min(length, config.max_position)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.tokens, (rows, length))
    ours = np.asarray(
        models.logits(models.build(config, weights), jnp.asarray(ids, jnp.int32))
    )
    del weights
    reference = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        theirs = reference.eval()(torch.from_numpy(ids)).logits.numpy()
    return float(np.abs(ours - theirs).max())
