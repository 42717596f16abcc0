"""The jitted steps: admit a row, read a piece of its prompt, decode one round."""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.cache import CACHES, CacheLayout, KVCache, Pages, layer_pages
from jspec.drafters.backlog import SPAN, Backlog, empty_backlog, observed, postpone
from jspec.drafters.backlog import catch_up as observe_backlog
from jspec.drafters.base import Drafter, Memory, View
from jspec.drafters.budgets import Prices, choose
from jspec.drafters.ragged import Ragged
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal, Verdict, settle
from jspec.rules import (
    WORD_TOKENS,
    Rules,
    apply_rules,
    ban_stops,
    ban_words,
    no_rules,
    recent_tokens,
)
from jspec.sampling import Sampling, Stream, greedy, row_keys
from jspec.tree import pytree
from jspec.verify import Standard, Verification, cut_broken

__all__ = [
    "SPAN",
    "STOPS",
    "DecodeState",
    "Emission",
    "Finish",
    "Prices",
    "Rows",
    "admit",
    "bind_rules",
    "budget_totals",
    "catch_up",
    "decode_round",
    "init_state",
    "no_prices",
    "prefill",
    "says_confidence",
    "spare_slots",
]

STANDARD = Standard()
"""How a round is judged unless it is asked otherwise."""

STOPS = 16
"""Stop tokens a row can have; a request with more is refused."""


