"""The closed set of shapes, and the executables compiled for them ahead of time."""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jspec import decode
from jspec.control.base import Size, Tree, depth, order, spelled
from jspec.decode import DecodeState
from jspec.drafters.base import Drafter
from jspec.models.base import Target
from jspec.rounds import DEAD
from jspec.rules import WORD_TOKENS, WORDS
from jspec.verify import Verification

__all__ = ["Buckets", "Executables", "choices", "powers", "sized"]


def powers(largest: int, smallest: int = 1) -> tuple[int, ...]:
    """Powers of two from `smallest` below `largest`, then `largest` itself."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def sized(drafter: Drafter, size: Size) -> Drafter:
    """A drafter whose rounds are of this size, over the same memory."""
    if isinstance(size, Tree):
        return dataclasses.replace(drafter, gamma=size.k, tree_nodes=size.nodes)
    return dataclasses.replace(drafter, gamma=size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buckets:
    """Every shape that a step may have.

    Attributes:
      batch: rows of a round.
      prompt: tokens of a piece of a prompt.
      gammas: drafted tokens of a round, and its tree's nodes (the palette).
    """

    batch: tuple[int, ...]
    prompt: tuple[int, ...]
    gammas: tuple[Size, ...]

    def __post_init__(self) -> None:
        """Refuses what is not a rising list."""
        for field in dataclasses.fields(self):
            sizes = getattr(self, field.name)
            if not sizes or list(sizes) != sorted(set(sizes), key=order):
                raise ValueError(f"{field.name} buckets must rise, not {sizes}")

    @staticmethod
    def fit[S: Size](size: int, sizes: Sequence[S], what: str) -> S:
        """The smallest bucket that holds `size`; of trees, their depth counts."""
        for bucket in sizes:
            if size <= depth(bucket):
                return bucket
        raise ValueError(f"{what} {size} exceeds the largest bucket, {sizes[-1]}")

    @property
    def count(self) -> int:
        """How many executables these shapes need, `catch_up`'s not counted."""
        return len(self.batch) * len(self.gammas) + len(self.prompt) + 2


