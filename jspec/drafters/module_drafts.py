"""Drafting with a module for each step: the multi-module form of EAGLE and of MTP.

Module `s` reads, in the slot of a token, the state of module `s - 1` in the slot
before, and its position is `s + 1` less than the slot (DeepSeek-V3, arXiv:2412.19437,
§2.2). A slot depends on nothing behind it, so pages are shared and kept as in `pairs`;
a module's next feature lies beside its keys. Drafting writes nothing: step `s` reads
the anchor and the `s` drafts behind it. Where more tokens are drafted than there are
modules, the last one goes on, fed with its own states.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import KVCache
from jspec.drafters.base import View
from jspec.drafters.pairs import PairModel, PairPages, mixed, run, write_pairs
from jspec.drafters.ragged import likeliest
from jspec.rounds import DEAD, Evidence, Proposal
from jspec.sampling import draw, greedy, law, step_keys

__all__ = ["draft_modules", "module_weights", "observe_modules"]


def module_weights(weights: Mapping[str, Array], step: int) -> dict[str, Array]:
    """The weights of one module, `modules.{step}.` taken off their names."""
    prefix = f"modules.{step}."
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }


def draft_modules(
    models: Sequence[PairModel],
    pages: Sequence[PairPages],
    anchor: Int[Array, " B"],
    keys: Key[Array, " B"],
    view: View,
    *,
    gamma: int,
    certain: bool,
) -> Proposal:
    """Asks one module after the other, and the last one for all that is left.

    Args:
      models: of each module; `lag` is its place.
      pages: of each module.
      anchor: the newest token.
      keys: one a row, consumed.
      view: the target's text and how rows draw.
      gamma: how many tokens.
      certain: take the likeliest token; else draw at the row's own temperature and
        report the law.
    """
    parent = jnp.arange(gamma + 1, dtype=jnp.int32) - 1
    parent = jnp.where((view.cache.length > 0)[:, None], parent[None], DEAD)
    if gamma == 0:
        return Proposal(tokens=anchor[:, None], parent=parent)
    tokens, laws, sure = [anchor], [], [jnp.ones(anchor.shape)]
    features, last = None, len(models) - 1
    for step in range(gamma):
        module = min(step, last)
        model = models[module]
        states = _states(model, pages[module], tokens, features, view)
        logits = model.logits(states[:, -1:])
        if certain:
            tokens.append(greedy(logits)[:, 0])
        else:
            laws.append(law(logits, view.sampling)[:, 0])
            tokens.append(draw(step_keys(keys, step), laws[-1]))
        sure.append(likeliest(logits)[:, 0])
        fed = model.feed(states)
        if step < last or features is None:
            features = fed
        else:
            features = jnp.concatenate([features, fed[:, -1:]], axis=1)
    return Proposal(
        tokens=jnp.stack(tokens, axis=1),
        parent=parent,
        q=jnp.stack([jnp.zeros_like(laws[0]), *laws], axis=1) if laws else None,
        confidence=jnp.stack(sure, axis=1),
    )


def observe_modules(
    models: Sequence[PairModel],
    pages: Sequence[PairPages],
    evidence: Evidence,
    cache: KVCache,
) -> tuple[PairPages, ...]:
    """Writes the pairs of committed tokens, module after module.

    The first reads the target's features, each other one what the one before made.
    """
    assert evidence.features is not None
    features, written = models[0].fuse(evidence.features), []
    for model, own in zip(models, pages, strict=True):
        kept, states = write_pairs(model, own, evidence, cache, features)
        written.append(kept)
        features = model.feed(states)
    return tuple(written)


def _states(
    model: PairModel,
    pages: PairPages,
    tokens: list[Array],
    before: Array | None,
    view: View,
) -> Array:
    """A module's states of the anchor and of the drafts so far.

    The anchor's feature lies in the pages; those of the drafts are `before`.
    """
    length, table, many = view.cache.length, view.cache.table, len(tokens)
    slots = length[:, None] + jnp.arange(many)[None]
    features = pages.newest(table, length)[:, None]
    if before is not None:
        features = jnp.concatenate([features, before.astype(features.dtype)], axis=1)
    steps = jnp.arange(many)[None]
    among = (steps[:, :, None] >= steps[:, None]) & (slots >= model.lag)[:, None]

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        own = (k[:, :many], v[:, :many])
        return mixed(model, pages, table, length, layer, q, own, among, slots, slots)

    return run(model, features, jnp.stack(tokens, axis=1), slots - model.lag, attend)
