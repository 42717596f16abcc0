"""Token trees: fixed ones (Medusa), grown ones (EAGLE-2), drawn siblings (SpecInfer).

Functions and one static shape that drafters call; none of them knows a model. Packed
masks of a tree are in `jspec.masks`, and named here as well.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.masks import full_mask, pack_words, parents_of, query_mask, unpack_words
from jspec.rounds import DEAD, ROOT, Proposal
from jspec.tree import pytree

__all__ = [
    "Candidates",
    "Frontier",
    "StaticTree",
    "draw_children",
    "full_mask",
    "grow_tree",
    "pack_words",
    "parents_of",
    "query_mask",
    "top_candidates",
    "unpack_words",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticTree:
    """A tree that is the same in every round (Medusa, Cai et al. 2024, §2.1.2).

    Node 0 is the anchor. Nodes are ordered by depth, then by their paths.

    Attributes:
      parent: of each node.
      rank: which of its parent's candidates a node is, 0 the likeliest; the anchor's
        is 0.
    """

    parent: tuple[int, ...]
    rank: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuses what is no tree."""
        if len(self.parent) != len(self.rank) or self.parent[:1] != (DEAD,):
            raise ValueError(
                f"a tree needs a parent and a rank for each node, and {DEAD} as the "
                f"anchor's parent, not {self.parent} and {self.rank}"
            )
        for node, parent in enumerate(self.parent[1:], 1):
            if not 0 <= parent < node:
                raise ValueError(
                    f"node {node} of a tree must come after its parent, not {parent}"
                )
        children = list(zip(self.parent, self.rank, strict=True))[1:]
        if len(set(children)) != len(children) or min(self.rank) < 0:
            raise ValueError(
                f"children of one node need ranks of their own, from 0 up, not "
                f"{self.rank}"
            )

    @classmethod
    def from_choices(cls, choices: Sequence[Sequence[int]]) -> Self:
        """From paths of ranks, as Medusa writes them: `[(0,), (0, 0), (1,), ...]`."""
        paths = sorted({tuple(path) for path in choices}, key=lambda p: (len(p), p))
        if len(paths) != len(choices):
            raise ValueError("the choices of a tree name a path twice")
        node: dict[tuple[int, ...], int] = {(): ROOT}
        for path in paths:
            if path[:-1] not in node or not path:
                raise ValueError(
                    f"the choices of a tree have {path} without its parent"
                )
            node[path] = len(node)
        return cls(
            parent=(DEAD, *(node[path[:-1]] for path in paths)),
            rank=(0, *(path[-1] for path in paths)),
        )

    @classmethod
    def full(cls, widths: Sequence[int]) -> Self:
        """Every node at depth `d` has `widths[d]` children; ones make a chain."""
        levels = [range(width) for width in widths]
        return cls.from_choices(
            [
                path
                for depth in range(1, len(levels) + 1)
                for path in itertools.product(*levels[:depth])
            ]
        )

    @property
    def nodes(self) -> int:
        """How many, the anchor included."""
        return len(self.parent)

    @property
    def depth(self) -> tuple[int, ...]:
        """Of each node; the anchor's is 0."""
        depth = [0]
        for parent in self.parent[1:]:
            depth.append(depth[parent] + 1)
        return tuple(depth)

    @property
    def gamma(self) -> int:
        """Drafted tokens along the longest path."""
        return max(self.depth)

    @property
    def width(self) -> int:
        """Candidates that the widest node takes."""
        return max(self.rank) + 1

    def up_to(self, gamma: int) -> Self:
        """The tree without what lies deeper than `gamma`."""
        count = sum(depth <= gamma for depth in self.depth)
        order = sorted(range(self.nodes), key=lambda node: self.depth[node])
        place = {old: new for new, old in enumerate(order[:count])}
        return dataclasses.replace(
            self,
            parent=tuple(place.get(self.parent[old], DEAD) for old in order[:count]),
            rank=tuple(self.rank[old] for old in order[:count]),
        )

    def likeliest(self, nodes: int) -> Self:
        """The tree without all but `nodes` nodes: those of the lowest ranks, summed.

        A node counts one more than its rank, so none stays without its parent; of two
        that count alike the deeper one stays.
        """
        ranks = [0]
        for parent, rank in zip(self.parent[1:], self.rank[1:], strict=True):
            ranks.append(ranks[parent] + rank)
        depth = self.depth
        best = sorted(
            range(self.nodes), key=lambda node: (ranks[node] + depth[node], ranks[node])
        )[:nodes]
        place = {old: new for new, old in enumerate(sorted(best))}
        return dataclasses.replace(
            self,
            parent=tuple(place.get(self.parent[old], DEAD) for old in place),
            rank=tuple(self.rank[old] for old in place),
        )

    def propose(self, anchor: Int[Array, " B"], ids: Int[Array, "B G C"]) -> Proposal:
        """Fills the tree with what heads predict without seeing each other's tokens.

        Args:
          anchor: the newest token.
          ids: candidates of the token at each depth from 1 on, the likeliest first;
            more depths or candidates than the tree has are left unused.
        """
        depth = jnp.array(self.depth[1:], jnp.int32) - 1
        rank = jnp.array(self.rank[1:], jnp.int32)
        tokens = anchor[:, None]
        if self.nodes > 1:
            drafted = ids.at[:, depth, rank].get(mode="promise_in_bounds")
            tokens = jnp.concatenate([tokens, drafted.astype(jnp.int32)], axis=1)
        parent = jnp.array(self.parent, jnp.int32)
        return Proposal(
            tokens=tokens, parent=jnp.broadcast_to(parent, tokens.shape), q=None
        )


