"""The two ways of drafting from pairs: a chain, token by token, and a grown tree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.drafters.base import Memory, View
from jspec.drafters.layers import check_draft_sampling
from jspec.drafters.pairs import PairModel, PairPages, mixed, run
from jspec.drafters.ragged import (
    check_ragged,
    check_threshold,
    cut_unlikely,
    likeliest,
)
from jspec.drafters.trees import Candidates, Frontier, grow_tree, top_candidates
from jspec.rounds import DEAD, Proposal, SparseLaw, ancestors_of
from jspec.sampling import draw, greedy, law, step_keys

__all__ = ["check_options", "draft", "draft_chain", "draft_tree"]

TREE_NODES = 32
"""Most nodes of a tree that nobody gave a number."""


def check_options(drafter: Any) -> None:
    """Raises `ValueError` if an option of a drafter of pairs cannot be.

    Those options are `gamma`, `draft_sampling`, `tree_width`, `tree_nodes`, `window`,
    `sink`, `confidence_threshold`, `ragged` and `ragged_budget`.
    """
    for name, least in (
        ("gamma", 0),
        ("tree_width", 1),
        ("tree_nodes", 1),
        ("window", 1),
        ("sink", 0),
    ):
        value = getattr(drafter, name)
        if value is None and name in ("tree_nodes", "window"):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"{name} must be an integer of at least {least}, not {value!r}"
            )
    check_draft_sampling(drafter.draft_sampling, "auto", "greedy", "probabilistic")
    if drafter.tree_width > 1 and drafter.draft_sampling == "probabilistic":
        raise ValueError(
            f"draft_sampling='probabilistic' drafts a chain: a tree of tree_width "
            f"{drafter.tree_width} is of the likeliest tokens, which are certain"
        )
    if drafter.tree_nodes is not None and drafter.tree_width == 1:
        raise ValueError(
            f"tree_nodes={drafter.tree_nodes} needs tree_width above 1: a chain has "
            f"num_speculative_tokens drafts"
        )
    if drafter.sink and drafter.window is None:
        raise ValueError(f"sink={drafter.sink} needs window=, which it looks past")
    check_threshold(drafter.confidence_threshold)
    if drafter.confidence_threshold and drafter.tree_width > 1:
        raise ValueError(
            "confidence_threshold cuts a chain; a tree has tree_nodes for that"
        )
    check_ragged(drafter)
    if drafter.ragged != "static" and drafter.tree_width > 1:
        raise ValueError(
            f"ragged={drafter.ragged!r} shares drafts among chains; a tree has "
            f"tree_nodes for that"
        )


def draft(
    drafter: Any,
    model: PairModel,
    memory: Memory,
    anchor: Int[Array, " B"],
    keys: Key[Array, " B"],
    view: View,
) -> Proposal:
    """A chain or a tree, as the drafter's options say."""
    if drafter.tree_width > 1:
        return draft_tree(
            model,
            memory,
            anchor,
            view,
            depth=drafter.gamma,
            width=drafter.tree_width,
            nodes=drafter.tree_nodes or TREE_NODES,
        )
    proposal = draft_chain(
        model,
        memory,
        anchor,
        keys,
        view,
        gamma=drafter.gamma,
        certain=drafter.draft_sampling == "greedy",
    )
    return cut_unlikely(proposal, drafter.confidence_threshold)


def draft_chain(
    model: PairModel,
    memory: Memory,
    anchor: Int[Array, " B"],
    keys: Key[Array, " B"],
    view: View,
    *,
    gamma: int,
    certain: bool,
) -> Proposal:
    """Drafts token after token, each pass fed with the hidden state of the last.

    Args:
      model: the drafter.
      memory: its pages.
      anchor: the newest token.
      keys: one a row, consumed.
      view: the target's text and how rows draw.
      gamma: how many tokens.
      certain: take the likeliest token; else draw at the row's own temperature and
        report the law.
    """
    length, table, b = view.cache.length, view.cache.table, anchor.shape[0]
    nodes = jnp.arange(gamma + 1, dtype=jnp.int32) - 1
    usable = (length > 0)[:, None] & (nodes >= 0)[None]
    parent = jnp.where(usable, nodes[None], DEAD)
    if gamma == 0:
        return Proposal(tokens=anchor[:, None], parent=parent)
    pages: PairPages = memory.pages
    slots = length[:, None] + jnp.arange(gamma)[None]
    none = tuple(
        jnp.zeros((b, gamma, *a.shape[1:2], a.shape[3]), a.dtype) for a in pages.k
    )

    def visit(carry: tuple[Array, Array, Any], step: Array):
        feature, token, (k, v) = carry
        k, v = list(k), list(v)
        place = length[:, None] + step
        seen = jnp.broadcast_to(jnp.arange(gamma) <= step, (b, 1, gamma))

        def attend(layer: int, q: Array, new_k: Array, new_v: Array) -> Array:
            k[layer] = k[layer].at[:, step].set(new_k[:, 0].astype(k[layer].dtype))
            v[layer] = v[layer].at[:, step].set(new_v[:, 0].astype(v[layer].dtype))
            own = (k[layer], v[layer])
            return mixed(
                model,
                pages,
                view.cache.table,
                length,
                layer,
                q,
                own,
                seen,
                place,
                slots,
            )

        hidden = run(model, feature[:, None], token[:, None], place - model.lag, attend)
        logits = model.logits(hidden)
        if certain:
            chosen, q = greedy(logits[:, 0]), None
        else:
            q = law(logits, view.sampling)[:, 0]
            chosen = draw(step_keys(keys, step), q)
        token = chosen if model.ids is None else model.ids[chosen]
        feature = model.feed(hidden)[:, 0].astype(feature.dtype)
        sure = likeliest(logits)[:, 0]
        return (feature, token, (tuple(k), tuple(v))), (token, q, sure)

    start = (pages.newest(table, length), anchor, (none, none))
    _, (tokens, q, sure) = jax.lax.scan(
        visit, start, jnp.arange(gamma, dtype=jnp.int32)
    )
    return Proposal(
        tokens=jnp.concatenate([anchor[None], tokens]).T,
        parent=parent,
        q=None if q is None else _as_law(jnp.moveaxis(q, 0, 1), model.ids),
        confidence=jnp.pad(sure.T, ((0, 0), (1, 0)), constant_values=1.0),
    )


