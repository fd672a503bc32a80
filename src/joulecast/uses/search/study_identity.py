"""The part of a study that must not change when it is continued.

A trial stores only the values that varied. Everything else that its score and energy depend on
belongs to the study, so that trials of one study stay comparable.
"""

from __future__ import annotations

from typing import Any

from joulecast.errors import InputError
from joulecast.families import FAMILIES
from joulecast.uses.search.screening import BudgetScreener

Json = dict[str, Any]


def describe_study(screener: BudgetScreener, objective: str) -> Json:
    """Return what must not change within a study."""
    space, profile = screener.space, screener.fitted_profile.profile
    family, shape = space.family.partition(":")[0], space.input_shape
    extra = [name for name in space.dimensions if name not in FAMILIES[family].params]
    fixed = {name: value for name, value in space.setup.to_dict().items() if name not in extra}
    return {
        "family": family,
        "input_shape": None if shape is None else list(shape),
        "setup": fixed,
        "vary": sorted(extra),
        "device": profile.device.name,
        "profile": profile.key,
        "estimator": screener.fitted_profile.estimator.name,
        "length": screener.length.to_dict(),
        "objective": objective,
    }


def check_same_study(name: str, stored: Json, requested: Json) -> None:
    """Check that a stored study matches the requested one.

    Raises:
        InputError: It does not; the message lists the differences.
    """
    if stored != requested:
        changes = "; ".join(_list_changes(stored, requested))
        raise InputError(
            f"study {name!r} was started with other options ({changes}): give another --study"
        )


def _list_changes(before: Json, after: Json) -> list[str]:
    """Return differences like ``batch 32, not 64``."""
    changes: list[str] = []
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            changes += _list_changes(old, value)
        elif old != value:
            changes.append(
                f"{name.replace('_', ' ')} {_format_value(old)}, not {_format_value(value)}"
            )
    return changes


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
