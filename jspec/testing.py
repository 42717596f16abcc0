"""What tests of a drafter are made of: tiny targets, scripted drafters, four questions.

Longer than most files, since it is a kit: targets first, then drafters whose every
proposal is known beforehand, then `Loop` and `decode` (the jitted steps driven by hand,
the engine without its queue), then `check_method`, which asks of any drafter whether
greedy text equals plain decoding, whether sampled text follows the target's law,
whether a row ignores its neighbours, and whether one more round compiles nothing.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int, Key

from jspec import decode as steps
from jspec import models
from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.decode import STOPS, DecodeState, Emission, Finish, Rows
from jspec.drafters import METHODS
from jspec.drafters.base import About, Drafter, HostDrafter, Memory, View
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.given import sides
from jspec.engine.host import ask
from jspec.models.base import ModelConfig, Rope, Seen, Target
from jspec.models.layers import embed
from jspec.models.llama import Decoder
from jspec.params import SamplingParams
from jspec.rounds import DEAD, Evidence, Proposal
from jspec.rules import WORD_TOKENS, WORDS
from jspec.sampling import Sampling, law
from jspec.tree import pytree
from jspec.verify import Verification

__all__ = [
    "GREEDY",
    "Decoded",
    "Loop",
    "Scripted",
    "TableTarget",
    "check_law",
    "check_method",
    "compilations",
    "decode",
    "exact_law",
    "oracle",
    "sample",
    "script",
    "self_draft",
    "text_logits",
    "tiny_config",
    "tiny_target",
]

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)

_admit = jax.jit(steps.admit, donate_argnums=0)
_bind = jax.jit(steps.bind_rules, donate_argnums=0)


def _step(function: Any, *static: str, quick: bool) -> Any:
    """A jitted step; `quick` halves the time to compile, which is most of a test's."""
    return jax.jit(
        function,
        static_argnames=static,
        donate_argnums=2,
        compiler_options={"xla_backend_optimization_level": "0"} if quick else None,
    )


_prefill = _step(steps.prefill, "drafter", quick=True)
_round = {
    quick: _step(steps.decode_round, "drafter", "verification", quick=quick)
    for quick in (True, False)
}


def tiny_config(**changes: Any) -> ModelConfig:
    """64 tokens and two layers; `changes` are fields of `ModelConfig`."""
    config = ModelConfig(
        family="llama",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_key_heads=2,
        head_dim=8,
        norm_eps=1e-5,
        rope=Rope(),
        max_position=512,
        tie_embeddings=False,
    )
    return dataclasses.replace(config, **changes)


def tiny_target(
    seed: int = 0, dtype: DTypeLike = jnp.float32, **changes: Any
) -> Decoder:
    """A decoder with random weights; `changes` are fields of `ModelConfig`."""
    config = tiny_config(**changes)
    return models.build(config, models.random_weights(config, seed, dtype))


class _TableConfig(ModelConfig):
    def __post_init__(self) -> None:
        """A model without layers has no sizes to refuse."""