class Finish(enum.IntEnum):
    """Why a row ended on the device."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ERROR = 3


@pytree
class Rows:
    """What is known of each row between rounds.

    Attributes:
      anchor: the newest token; not in the cache yet.
      length: committed tokens.
      table: the row's pages.
      live: whether it still decodes.
      emitted: tokens the reader has.
      budget: tokens the reader may have in all.
      earliest: tokens the reader must have before a stop token may come.
      stops: tokens that end the row; -1 is none.
      gamma: at most so many drafted tokens a round.
      sampling: how it draws.
    """

    anchor: Int[Array, " B"]
    length: Int[Array, " B"]
    table: Int[Array, "B M"]
    live: Bool[Array, " B"]
    emitted: Int[Array, " B"]
    budget: Int[Array, " B"]
    earliest: Int[Array, " B"]
    stops: Int[Array, "B W"]
    gamma: Int[Array, " B"]
    sampling: Sampling


@pytree
class DecodeState:
    """Everything on the device that changes; donated to every step.

    Attributes:
      rows: one entry a row.
      pages: the target's keys, values and text.
      memory: the drafter's.
      rules: what changes logits.
      backlog: what the drafter has still to observe; `None`: it observes every round.
    """

    rows: Rows
    pages: Pages
    memory: Memory
    rules: Rules
    backlog: Backlog | None = None


@pytree
class Emission:
    """What one round gave each of its rows.

    Attributes:
      tokens: ids; the first `count` are new.
      count: delivered tokens, stop token included, never beyond the row's budget.
      drafted: tokens offered to the target.
      accepted: delivered tokens that had been drafted.
      finish: a `Finish`.
      confidence: what the drafter says of its drafts, the anchor's 1 before them;
        `None`: nothing.
      total: drafts that the pass had room for, all rows together, where the round
        chose that; `None`: it did not.
    """

    tokens: Int[Array, "B N"]
    count: Int[Array, " B"]
    drafted: Int[Array, " B"]
    accepted: Int[Array, " B"]
    finish: Int[Array, " B"]
    confidence: Float[Array, "B N"] | None = None
    total: Int[Array, ""] | None = None


def init_state(
    target: Target,
    drafter: Drafter,
    weights: Any,
    layout: CacheLayout,
    dtype: Any,
    *,
    lazy: bool = False,
) -> DecodeState:
    """Rows that hold nothing, and empty pages for target and drafter.

    Args:
      target: the model.
      drafter: its memory is made.
      weights: the drafter's.
      layout: of both caches.
      dtype: of keys and values.
      lazy: rounds without drafts leave what they commit to `catch_up`, which must come
        before the next round with drafts.
    """
    config, b = target.config, layout.rows
    memory = drafter.init(weights, layout)

    def zeros() -> Array:
        return jnp.zeros((b,), jnp.int32)

    return DecodeState(
        rows=Rows(
            anchor=zeros(),
            length=zeros(),
            table=jnp.full((b, layout.row_pages), layout.pages, jnp.int32),
            live=jnp.zeros((b,), bool),
            emitted=zeros(),
            budget=zeros(),
            earliest=zeros(),
            stops=jnp.full((b, STOPS), -1, jnp.int32),
            gamma=zeros(),
            sampling=Sampling(
                temperature=jnp.zeros((b,)),
                top_k=zeros(),
                top_p=jnp.ones((b,)),
                min_p=jnp.zeros((b,)),
                seed=jnp.zeros((b, 2), jnp.uint32),
            ),
        ),
        # What reads the weights of all layers in one array reads such pages too.
        pages=layer_pages(
            layout,
            config.cache_heads,
            dtype,
            in_one=getattr(target, "stack", None) is not None,
        ),
        memory=memory,
        rules=no_rules(b, config.vocab_size),
        backlog=empty_backlog(drafter, target, memory, b, dtype) if lazy else None,
    )


def spare_slots(
    target: Target, drafter: Drafter, weights: Any, state: DecodeState
) -> int:
    """Slots that a row needs behind the longest text it can have.

    None for chains, whose kept nodes lie in place. A node of a tree is written and
    read in the slot of its number, until `keep` moves it to that of its depth.

    Args:
      target: the model.
      drafter: whose trees.
      weights: the drafter's.
      state: its shapes are all that is looked at.
    """
    if not drafter.branching:
        return 0
    return _proposed(target, drafter, weights, state).tokens.shape[1] - 1


def says_confidence(
    target: Target, drafter: Drafter, weights: Any, state: DecodeState
) -> bool:
    """Whether the drafter says how likely its drafts are to be kept: chains alone do.

    Args:
      target: the model.
      drafter: which.
      weights: the drafter's.
      state: its shapes are all that is looked at.
    """
    if drafter.gamma == 0 or drafter.branching:
        return False
    return _proposed(target, drafter, weights, state).confidence is not None


def budget_totals(drafter: Drafter, rows: int) -> tuple[int, ...]:
    """Drafts, all rows together, of the passes that a round chooses from; none: `()`.

    Args:
      drafter: of this round's `gamma`.
      rows: of the round, padding included.
    """
    ragged = Ragged.of(drafter)
    if drafter.gamma == 0 or not ragged.chooses:
        return ()
    return ragged.totals(rows, drafter.gamma + 1)


def no_prices(drafter: Drafter, rows: int) -> Prices:
    """The shapes of what such a round has to be told."""
    nodes = jnp.zeros(drafter.gamma + 1)
    return Prices(
        ms=jnp.zeros(len(budget_totals(drafter, rows))),
        slope=jnp.zeros(()),
        intercept=nodes,
        usual=nodes,
    )


def _proposed(
    target: Target, drafter: Drafter, weights: Any, state: DecodeState
) -> Proposal:
    """The shapes of what it drafts."""

    def propose(target: Target, weights: Any, state: DecodeState) -> Proposal:
        here, cache = state.rows, _cache(state.pages, state.rows)
        keys = row_keys(here.sampling, cache.length, Stream.DRAFT)
        view = View(target=target, cache=cache, sampling=here.sampling)
        return drafter.propose(weights, state.memory, here.anchor, keys, view)[0]

    return jax.eval_shape(propose, target, weights, state)


def admit(
    state: DecodeState,
    row: Int[Array, ""],
    entry: Rows,
    drafted: Int[Array, " 1"] | None = None,
) -> DecodeState:
    """Gives a row to a request.

    Args:
      state: donated.
      row: which.
      entry: one row's values; `anchor` is the prompt's last token, and `length` what
        of the prompt the pages hold already.
      drafted: how much of that the drafter has read; `None`: all.
    """

    def put(a: Array, new: Array) -> Array:
        return a.at[row].set(new[0])

    rules = dataclasses.replace(
        state.rules, active=state.rules.active.at[row].set(False)
    )
    return dataclasses.replace(
        state,
        rows=jax.tree.map(put, state.rows, entry),
        rules=rules,
        backlog=_seen(
            state.backlog, row[None], entry.length if drafted is None else drafted
        ),
    )


def bind_rules(
    state: DecodeState,
    row: Int[Array, ""],
    penalties: Float[Array, " 3"],
    seen: Bool[Array, " V"],
    bias: Float[Array, " V"],
    words: Int[Array, "W L"],
) -> DecodeState:
    """Gives an admitted row its penalties, its bias and its forbidden words.

    Args:
      state: donated.
      row: which.
      penalties: repetition, presence, frequency.
      seen: whether a token stands in the prompt.
      bias: added to the logits.
      words: see `Rules`.
    """
    rules = state.rules
    return dataclasses.replace(
        state,
        rules=Rules(
            active=rules.active.at[row].set(True),
            repetition=rules.repetition.at[row].set(penalties[0]),
            presence=rules.presence.at[row].set(penalties[1]),
            frequency=rules.frequency.at[row].set(penalties[2]),
            counts=rules.counts.at[row].set(0),
            seen=rules.seen.at[row].set(seen),
            bias=rules.bias.at[row].set(bias),
            words=rules.words.at[row].set(words),
        ),
    )


def _take(tree: Any, rows: Array) -> Any:
    return jax.tree.map(lambda a: a.at[rows].get(mode="fill", fill_value=0), tree)


def _put(tree: Any, rows: Array, new: Any) -> Any:
    return jax.tree.map(lambda a, b: a.at[rows].set(b, mode="drop"), tree, new)


def _seen(backlog: Backlog | None, rows: Array, length: Array) -> Backlog | None:
    """The drafter has observed the rows up to these lengths."""
    if backlog is None:
        return None
    seen = backlog.seen.at[rows].set(length, mode="drop")
    return dataclasses.replace(backlog, seen=seen)


def _cache(pages: Pages, here: Rows, kernels: str | None = None) -> KVCache:
    """The rows' cache; a row that does not live has no pages and no length."""
    none = pages.text.shape[0]
    return CACHES[kernels](
        pages=pages,
        table=jnp.where(here.live[:, None], here.table, none),
        length=jnp.where(here.live, here.length, 0),
    )


