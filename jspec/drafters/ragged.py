"""How many drafts of each row are worth verifying, decided without bending the law."""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.cache import KVCache
from jspec.models.base import Seen, Target
from jspec.rounds import DEAD, ROOT, Proposal
from jspec.tree import pytree

__all__ = [
    "Ragged",
    "asked",
    "check_threshold",
    "cut_unlikely",
    "likeliest",
    "survival",
]


def likeliest(logits: Float[Array, "*B V"]) -> Float[Array, "*B"]:
    """The probability of the likeliest token: what a draft law says of itself.

    It is read off the law, not off the token drawn, and may decide about it.
    """
    top = logits.max(-1)
    return 1 / jnp.exp(logits - top[..., None]).sum(-1)


def survival(proposal: Proposal) -> Float[Array, "B N"]:
    """How likely each node of a chain is to be kept, those before it included."""
    assert proposal.confidence is not None
    return jnp.cumprod(proposal.confidence, axis=1)


def check_threshold(threshold: float) -> None:
    """Refuses a `confidence_threshold` that is no probability."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"confidence_threshold must lie in 0..1, not {threshold}")


def cut_unlikely(proposal: Proposal, threshold: float) -> Proposal:
    """Offers no node of a chain whose survival is below `threshold`.

    A node's confidence depends on the nodes before it alone, and survival never
    rises along a chain. So what is offered after any drawn prefix is all of `q` or
    nothing of it, and the emitted text follows the target's law as before. A cut
    that looked at the drawn token would offer a law other than `q`.
    """
    if threshold == 0:
        return proposal
    parent = jnp.where(survival(proposal) >= threshold, proposal.parent, DEAD)
    return dataclasses.replace(proposal, parent=parent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged:
    """Which drafts of a round's chains are verified, and in what layout.

    Drafts are admitted over all rows of the round, the likeliest to survive first,
    earlier positions before later ones and then earlier rows (vLLM 0.33, SGLang's
    DSpark planner). A draft's survival depends on the drafts before it, its rivals in
    its own row are behind it, and other rows draw on their own: every row's text
    follows the target's law. Which of the texts a seed gives may depend on the rows
    beside it, for they share the budget.

    Attributes:
      mode: "static": every draft is verified. "cap-accept": the pass is the same, and
        only admitted drafts can be kept. "compact": the pass holds admitted drafts
        and no others, packed into one line.
      budget: drafts admitted, per row of the round on the average.
    """

    mode: Literal["static", "cap-accept", "compact"] = "static"
    budget: float = math.inf

    def __post_init__(self) -> None:
        """Refuses modes that admit nothing, and a budget that nobody reads."""
        if self.mode not in ("static", "cap-accept", "compact"):
            raise ValueError(
                f"ragged must be 'static', 'cap-accept' or 'compact', not {self.mode!r}"
            )
        bounded = math.isfinite(self.budget)
        if bounded and not self.budget > 0:
            raise ValueError(f"ragged_budget must be above 0, not {self.budget}")
        if bounded != (self.mode != "static"):
            raise ValueError(
                "ragged_budget goes with ragged='cap-accept' or 'compact', and they "
                "with it"
            )

    @classmethod
    def of(cls, drafter: Any) -> "Ragged":
        """What a drafter asks for; one that does not say verifies everything."""
        return getattr(drafter, "verified", cls())

    def nodes(self, rows: int, width: int) -> int:
        """Nodes in a pass over `rows` chains of `width` nodes, the anchors included."""
        drafts = rows * (width - 1)
        return rows + min(drafts, math.ceil(min(self.budget, width) * rows))

    def admit(self, proposal: Proposal) -> Proposal:
        """Offers only what is admitted."""
        b, n = proposal.tokens.shape
        room = self.nodes(b, n) - b
        if self.mode == "static" or room == b * (n - 1):
            return proposal
        offered = (proposal.parent != DEAD).reshape(-1)
        chance = jnp.where(offered, survival(proposal).reshape(-1), -1.0)
        row, position = jnp.divmod(jnp.arange(b * n), n)
        order = jnp.lexsort((row, position, -chance))
        admitted = jnp.zeros(b * n, bool).at[order[:room]].set(True).reshape(b, n)
        parent = jnp.where(admitted, proposal.parent, DEAD)
        return dataclasses.replace(proposal, parent=parent)

    def read(
        self,
        target: Target,
        proposal: Proposal,
        cache: KVCache,
        *,
        branching: bool,
        feature_layers: tuple[int, ...],
    ) -> Seen:
        """One pass of the target over what is verified."""
        b, n = proposal.tokens.shape
        total = self.nodes(b, n)
        if self.mode != "compact" or branching or total == b * n:
            return target(
                proposal.tokens,
                proposal.parent,
                cache,
                branching=branching,
                feature_layers=feature_layers,
            )
        verified = (proposal.parent != DEAD) | (jnp.arange(n) == ROOT)[None]
        packed = _pack(cache, verified, total)
        tokens = proposal.tokens.reshape(-1).at[packed.node].get(mode="clip")[:, None]
        seen = target(
            tokens,
            jnp.full_like(tokens, DEAD),
            packed,
            feature_layers=feature_layers,
        )
        assert seen.logits is not None
        features = seen.features
        return Seen(
            logits=packed.apart(seen.logits),
            features=None if features is None else packed.apart(features),
            cache=dataclasses.replace(cache, pages=seen.cache.pages),
        )


def asked(mode: Any, budget: float | None) -> Ragged:
    """`Ragged` as a method's options say it."""
    return Ragged(mode=mode, budget=math.inf if budget is None else budget)


