"""The shell: dispatches rounds for requests, reads what they gave one round late."""

import collections
import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jspec.cache import CacheLayout
from jspec.control.base import Controller, Size, Static, Tree, depth, spelled
from jspec.decode import (
    SPAN,
    STANDARD,
    STOPS,
    DecodeState,
    Emission,
    Finish,
    says_confidence,
    spare_slots,
)
from jspec.drafters.base import Drafter, HostDrafter
from jspec.engine.buckets import Buckets, Executables, choices
from jspec.engine.host import HostSide
from jspec.engine.pages import PagePool
from jspec.engine.request import Emitted, Request
from jspec.engine.scheduler import Admission, Plan, Prefill, Scheduler
from jspec.models.base import Target
from jspec.params import FinishReason, SamplingParams
from jspec.rules import WORD_TOKENS, WORDS
from jspec.verify import Verification

__all__ = ["Counters", "Engine"]

REASONS: dict[Finish, FinishReason] = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.ERROR: "error",
}


@dataclasses.dataclass(kw_only=True)
class Counters:
    """What the engine did since it was made; times in seconds.

    Attributes:
      requests: that ended, by finish reason.
      rounds: target passes that decoded at least one row.
      row_rounds: the rows of those passes that delivered something.
      emitted: tokens delivered.
      drafted: tokens offered to the target, of rows that delivered something.
      accepted: drafted tokens delivered.
      prompt_tokens: prompt tokens read.
      cached_tokens: prompt tokens found in the cache.
      dispatch_seconds: spent handing work to the device.
      wait_seconds: spent waiting for the device.
      host_seconds: spent on everything else while there was work.
      gammas: rounds by drafted tokens.
      nodes: rounds by the nodes of their tree, where a controller chooses these.
      totals: rounds by the drafts that their pass had room for, where they chose that.
      switches: rounds of another size (drafted tokens, tree) than the round before.
      catch_ups: times the drafter observed what rounds without drafts had left.
    """

    requests: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )
    rounds: int = 0
    row_rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    dispatch_seconds: float = 0.0
    wait_seconds: float = 0.0
    host_seconds: float = 0.0
    gammas: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    nodes: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    totals: collections.Counter[int] = dataclasses.field(
        default_factory=collections.Counter
    )
    switches: int = 0
    catch_ups: int = 0