def prefill(
    target: Target,
    weights: Any,
    state: DecodeState,
    row: Int[Array, " 1"],
    tokens: Int[Array, "1 T"],
    count: Int[Array, " 1"],
    following: Int[Array, " 1"],
    *,
    drafter: Drafter,
    postponed: bool = False,
    kernels: str | None = None,
) -> DecodeState:
    """Reads a piece of a row's prompt: evidence like an accepted path.

    Args:
      target: the model.
      weights: the drafter's.
      state: donated.
      row: whose prompt.
      tokens: the next of its tokens, padded.
      count: how many are real.
      following: the prompt's next token after them.
      drafter: static.
      postponed: static; whether the drafter observes it later, in `catch_up`.
      kernels: static; see `decode_round`.
    """
    here = _take(state.rows, row)
    cache = _cache(state.pages, here, kernels)
    nodes = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    seen = target(
        tokens,
        nodes - 1,
        cache,
        feature_layers=drafter.feature_layers,
        logits=False,
    )
    start = cache.length
    cache = seen.cache.keep(nodes, tokens, count, branching=False)
    state = dataclasses.replace(
        state,
        rows=_put(
            state.rows, row, dataclasses.replace(here, length=here.length + count)
        ),
        pages=cache.pages,
    )
    if postponed:
        return state
    evidence = Evidence(
        tokens=tokens,
        start=start,
        count=count,
        anchor=following,
        features=seen.features,
    )
    memory = dataclasses.replace(state.memory, rows=_take(state.memory.rows, row))
    memory = drafter.observe(
        weights,
        memory,
        evidence,
        View(target=target, cache=cache, sampling=here.sampling),
    )
    return dataclasses.replace(
        state,
        memory=dataclasses.replace(
            memory, rows=_put(state.memory.rows, row, memory.rows)
        ),
        backlog=_seen(state.backlog, row, here.length + count),
    )


def catch_up(
    target: Target,
    weights: Any,
    state: DecodeState,
    rows: Int[Array, " B"],
    *,
    drafter: Drafter,
) -> DecodeState:
    """Lets the drafter observe what rounds without drafts have left, `SPAN` tokens.

    Args:
      target: the model; none of its passes is made.
      weights: the drafter's.
      state: donated.
      rows: whose backlog; an entry beyond the last row is padding.
      drafter: static.
    """
    assert state.backlog is not None
    here = _take(state.rows, rows)
    view = View(target=target, cache=_cache(state.pages, here), sampling=here.sampling)
    memory = dataclasses.replace(state.memory, rows=_take(state.memory.rows, rows))
    memory, left = observe_backlog(
        drafter, weights, memory, _take(state.backlog, rows), here.anchor, view
    )
    return dataclasses.replace(
        state,
        memory=dataclasses.replace(
            memory, rows=_put(state.memory.rows, rows, memory.rows)
        ),
        backlog=_seen(state.backlog, rows, left.seen),
    )


