"""`jspec.serve`: a model, a method and an engine in this process."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import math
import numbers
import sys
import threading
import time
import traceback
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Self

import jax

from jspec import zoo
from jspec.cache import CacheLayout
from jspec.checkpoint import read_config
from jspec.control.base import depth, order
from jspec.decode import init_state, spare_slots
from jspec.drafters import Drafter
from jspec.drafters.given import sides
from jspec.engine.buckets import Buckets, powers
from jspec.engine.engine import Engine
from jspec.engine.request import Request
from jspec.pallas.choice import check_kernels
from jspec.params import (
    Chunk,
    Completion,
    SamplingParams,
    refuse_unsupported,
)
from jspec.server.console import bar
from jspec.server.corpora import CorpusState, Documents, Shelf
from jspec.server.load import (
    load_model,
    load_weights,
    pick_dtype,
    place_state,
    trained_positions,
)
from jspec.server.methods import Asked, fitted
from jspec.server.schedule import fingerprint, make_controller, spell_schedule
from jspec.server.stream import TextReader, TextStream
from jspec.targets import cache_folder, resolve
from jspec.tokenizer import Tokenizer
from jspec.verify import Verification, check_pair, make_verification, spell

__all__ = ["Handle", "Server", "serve"]

type Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]

LOG = logging.getLogger("jspec")

CACHE_BYTES = 2 * 2**30
"""What keys and values may take unless `kv_pages` says otherwise."""

PROMPT_CHUNKS = (64, 512)
"""Pieces in which prompts are read."""


class Handle:
    """A request on its way: iterate over its chunks, or wait for its result.

    Every iteration begins at the first chunk, whoever else iterates; all methods are
    thread-safe.
    """

    def __init__(self, server: "Server", request: Request, text: TextStream) -> None:
        self._server = server
        self._request = request
        self._text = text
        self._chunks: list[Chunk] = []
        self._wakes: set[Callable[[], None]] = set()
        self._arrived = threading.Condition()

    def _put(self, chunk: Chunk) -> None:
        with self._arrived:
            self._chunks.append(chunk)
            self._arrived.notify_all()
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()

    @property
    def _done(self) -> bool:
        return bool(self._chunks) and self._chunks[-1].finish_reason is not None

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks as they come; the last one has a finish reason."""
        for i in itertools.count():
            with self._arrived:
                self._arrived.wait_for(lambda seen=i: len(self._chunks) > seen)
            yield self._chunks[i]
            if self._chunks[i].finish_reason is not None:
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """`__iter__` for an event loop."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(arrived.set)

        with self._arrived:
            self._wakes.add(wake)
        try:
            for i in itertools.count():
                while len(self._chunks) <= i:
                    arrived.clear()
                    if len(self._chunks) <= i:
                        await arrived.wait()
                yield self._chunks[i]
                if self._chunks[i].finish_reason is not None:
                    return
        finally:
            with self._arrived:
                self._wakes.discard(wake)

    def result(self, timeout: float | None = None) -> Completion:
        """Waits for the whole text.

        Raises:
          TimeoutError: it was not there after `timeout` seconds; it goes on.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._done, timeout):
                raise TimeoutError(f"the text was not complete after {timeout} s")
        request = self._request
        assert request.finish_reason is not None, "a text ended without a reason"
        return Completion(
            text=self._text.text,
            token_ids=request.token_ids,
            finish_reason=request.finish_reason,
            usage=request.usage,
            speculation=request.speculation,
            error=request.error,
        )

    def abort(self) -> None:
        """Ends the request; its result has what was delivered until then."""
        self._server._abort(self._request)


