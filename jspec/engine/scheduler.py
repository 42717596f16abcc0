"""Which request holds which row, whose prompt is read next, and which rows decode.

The engine calls `plan`, dispatches it, and only then reads and commits the plan before:

    plan = scheduler.plan()
    running = dispatch(plan)         # drop, admit, prefill, decode: in this order
    if pending: scheduler.commit(pending.plan, read(pending))
    pending = running

So what a round did is known when the next one is on its way. A request that ended is
still named by that one; its late results are ignored, and its row and pages return when
the last plan that names it was committed. Results belong to requests, never to rows.
"""

import dataclasses
import heapq
import statistics
from collections import deque
from collections.abc import Sequence

from jspec.engine.pages import Grant, PagePool
from jspec.engine.request import Emitted, Request, Stage
from jspec.params import FinishReason

__all__ = ["Admission", "Plan", "Prefill", "Scheduler"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission:
    """A request that gets a row.

    The row's first anchor is the prompt's last token; its length is
    `grant.cached_tokens`, and it lives from the plan that first decodes it.
    """

    request: Request
    row: int
    grant: Grant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefill:
    """A piece of a prompt to read, before the plan's round.

    Attributes:
      request: whose prompt.
      row: its row.
      start: position of the first token.
      tokens: the prompt's next, never its last.
      following: the prompt's token after them.
      last: whether all but the prompt's last token is read then.
    """

    request: Request
    row: int
    start: int
    tokens: tuple[int, ...]
    following: int
    last: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What the engine dispatches in one step, in the order of the fields.

    Attributes:
      drop: rows whose request the host ended; they must not decode any more. They may
        be admitted again by this very plan.
      admit: requests that get a row.
      prefill: at most one piece of one prompt.
      rows: the rows that decode a round, ascending.
      requests: who holds them.
      context: median tokens of the decoding requests, as far as is known; 0: none.
    """

    drop: tuple[int, ...] = ()
    admit: tuple[Admission, ...] = ()
    prefill: Prefill | None = None
    rows: tuple[int, ...] = ()
    requests: tuple[Request, ...] = ()
    context: int = 0

    @property
    def batch(self) -> int:
        """How many rows decode."""
        return len(self.rows)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to dispatch but drops, so nothing to commit."""
        return not (self.admit or self.prefill or self.rows)


@dataclasses.dataclass(eq=False, kw_only=True, slots=True)
class _Seat:
    """A row in the hands of a request.

    Attributes:
      request: its holder.
      row: its number.
      grant: its pages.
      read: prompt tokens whose reading was planned, or that were cached.
      named: plans in flight that name it.
      rounds: those of them that decode it.
      unseen: delivered tokens that the drafter has not observed.
      unread: the prompt's last tokens that it has not read, of those that were read.
    """

    request: Request
    row: int
    grant: Grant
    read: int
    named: int = 0
    rounds: int = 0
    unseen: int = 0
    unread: int = 0


class Scheduler:
    """First come, first served; one piece of a prompt a step; every other row decodes.

    Prompts are read one after the other, so a request is admitted when its own turn to
    be read comes: by then it finds in the cache what those before it have left there.
    Whoever is at the head waits for enough pages, and nobody overtakes.
    """

    def __init__(
        self,
        *,
        max_batch: int,
        pool: PagePool,
        prefill_chunk: int,
        max_model_len: int,
        remembers: bool = False,
        rereads: bool = False,
        spare: int = 0,
    ) -> None:
        """Starts with nobody.

        Args:
          max_batch: rows.
          pool: pages, held by this scheduler alone.
          prefill_chunk: most prompt tokens a step.
          max_model_len: most tokens of a prompt and its continuation.
          remembers: whether the drafter keeps something of its own in the pages. It
            is one token behind: it has not read the last draft of a round that was
            accepted as a whole, nor anything emitted without drafting.
          rereads: whether it may read later, from the tokens alone, what it has not.
          spare: slots that a row needs behind its longest text, for drafted trees.
        """
        for name, value, least in (
            ("max_batch", max_batch, 1),
            ("prefill_chunk", prefill_chunk, 1),
            ("max_model_len", max_model_len, 2),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        self.pool = pool
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.max_model_len = max_model_len
        self.remembers = remembers
        self.rereads = rereads
        self.spare = spare
        self._waiting: dict[int, Request] = {}
        self._seats: dict[int, _Seat] = {}
        self._leaving: list[_Seat] = []
        self._rows = list(range(max_batch))
        self._in_flight: deque[tuple[Plan, tuple[_Seat, ...]]] = deque()
        self._drop: list[int] = []
        self._unpublished: _Seat | None = None

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests with a row."""
        return len(self._seats)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Everyone who waits or has a row."""
        seated = (seat.request for seat in self._seats.values())
        return (*self._waiting.values(), *seated)

    @property
    def free_rows(self) -> int:
        """Rows that nobody holds and no plan in flight names."""
        return len(self._rows)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to plan and nothing to commit."""
        return not (self._waiting or self._seats or self._in_flight)

    def capacity(self, request: Request) -> int:
        """Most tokens that a request's prompt and continuation can have."""
        prompt = len(request.prompt_ids)
        return prompt + min(request.params.max_tokens, self.max_model_len - prompt)

    def check(self, request: Request) -> None:
        """Refuses a request that could never be served.

        Raises:
          ValueError: its prompt is empty, or leaves no room, or the pool is too small.
        """
        prompt = len(request.prompt_ids)
        if prompt == 0:
            raise ValueError("the prompt is empty; it needs at least one token")
        if prompt + 1 > self.max_model_len:
            raise ValueError(
                f"the prompt has {prompt} tokens; with max_model_len "
                f"{self.max_model_len} it can have at most {self.max_model_len - 1}"
            )
        capacity = self.capacity(request)
        needed = self.pool.needed(capacity + self.spare)
        if needed > self.pool.pages:
            tree = f", and {self.spare} of a drafted tree," if self.spare else ""
            raise ValueError(
                f"the prompt's {prompt} tokens and {capacity - prompt} new ones{tree} "
                f"take {needed} pages of {self.pool.page_size} tokens; there are "
                f"{self.pool.pages}"
            )

    def submit(self, request: Request) -> None:
        """Puts a request at the end of the queue.

        Raises:
          ValueError: it could never be served, or was submitted before.
        """
        self.check(request)
        taken = request.id in self._waiting or request.id in self._seats
        if taken or request.stage is not Stage.WAITING:
            raise ValueError(f"request {request.id} was submitted before")
        request.limit = self.capacity(request) - len(request.prompt_ids)
        self._waiting[request.id] = request

    def abort(self, request_id: int) -> None:
        """Ends a request at its caller's wish; one that has ended is left alone."""
        self._end(request_id, "abort")

    def fail(self, request_id: int, error: str) -> None:
        """Ends a request because of a fault of ours."""
        self._end(request_id, "error", error)

    def plan(self) -> Plan:
        """What to dispatch next."""
        self._publish_read_prompt()
        drop, self._drop = tuple(self._drop), []
        reading = self._reading()
        admit = []
        while reading is None and (admission := self._admit()) is not None:
            admit.append(admission)
            reading = self._reading()
        prefill = None if reading is None else self._read(reading)
        decoding = sorted(
            (seat for seat in self._seats.values() if self._decodes(seat)),
            key=lambda seat: seat.row,
        )
        for seat in decoding:
            seat.request.stage = Stage.DECODE
            seat.rounds += 1
        lengths = [len(seat.request.text) for seat in decoding]
        plan = Plan(
            drop=drop,
            admit=tuple(admit),
            prefill=prefill,
            rows=tuple(seat.row for seat in decoding),
            requests=tuple(seat.request for seat in decoding),
            context=statistics.median_low(lengths) if lengths else 0,
        )
        if not plan.empty:
            names = {admission.request.id for admission in admit}
            names |= {request.id for request in plan.requests}
            if prefill is not None:
                names.add(prefill.request.id)
            seats = tuple(self._seats[name] for name in sorted(names))
            for seat in seats:
                seat.named += 1
            self._in_flight.append((plan, seats))
        return plan

    def commit(
        self, plan: Plan, emissions: Sequence[Emitted] = (), *, observed: bool = True
    ) -> list[Request]:
        """Delivers what a plan's round gave, in the order the plans were made.

        Args:
          plan: the oldest that was not committed; not an empty one.
          emissions: one for each of the plan's `rows`.
          observed: whether the drafter has observed all that these rows have.

        Returns:
          the requests that ended with it.
        """
        if not self._in_flight or self._in_flight[0][0] is not plan:
            raise ValueError("plans are committed once each, in the order of planning")
        if len(emissions) != plan.batch:
            raise ValueError(
                f"the plan has {plan.batch} rows and there are {len(emissions)} results"
            )
        _, seats = self._in_flight.popleft()
        for seat in seats:
            seat.named -= 1
        ended = []
        for request, emitted in zip(plan.requests, emissions, strict=True):
            seat = self._seats.get(request.id)
            if seat is None or seat.request is not request:
                continue
            seat.rounds -= 1
            delivered = request.take(emitted)
            seat.unseen = 0 if observed else seat.unseen + delivered
            seat.unread = 0 if observed else seat.unread
            self._publish(seat)
            if request.finished:
                if emitted.finish_reason is None:
                    self._drop.append(seat.row)
                self._leave(seat)
                ended.append(request)
        for seat in [seat for seat in self._leaving if not seat.named]:
            self._leaving.remove(seat)
            self._vacate(seat)
        return ended

    def _end(
        self, request_id: int, reason: FinishReason, error: str | None = None
    ) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting.end(reason, error)
            return
        seat = self._seats.get(request_id)
        if seat is not None:
            seat.request.end(reason, error)
            self._drop.append(seat.row)
            self._leave(seat)

    def _admit(self) -> Admission | None:
        if not self._waiting or not self._rows:
            return None
        request = next(iter(self._waiting.values()))
        grant = self.pool.admit(
            request.prompt_ids,
            self.capacity(request) + self.spare,
            salt=request.params.lora,
        )
        if grant is None:
            return None
        del self._waiting[request.id]
        request.stage = Stage.PREFILL
        request.cached_tokens = grant.cached_tokens
        row = heapq.heappop(self._rows)
        cached, drafted = grant.cached_tokens, grant.drafted * self.pool.page_size
        self._seats[request.id] = _Seat(
            request=request, row=row, grant=grant, read=cached, unread=cached - drafted
        )
        return Admission(request=request, row=row, grant=grant)

    def _reading(self) -> _Seat | None:
        """Whoever's prompt is not read yet; there is one at most."""
        for seat in self._seats.values():
            if seat.read < len(seat.request.prompt_ids) - 1:
                return seat
        return None

    def _read(self, seat: _Seat) -> Prefill:
        prompt = seat.request.prompt_ids
        start = seat.read
        seat.read = min(start + self.prefill_chunk, len(prompt) - 1)
        self._unpublished = seat
        return Prefill(
            request=seat.request,
            row=seat.row,
            start=start,
            tokens=prompt[start : seat.read],
            following=prompt[seat.read],
            last=seat.read == len(prompt) - 1,
        )

    def postpone(self, prefill: Prefill) -> None:
        """The drafter has not read this piece; what it may share waits until it has."""
        self._seats[prefill.request.id].unread += len(prefill.tokens)

    def _publish(self, seat: _Seat) -> None:
        """Makes known what the pages of a text hold: for the target, for the drafter.

        A drafter that reads tokens alone may read them later, whoever's they are;
        another's part has to be there already.
        """
        request = seat.request
        written, prompt = request.written, len(request.prompt_ids) - 1
        if not self.remembers:
            self.pool.publish(seat.grant, request.text, written)
            return
        drafted = prompt - seat.unread
        if not seat.unread and request.params.num_speculative_tokens != 0:
            drafted = max(prompt, written - 1 - seat.unseen)
        if not self.rereads:
            written = drafted
        self.pool.publish(seat.grant, request.text, written, drafted)

    def _publish_read_prompt(self) -> None:
        """Makes known what the plan before reads of a prompt.

        Whatever is planned from now on runs on the device after it.
        """
        seat, self._unpublished = self._unpublished, None
        if seat is not None and seat.grant.held:
            drafted = seat.read - seat.unread
            self.pool.publish(seat.grant, seat.request.prompt_ids, seat.read, drafted)

    def _decodes(self, seat: _Seat) -> bool:
        """Whether a row has its prompt read and may have something left to emit.

        Every round in flight emits at least one token of a row that lives, so a row
        whose rest they are sure to use up is not named again.
        """
        read = seat.read == len(seat.request.prompt_ids) - 1
        return read and seat.rounds < seat.request.remaining

    def _leave(self, seat: _Seat) -> None:
        del self._seats[seat.request.id]
        if seat.named:
            self._leaving.append(seat)
        else:
            self._vacate(seat)

    def _vacate(self, seat: _Seat) -> None:
        self.pool.release(seat.grant)
        heapq.heappush(self._rows, seat.row)
