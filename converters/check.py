"""Whether a converted checkpoint computes what transformers computes."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np

from converters.export import export

__all__ = ["BOUND", "Difference", "difference"]

BOUND = 1e-4
"""The largest difference of a logit, in float32, that rounding explains.

For logits of up to ten; larger ones carry rounding in proportion (transformers in
float32 is 1e-4 away from itself in float64 where SmolLM2's logits reach 32).
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference of a logit, and the largest logit."""

    worst: float
    largest: float

    @property
    def bound(self) -> float:
        """What `worst` may be."""
        return BOUND * max(1.0, self.largest / 10)

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.bound


def difference(
    path: Path, source: Path | None = None, *, rows: int = 2, length: int = 48
) -> Difference:
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
            form = Path(folder) / "model"
            export(path, form)
            return difference(path, form, rows=rows, length=length)
    try:
        import torch
        import transformers
        from transformers.utils import logging
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
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    if bars:
        logging.enable_progress_bar()
    with torch.no_grad():
        theirs = reference.eval()(torch.from_numpy(ids)).logits.numpy()
    return Difference(
        worst=float(np.abs(ours - theirs).max()), largest=float(np.abs(theirs).max())
    )
