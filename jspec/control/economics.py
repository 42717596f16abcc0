"""When speculation pays, in closed form.

Leviathan et al. 2023, §3: with a target step as the unit of time, a round of K drafts
at acceptance `alpha` emits `E = (1 - alpha^(K+1)) / (1 - alpha)` tokens and costs
`1 + drafting`, where drafting is `K c` for a chain, `c` for a block that is drafted in
one pass, and the sum of the passes' costs for one module per step. Batched, verifying
costs `K + 1` tokens of compute once the batch reaches the critical size `t_star`, at
which a step stops being bound by reading weights.
"""

from collections.abc import Callable, Sequence

__all__ = [
    "asymptotic_speedup",
    "break_even_alpha",
    "break_even_batch",
    "drafting",
    "emitted",
    "invocations",
    "speedup",
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


def break_even_alpha(k: int, c: Cost, parallel: bool = False) -> float | None:
    """The acceptance from which a round beats plain decoding; `None`: none does."""
    return _least_alpha(lambda alpha: speedup(alpha, k, c, parallel), 1.0)


def tie_alpha(alpha: float, k: int, c: float) -> float:
    """The acceptance at which parallel drafting equals a chain of acceptance `alpha`.

    0 where parallel drafting is faster even if nothing is accepted.
    """
    tie = _least_alpha(lambda a: speedup(a, k, c, parallel=True), speedup(alpha, k, c))
    assert tie is not None, "one pass never costs more than K"
    return tie


def _least_alpha(rate: Callable[[float], float], wanted: float) -> float | None:
    """Where a rising function of acceptance reaches a value, by bisection."""
    if rate(0.0) >= wanted:
        return 0.0
    if rate(1.0) < wanted:
        return None
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        low, high = (middle, high) if rate(middle) < wanted else (low, middle)


def _check(alpha: float, k: int) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha {alpha} is outside [0, 1]")
    if isinstance(k, bool) or k < 0:
        raise ValueError(f"K {k} is not a number of tokens")