@pytree
class Candidates:
    """The likeliest successors of some nodes, the likeliest first.

    Attributes:
      ids: in the target's vocabulary.
      score: their log-probabilities.
    """

    ids: Int[Array, "B M C"]
    score: Float[Array, "B M C"]


def top_candidates(logits: Float[Array, "B M V"], width: int) -> Candidates:
    """The `width` likeliest tokens after each node; the lowest id first among equals.

    Log-probabilities are of the whole vocabulary; only the `width` taken are written.
    """
    logits = logits.astype(jnp.float32)
    best, ids = jax.lax.top_k(logits, width)
    score = best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return Candidates(ids=ids.astype(jnp.int32), score=score)


@pytree
class Frontier:
    """The nodes that a tree grows from, all levels of them, and the anchor first.

    The last `width` are the newest level: those a step is asked about. Its nodes see
    `ancestors_of(parent)[:, -width:]`. A node that cannot be has the parent `DEAD`.

    Attributes:
      tokens: ids of the nodes.
      parent: of each, as in a `Proposal`.
    """

    tokens: Int[Array, "B M"]
    parent: Int[Array, "B M"]


def grow_tree(
    anchor: Int[Array, " B"],
    first: Candidates,
    step: Callable[[Any, Frontier], tuple[Candidates, Any]],
    carry: Any,
    *,
    width: int,
    depth: int,
    nodes: int,
) -> tuple[Proposal, Float[Array, "B N"], Any]:
    """A tree that grows where the draft is confident (EAGLE-2, Li et al. 2024, §4).

    Expansion: of all candidates of a level, the `width` with the best path scores
    grow on, each with `width` candidates of its own. Reranking: of all candidates of
    all levels the best `nodes - 1` are offered. A path's score is the sum of its
    log-probabilities; the paper's product underflows where this does not. Equals are
    taken by depth, then by index, so that a parent always comes before its child and
    none is offered without its parent.

    Args:
      anchor: the newest token.
      first: of the anchor, `M = 1`.
      step: candidates of the newest `width` nodes of the frontier, `M = width`; it is
        called `depth - 1` times and passes `carry` on.
      carry: of the first step.
      width: candidates of a node, and nodes of a level that grow on.
      depth: levels; 0 offers nothing.
      nodes: most nodes of the tree, the anchor included.

    Returns:
      the tree, of certain drafts; its path scores; the last step's carry.
    """
    b = anchor.shape[0]
    top = Frontier(tokens=anchor[:, None], parent=jnp.full((b, 1), DEAD, jnp.int32))
    if depth == 0 or nodes == 1:
        return (
            Proposal(tokens=top.tokens, parent=top.parent),
            jnp.zeros((b, 1)),
            carry,
        )
    ids, scores, origins = [], [], []
    origin = jnp.full((b, 1), -1, jnp.int32)
    path, offset = jnp.zeros((b, 1)), 0
    found = first
    for level in range(depth):
        score = (path[..., None] + _below_zero(found.score[..., :width])).reshape(b, -1)
        tokens = found.ids[..., :width].reshape(b, -1)
        wide = found.ids[..., :width].shape[-1]
        ids.append(tokens)
        scores.append(score)
        origins.append(jnp.repeat(origin, wide, axis=1))
        if level + 1 < depth:
            path, likeliest = jax.lax.top_k(score, min(width, score.shape[1]))
            likeliest = likeliest.astype(jnp.int32)
            before = top.tokens.shape[1] - origin.shape[1]
            parent = jnp.where(path > -jnp.inf, before + likeliest // wide, DEAD)
            top = Frontier(
                tokens=jnp.concatenate(
                    [top.tokens, jnp.take_along_axis(tokens, likeliest, axis=1)], axis=1
                ),
                parent=jnp.concatenate([top.parent, parent], axis=1),
            )
            origin, offset = offset + likeliest, offset + tokens.shape[1]
            found, carry = step(carry, top)
    proposal, best = _best(
        anchor,
        jnp.concatenate(ids, axis=1),
        jnp.concatenate(scores, axis=1),
        jnp.concatenate(origins, axis=1),
        nodes,
    )
    return proposal, best, carry


def _below_zero(score: Array) -> Array:
    """A log-probability: never above 0, no -0, and what is no number is the worst."""
    score = jnp.where(jnp.isnan(score), -jnp.inf, score.astype(jnp.float32))
    return jnp.where(score < 0, score, 0.0)


def _best(
    anchor: Array, ids: Array, score: Array, origin: Array, nodes: int
) -> tuple[Proposal, Array]:
    """The best candidates as a tree; `origin` is a candidate's parent among them."""
    best, chosen = jax.lax.top_k(score, min(nodes - 1, score.shape[1]))
    order = jnp.argsort(chosen, axis=1)
    chosen = jnp.take_along_axis(chosen, order, axis=1).astype(jnp.int32)
    best = jnp.take_along_axis(best, order, axis=1)
    above = jnp.take_along_axis(origin, chosen, axis=1)
    place = jax.vmap(jnp.searchsorted)(chosen, above).astype(jnp.int32) + 1
    parent = jnp.where(above < 0, ROOT, place)
    parent = jnp.where(best > -jnp.inf, parent, DEAD)
    drafted = jnp.take_along_axis(ids, chosen, axis=1)
    proposal = Proposal(
        tokens=jnp.concatenate([anchor[:, None], drafted], axis=1),
        parent=jnp.pad(parent, ((0, 0), (1, 0)), constant_values=DEAD),
    )
    return proposal, jnp.pad(best, ((0, 0), (1, 0)))


def draw_children(
    keys: Key[Array, " B"], law: Float[Array, "B M C"], width: int
) -> tuple[Int[Array, "B M G"], Float[Array, "B M G C"]]:
    """Draws `width` different children of each node (SpecInfer's trees, made sharper).

    Without replacement, by the Gumbel-top-k trick (Kool et al. 2019, arXiv:1903.06059):
    the order of the perturbed scores is that of drawing one after the other. A later
    child's law is the node's own without the earlier children, renormalised: what
    `Proposal.q` has to say of it. Where a law has fewer tokens than `width`, the last
    children's laws have no mass: such a child must not be offered.

    Args:
      keys: one a row, consumed.
      law: over the vocabulary, or over candidates whose ids the caller knows.
      width: children of each node.

    Returns:
      indices into the last axis of `law`, and the law of each child.
    """

    def noise(key: Array) -> Array:
        return jax.random.gumbel(key, law.shape[1:])

    _, drawn = jax.lax.top_k(jnp.log(law) + jax.vmap(noise)(keys), width)
    drawn = drawn.astype(jnp.int32)
    taken = jax.nn.one_hot(drawn, law.shape[-1], dtype=law.dtype)
    earlier = jnp.cumsum(taken, axis=2) - taken
    left = law[:, :, None] * (1 - earlier)
    mass = left.sum(-1, keepdims=True)
    return drawn, jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1), 0)