@pytree
class PackedCache(KVCache):
    """A cache for nodes of many chains in one line, each a row of its own.

    What a target computes node by node (projections, MLPs, the head) runs over the
    packed line alone. Keys, values and queries are taken apart again where they meet
    the pages: there the rows are what they always are. A target that appends all nodes
    of a layer before it attends may as well read the line as rows of one node each:
    their lengths count the nodes before them, and padding has no pages.

    Attributes:
      rows: the rows' own view, with the pages as they were before the pass.
      node: which of the rows' nodes stands where in the line.
      place: where in the line each node stands; `T`: it does not.
    """

    rows: KVCache
    node: Int[Array, " T"]
    place: Int[Array, "R N"]

    @property
    def whole(self) -> KVCache:
        """The rows' own view of the pages."""
        return dataclasses.replace(self.rows, pages=self.pages)

    def apart(self, line: Array) -> Array:
        """`[T, 1, ...]` as `[R, N, ...]`, zero for nodes that are not in the line."""
        return line[:, 0].at[self.place].get(mode="fill", fill_value=0)

    def append(
        self, layer: int, k: Float[Array, "T 1 K D"], v: Float[Array, "T 1 K D"]
    ) -> "PackedCache":
        """Writes the nodes' keys and values where their rows have them."""
        written = self.whole.append(layer, self.apart(k), self.apart(v))
        return dataclasses.replace(self, pages=written.pages)

    def attend(
        self,
        layer: int,
        q: Float[Array, "T 1 H D"],
        *,
        ancestors: Bool[Array, "T 1 1"] | None,
        window: int | None,
        scale: float,
        block_pages: int,
        cap: float | None = None,
        implementation: str | None = None,
    ) -> Float[Array, "T 1 H D"]:
        """Attention of every node to its own row."""
        mixed = self.whole.attend(
            layer,
            self.apart(q),
            ancestors=None,
            window=window,
            scale=scale,
            block_pages=block_pages,
            cap=cap,
            implementation=implementation,
        )
        flat = mixed.reshape(-1, *mixed.shape[2:])
        return flat.at[self.node].get(mode="clip")[:, None]


def _pack(cache: KVCache, verified: Bool[Array, "B N"], total: int) -> PackedCache:
    b, n = verified.shape
    flat = verified.reshape(-1)
    place = jnp.where(flat, jnp.cumsum(flat) - 1, total).astype(jnp.int32)
    node = jnp.full((total,), b * n, jnp.int32)
    node = node.at[place].set(jnp.arange(b * n, dtype=jnp.int32), mode="drop")
    row = jnp.minimum(node // n, b - 1)
    none = cache.pages.text.shape[0]
    return PackedCache(
        pages=cache.pages,
        table=jnp.where((node < b * n)[:, None], cache.table[row], none),
        length=cache.length[row] + node % n,
        rows=cache,
        node=node,
        place=place.reshape(b, n),
    )
