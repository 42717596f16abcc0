"""A target's embedding in fewer dimensions, for drafters that need one of their own."""

from typing import Any

import numpy as np

__all__ = ["condensed", "level", "softened"]


def condensed(target: Any, width: int, *, size: float = 1.0) -> np.ndarray:
    """The target's embedding along its `width` strongest directions.

    The best approximation of that rank (Eckart and Young 1936), so tokens that the
    target takes for alike begin alike. What all tokens share is taken off before: it
    may be most of each (half of the squares in `smollm2-135m`), tells nothing, and
    would be what a narrow state holds.

    Args:
      target: whose embedding.
      width: of the result.
      size: root mean square of its entries.
    """
    table = np.asarray(target.embed[...], np.float32)
    table = table - table.mean(0)
    _, directions = np.linalg.eigh(table.T @ table)
    low = table @ directions[:, ::-1][:, :width]
    low = np.pad(low, ((0, 0), (0, width - low.shape[1])))
    return (low * (size / np.sqrt(np.square(low).mean()))).astype(np.float32)


def level(target: Any) -> float:
    """What the entries of the target's embedding are multiplied by to have size one."""
    return float(
        1 / np.sqrt(np.square(np.asarray(target.embed[...], np.float32)).mean())
    )


def softened(target: Any, width: int) -> np.ndarray:
    """The gain of a final norm before the target's head: first logits of size one.

    With a gain of one they are as large as a row of the head is long, and a drafter is
    sure of what it does not know.
    """
    return np.full(width, level(target) / np.sqrt(width), np.float32)