def decode_round(
    target: Target,
    weights: Any,
    state: DecodeState,
    rows: Int[Array, " B"],
    prices: Prices | None = None,
    *,
    drafter: Drafter,
    verification: Verification = STANDARD,
    kernels: str | None = None,
) -> tuple[DecodeState, Emission]:
    """Propose, verify, keep, observe: one round of the rows named.

    `gamma = 0` is plain decoding: the same function on a tree of one node. Nothing of
    the drafter runs then, but for `observe` where the state has no backlog.

    Args:
      target: the model.
      weights: the drafter's.
      state: donated.
      rows: which rows decode; an entry beyond the last row is padding.
      prices: where the drafter leaves a choice of budgets (`budget_totals`), and there
        alone.
      drafter: static; its `gamma` is this round's.
      verification: static; which drafts are kept.
      kernels: static; the implementation of the operations of `jspec.pallas`: of
        attention, of the rule that judges, of a tree's ancestors and kept path.
        `None`: by platform.
    """
    here = _take(state.rows, rows)
    cache = _cache(state.pages, here, kernels)
    view = View(target=target, cache=cache, sampling=here.sampling)
    memory = dataclasses.replace(state.memory, rows=_take(state.memory.rows, rows))
    branching, ragged = drafter.branching, Ragged.of(drafter)
    if drafter.gamma == 0:
        branching, ragged, proposal = False, Ragged(), _anchors(here.anchor)
    else:
        drafting = row_keys(here.sampling, cache.length, Stream.DRAFT)
        proposal, memory = drafter.propose(weights, memory, here.anchor, drafting, view)
    proposal, depth, ancestors = _trim(
        proposal, here, cache, target.config.vocab_size, branching=branching
    )

    totals, budget = budget_totals(drafter, rows.shape[0]), None
    if totals:
        assert prices is not None, "a round that chooses its budget is told the prices"
        deepest = jnp.where(here.live, _usable(here), 0)
        budget = choose(proposal, totals, prices, live=here.live, deepest=deepest)
    proposal = ragged.admit(proposal, budget)
    seen = ragged.read(
        target,
        proposal,
        cache,
        branching=branching,
        feature_layers=drafter.feature_layers,
        choice=budget,
    )
    assert seen.logits is not None
    logits = _ruled(
        seen.logits, state.rules, rows, here, cache, proposal, depth, ancestors
    )
    choice = greedy(logits)
    best = jnp.take_along_axis(logits, choice[..., None], axis=-1)[..., 0]
    sound = jnp.isfinite(best)
    asked = jnp.where(here.live, here.sampling.temperature, 0)
    verdict = verification.judge(
        row_keys(here.sampling, cache.length, Stream.VERIFY),
        logits,
        choice,
        cut_broken(proposal, sound),
        dataclasses.replace(here.sampling, temperature=asked),
        branching=branching,
        kernels=kernels,
    )
    tokens, count, finish = _deliver(proposal, verdict, sound, here)
    path = verdict.path
    settled = jnp.take_along_axis(proposal.tokens, path, axis=1)
    cache = seen.cache.keep(path, settled, count, branching=branching)
    newest = jnp.take_along_axis(tokens, jnp.maximum(count - 1, 0)[:, None], axis=1)
    anchor = jnp.where(count > 0, newest[:, 0], here.anchor)
    accepted = jnp.minimum(verdict.accepted, count)
    features = seen.features
    if features is not None:
        features = jnp.take_along_axis(features, path[..., None], axis=1)
    evidence = Evidence(
        tokens=settled,
        start=here.length,
        count=count,
        anchor=anchor,
        features=features,
        accepted=accepted,
    )
    backlog = state.backlog
    if backlog is not None and drafter.gamma == 0:
        backlog = postpone(backlog, rows, evidence)
    else:
        memory = drafter.observe(
            weights, memory, evidence, dataclasses.replace(view, cache=cache)
        )
        if backlog is not None:
            backlog = observed(backlog, rows, here.length + count)
    after = dataclasses.replace(
        here,
        anchor=anchor,
        length=here.length + count,
        live=here.live & (finish == Finish.RUNNING),
        emitted=here.emitted + count,
    )
    delivered = jnp.arange(tokens.shape[1])[None] < count[:, None]
    v = state.rules.counts.shape[1]
    counts = state.rules.counts.at[rows[:, None], jnp.where(delivered, tokens, v)].add(
        1, mode="drop"
    )
    state = DecodeState(
        rows=_put(state.rows, rows, after),
        pages=cache.pages,
        memory=dataclasses.replace(
            memory, rows=_put(state.memory.rows, rows, memory.rows)
        ),
        rules=dataclasses.replace(state.rules, counts=counts),
        backlog=backlog,
    )
    offered = (proposal.parent != DEAD).sum(1, dtype=jnp.int32)
    return state, Emission(
        tokens=tokens,
        count=count,
        drafted=jnp.where(here.live, offered, 0),
        accepted=accepted,
        finish=finish,
        confidence=None if branching else proposal.confidence,
        total=None if budget is None else budget.total,
    )