class Engine:
    """Continuous batching over one device state. One thread calls `step`.

    `submit` and `abort` may be called from any thread; they take effect at the next
    step.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        weights: Any,
        state: DecodeState,
        *,
        layout: CacheLayout,
        buckets: Buckets,
        max_model_len: int,
        verification: Verification = STANDARD,
        kernels: str | None = None,
        prefix_cache: bool = True,
        seed: int = 0,
        controller: Controller | None = None,
        host: HostDrafter | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """Compiles every shape.

        Args:
          target: the model.
          drafter: the method; its `gamma` is what a round drafts at most.
          weights: the drafter's.
          state: rows that hold nothing.
          layout: of `state`.
          buckets: every shape a step may have.
          max_model_len: most tokens of a prompt and its continuation.
          verification: which drafts are kept.
          kernels: the implementation of what has a kernel; `None`: by platform.
          prefix_cache: whether prompts that begin alike share pages.
          seed: of requests that have none.
          controller: chooses the drafted tokens of each round from batch and median
            context, and is told one round late what was accepted; `None`: always the
            drafter's `gamma`.
          host: drafts outside the device, where `drafter` offers what it is given.
            Then a round is read before the next is dispatched.
          progress: told of every executable: its name, how many are done, of how many.
        """
        spare = spare_slots(target, drafter, weights, state)
        if spare and layout.room < max_model_len + spare:
            raise ValueError(
                f"a layout with room {layout.room} is too small: max_model_len "
                f"{max_model_len} and a drafted tree take {max_model_len + spare} slots"
            )
        _check_trees(drafter, buckets, spare)
        self.config = target.config
        self.gamma = drafter.gamma
        self.verification = verification
        self.layout = layout
        self.buckets = buckets
        self.counters = Counters()
        self._controller: Controller = controller or Static(self.gamma)
        self._hear = None
        if getattr(controller, "confident", False):
            self._hear = getattr(controller, "hear", None)
        if self._hear and not says_confidence(target, drafter, weights, state):
            raise ValueError(
                "the schedule follows what the drafter says of its drafts, and this "
                "method's drafts say nothing of themselves; schedule='goodput:PATH' "
                "needs no more than a cost table"
            )
        self._prices = _priced(controller, choices(drafter, buckets))
        self._last_gamma: Size | None = None
        self._seed = seed
        self._unseeded = 0
        self._vocab = target.config.vocab_size
        self._tokens = target.config.tokens
        postpones = (
            0 in self._controller.palette
            and self.gamma > 0
            and state.backlog is not None
            and state.backlog.features is None
        )
        self.executables = Executables(
            target,
            drafter,
            weights,
            state,
            buckets,
            verification=verification,
            kernels=kernels,
            given=host is not None,
            postpones=postpones,
            progress=progress,
        )
        self.host = None if host is None else HostSide(host)
        backlog = state.backlog
        self._keeps_features = backlog is not None and backlog.features is not None
        self._state: DecodeState | None = state
        self._pool = PagePool(layout.pages, layout.page_size, prefix_cache)
        self.scheduler = Scheduler(
            max_batch=layout.rows,
            pool=self._pool,
            prefill_chunk=buckets.prompt[-1],
            max_model_len=max_model_len,
            remembers=bool(jax.tree.leaves(state.memory.pages)),
            rereads=postpones,
            spare=spare,
        )
        self._inbox: collections.deque[Callable[[], None]] = collections.deque()
        self._arrived = threading.Event()
        self._stops: dict[int, tuple[int, ...]] = {}
        self._behind = [0] * layout.rows
        """Tokens that each row's drafter has not observed."""
        self._pending: tuple[Plan, Size, bool, Emission | None] | None = None

    @property
    def free_pages(self) -> int:
        """Pages that no request holds."""
        return self._pool.available

    def check(self, request: Request, stops: Sequence[int]) -> None:
        """Refuses a request that could never be served; callable from any thread.

        Raises:
          ValueError: the sentence says what is wrong.
        """
        self.scheduler.check(request)
        bad = [i for i in request.prompt_ids if not 0 <= i < self._tokens]
        if bad:
            raise ValueError(
                f"prompt id {bad[0]} is not a token; ids run from 0 to "
                f"{self._tokens - 1}"
            )
        bad = [i for i in (request.params.logit_bias or {}) if i >= self._tokens]
        bad += [i for i in request.params.stop_token_ids if i >= self._tokens]
        if bad:
            raise ValueError(
                f"id {bad[0]} in logit_bias or stop_token_ids is not a token; ids run "
                f"from 0 to {self._tokens - 1}"
            )
        if len(request.forbidden) > WORDS:
            raise ValueError(
                f"bad_words make {len(request.forbidden)} token sequences (a word with "
                f"and without a space before it); a request can have {WORDS}"
            )
        longest = max(map(len, request.forbidden), default=0)
        if longest > WORD_TOKENS:
            raise ValueError(
                f"a bad word has {longest} tokens; it can have {WORD_TOKENS}"
            )
        if len(stops) > STOPS:
            raise ValueError(
                f"a request can have {STOPS} stop tokens, the model's own included, "
                f"not {len(stops)}"
            )
        drafted = request.params.num_speculative_tokens
        if drafted is not None and drafted > self.gamma:
            raise ValueError(
                f"num_speculative_tokens {drafted} exceeds the server's {self.gamma}"
            )

    def submit(self, request: Request, stops: Sequence[int]) -> None:
        """Queues a request that `check` let pass.

        Args:
          request: with its reader.
          stops: tokens that end it.
        """
        ids = tuple(stops)
        request.lossy = self.verification.lossy

        def arrive() -> None:
            self._stops[request.id] = ids
            self.scheduler.submit(request)

        self._inbox.append(arrive)
        self._arrived.set()

    def abort(self, request: Request) -> None:
        """Ends a request at its caller's wish; one that has ended is left alone."""

        def leave() -> None:
            if not request.finished:
                self.scheduler.abort(request.id)
                self._stops.pop(request.id, None)
                self.counters.requests["abort"] += 1

        self._inbox.append(leave)
        self._arrived.set()

    def abort_all(self) -> None:
        """Ends every request that was submitted until now."""

        def leave() -> None:
            for request in self.scheduler.requests:
                self.scheduler.abort(request.id)
                self.counters.requests["abort"] += 1
            self._stops.clear()

        self._inbox.append(leave)
        self._arrived.set()

    @property
    def idle(self) -> bool:
        """Whether `step` would find nothing to do."""
        return not self._inbox and self._pending is None and self.scheduler.idle

    def wait(self, seconds: float | None = None) -> None:
        """Sleeps until something arrives."""
        self._arrived.wait(seconds)

    def wake(self) -> None:
        """Ends a `wait`."""
        self._arrived.set()

    def step(self) -> None:
        """Dispatches the next round, then reads the previous one."""
        started = time.perf_counter()
        self._arrived.clear()
        while self._inbox:
            self._inbox.popleft()()
        waited = 0.0 if self.host is None else self._finish()
        plan = self.scheduler.plan()
        planned = time.perf_counter()
        running = None if plan.empty else (plan, *self._dispatch(plan))
        dispatched = time.perf_counter()
        waited += self._finish()
        self._pending = running
        counters = self.counters
        counters.dispatch_seconds += dispatched - planned
        counters.wait_seconds += waited
        counters.host_seconds += (
            time.perf_counter() - dispatched - waited + planned - started
        )

    def _finish(self) -> float:
        """Reads and settles the round in flight; how many seconds it waited for it."""
        if self._pending is None:
            return 0.0
        began = time.perf_counter()
        plan, k, observed, emission = self._pending
        self._pending = None
        emitted = [] if emission is None else self._read(plan, emission)
        waited = time.perf_counter() - began
        self._settle(plan, emitted, k, observed)
        return waited

    def fail(self, error: str) -> None:
        """Ends every request after a fault of ours."""
        while self._inbox:
            with contextlib.suppress(Exception):  # the first fault is the one to tell
                self._inbox.popleft()()
        for request in self.scheduler.requests:
            self.scheduler.fail(request.id, error)
            self.counters.requests["error"] += 1

    def _dispatch(self, plan: Plan) -> tuple[Size, bool, Emission | None]:
        """The chosen size, whether the drafter saw all, and what was emitted."""
        state = self._state
        assert state is not None, "the state was lost in a step that failed"
        self._state = None
        for admission in plan.admit:
            state = self._admit(state, admission)
        k: Size = 0
        observed, emission = True, None
        if plan.rows:
            k = self._round_gamma(plan)
        if plan.prefill is not None:
            pause = k == 0 if plan.rows else self._last_gamma == 0
            state = self._prefill(state, plan.prefill, pause=pause)
        if plan.rows:
            gamma, drafts = k, None
            if self.host is not None:
                drafts = self.host.draft(plan.requests, depth(gamma))
                gamma = Buckets.fit(drafts[0].shape[1], self.buckets.gammas, "a draft")
            self.counters.rounds += 1
            self.counters.gammas[depth(gamma)] += 1
            if isinstance(gamma, Tree):
                self.counters.nodes[gamma.nodes] += 1
            self.counters.switches += self._last_gamma not in (None, gamma)
            self._last_gamma = gamma
            if gamma != 0:
                state = self._catch_up(state, plan.rows)
            prices = self._told(plan, gamma)
            state, emission = self.executables.round(
                state, plan.rows, gamma, drafts, prices
            )
            if gamma == 0 and self.executables.spans:
                for row in plan.rows:
                    self._behind[row] += 1
                full = max(self._behind[row] for row in plan.rows) >= SPAN
                observed = full and self._keeps_features
                if observed:
                    state = self._catch_up(state, plan.rows)
        self._state = state
        return k, observed, emission

    def _prefill(
        self, state: DecodeState, piece: Prefill, *, pause: bool
    ) -> DecodeState:
        """Reads a piece of a prompt; while nothing is drafted, for the target alone.

        A drafter that is behind in a row stays so until it catches up.
        """
        self.counters.prompt_tokens += len(piece.tokens)
        later = self.executables.postpones and (pause or self._behind[piece.row] > 0)
        if later:
            self._behind[piece.row] += len(piece.tokens)
            self.scheduler.postpone(piece)
        return self.executables.prefill(
            state, piece.row, piece.tokens, piece.following, postponed=later
        )

    def _catch_up(self, state: DecodeState, rows: Sequence[int]) -> DecodeState:
        """Lets the drafter observe what rounds without drafts have left of these."""
        late = [row for row in rows if self._behind[row]]
        # Without features, the token before may be shown again.
        again = not self._keeps_features
        tokens = max((self._behind[row] + again for row in late), default=0)
        pieces = -(-tokens // SPAN)
        for _ in range(pieces):
            state = self.executables.catch_up(state, late)
        for row in late:
            self._behind[row] = 0
        self.counters.catch_ups += pieces
        return state

    def _round_gamma(self, plan: Plan) -> Size:
        """The controller's choice, but no more than any row of the round may use."""
        overload = getattr(self._controller, "overload", None)
        if overload is not None:
            used = 1 - self._pool.available / self._pool.pages
            waiting = self.scheduler.waiting
            overload.observe(kv_usage=100 * used, preempted=0, queue=waiting)
        most = max(self._allowed(request) for request in plan.requests)
        chosen = self._controller.k(plan.batch, plan.context)
        if isinstance(chosen, Tree) and chosen.k <= most:
            return chosen
        k = min(depth(chosen), most)
        return Buckets.fit(k, self.buckets.gammas, "num_speculative_tokens")

    def _told(self, plan: Plan, gamma: Size) -> Mapping[str, Any] | None:
        """What the round chooses its budget by, if it does."""
        if self._prices is None:
            return None
        size = Buckets.fit(plan.batch, self.buckets.batch, "a batch of")
        if (gamma, size) not in self.executables.totals:
            return None
        return self._prices(size, plan.context, depth(gamma))

    def _allowed(self, request: Request) -> int:
        own = request.params.num_speculative_tokens
        return self.gamma if own is None else own

    def _admit(self, state: DecodeState, admission: Admission) -> DecodeState:
        request, grant = admission.request, admission.grant
        params = request.params
        self.counters.cached_tokens += grant.cached_tokens
        stops = self._stops.pop(request.id)
        known = grant.drafted * self.layout.page_size
        self._behind[admission.row] = grant.cached_tokens - known
        drafted = params.num_speculative_tokens
        entry = self.executables.blank()
        entry.anchor[0] = request.prompt_ids[-1]
        entry.length[0] = grant.cached_tokens
        entry.table[0] = self.layout.pages
        entry.table[0, : len(grant.pages)] = grant.pages
        entry.live[0] = True
        entry.emitted[0] = 0
        entry.budget[0] = request.limit
        entry.earliest[0] = params.min_tokens
        entry.stops[0] = -1
        entry.stops[0, : len(stops)] = stops
        entry.gamma[0] = self.gamma if drafted is None else drafted
        entry.sampling.temperature[0] = params.temperature
        entry.sampling.top_k[0] = params.top_k
        entry.sampling.top_p[0] = params.top_p
        entry.sampling.min_p[0] = params.min_p
        entry.sampling.seed[0] = self._key(params)
        state = self.executables.admit(state, admission.row, entry, known)
        penalties = (
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        forbidden = request.forbidden
        if penalties != (1.0, 0.0, 0.0) or params.logit_bias or forbidden:
            seen = np.zeros(self._vocab, bool)
            seen[list(request.prompt_ids)] = True
            bias = np.zeros(self._vocab, np.float32)
            for token, value in (params.logit_bias or {}).items():
                bias[token] = value
            words = np.full((WORDS, WORD_TOKENS), -1, np.int32)
            for line, word in zip(words, forbidden, strict=False):
                line[-len(word) :] = word
            state = self.executables.bind_rules(
                state,
                admission.row,
                np.array(penalties, np.float32),
                seen,
                bias,
                words,
            )
        return state

    def _key(self, params: SamplingParams) -> np.ndarray:
        """A request's seed as key words; without one, the server's next."""
        if params.seed is not None:
            words = params.seed.to_bytes(8, "big")
        else:
            self._unseeded += 1
            text = f"{self._seed} {self._unseeded}".encode()
            words = hashlib.blake2b(text, digest_size=8).digest()
        return np.frombuffer(words, ">u4").astype(np.uint32)

    def _read(self, plan: Plan, emission: Emission) -> list[Emitted]:
        """The one place that waits for the device."""
        seen = jax.device_get(emission)
        if seen.total is not None:
            self.counters.totals[int(seen.total)] += 1
        return [
            Emitted(
                tokens=seen.tokens[i, : seen.count[i]].tolist(),
                drafted=int(seen.drafted[i]),
                accepted=int(seen.accepted[i]),
                confidence=(
                    tuple(seen.confidence[i, 1:].tolist())
                    if self._hear and seen.confidence is not None
                    else ()
                ),
                finish_reason=REASONS.get(Finish(seen.finish[i])),
            )
            for i in range(plan.batch)
        ]

    def _settle(
        self, plan: Plan, emitted: list[Emitted], k: Size, observed: bool
    ) -> None:
        before = [request.delivered for request in plan.requests]
        counted = [request.speculation for request in plan.requests]
        for request, one in zip(plan.requests, emitted, strict=True):
            if one.finish_reason == "error" and request.error is None:
                request.error = "the model's law is not finite at the next token"
        ended = self.scheduler.commit(plan, emitted, observed=observed)
        counters = self.counters
        for request, tokens, was in zip(plan.requests, before, counted, strict=True):
            now = request.speculation
            counters.emitted += request.delivered - tokens
            counters.row_rounds += now.rounds - was.rounds
            counters.drafted += now.drafted - was.drafted
            counters.accepted += now.accepted - was.accepted
        for request in ended:
            counters.requests[str(request.finish_reason)] += 1
        # A text that ended and a request that allows less have shown less than K.
        shown = [
            one
            for request, one in zip(plan.requests, emitted, strict=True)
            if not request.finished and self._allowed(request) >= depth(k)
        ]
        if shown:
            accepted = [one.accepted for one in shown]
            if self._hear:
                said = np.array([one.confidence for one in shown])
                self._hear(said, [one.drafted for one in shown], accepted)
            self._controller.update(accepted, plan.batch, k)


def _priced(
    controller: Any, totals: Mapping[tuple[Size, int], tuple[int, ...]]
) -> Callable[..., Mapping[str, Any]] | None:
    """Offers a controller the budgets of rounds; what prices them, if there are any."""
    if not totals:
        return None
    known = all(hasattr(controller, member) for member in ("offer", "prices"))
    if not (known and getattr(controller, "confident", False)):
        raise ValueError(
            "several ragged_budget leave a choice to every round, which needs measured "
            "costs and confidences that are believed: schedule='budget:PATH', with a "
            "file of jspec calibrate"
        )
    controller.offer({(batch, depth(k)): some for (k, batch), some in totals.items()})
    return controller.prices


def _check_trees(drafter: Drafter, buckets: Buckets, spare: int) -> None:
    """Refuses trees that the method cannot make that small or that large."""
    for size in buckets.gammas:
        if not isinstance(size, Tree):
            continue
        if not (drafter.branching and hasattr(drafter, "tree_nodes")):
            raise ValueError(
                f"the schedule chooses trees (K/nodes {spelled(size)}), and this "
                "method, with its options, drafts none of a chosen number of nodes"
            )
        if size.nodes > spare + 1:
            raise ValueError(
                f"the schedule's tree of {size.nodes} nodes exceeds tree_nodes, "
                f"{spare + 1}: give method_options={{'tree_nodes': {size.nodes}}}"
            )
