"""Check values against the choices that a field allows."""

from __future__ import annotations

from joulecast.errors import InputError


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise InputError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise InputError(f"{what} is {value!r}: choose one of {', '.join(choices)}")