def _anchors(anchor: Array) -> Proposal:
    """A tree of one node for each row."""
    return Proposal(tokens=anchor[:, None], parent=jnp.full_like(anchor[:, None], DEAD))


def _usable(here: Rows) -> Array:
    """How deep a draft of each row may lie, for its own `gamma` and its budget."""
    return jnp.minimum(here.gamma, here.budget - here.emitted - 1)


def _trim(
    proposal: Proposal, here: Rows, cache: KVCache, width: int, *, branching: bool
) -> tuple[Proposal, Array, Array]:
    """Offers no node deeper than the row may use: its own `gamma` and its budget.

    Nor one that is no token, a placeholder say: what the target reads for it is 0.
    """
    n = proposal.tokens.shape[1]
    nodes = jnp.arange(n)
    if branching:
        ancestors = cache.ancestors(proposal.parent)
        depth = ancestors.sum(-1, dtype=jnp.int32) - 1
    else:
        ancestors = jnp.broadcast_to(
            nodes[None] <= nodes[:, None], (proposal.tokens.shape[0], n, n)
        )
        depth = jnp.broadcast_to(nodes.astype(jnp.int32), proposal.tokens.shape)
    most = _usable(here)
    real = (proposal.tokens >= 0) & (proposal.tokens < width)
    usable = (depth <= most[:, None]) & here.live[:, None] & real
    parent = jnp.where(usable, proposal.parent, DEAD)
    tokens = jnp.where(real, proposal.tokens, 0)
    proposal = dataclasses.replace(proposal, tokens=tokens, parent=parent)
    return proposal, depth, ancestors


def _ruled(
    logits: Array,
    rules: Rules,
    rows: Array,
    here: Rows,
    cache: KVCache,
    proposal: Proposal,
    depth: Array,
    ancestors: Array,
) -> Array:
    active = rules.active.at[rows].get(mode="fill", fill_value=False)

    def ruled(logits: Array) -> Array:
        own, tokens = _take(rules, rows), proposal.tokens
        before = cache.last(WORD_TOKENS - 1)
        recent = recent_tokens(tokens, ancestors, depth, before, here.emitted)
        logits = apply_rules(logits, own, tokens, ancestors)
        words = jnp.where(own.active[:, None, None], own.words, -1)
        return ban_words(logits, words, recent)

    logits = jax.lax.cond(jnp.any(active), ruled, lambda logits: logits, logits)
    early = here.emitted[:, None] + depth < here.earliest[:, None]
    return jax.lax.cond(
        jnp.any(early & here.live[:, None]),
        lambda logits: ban_stops(logits, here.stops, early),
        lambda logits: logits,
        logits,
    )


def _deliver(
    proposal: Proposal, verdict: Verdict, sound: Array, here: Rows
) -> tuple[Array, Array, Array]:
    """Cuts a round's tokens at the first stop token, the budget or a broken law."""
    tokens, count = settle(proposal, verdict)
    n = tokens.shape[1]
    steps = jnp.arange(n)[None]
    sound = jnp.take_along_axis(sound, verdict.path, axis=1)

    def first(flags: Array) -> Array:
        return jnp.min(jnp.where(flags, steps, n), axis=1).astype(jnp.int32)

    broken = first(~sound & (steps < count[:, None]))
    count = jnp.minimum(count, broken)
    left = here.budget - here.emitted
    stop = (tokens[:, :, None] == here.stops[:, None]) & (here.stops >= 0)[:, None]
    ends = stop.any(-1) & (here.emitted[:, None] + steps + 1 > here.earliest[:, None])
    stopped = first(ends & (steps < jnp.minimum(count, left)[:, None]))
    finish = jnp.where(broken < n, Finish.ERROR, Finish.RUNNING)
    finish = jnp.where(count >= left, Finish.LENGTH, finish)
    finish = jnp.where(stopped < n, Finish.STOP, finish)
    count = jnp.minimum(jnp.minimum(count, left), stopped + 1)
    count = jnp.where(here.live, count, 0)
    return tokens, count, jnp.where(here.live, finish, Finish.RUNNING).astype(jnp.int32)
