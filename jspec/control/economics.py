"""When speculation pays, in closed form.

Leviathan et al. 2023, §3: with a target step as the unit of time, a round of K drafts
at acceptance `alpha` emits `E = (1 - alpha^(K+1)) / (1 - alpha)` tokens and costs
`1 + drafting`, where drafting is `K c` for a chain, `c` for a block that is drafted in
one pass, and the sum of the passes' costs for one module per step. Batched, verifying
costs `K + 1` tokens of compute once the batch reaches the critical size `t_star`, at
which a step stops being bound by reading weights.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

__all__ = [
    "Case",
    "alpha_for",
    "asymptotic_speedup",
    "break_even_alpha",
    "break_even_batch",
    "drafting",
    "emitted",
    "invocations",
    "speedup",
    "tabulate",
    "tie_alpha",
]

type Cost = float | Sequence[float]
"""A draft pass, in target steps; or that of each module, one a step."""


def emitted(alpha: float, k: int) -> float:
    """Expected tokens of a round, the bonus included (Leviathan et al., equation 1)."""
    _check(alpha, k)
    return sum(alpha**position for position in range(k + 1))


def invocations(passes: str, k: int) -> int:
    """Draft passes of a round, from what a method says of itself in `jspec.methods()`.

    Args:
      passes: "none", "one", or "gamma" of them.
      k: drafted tokens.
    """
    counts = {"none": 0, "one": min(k, 1), "gamma": k}
    if passes not in counts:
        raise ValueError(f"passes {passes!r} is not one of none, one, gamma")
    return counts[passes]


def drafting(k: int, c: Cost, parallel: bool = False) -> float:
    """What the drafts of a round cost, in target steps.

    Args:
      k: drafted tokens.
      c: one draft pass; or a cost for each of at least K modules, one a step.
      parallel: whether one pass drafts all K.
    """
    if isinstance(c, int | float):
        passes = [float(c)] * invocations("one" if parallel else "gamma", k)
    else:
        if parallel:
            raise ValueError("modules draft one step each; parallel drafting has one c")
        if len(c) < k:
            raise ValueError(f"K {k} needs {k} modules; costs of {len(c)} are given")
        passes = [float(each) for each in c[:k]]
    if min(passes, default=0.0) < 0:
        raise ValueError(f"c {c} is negative")
    return sum(passes)


def speedup(alpha: float, k: int, c: Cost, parallel: bool = False) -> float:
    """Over plain decoding at batch 1 (Leviathan et al., theorem 3.8)."""
    return emitted(alpha, k) / (1 + drafting(k, c, parallel))


def break_even_batch(
    t_star: float, alpha: float, k: int, c: Cost, parallel: bool = False
) -> float:
    """Sequences beyond which a round emits no more than plain decoding would.

    Args:
      t_star: tokens at which a target step turns from memory- to compute-bound.
      alpha: acceptance.
      k: drafted tokens.
      c: of a draft pass.
      parallel: whether one pass drafts all K.
    """
    return t_star * (emitted(alpha, k) - drafting(k, c, parallel)) / (k + 1)


def asymptotic_speedup(alpha: float, k: int, c: Cost, parallel: bool = False) -> float:
    """At a batch without bound: at most 1, since no round emits more than K + 1."""
    return emitted(alpha, k) / (k + 1 + drafting(k, c, parallel))


def alpha_for(wanted: float, k: int, drafts: float) -> float | None:
    """The least acceptance of a speed-up at batch 1; `None`: even 1 is too little.

    Args:
      wanted: the speed-up.
      k: drafted tokens.
      drafts: what a round's drafts cost together, in target steps.
    """
    if wanted * (1 + drafts) <= 1:
        return 0.0
    if emitted(1.0, k) < wanted * (1 + drafts):
        return None
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if emitted(middle, k) < wanted * (1 + drafts):
            low = middle
        else:
            high = middle
    return high


def break_even_alpha(k: int, c: Cost, parallel: bool = False) -> float | None:
    """The acceptance from which a round beats plain decoding; `None`: none does."""
    return alpha_for(1.0, k, drafting(k, c, parallel))


def tie_alpha(alpha: float, k: int, c: float) -> float:
    """The acceptance at which parallel drafting equals a chain of acceptance `alpha`.

    0 where parallel drafting is faster even if nothing is accepted.
    """
    tie = alpha_for(speedup(alpha, k, c), k, drafting(k, c, parallel=True))
    return 1.0 if tie is None else tie


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The economics of one way to draft.

    Attributes:
      name: "chain", "block", "modules", or a method.
      alpha: acceptance.
      k: drafted tokens.
      c: of a draft pass; of each module.
      passes: draft passes of a round.
      drafts: what they cost together, in target steps.
      emitted: expected tokens of a round.
      speedup: at batch 1.
      pays_from: the least acceptance that beats plain decoding; `None`: none does.
      ties_chain_at: for one pass: the acceptance that equals a chain at `alpha`.
      break_even_batch: sequences beyond which it no longer pays.
      asymptotic_speedup: at a batch without bound.
    """

    name: str
    alpha: float
    k: int
    c: Cost
    passes: int
    drafts: float
    emitted: float
    speedup: float
    pays_from: float | None
    ties_chain_at: float | None
    break_even_batch: float | None
    asymptotic_speedup: float


def tabulate(
    alphas: Sequence[float],
    ks: Sequence[int],
    costs: Sequence[float],
    *,
    kinds: Mapping[str, str] = MappingProxyType({"chain": "gamma", "block": "one"}),
    t_star: float | None = None,
) -> list[Case]:
    """Every alpha, K and c with every kind.

    Args:
      alphas: acceptances.
      ks: drafted tokens.
      costs: of a draft pass, one case each; of "modules" together, one a module.
      kinds: by name, the passes of a round: "none", "one", "gamma" or "modules".
      t_star: see `break_even_batch`.
    """
    cases = []
    for alpha, k, (name, passes) in itertools.product(alphas, ks, kinds.items()):
        modules = passes == "modules"
        parallel = passes == "one"
        for c in [tuple(costs)] if modules else [0.0] if passes == "none" else costs:
            tied = parallel and isinstance(c, int | float)
            cases.append(
                Case(
                    name=name,
                    alpha=alpha,
                    k=k,
                    c=c,
                    passes=k if modules else invocations(passes, k),
                    drafts=drafting(k, c, parallel),
                    emitted=emitted(alpha, k),
                    speedup=speedup(alpha, k, c, parallel),
                    pays_from=break_even_alpha(k, c, parallel),
                    ties_chain_at=tie_alpha(alpha, k, c) if tied else None,
                    break_even_batch=(
                        None
                        if t_star is None
                        else break_even_batch(t_star, alpha, k, c, parallel)
                    ),
                    asymptotic_speedup=asymptotic_speedup(alpha, k, c, parallel),
                )
            )
    return cases


def _check(alpha: float, k: int) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha {alpha} is outside [0, 1]")
    if isinstance(k, bool) or k < 0:
        raise ValueError(f"K {k} is not a number of tokens")
