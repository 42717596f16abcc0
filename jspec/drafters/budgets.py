"""How many drafts a pass holds, chosen on the device by measured costs.

The best budget by all survivals of a round, which `control.budget.best_budget` takes,
is lawful for certain drafts alone. Where drafts are drawn, the survival of a draft's
successors depends on the token it drew: a budget that read them would offer the draft
for its own token, and the emitted law would bend. So the budget is raised step by
step, as DSpark's Algorithm 1 stops early, but with a look ahead: each step reads the
drafts that the budgets so far admit, and what follows these; of the drafts beyond it
expects what is usual. Whether a draft is offered is then settled before its token is
read, so every row's text follows the target's law.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.rounds import DEAD, ROOT, Proposal
from jspec.tree import pytree

__all__ = ["Choice", "Prices", "choose", "ranks"]

ODDS = 40.0
"""Log-odds of a confidence lie within ±40, as on the host (`control.estimator`)."""


@pytree
class Prices:
    """What the host knows of a round when it dispatches it: nothing of its drafts.

    Attributes:
      ms: what the round takes with each of its budgets.
      slope: of the calibration, over the log-odds of a confidence.
      intercept: of the calibration, by node; the anchor's is not read.
      usual: how often a node is kept if those before it are; the anchor's is not read.
    """

    ms: Float[Array, " budgets"]
    slope: Float[Array, ""]
    intercept: Float[Array, " N"]
    usual: Float[Array, " N"]


@pytree
class Choice:
    """A budget, and who comes first.

    Attributes:
      tier: which of the budgets, the smallest first.
      total: drafts that it admits, all rows together.
      rank: of each node among all that are offered, the likeliest to survive first.
    """

    tier: Int[Array, ""]
    total: Int[Array, ""]
    rank: Int[Array, "B N"]


def ranks(
    survival: Float[Array, "B N"], offered: Bool[Array, "B N"]
) -> Int[Array, "B N"]:
    """Offered nodes by survival, earlier positions and then earlier rows first.

    Survival never rises along a chain, so the first of any number are a prefix of
    every row. A node's rank depends on the tokens before it and on other rows.
    """
    b, n = survival.shape
    chance = jnp.where(offered, survival, -1.0).reshape(-1)
    row, position = jnp.divmod(jnp.arange(b * n, dtype=jnp.int32), n)
    order = jnp.lexsort((row, position, -chance))
    places = jnp.arange(b * n, dtype=jnp.int32)
    return jnp.zeros_like(places).at[order].set(places).reshape(b, n)


def choose(
    proposal: Proposal,
    totals: tuple[int, ...],
    prices: Prices,
    *,
    live: Bool[Array, " B"],
    deepest: Int[Array, " B"],
) -> Choice:
    """The budget of most expected tokens per millisecond, as far as the law allows.

    From the smallest budget on, the next one is taken while a larger one promises
    more, the smallest of equals. With certain drafts all survivals are read at once.

    Args:
      proposal: chains; what no row may use is not offered.
      totals: drafts of each budget, all rows together, rising.
      prices: measured costs, and what the host has learned.
      live: rows that emit a token whatever is drafted.
      deepest: drafts that each row may use.
    """
    b, n = proposal.tokens.shape
    nodes = jnp.arange(n, dtype=jnp.int32)[None]
    offered = proposal.parent != DEAD
    sure = jnp.where(offered, _calibrated(proposal, prices), 0.0)
    sure = jnp.where(nodes == ROOT, 1.0, sure)
    rank = ranks(jnp.cumprod(sure, axis=1), offered)
    total = jnp.array(totals, jnp.int32)

    # Known at a budget: what follows the anchor, or a draft which that budget admits.
    first = jnp.full((b, min(n, 2)), -1, jnp.int32)
    before = jnp.concatenate([first, rank[:, 1 : n - 1]], axis=1)
    known = (before[None] < total[:, None, None]) | (proposal.q is None)
    usual = jnp.where(nodes <= deepest[:, None], prices.usual[None], 0.0)
    hoped = jnp.cumprod(jnp.where(known, sure[None], usual[None]), axis=2)
    best_first = jnp.sort(hoped[:, :, 1:].reshape(len(totals), -1), descending=True)
    emitted = jnp.sum(live) + jnp.cumsum(best_first, axis=1)[:, total - 1]

    tiers = jnp.arange(len(totals), dtype=jnp.int32)
    ahead = tiers[None] >= tiers[:, None]
    rate = jnp.where(ahead, emitted / prices.ms[None], -1.0)
    stays = jnp.argmax(rate, axis=1) == tiers
    tier = jnp.argmax(stays).astype(jnp.int32)
    return Choice(tier=tier, total=total[tier], rank=rank)


def _calibrated(proposal: Proposal, prices: Prices) -> Float[Array, "B N"]:
    """Confidence as `control.estimator.Estimator` corrects it; of no number, 0."""
    assert proposal.confidence is not None
    said = jnp.clip(proposal.confidence, 0.0, 1.0)
    odds = jnp.clip(jnp.log(said) - jnp.log1p(-said), -ODDS, ODDS)
    sure = jax.nn.sigmoid(prices.slope * odds + prices.intercept[None])
    return jnp.where(jnp.isnan(odds), 0.0, sure)