def _as_law(
    q: Float[Array, "B G V"], ids: Int[Array, " V"] | None
) -> Float[Array, "B N V"] | SparseLaw:
    q = jnp.pad(q, ((0, 0), (1, 0), (0, 0)))
    return q if ids is None else SparseLaw(ids=ids[None, None], probs=q)


def draft_tree(
    model: PairModel,
    memory: Memory,
    anchor: Int[Array, " B"],
    view: View,
    *,
    depth: int,
    width: int,
    nodes: int,
) -> Proposal:
    """Grows a tree where the draft is confident; a level is one pass (EAGLE-2).

    Args:
      model: the drafter.
      memory: its pages.
      anchor: the newest token.
      view: the target's text.
      depth: levels below the anchor.
      width: nodes of a level that grow on, and candidates of each.
      nodes: of the tree, the anchor included.
    """
    pages: PairPages = memory.pages
    length, table, b = view.cache.length, view.cache.table, anchor.shape[0]
    if depth == 0:
        parent = jnp.full((b, 1), DEAD, jnp.int32)
        return Proposal(tokens=anchor[:, None], parent=parent)

    def level(
        feature: Array, tokens: Array, deep: Array, seen: Array, drafted: Any
    ) -> tuple[Candidates, Any]:
        keys, values = (list(each) for each in drafted)
        many = tokens.shape[1]
        slots = length[:, None] + deep
        place = slots[:, -many:]

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            for all_of, new in ((keys, k), (values, v)):
                new = new[:, :many].astype(pages.k[layer].dtype)
                old = all_of[layer]
                all_of[layer] = (
                    new if old is None else jnp.concatenate([old, new], axis=1)
                )
            own = (keys[layer], values[layer])
            return mixed(model, pages, table, length, layer, q, own, seen, place, slots)

        hidden = run(model, feature, tokens, place - model.lag, attend)
        logits = model.logits(hidden)
        found = top_candidates(logits, min(width, logits.shape[-1]))
        if model.ids is not None:
            found = dataclasses.replace(found, ids=model.ids[found.ids])
        return found, (model.feed(hidden), (tuple(keys), tuple(values)))

    def step(carry: Any, top: Frontier) -> tuple[Candidates, Any]:
        fed, drafted, before, deep = carry
        many = top.tokens.shape[1] - before - fed.shape[1]
        ancestors = ancestors_of(top.parent)[:, -many:]
        above = jnp.clip(top.parent[:, -many:] - before, 0, fed.shape[1] - 1)
        feature = jnp.take_along_axis(fed, above[..., None], axis=1)
        newest = jnp.full((b, many), deep[0, -1] + 1, jnp.int32)
        deep = jnp.concatenate([deep, newest], axis=1)
        found, (now, drafted) = level(
            feature, top.tokens[:, -many:], deep, ancestors, drafted
        )
        return found, (now, drafted, before + fed.shape[1], deep)

    layers = (None,) * model.sizes.num_layers
    deep = jnp.zeros((b, 1), jnp.int32)
    first, (fed, drafted) = level(
        pages.newest(table, length)[:, None],
        anchor[:, None],
        deep,
        jnp.ones((b, 1, 1), bool),
        (layers, layers),
    )
    proposal, _, _ = grow_tree(
        anchor,
        first,
        step,
        (fed, drafted, 0, deep),
        width=width,
        depth=depth,
        nodes=nodes,
    )
    parent = jnp.where((length > 0)[:, None], proposal.parent, DEAD)
    return dataclasses.replace(proposal, parent=parent)