class Executables:
    """One compiled program per shape; nothing is traced after they are made.

    Weights are flattened once: a module of some hundred arrays costs milliseconds to
    flatten at every call, a tuple of them a tenth of that. With `given`, rounds take
    what the host drafted in the place of the drafter's weights. With `postpones`, a
    prompt can be read for the target alone. Rounds that choose among several budgets
    (`totals`, by K and rows) take prices besides.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        weights: Any,
        state: DecodeState,
        buckets: Buckets,
        *,
        verification: Verification = decode.STANDARD,
        kernels: str | None = None,
        given: bool = False,
        postpones: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.given = given
        self.postpones = postpones
        self.buckets = buckets
        self.seconds: dict[str, float] = {}
        self.totals = choices(drafter, buckets)
        self._leaves, treedef = jax.tree.flatten((target, weights))
        self._leaves = tuple(self._leaves)
        self._progress = progress
        one = np.zeros(1, np.int32)
        vocab = state.rules.seen.shape[1]
        self._entry = jax.tree.map(
            lambda a: np.zeros((1, *a.shape[1:]), a.dtype), state.rows
        )
        shardings = jax.tree.map(lambda a: a.sharding, state)
        self.spans = _spans(buckets, state)
        """Rows that one call of `catch_up` takes; none: nothing is ever postponed."""

        def with_weights(step: Callable[..., Any]) -> Callable[..., Any]:
            def run(leaves: tuple[Any, ...], state: DecodeState, *args: Any) -> Any:
                target, weights = jax.tree.unflatten(treedef, leaves)
                return step(target, weights, state, *args)

            return run

        def with_drafts(step: Callable[..., Any]) -> Callable[..., Any]:
            def run(
                leaves: tuple[Any, ...], state: DecodeState, rows: Any, drafts: Any
            ) -> Any:
                target, _ = jax.tree.unflatten(treedef, leaves)
                return step(target, drafts, state, rows)

            return run

        self._shapes = jax.tree.map(_shape, state)
        self._pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
        admit = self._compile(
            "admit", decode.admit, shardings, np.int32(0), self._entry, one
        )
        bind = self._compile(
            "bind_rules",
            decode.bind_rules,
            shardings,
            np.int32(0),
            np.zeros(3, np.float32),
            np.zeros(vocab, bool),
            np.zeros(vocab, np.float32),
            np.zeros((WORDS, WORD_TOKENS), np.int32),
        )
        prefill = {}
        for postponed in (False, True) if postpones else (False,):
            read = functools.partial(
                decode.prefill, drafter=drafter, postponed=postponed, kernels=kernels
            )
            for size in buckets.prompt:
                prefill[postponed, size] = self._compile(
                    f"prefill {size}{' for the target alone' if postponed else ''}",
                    with_weights(read),
                    shardings,
                    one,
                    np.zeros((1, size), np.int32),
                    one,
                    one,
                    weights=True,
                )
        round = {}
        self._prices: dict[tuple[Size, int], decode.Prices] = {}
        for gamma in buckets.gammas:
            step = functools.partial(
                decode.decode_round,
                drafter=sized(drafter, gamma),
                verification=verification,
                kernels=kernels,
            )
            step = with_drafts(step) if given else with_weights(step)
            for batch in buckets.batch:
                last: tuple[Any, ...] = ()
                if given:
                    last = (_no_drafts(batch, depth(gamma)),)
                elif self.totals.get((gamma, batch)):
                    blank = decode.no_prices(sized(drafter, gamma), batch)
                    last = (jax.tree.map(np.array, blank),)
                    self._prices[gamma, batch] = last[0]
                round[gamma, batch] = self._compile(
                    f"round K={spelled(gamma)} batch={batch}",
                    step,
                    (shardings, None),
                    np.zeros(batch, np.int32),
                    *last,
                    weights=True,
                )

        catch_up = {
            size: self._compile(
                f"catch up batch={size}",
                with_weights(functools.partial(decode.catch_up, drafter=drafter)),
                shardings,
                np.zeros(size, np.int32),
                weights=True,
            )
            for size in self.spans
        }
        with self._pool:
            self._catch_up = {size: f.result() for size, f in catch_up.items()}
            self._admit, self._bind = admit.result(), bind.result()
            self._prefill = {shape: f.result() for shape, f in prefill.items()}
            self._round = {shape: f.result() for shape, f in round.items()}

    def _compile(
        self,
        name: str,
        step: Callable[..., Any],
        out: Any,
        *args: Any,
        weights: bool = False,
    ) -> Future[Callable[..., Any]]:
        """Traces now, compiles beside the next trace."""
        started = time.perf_counter()
        jitted = jax.jit(step, donate_argnums=int(weights), out_shardings=out)
        leading = (jax.tree.map(_shape, self._leaves),) if weights else ()
        lowered = jitted.lower(*leading, self._shapes, *args)
        traced = time.perf_counter() - started

        def compile() -> Callable[..., Any]:
            started = time.perf_counter()
            compiled = lowered.compile()
            self.seconds[name] = traced + time.perf_counter() - started
            if self._progress is not None:
                count = self.buckets.count + len(self.spans)
                count += len(self.buckets.prompt) if self.postpones else 0
                self._progress(name, len(self.seconds), count)
            return compiled

        return self._pool.submit(compile)

    def blank(self) -> Any:
        """A `Rows` of one row for the host to fill in: of numpy arrays, all zero."""
        return jax.tree.map(np.copy, self._entry)

    def admit(
        self,
        state: DecodeState,
        row: int,
        entry: decode.Rows,
        drafted: int | None = None,
    ) -> DecodeState:
        """Gives a row to a request.

        Args:
          state: donated.
          row: which.
          entry: its values.
          drafted: how many of the tokens it has the drafter has read; `None`: all.
        """
        read = entry.length if drafted is None else np.array([drafted], np.int32)
        return self._admit(state, np.int32(row), entry, read)

    def bind_rules(
        self,
        state: DecodeState,
        row: int,
        penalties: Any,
        seen: Any,
        bias: Any,
        words: Any,
    ) -> DecodeState:
        """Gives a row its penalties, its bias and its forbidden words."""
        return self._bind(state, np.int32(row), penalties, seen, bias, words)

    def prefill(
        self,
        state: DecodeState,
        row: int,
        tokens: Sequence[int],
        following: int,
        *,
        postponed: bool = False,
    ) -> DecodeState:
        """Reads a piece of a prompt; if `postponed`, the drafter does so later."""
        size = Buckets.fit(len(tokens), self.buckets.prompt, "a piece of a prompt of")
        padded = np.zeros((1, size), np.int32)
        padded[0, : len(tokens)] = tokens

        def one(value: int) -> np.ndarray:
            return np.array([value], np.int32)

        return self._prefill[postponed, size](
            self._leaves, state, one(row), padded, one(len(tokens)), one(following)
        )

    def catch_up(self, state: DecodeState, rows: Sequence[int]) -> DecodeState:
        """Lets the drafter observe a piece of what it has not, in the rows named."""
        size = Buckets.fit(len(rows), self.spans, "a batch of")
        padded = np.full(size, state.rows.anchor.shape[0], np.int32)
        padded[: len(rows)] = rows
        return self._catch_up[size](self._leaves, state, padded)

    def round(
        self,
        state: DecodeState,
        rows: Sequence[int],
        gamma: Size,
        drafts: tuple[np.ndarray, np.ndarray] | None = None,
        prices: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[DecodeState, decode.Emission]:
        """Decodes one round of the rows named.

        Args:
          state: donated.
          rows: which.
          gamma: of the executable.
          drafts: tokens and parents of the rows' drafts, of at most `gamma` nodes;
            where drafts come from the host, and nowhere else.
          prices: what the fields of `decode.Prices` are, where `totals` leave a choice.
        """
        size = Buckets.fit(len(rows), self.buckets.batch, "a batch of")
        padded = np.full(size, state.rows.anchor.shape[0], np.int32)
        padded[: len(rows)] = rows
        if (gamma, size) in self._prices:
            told = jax.tree.map(np.copy, self._prices[gamma, size])
            for field in dataclasses.fields(told):
                getattr(told, field.name)[...] = (prices or {})[field.name]
            return self._round[gamma, size](self._leaves, state, padded, told)
        if not self.given:
            return self._round[gamma, size](self._leaves, state, padded)
        put = _no_drafts(size, depth(gamma))
        for whole, part in zip(put, drafts or (), strict=False):
            whole[: part.shape[0], : part.shape[1]] = part
        return self._round[gamma, size](self._leaves, state, padded, put)


def choices(
    drafter: Drafter, buckets: Buckets
) -> dict[tuple[Size, int], tuple[int, ...]]:
    """The drafts of the passes that rounds choose from, by size and rows."""
    totals = {
        (gamma, batch): decode.budget_totals(sized(drafter, gamma), batch)
        for gamma in buckets.gammas
        for batch in buckets.batch
    }
    return {shape: chosen for shape, chosen in totals.items() if chosen}


def _spans(buckets: Buckets, state: DecodeState) -> tuple[int, ...]:
    """One row, or all: rows catch up rarely, and every shape is a compilation."""
    if state.backlog is None or buckets.gammas == (0,):
        return ()
    return tuple(sorted({1, buckets.batch[-1]}))


def _no_drafts(batch: int, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (batch, gamma)
    return np.zeros(shape, np.int32), np.full(shape, DEAD, np.int32)


def _shape(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
