"""What a study is about: with what of another one, its scores or joules could not be compared.

A trial keeps the values that varied. All else that it was judged and trained by is the study's, so
that whoever goes on with it cannot say later that its nets were trained otherwise.
"""

from __future__ import annotations

from typing import Any

from joulecast.errors import InputError
from joulecast.families import FAMILIES
from joulecast.uses.search.screening import BudgetScreener

Json = dict[str, Any]


def describe_study(screen: BudgetScreener, objective: str) -> Json:
    """What must not change within a study."""
    space, profile = screen.space, screen.opened.profile
    family, shape = space.family.partition(":")[0], space.input_shape
    more = [name for name in space.dimensions if name not in FAMILIES[family].params]
    fixed = {name: value for name, value in space.setup.to_dict().items() if name not in more}
    return {
        "family": family,
        "input_shape": None if shape is None else list(shape),
        "setup": fixed,
        "vary": sorted(more),
        "device": profile.device.name,
        "profile": profile.key,
        "estimator": screen.opened.method.name,
        "length": screen.length.to_dict(),
        "objective": objective,
    }


def check_same(name: str, before: Json, about: Json) -> None:
    """Complain where a study of this name is about something else.

    Raises:
        InputError: It is, and how.
    """
    if before != about:
        other = "; ".join(_list_changes(before, about))
        raise InputError(
            f"the study {name!r} is about something else ({other}): give another name (--study)"
        )


def _list_changes(before: Json, after: Json) -> list[str]:
    """What differs, in words: ``batch 32, not 64``."""
    words: list[str] = []
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            words += _list_changes(old, value)
        elif old != value:
            words.append(f"{name.replace('_', ' ')} {_say(old)}, not {_say(value)}")
    return words


def _say(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
