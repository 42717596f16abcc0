"""The verifications that `verification=` names, and how a text becomes one."""

import ast
import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jspec.verify.exact import Block, Standard, TargetOnly
from jspec.verify.lossy import Fly, Synthetic, Typical
from jspec.verify.verification import Verification

__all__ = ["VERIFICATIONS", "check_pair", "make_verification", "spell"]

VERIFICATIONS: Mapping[str, type[Verification]] = MappingProxyType(
    {
        kind.about.name: kind
        for kind in (Standard, Block, TargetOnly, Synthetic, Typical, Fly)
    }
)
"""Every verification by its name."""


def make_verification(verification: Any) -> Verification:
    """The verification that a text names, or the one that is given.

    Args:
      verification: one of `VERIFICATIONS`, alone or with fields, such as
        "typical:epsilon=0.1,delta=0.2"; or a verification.

    Raises:
      ValueError: there is no such verification, or its fields cannot be.
    """
    if isinstance(verification, tuple(VERIFICATIONS.values())):
        return verification
    name, _, text = str(verification).partition(":")
    if not isinstance(verification, str) or name not in VERIFICATIONS:
        raise ValueError(
            f"verification {verification!r} is not known; known are "
            f"{', '.join(VERIFICATIONS)}"
        )
    kind = VERIFICATIONS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    try:
        call = ast.parse(f"make({text})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        fields = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise ValueError(
            f"the fields of verification {name!r} are written as 'field=value', with "
            f"commas between them, not {text!r}"
        ) from None
    for field in fields:
        if field not in known:
            raise ValueError(
                f"verification {name!r} has no field {field!r}; it takes "
                f"{', '.join(known) or 'none'}"
            )
    return kind(**fields)


def spell(verification: Verification) -> str:
    """The text that `make_verification` makes it of, fields left at default unsaid."""
    fields = [
        f"{field.name}={getattr(verification, field.name)!r}"
        for field in dataclasses.fields(verification)
        if getattr(verification, field.name) != field.default
    ]
    name = verification.about.name
    return f"{name}:{','.join(fields)}" if fields else name


def check_pair(
    verification: Verification, method: str, *, branching: bool, gamma: int
) -> None:
    """Refuses a verification that cannot judge what a method proposes.

    Raises:
      ValueError: the sentence names both.
    """
    if gamma == 0 and verification != Standard():
        raise ValueError(
            f"verification {verification.about.name!r} has nothing to judge: method "
            f"{method!r} drafts 0 tokens"
        )
    refusal = verification.refusal(method, branching=branching, gamma=gamma)
    if refusal is not None:
        raise ValueError(refusal)