@pytree
class TableTarget:
    """A target whose next-token logits are a row of a table: the last token's.

    It satisfies `jspec.models.Target` with a cache of zero layers, and drafts too, as
    the weights of `DraftModel`. A tapped layer shows the token, one-hot.
    """

    table: Float[Array, "V V"]

    @property
    def config(self) -> ModelConfig:
        """Sizes; all but the vocabulary's are idle."""
        return _TableConfig(
            family="llama",
            vocab_size=self.table.shape[-1],
            hidden_size=self.table.shape[-1],
            intermediate_size=1,
            num_layers=0,
            num_heads=1,
            num_key_heads=1,
            head_dim=2,
            norm_eps=1e-5,
            rope=Rope(),
            max_position=2**20,
            tie_embeddings=True,
        )

    @property
    def dtype(self) -> jnp.dtype:
        """Of the table."""
        return self.table.dtype

    def embed_tokens(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N V"]:
        """The token, one-hot."""
        return jax.nn.one_hot(tokens, self.table.shape[-1], dtype=self.table.dtype)

    def normed(self, x: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
        """As it is."""
        return x

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        parent: Int[Array, "B N"],
        cache: KVCache,
        *,
        branching: bool = False,
        feature_layers: tuple[int, ...] = (),
        logits: bool = True,
    ) -> Seen:
        """Looks every node up; an id outside the table gives NaN."""
        shown = self.embed_tokens(tokens)
        return Seen(
            logits=embed(self.table, tokens).astype(jnp.float32) if logits else None,
            features=jnp.concatenate([shown] * len(feature_layers), axis=-1)
            if feature_layers
            else None,
            cache=cache,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scripted:
    """Offers what a script says, by row and by the anchor's place in the text.

    Its weights are the script, `[rows, places, nodes]` (see `script`): the ids offered
    after the anchor at a place. A negative id offers nothing there.

    Attributes:
      gamma: depth; nodes of the script below it are not offered.
      parents: the tree that the script's nodes form, the anchor being node 0. `None`:
        a chain.
    """

    about: ClassVar[About] = About(
        paper="-",
        idea="a script says what is offered where",
        weights="a script",
        passes="none",
        topology="tree",
        q=("certain",),
    )
    gamma: int = 4
    parents: tuple[int, ...] | None = None
    feature_layers: ClassVar[tuple[int, ...]] = ()

    @property
    def branching(self) -> bool:
        """Whether the script is a tree."""
        return self.parents is not None

    def check(self, weights: Any, target: Target) -> None:
        """Refuses to act without a script."""
        if weights is None:
            raise ValueError("a scripted drafter needs a script")

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Each row remembers which it is."""
        return Memory(rows=jnp.arange(layout.rows, dtype=jnp.int32))

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Reads the script."""
        parents = tuple(range(self.gamma)) if self.parents is None else self.parents
        depth = [0]
        for parent in parents:
            depth.append(depth[parent] + 1)
        lines = weights.at[memory.rows, view.cache.length].get(
            mode="fill", fill_value=-1
        )[:, : len(parents)]
        short = len(parents) - lines.shape[1]
        lines = jnp.pad(lines, ((0, 0), (0, short)), constant_values=-1)
        usable = jnp.array([d <= self.gamma for d in depth[1:]], bool)[None]
        offered = (lines >= 0) & usable
        parent = jnp.where(offered, jnp.array(parents, jnp.int32)[None], DEAD)
        return Proposal(
            tokens=jnp.concatenate([anchor[:, None], jnp.maximum(lines, 0)], axis=1),
            parent=jnp.pad(parent, ((0, 0), (1, 0)), constant_values=DEAD),
        ), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """The script is fixed."""
        return memory


def script(texts: Sequence[Sequence[int]], *, gamma: int) -> Int[Array, "R T N"]:
    """The script that offers at each place what each row's text has next.

    Its places are a multiple of 128, so that texts of other lengths compile nothing.
    """
    longest = -(-max(map(len, texts)) // 128) * 128
    padded = np.full((len(texts), longest + gamma + 1), -1, np.int32)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = text
    nodes = [padded[:, 1 + i : longest + 1 + i] for i in range(gamma)]
    return jnp.asarray(np.stack(nodes, axis=-1))


def oracle(
    target: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams = GREEDY,
    *,
    gamma: int = 4,
    **options: Any,
) -> tuple[Scripted, Int[Array, "R T N"]]:
    """A drafter that is always right: it offers plain greedy's text. And its script."""
    params = dataclasses.replace(
        params, max_tokens=params.max_tokens + gamma, ignore_eos=True, stop_token_ids=()
    )
    plain = decode(target, METHODS["none"](), None, prompts, params, **options)
    texts = [[*p, *d.tokens] for p, d in zip(prompts, plain, strict=True)]
    return Scripted(gamma=gamma), script(texts, gamma=gamma)


def self_draft(gamma: int = 4, draft_sampling: Any = "greedy") -> DraftModel:
    """A drafter to be given the target itself as weights: every draft is accepted."""
    return DraftModel(gamma=gamma, draft_sampling=draft_sampling)


class Loop:
    """The jitted steps driven by hand.

    Memory that nothing was written to holds NaN, each row has just the pages that its
    prompt and budget need (all of its room, if the drafter branches), and they lie
    scattered: what reads beyond shows.
    """

    def __init__(
        self,
        target: Any,
        drafter: Any,
        weights: Any = None,
        *,
        rows: int = 4,
        room: int = 128,
        page_size: int = 4,
        chunk: int = 8,
        pages: int | None = None,
        scatter: int = 0,
        quick: bool = True,
        verification: Verification = steps.STANDARD,
    ) -> None:
        drafter.check(weights, target)
        self.target, self.weights = target, weights
        self.drafter, self.host = sides(drafter)
        self.memory = None if self.host is None else self.host.init()
        self.texts: dict[int, int] = {}
        self._names = itertools.count()
        self.verification = verification
        self.chunk = chunk
        self.step = _round[quick]
        each = -(-room // page_size)
        self.layout = CacheLayout(
            rows=rows,
            room=room,
            pages=rows * each + 1 if pages is None else pages,
            page_size=page_size,
        )
        state = steps.init_state(
            target, self.drafter, weights, self.layout, target.dtype
        )
        self.state: DecodeState = dataclasses.replace(
            state,
            pages=_poisoned(state.pages),
            memory=dataclasses.replace(
                state.memory, pages=_poisoned(state.memory.pages)
            ),
        )
        order = np.random.default_rng(scatter).permutation(self.layout.pages)
        self.free: list[int] = order.tolist()
        self.held: dict[int, list[int]] = {}

    def admit(
        self, row: int, prompt: Sequence[int], params: SamplingParams = GREEDY
    ) -> None:
        """Gives a row to a prompt, and reads all of it but its last token."""
        size, none = self.layout.page_size, self.layout.pages
        slots = len(prompt) - 1 + params.max_tokens
        if self.drafter.branching:
            # A kept node's own slot may lie beyond the text: it is read, then moved.
            slots = self.layout.room
        needed = -(-min(slots, self.layout.room) // size)
        self.free += self.held.pop(row, [])
        taken, self.free = self.free[:needed], self.free[needed:]
        assert len(taken) == needed, "The loop has no free pages left."
        self.held[row] = taken
        table = np.full((1, self.layout.row_pages), none, np.int32)
        table[0, :needed] = taken
        self.state = _admit(
            self.state, np.int32(row), _entry(self.target, prompt, params, table)
        )
        penalties = (
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )
        if penalties != (1, 0, 0) or params.logit_bias:
            vocab = self.target.config.vocab_size
            seen, bias = np.zeros(vocab, bool), np.zeros(vocab, np.float32)
            seen[list(prompt)] = True
            for token, value in (params.logit_bias or {}).items():
                bias[token] = value
            self.state = _bind(
                self.state,
                np.int32(row),
                np.array(penalties, np.float32),
                seen,
                bias,
                np.full((WORDS, WORD_TOKENS), -1, np.int32),
            )
        for start in range(0, len(prompt) - 1, self.chunk):
            piece = list(prompt[start : min(start + self.chunk, len(prompt) - 1)])
            padded = np.zeros((1, self.chunk), np.int32)
            padded[0, : len(piece)] = piece
            self.state = _prefill(
                self.target,
                self.weights,
                self.state,
                np.array([row], np.int32),
                padded,
                np.array([len(piece)], np.int32),
                np.array([prompt[start + len(piece)]], np.int32),
                drafter=self.drafter,
            )
        self.tell(row, prompt)

    def tell(self, row: int, prompt: Sequence[int]) -> None:
        """Tells a host drafter of a new text, in a row that may have had another."""
        if self.host is None:
            return
        if row in self.texts:
            self.host.leave(self.memory, self.texts[row])
        self.texts[row] = next(self._names)
        self.host.admit(self.memory, self.texts[row], prompt)

    def round(self, rows: Sequence[int] | None = None) -> Emission:
        """One round of `rows`, all by default; what it emitted, on the host."""
        chosen = list(range(self.layout.rows) if rows is None else rows)
        self.state, emission = self.step(
            self.target,
            self.weights if self.host is None else self._ask(chosen),
            self.state,
            np.array(chosen, np.int32),
            drafter=self.drafter,
            verification=self.verification,
        )
        emission = cast(Emission, jax.device_get(emission))
        for i, row in enumerate(chosen):
            if self.host is not None and row in self.texts and emission.count[i]:
                new = emission.tokens[i, : emission.count[i]].tolist()
                self.host.observe(self.memory, self.texts[row], new)
        return emission

    def _ask(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """A host drafter's drafts, as wide as its `gamma`."""
        assert self.host is not None
        gamma = self.host.gamma
        tokens = np.zeros((len(rows), gamma), np.int32)
        parent = np.full((len(rows), gamma), DEAD, np.int32)
        known = [i for i, row in enumerate(rows) if row in self.texts]
        texts = [self.texts[rows[i]] for i in known]
        drafts = ask(self.host, self.memory, texts, [gamma] * len(texts))
        width = drafts[0].shape[1]
        tokens[known, :width], parent[known, :width] = drafts
        return tokens, parent


def _poisoned(tree: Any) -> Any:
    def nan(a: Array) -> Array:
        real = jnp.issubdtype(a.dtype, jnp.floating)
        return jnp.full_like(a, jnp.nan) if real else a

    return jax.tree.map(nan, tree)


def _entry(
    target: Any, prompt: Sequence[int], params: SamplingParams, table: np.ndarray
) -> Rows:
    def ints(x: int) -> Array:
        return jnp.asarray(np.array([x], np.int32))

    def floats(x: float) -> Array:
        return jnp.asarray(np.array([x], np.float32))

    ends = () if params.ignore_eos else target.config.eos_token_ids
    stops = np.full((1, STOPS), -1, np.int32)
    listed = (*params.stop_token_ids, *ends)
    stops[0, : len(listed)] = listed
    seed = params.seed or 0
    gamma = params.num_speculative_tokens
    return Rows(
        anchor=ints(prompt[-1]),
        length=ints(0),
        table=jnp.asarray(table),
        live=jnp.asarray(np.array([True])),
        emitted=ints(0),
        budget=ints(params.max_tokens),
        earliest=ints(params.min_tokens),
        stops=jnp.asarray(stops),
        gamma=ints(2**30 if gamma is None else gamma),
        sampling=Sampling(
            temperature=floats(params.temperature),
            top_k=ints(params.top_k),
            top_p=floats(params.top_p),
            min_p=floats(params.min_p),
            seed=jnp.asarray(np.array([[seed >> 32, seed & 0xFFFFFFFF]], np.uint32)),
        ),
    )


@dataclasses.dataclass(kw_only=True)
class Decoded:
    """What one prompt got, and what it took.

    Attributes:
      tokens: emitted ids.
      finish: why it ended.
      rounds: passes of the target.
      drafted: offered tokens of each round.
      accepted: accepted tokens of each round.
    """

    tokens: list[int] = dataclasses.field(default_factory=list)
    finish: Finish = Finish.RUNNING
    rounds: int = 0
    drafted: list[int] = dataclasses.field(default_factory=list)
    accepted: list[int] = dataclasses.field(default_factory=list)

    @property
    def tau(self) -> float:
        """Mean emitted tokens per target pass."""
        return len(self.tokens) / self.rounds


def decode(
    target: Any,
    drafter: Any,
    weights: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] = GREEDY,
    *,
    order: Sequence[int] | None = None,
    rows: int | None = None,
    **options: Any,
) -> list[Decoded]:
    """Decodes prompts together, from admission to the last one's end.

    Args:
      target: the model.
      drafter: the method.
      weights: the drafter's.
      prompts: token ids.
      params: of all, or of each.
      order: the row of each prompt; 0, 1, ... by default.
      rows: of the batch; as many as prompts by default.
      options: of `Loop`.
    """
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    order = range(len(prompts)) if order is None else order
    loop = Loop(target, drafter, weights, rows=rows or len(prompts), **options)
    done = {row: Decoded() for row in order}
    for row, prompt, wish in zip(order, prompts, each, strict=True):
        loop.admit(row, prompt, wish)
    while any(row.finish == Finish.RUNNING for row in done.values()):
        emission = loop.round()
        for row, decoded in done.items():
            if decoded.finish == Finish.RUNNING:
                _note(decoded, emission, row)
    return [done[row] for row in order]


def _note(decoded: Decoded, emission: Emission, row: int) -> None:
    count = int(emission.count[row])
    decoded.finish = Finish(int(emission.finish[row]))
    assert count or decoded.finish == Finish.ERROR, "A live row emitted nothing."
    decoded.tokens += emission.tokens[row, :count].tolist()
    decoded.rounds += 1
    decoded.drafted.append(int(emission.drafted[row]))
    decoded.accepted.append(int(emission.accepted[row]))


@contextlib.contextmanager
def compilations() -> Generator[list[str]]:
    """A list that grows by one with every program that XLA compiles within."""
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(f"{event}: {duration_secs:.3f} s")

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def text_logits(target: Any, ids: Int[Any, "B T"]) -> Float[Array, "B T V"]:
    """Any target's logits at every position of whole texts, from an empty cache."""
    b, t = ids.shape
    layout = CacheLayout(rows=b, room=t, pages=b, page_size=t)
    cache = KVCache(
        pages=layer_pages(layout, target.config.cache_heads, target.dtype),
        table=jnp.arange(b, dtype=jnp.int32)[:, None],
        length=jnp.zeros(b, jnp.int32),
    )
    parent = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32) - 1, (b, t))
    return _logits(target, jnp.asarray(ids, jnp.int32), parent, cache)


@jax.jit
def _logits(target: Any, *inputs: Any) -> Array:
    return target(*inputs).logits


def exact_law(
    target: Any, prompt: Sequence[int], params: SamplingParams, *, first: int = 3
) -> Mapping[tuple[int, ...], float]:
    """The law of the `first` tokens after a prompt, by enumeration of its support."""
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    table = np.zeros((1, 1), np.int32)
    for _ in range(first):
        ids = np.array([[*prompt, *text] for text in joint], np.int32)
        last = text_logits(target, ids)[:, -1:]
        one = _entry(target, prompt, params, table).sampling
        many = _repeated(one, len(ids))
        p = np.asarray(jax.jit(law)(last, many), np.float64)[:, 0]
        p /= p.sum(-1, keepdims=True)
        joint = {
            (*text, int(token)): mass * p[i, token]
            for i, (text, mass) in enumerate(joint.items())
            for token in np.flatnonzero(p[i])
        }
    return joint


def _repeated(tree: Any, times: int) -> Any:
    return jax.tree.map(lambda a: jnp.repeat(a, times, axis=0), tree)


def sample(
    target: Any,
    drafter: Any,
    weights: Any,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    draws: int,
    first: int = 3,
    batch: int = 2000,
    greedy_every: int = 0,
    verification: Verification = steps.STANDARD,
) -> np.ndarray:
    """The `first` tokens of many rows with one prompt and a seed each.

    Args:
      target: the model.
      drafter: the method.
      weights: the drafter's.
      prompt: of every row.
      params: of every row, but for the seed.
      draws: how many rows in all.
      first: how many tokens.
      batch: rows at a time.
      greedy_every: every so many-th row is greedy instead, and left out.
      verification: which drafts are kept.

    Returns:
      ids, `[draws, first]`, or fewer draws by the greedy rows.
    """
    budget = first + drafter.gamma
    params = dataclasses.replace(params, max_tokens=budget, ignore_eos=True)
    batch = min(batch, draws)
    found = []
    for start in range(0, draws, batch):
        loop = Loop(
            target,
            drafter,
            weights,
            rows=batch,
            room=len(prompt) + budget,
            page_size=8,
            quick=False,
            verification=verification,
        )
        loop.admit(0, prompt, params)
        each = -(-(len(prompt) + budget) // 8)
        table = np.full((batch, loop.layout.row_pages), loop.layout.pages, np.int32)
        table[:, :each] = np.arange(batch * each).reshape(batch, each)
        seeds = np.zeros((batch, 2), np.uint32)
        seeds[:, 1] = start + np.arange(batch)
        cold = np.zeros(batch, bool)
        if greedy_every:
            cold[::greedy_every] = True
        loop.state = _spread(loop.state, table, seeds, cold)
        for row in range(1, batch):
            loop.tell(row, prompt)
        texts = np.zeros((batch, first + budget + 1), np.int32)
        length = np.zeros(batch, np.int32)
        while length.min() < first:
            emission = loop.round()
            for step in range(emission.tokens.shape[1]):
                new = step < emission.count
                texts[new, length[new]] = emission.tokens[new, step]
                length += new
        found.append(texts[~cold, :first])
    return np.concatenate(found)[:draws]


@jax.jit
def _spread(state: DecodeState, table: Array, seeds: Array, cold: Array) -> DecodeState:
    """Every row a copy of row 0, in pages of its own."""
    held = state.rows.table[0]
    none = state.pages.text.shape[0]
    table = jnp.where((held < none)[None], table, none)

    def copy(a: Array) -> Array:
        mine = a.at[held].get(mode="clip")[None]
        many = jnp.broadcast_to(mine, (table.shape[0], *mine.shape[1:]))
        return a.at[table].set(many, mode="drop")

    def same(a: Array) -> Array:
        return jnp.broadcast_to(a[:1], a.shape)

    rows = jax.tree.map(same, state.rows)
    sampling = dataclasses.replace(
        rows.sampling,
        seed=seeds,
        temperature=jnp.where(cold, 0, rows.sampling.temperature),
    )
    return DecodeState(
        rows=dataclasses.replace(rows, table=table, sampling=sampling),
        pages=jax.tree.map(copy, state.pages),
        memory=Memory(
            rows=jax.tree.map(same, state.memory.rows),
            pages=jax.tree.map(copy, state.memory.pages),
        ),
        rules=jax.tree.map(same, state.rules),
    )


def check_law(texts: np.ndarray, joint: Mapping[tuple[int, ...], float]) -> None:
    """Raises `AssertionError` unless drawn texts follow a law, by a chi-square test.

    Cells that expect fewer than five draws are pooled. A true law is refused once in
    some million (5 standard deviations, Wilson and Hilferty 1931).
    """
    draws = len(texts)
    values, counts = np.unique(texts, axis=0, return_counts=True)
    seen = {
        tuple(map(int, text)): int(count)
        for text, count in zip(values, counts, strict=True)
    }
    outside = sorted(set(seen) - set(joint))
    assert not outside, (
        f"{outside[0]} was emitted, which the target's law rules out "
        f"({len(outside)} such texts among {draws} draws)."
    )
    expected = np.array([draws * mass for mass in joint.values()])
    observed = np.array([seen.get(text, 0) for text in joint], float)
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    used = expected > 0
    expected, observed = expected[used], observed[used]
    freedom = max(len(expected) - 1, 1)
    gap = ((observed - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    deviations = ((gap / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5
    worst = int(np.argmax(np.abs(observed - expected) / expected**0.5))
    assert deviations < 5, (
        f"The emitted texts do not follow the target's law: chi-square {gap:.1f} with "
        f"{freedom} degrees of freedom over {draws} draws; the worst cell has "
        f"{observed[worst]:.0f} draws and expects {expected[worst]:.1f}."
    )


PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5] * 11 + [7], [9], [4, 8])


def check_method(
    drafter: Drafter | HostDrafter,
    weights: Any,
    target: Any,
    *,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    tokens: int = 24,
    draws: int = 8_000,
) -> None:
    """Asks a drafter the four questions; raises `AssertionError` with a sentence.

    Args:
      drafter: the method.
      weights: its weights.
      target: in float32, where greedy text can be demanded token by token; its
        vocabulary holds the prompts.
      prompts: token ids, of several lengths.
      tokens: how many each gets.
      draws: for the law of the first three tokens.
    """
    drafter.check(weights, target)
    _check_memory(drafter, weights)
    for gamma in sorted({1, drafter.gamma} if drafter.gamma else {0}):
        drafting: Any = dataclasses.replace(cast(Any, drafter), gamma=gamma)
        _check_greedy(drafting, weights, target, prompts, tokens)
        _check_neighbours(drafting, weights, target, prompts, tokens)
    _check_compiles_nothing(drafter, weights, target, prompts, tokens)
    width = min(4, target.config.vocab_size)
    params = SamplingParams(temperature=0.9, top_k=width)
    texts = sample(target, drafter, weights, prompts[0], params, draws=draws)
    check_law(texts, exact_law(target, prompts[0], params))


def _check_memory(drafter: Any, weights: Any) -> None:
    layout = CacheLayout(rows=3, room=32, pages=11, page_size=4)
    shapes = [
        jax.tree.map(
            lambda a: (a.shape, a.dtype),
            jax.eval_shape(
                lambda weights, gamma=gamma: dataclasses.replace(
                    sides(drafter)[0], gamma=gamma
                ).init(weights, layout),
                weights,
            ),
        )
        for gamma in sorted({drafter.gamma, min(drafter.gamma, 1)})
    ]
    assert all(shape == shapes[0] for shape in shapes), (
        "The shapes of the drafter's memory depend on gamma."
    )


def _check_greedy(
    drafter: Any, weights: Any, target: Any, prompts: Any, tokens: int
) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=tokens)
    plain = decode(target, METHODS["none"](), None, prompts, params)
    drafted = decode(target, drafter, weights, prompts, params)
    for prompt, right, ours in zip(prompts, plain, drafted, strict=True):
        assert ours.tokens == right.tokens, (
            f"With gamma {drafter.gamma}, greedy text after {prompt} differs from "
            f"plain decoding: {ours.tokens} instead of {right.tokens}."
        )


def _check_neighbours(
    drafter: Any, weights: Any, target: Any, prompts: Any, tokens: int
) -> None:
    params = [
        SamplingParams(
            temperature=0.0 if i % 2 else 0.8,
            top_k=3 * (i % 3),
            seed=i,
            max_tokens=tokens,
            ignore_eos=True,
        )
        for i in range(len(prompts))
    ]
    rows = len(prompts)
    together = decode(target, drafter, weights, prompts, params)
    turned = decode(
        target, drafter, weights, prompts, params, order=range(rows - 1, -1, -1)
    )
    for i, prompt in enumerate(prompts):
        alone = decode(target, drafter, weights, [prompt], [params[i]], rows=rows)[0]
        for other, where in ((together[i], "neighbours"), (turned[i], "another row")):
            assert alone.tokens == other.tokens, (
                f"With gamma {drafter.gamma}, the text after {prompt} depends on the "
                f"batch: with {where} it is {other.tokens}, alone {alone.tokens}."
            )


def _check_compiles_nothing(
    drafter: Any, weights: Any, target: Any, prompts: Any, tokens: int
) -> None:
    loop = Loop(target, drafter, weights, rows=len(prompts))
    loop.admit(0, [*prompts[0], 1], dataclasses.replace(GREEDY, max_tokens=tokens))
    loop.round()
    with compilations() as compiled:
        for i, prompt in enumerate(prompts):
            wish = SamplingParams(
                temperature=0.5 * i, top_k=i, top_p=0.9, seed=i, max_tokens=tokens
            )
            loop.admit(i, prompt, wish)
        for _ in range(3):
            loop.round()
    assert not compiled, (
        f"Rounds after the first compiled {len(compiled)} programs: a shape or a "
        f"static argument changes from round to round."
    )
