"""Times the engine's own rounds over pages of a given length, without any text."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jspec.control.base import Size, depth
from jspec.engine.engine import Engine

__all__ = ["fits", "time_budgets", "time_rounds"]


def fits(engine: Engine, *, batch: int, gammas: Sequence[Size], context: int) -> bool:
    """Whether there are rows and pages for such rounds."""
    layout = engine.layout
    need = _pages(engine, gammas, context)
    return (
        batch <= layout.rows
        and need <= layout.row_pages
        and need * batch <= layout.pages
    )


def time_rounds[S: Size](
    engine: Engine,
    *,
    batch: int,
    gammas: Sequence[S],
    context: int,
    repeats: int,
) -> dict[S, list[float]]:
    """Milliseconds of whole rounds, from dispatch until the device is done.

    Each row has pages of its own, as many as `context` tokens take; what is written in
    them does not change how long they are read. Rows are greedy. K values take turns,
    so that what disturbs the machine disturbs all of them; the first turn is not
    counted.

    Args:
      engine: that serves nobody, before and after: what its pages held is lost.
      batch: rows.
      gammas: drafted tokens, or trees; each has an executable.
      context: tokens in the cache of each row.
      repeats: timed rounds of each.
    """
    pages = _ready(engine, batch, gammas, context)
    spent: dict[S, list[float]] = {gamma: [] for gamma in gammas}
    for turn in range(repeats + 1):
        for gamma in gammas:
            ms = _round(engine, batch, gamma, context, pages)
            if turn:
                spent[gamma].append(ms)
    return spent


def time_budgets(
    engine: Engine, *, batch: int, ks: Sequence[Size], context: int, repeats: int
) -> dict[tuple[Size, int], list[float]]:
    """The same of every K and each of its budgets: drafts, all rows together.

    A budget is chosen as rounds choose it, at prices that make any other one endless.
    """
    pages = _ready(engine, batch, ks, context)
    totals = {k: engine.executables.totals[k, batch] for k in ks}
    spent = {(k, total): [] for k in ks for total in totals[k]}
    for turn in range(repeats + 1):
        for k, total in spent:
            ms = np.where(np.array(totals[k]) == total, 1.0, np.inf)
            prices = {"ms": ms, "slope": 1.0, "intercept": 0.0, "usual": 1.0}
            took = _round(engine, batch, k, context, pages, prices)
            if turn:
                spent[k, total].append(took)
    return spent


def _ready(engine: Engine, batch: int, gammas: Sequence[Size], context: int) -> int:
    """The pages of each row; refuses what the engine has no place for."""
    if not engine.idle:
        raise RuntimeError("rounds are timed while the engine serves nobody")
    pages = _pages(engine, gammas, context)
    if not fits(engine, batch=batch, gammas=gammas, context=context):
        raise ValueError(
            f"batch {batch} at context {context} needs {batch * pages} pages and rows "
            f"of as many; there are {engine.layout.pages}"
        )
    return pages


def _pages(engine: Engine, gammas: Sequence[Size], context: int) -> int:
    tokens = context + max(map(depth, gammas)) + 1 + engine.scheduler.spare
    return -(-tokens // engine.layout.page_size)


def _round(
    engine: Engine,
    batch: int,
    gamma: Size,
    context: int,
    pages: int,
    prices: Mapping[str, Any] | None = None,
) -> float:
    k = depth(gamma)
    state, executables = engine._state, engine.executables
    assert state is not None, "the state was lost in a step that failed"
    for row in range(batch):
        entry = executables.blank()
        entry.length[0] = context
        entry.table[0] = engine.layout.pages
        entry.table[0, :pages] = np.arange(row * pages, (row + 1) * pages)
        entry.live[0] = True
        entry.budget[0] = context + k + 2
        entry.stops[0] = -1
        entry.gamma[0] = k
        entry.sampling.top_p[0] = 1.0
        state = executables.admit(state, row, entry)
    drafts = None
    if engine.host is not None and k:
        chain = np.broadcast_to(np.arange(k, dtype=np.int32), (batch, k))
        drafts = np.zeros((batch, k), np.int32), chain
    jax.block_until_ready(state)
    began = time.perf_counter()
    done = jax.block_until_ready(
        executables.round(state, tuple(range(batch)), gamma, drafts, prices)
    )
    ended = time.perf_counter()
    state, gone = done[0], executables.blank()
    gone.table[0] = engine.layout.pages
    for row in range(batch):
        state = executables.admit(state, row, gone)
    engine._state = state
    return 1e3 * (ended - began)