class Server:
    """A model ready to generate; a context manager. All methods are thread-safe."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        method: str,
        defaults: Mapping[str, Any],
        seconds: Mapping[str, float],
    ) -> None:
        """Starts the engine's thread; `serve` is the way to make one."""
        self.tokenizer = tokenizer
        self.method = method
        self.num_speculative_tokens = engine.gamma
        self.verification = spell(engine.verification)
        self.lossy = engine.verification.lossy
        self.settings = dict(defaults)
        self.start_seconds = dict(seconds)
        self._engine = engine
        memory = None if engine.host is None else engine.host.memory
        self._shelf = Shelf(memory, tokenizer, engine.config.tokens)
        self._ids = itertools.count()
        self._closing = False
        self._failed: str | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name="jspec-engine", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        engine = self._engine
        while True:
            closing = self._closing  # before `idle`: whatever came earlier is seen
            if engine.idle:
                if closing:
                    return
                engine.wait(1.0)
            try:
                engine.step()
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                with self._lock:
                    self._failed = f"{type(error).__name__}: {error}"
                engine.fail(f"the engine failed: {self._failed}")
                return

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Handle:
        """Queues one prompt.

        Args:
          prompt: text, token ids, or chat messages (`{"role", "content"}`).
          params: how to generate; the default draws at temperature 1.

        Raises:
          ValueError: the request cannot be served; nothing was queued.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params must be SamplingParams, not {params!r}")
        refuse_unsupported(params)
        if params.n != 1:
            raise ValueError(
                f"submit answers once; n={params.n} is for generate, which returns "
                f"{params.n} completions"
            )
        ids = self._encode(prompt)
        request = Request(next(self._ids), ids, params)
        request.forbidden = self._forbidden(params.bad_words)
        stops = dict.fromkeys(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= dict.fromkeys(self._eos)
        self._engine.check(request, tuple(stops))
        text = TextStream(
            self.tokenizer,
            stop=params.stop_strings,
            min_tokens=params.min_tokens,
            context=ids,
        )
        handle = Handle(self, request, text)
        request.reader = TextReader(text, handle._put)
        with self._lock:
            if self._closing or self._failed:
                raise RuntimeError(
                    f"the engine failed: {self._failed}"
                    if self._failed
                    else "the server is closed"
                )
            self._engine.submit(request, tuple(stops))
        return handle

    @property
    def _eos(self) -> tuple[int, ...]:
        return self._engine.config.eos_token_ids or self.tokenizer.eos_ids

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Answers prompts, one or many, in order; `n` answers each stand together.

        Raises:
          ValueError: one of the requests cannot be served; none was begun.
        """
        with self._asked(prompts, params) as handles:
            return [handle.result() for handle in handles]

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """`generate` for an event loop; to cancel it aborts the requests."""
        with self._asked(prompts, params) as handles:
            for handle in handles:
                async for _ in handle:
                    pass
            return [handle.result() for handle in handles]

    @contextlib.contextmanager
    def _asked(self, prompts: Any, params: Any) -> Generator[list[Handle]]:
        """Every request submitted; all of them aborted if anything goes wrong."""
        many = _many(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(many)
        if not isinstance(params, list | tuple) or not all(
            isinstance(own, SamplingParams) for own in params
        ):
            raise ValueError(
                f"params must be SamplingParams, one or one a prompt, not {params!r}"
            )
        if len(params) != len(many):
            raise ValueError(f"{len(many)} prompts came with {len(params)} params")
        handles: list[Handle] = []
        try:
            for prompt, own in zip(many, params, strict=True):
                handles += [self.submit(prompt, single) for single in _singles(own)]
            yield handles
        except BaseException:
            for handle in handles:
                handle.abort()
            raise

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[Chunk]:
        """Yields the text as it grows; leaving the loop early aborts the request."""
        handle = self.submit(prompt, params)
        try:
            yield from handle
        finally:
            handle.abort()

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> AsyncIterator[Chunk]:
        """`stream` for an event loop."""
        handle = self.submit(prompt, params)
        try:
            async for chunk in handle:
                yield chunk
        finally:
            handle.abort()

    def add_corpus(
        self, name: str, documents: Documents, *, wait: bool = False
    ) -> None:
        """Gives the drafter documents to go on from; they never change what is said.

        Args:
          name: to list and remove it by.
          documents: texts or token ids, or the path of a file: .jsonl with a JSON
            string a line, or else one text.
          wait: return when it is loaded, and not at once.

        Raises:
          ValueError: the method drafts from no corpora, the name is taken, or these are
            no documents; with `wait`, also what went wrong in loading them.
        """
        thread = self._shelf.add(name, documents)
        if wait:
            thread.join()
            for corpus in self._shelf.states():
                if corpus.name == name and corpus.error is not None:
                    raise ValueError(corpus.error)

    def remove_corpus(self, name: str) -> None:
        """Forgets a corpus, whether it is loaded yet or not.

        Raises:
          ValueError: there is none of that name.
        """
        self._shelf.remove(name)

    def corpora(self) -> tuple[CorpusState, ...]:
        """The corpora that were added, and how far they are."""
        return self._shelf.states()

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and what is there now."""
        counters, scheduler = self._engine.counters, self._engine.scheduler
        busy = counters.dispatch_seconds + counters.wait_seconds + counters.host_seconds
        rounds = max(counters.rounds, 1)
        return {
            "verification": spell(self._engine.verification),
            "lossy": self._engine.verification.lossy,
            "requests": dict(counters.requests),
            "rounds": counters.rounds,
            "rounds_by_num_speculative_tokens": dict(counters.gammas),
            "rounds_by_tree_nodes": dict(counters.nodes),
            "rounds_by_draft_budget": dict(counters.totals),
            "num_speculative_tokens_switches": counters.switches,
            "drafter_catch_ups": counters.catch_ups,
            "emitted_tokens": counters.emitted,
            "drafted_tokens": counters.drafted,
            "accepted_tokens": counters.accepted,
            "tau": counters.emitted / counters.row_rounds if counters.row_rounds else 0,
            "prompt_tokens": counters.prompt_tokens,
            "cached_prompt_tokens": counters.cached_tokens,
            "waiting_requests": scheduler.waiting,
            "running_requests": scheduler.running,
            "free_pages": self._engine.free_pages,
            "pages": self._engine.layout.pages,
            "dispatch_seconds": counters.dispatch_seconds,
            "wait_seconds": counters.wait_seconds,
            "host_seconds": counters.host_seconds,
            "host_seconds_per_round": (busy - counters.wait_seconds) / rounds,
            "executables": len(self._engine.executables.seconds),
            "start_seconds": dict(self.start_seconds),
            "compile_seconds": dict(self._engine.executables.seconds),
        }

    def close(self) -> None:
        """Finishes what was submitted, then stops; later requests are refused."""
        with self._lock:
            self._closing = True
        self._engine.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        """The server."""
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Closes; after an error in the block, without finishing what is queued."""
        if kind is not None:
            self._engine.abort_all()
        self.close()

    def _abort(self, request: Request) -> None:
        if not request.finished:
            self._engine.abort(request)

    def _forbidden(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of each word, with and without a space before it."""
        texts = [f"{space}{word.lstrip()}" for word in words for space in ("", " ")]
        lines = [
            tuple(self.tokenizer.encode(text, add_special_tokens=False))
            for text in texts
        ]
        return tuple(dict.fromkeys(filter(None, lines)))

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            try:
                return self.tokenizer.encode(prompt)
            except (TypeError, UnicodeError):
                raise ValueError(
                    "the prompt has a surrogate, which is no text"
                ) from None
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise ValueError(
                f"a prompt is text, token ids or chat messages, not {prompt!r}"
            )
        messages = [part for part in prompt if isinstance(part, Mapping)]
        if messages and len(messages) == len(prompt):
            return self.tokenizer.chat(messages)
        ids = [
            int(part)
            for part in prompt
            if isinstance(part, numbers.Integral) and not isinstance(part, bool)
        ]
        if len(ids) != len(prompt):
            raise ValueError(
                "a prompt is text, token ids or chat messages, not a mixture"
            )
        return ids


def _many(prompts: Any) -> list[Prompt]:
    """One or many, as a list: text, ids and messages are one."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise ValueError(f"prompts are text, token ids or messages, not {prompts!r}")
    one = numbers.Integral | Mapping
    if prompts and all(isinstance(part, one) for part in prompts):
        return [prompts]
    return list(prompts)


def _singles(params: SamplingParams) -> list[SamplingParams]:
    """`n` answers: of a seed, each has one of its own."""
    if params.n == 1:
        return [params]
    return [
        dataclasses.replace(
            params,
            n=1,
            seed=None if params.seed is None else (params.seed + i) % 2**64,
        )
        for i in range(params.n)
    ]


def serve(
    target: str | Path,
    method: str = "auto",
    drafter: str | Path | None = None,
    num_speculative_tokens: int | None = None,
    *,
    schedule: Any = None,
    verification: str | Verification = "standard",
    draft_sampling: str = "auto",
    max_batch: int = 8,
    max_model_len: int | None = None,
    page_size: int = 16,
    kv_pages: int | None = None,
    prefix_cache: bool = True,
    dtype: Any = None,
    seed: int = 0,
    lora: Any = None,
    mesh: jax.sharding.Mesh | None = None,
    kernels: str | None = None,
    method_options: Mapping[str, Any] | None = None,
    compilation_cache: bool = True,
) -> Server:
    """Loads a model, compiles every shape, and returns when it is ready.

    Args:
      target: a jspec checkpoint, a Hugging Face directory, a .gguf file,
        "smollm2-135m", or a hub id; converted once, if need be.
      method: a name from `jspec.methods()`; "auto": the one that the drafter is made
        for, "ngram" if there is none; "none": plain decoding.
      drafter: the method's weights, named as `target` is; a drafter's checkpoint is
        converted once as well. `None`: one that is shipped for a target of this
        name (`jspec.zoo`); for "mtp", what lies in the target's own files.
      num_speculative_tokens: K, drafted tokens a round; `None`: the method's default.
      schedule: K of each round by batch and context: 3-tuples `(batch_low,
        batch_high, K)` and 5-tuples `(…, context_low, context_high, K)`, the path of a
        file of vLLM, SGLang, depthchart or `jspec calibrate`, "adaptive", "KIND:PATH"
        with "goodput", "budget", "adaptive" or "table" and a file of the last sort, or
        a controller of `jspec.control`; none of its K above `num_speculative_tokens`.
        `None`: always `num_speculative_tokens`.
      verification: which drafts are kept. "standard", "block" (chains) and
        "target_only" keep the target's law exactly; "synthetic", "typical" and "fly"
        are lossy. Fields stand behind the name, as in "typical:epsilon=0.1", or
        it is one of `jspec.verify`'s.
      draft_sampling: "greedy" (certain drafts), "probabilistic" (drawn from the
        draft's law), "auto": the method's own choice.
      max_batch: rows that decode at once.
      max_model_len: most tokens of a prompt and its answer; `None`: the model's.
      page_size: tokens a page of the cache holds.
      kv_pages: pages; `None`: enough for `max_batch` texts of `max_model_len`, but no
        more than 2 GiB of keys and values, and enough for one such text.
      prefix_cache: whether prompts that begin alike share their pages.
      dtype: float32 or bfloat16; `None`: the checkpoint's.
      seed: of requests without one.
      lora: must be `None`: adapters are not supported in this version.
      mesh: devices with an axis "model", among which the target is divided; each
        holds the whole drafter.
      kernels: "gpu": the kernels for NVIDIA GPUs, wherever an operation has one
        (docs/kernels.md); "reference": their twins in plain `jnp`. `None`: kernels
        where they were measured to be faster.
      method_options: fields of the method, such as `{"longest": 3}` for "ngram".
      compilation_cache: keep compiled programs in the user's cache, unless JAX
        already has a place for them.

    Raises:
      ValueError: the arguments, the checkpoint or their combination cannot work.
    """
    started = time.perf_counter()
    _refuse(target, lora, mesh)
    check_kernels(kernels)
    if kernels == "gpu" and mesh is not None:
        raise ValueError(
            "kernels='gpu' runs on one GPU and cannot be divided among those of a "
            "mesh: leave one of the two out"
        )
    rule = make_verification(verification)
    for what, value in (("max_batch", max_batch), ("page_size", page_size)):
        _integer(what, value, 1)
    for what, value, least in (("kv_pages", kv_pages, 1), ("seed", seed, 0)):
        if value is not None:
            _integer(what, value, least)
    if num_speculative_tokens is not None:
        _integer("num_speculative_tokens", num_speculative_tokens, 0)
    if drafter is None:
        drafter = zoo.find(target, method)
    asked = Asked(
        method=method,
        drafter=drafter,
        num_speculative_tokens=num_speculative_tokens,
        draft_sampling=draft_sampling,
        options=method_options,
    )
    pick_dtype(dtype)
    if compilation_cache and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    show = sys.stderr.isatty()
    path = resolve(target, progress=show)
    read_config(path)
    within = target if drafter is None and asked.bundled else drafter
    drafter_path = (
        None if within is None else resolve(within, family=asked.bundled, progress=show)
    )
    name, drafting = asked.build(drafter_path)
    tokenizer = Tokenizer(path)
    resolved = time.perf_counter()
    model = load_model(path, dtype=dtype, mesh=mesh, serving=kernels is None)
    weights = None
    if drafter_path == path:
        weights = model
    elif drafter_path is not None:
        weights = load_weights(
            drafter_path,
            tokenizer,
            dtype=dtype,
            like=model.dtype,
            mesh=mesh,
            shared=model.config.tokens if _translates(drafting) else None,
            serving=kernels is None,
        )
    drafting = fitted(drafting, model)
    drafting.check(weights, model)
    check_pair(rule, name, branching=drafting.branching, gamma=drafting.gamma)
    spelled = repr(drafting)
    drafting, host = sides(drafting)
    if rule.lossy:
        LOG.warning(
            "verification %s is lossy: texts need not follow the target's law",
            spell(rule),
        )
    loaded = time.perf_counter()

    config = model.config
    room = config.max_position if max_model_len is None else max_model_len
    if not isinstance(room, int) or not 2 <= room <= config.max_position:
        raise ValueError(
            f"max_model_len must lie in 2..{config.max_position}, which the model was "
            f"made for, not {room}"
        )
    trained = trained_positions(drafting, weights)
    if trained is not None and trained < room:
        LOG.warning(
            "the drafter was trained for %d positions, texts may reach %d: beyond, its "
            "rotation goes on by its formula, and fewer drafts may be accepted",
            trained,
            room,
        )
    if drafting.gamma >= room:
        raise ValueError(
            f"num_speculative_tokens {drafting.gamma} must be less than max_model_len "
            f"{room}"
        )
    batches = powers(max_batch)
    controller = make_controller(
        schedule,
        max_batch=max_batch,
        max_model_len=room,
        max_k=drafting.gamma,
        batches=batches,
        served={
            "target": fingerprint(path),
            "drafter": fingerprint(drafter_path),
            "method": name,
            "dtype": str(model.dtype),
        },
    )
    palette = (drafting.gamma,) if controller is None else controller.palette
    for k in map(depth, palette):
        if k > 0:
            check_pair(rule, name, branching=drafting.branching, gamma=k)
    spare = _spare(model, drafting, weights, page_size)
    layout = _layout(
        model, drafting, weights, max_batch, room + spare, page_size, kv_pages
    )
    state = place_state(
        init_state(model, drafting, weights, layout, model.dtype, lazy=True),
        model,
        mesh,
        None,
    )
    # What the host offers is known before the round: a short draft takes a short round.
    steps = powers(drafting.gamma, 4) if host is not None and drafting.gamma else ()
    largest = min(PROMPT_CHUNKS[-1], room)
    buckets = Buckets(
        batch=batches,
        prompt=(*(size for size in PROMPT_CHUNKS if size < largest), largest),
        gammas=tuple(sorted({0, *palette, *steps}, key=order)),
    )
    with bar("compiling", show=show) as progress:
        engine = Engine(
            model,
            drafting,
            weights,
            state,
            layout=layout,
            buckets=buckets,
            max_model_len=room,
            verification=rule,
            kernels=kernels,
            prefix_cache=prefix_cache,
            seed=seed,
            controller=controller,
            host=host,
            progress=progress,
        )
    compiled = time.perf_counter()
    return Server(
        engine,
        tokenizer,
        method=name,
        defaults={
            "target": str(target),
            "method": name,
            "drafter": None if drafter is None else str(drafter),
            "drafting": spelled,
            "schedule": spell_schedule(schedule, controller),
            "verification": spell(rule),
            "lossy": rule.lossy,
            "max_batch": max_batch,
            "max_model_len": room,
            "page_size": page_size,
            "kv_pages": layout.pages,
            "prefix_cache": prefix_cache,
            "dtype": str(model.dtype),
            "seed": seed,
        },
        seconds={
            "resolve": resolved - started,
            "load": loaded - resolved,
            "compile": compiled - loaded,
        },
    )


def _integer(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{what} must be an integer of at least {least}, not {value!r}"
        )


def _refuse(target: Any, lora: Any, mesh: Any) -> None:
    if not isinstance(target, str | Path):
        raise ValueError(f"the target must be a path or a name, not {target!r}")
    if mesh is not None:
        if not isinstance(mesh, jax.sharding.Mesh):
            raise ValueError(f"mesh must be a jax.sharding.Mesh, not {mesh!r}")
        if "model" not in mesh.axis_names:
            raise ValueError(
                f"mesh must have an axis 'model'; it has {', '.join(mesh.axis_names)}"
            )
    if lora is not None:
        raise ValueError(
            "lora= is not supported in this version: merge the adapter into the target"
        )


def _translates(drafter: Any) -> bool:
    """Whether a method drafts with a language model of another vocabulary."""
    return getattr(drafter, "vocabulary", "same") == "shared"


def _spare(model: Any, drafting: Drafter, weights: Any, page_size: int) -> int:
    one = CacheLayout(rows=1, room=page_size, pages=1, page_size=page_size)
    state = jax.eval_shape(
        lambda model, weights: init_state(model, drafting, weights, one, model.dtype),
        model,
        weights,
    )
    return spare_slots(model, drafting, weights, state)


def _layout(
    model: Any,
    drafting: Drafter,
    weights: Any,
    max_batch: int,
    room: int,
    page_size: int,
    kv_pages: int | None,
) -> CacheLayout:
    one_text = math.ceil(room / page_size)
    if kv_pages is None:
        one = CacheLayout(rows=1, room=page_size, pages=1, page_size=page_size)
        own = jax.eval_shape(lambda weights: drafting.init(weights, one), weights)
        per_token = 2 * sum(heads * width for heads, width in model.config.cache_heads)
        per_page = per_token * model.dtype.itemsize * page_size
        per_page += sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(own.pages))
        kv_pages = min(max_batch * one_text, CACHE_BYTES // per_page)
        kv_pages = max(kv_pages, one_text)
    return CacheLayout(rows=max_batch, room=room, pages=kv_pages, page_size=page_size)
