"""Decide which settings an untrusted file may set.

``./joulecast.toml`` comes with a folder. Unless the user trusts that folder, it may choose sizes,
names and numbers, but not run programs or code, write files elsewhere, or connect to servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecast.features.arguments import Argument

HARMLESS = frozenset({"check", "device_name", "json", "patience", "stdio", "workers"})
"""Options that no verb declares: sizes, names and numbers."""

_REASONS = {
    "runtime": "may run a plug-in",
    "listen": "may let others measure here",
    "token_file": "may hold a token that others know",
}


def find_harmful(
    options: Mapping[str, Any], declared: Mapping[str, Sequence[Argument]]
) -> tuple[str, str] | None:
    """Return the first option that could do harm, and why; None if there is none."""
    for name, value in options.items():
        for about in declared.get(name, ()):
            check = about.is_harmless
            values = value if isinstance(value, list) else [value]
            if about.harm and not (check and all(check(str(one)) for one in values)):
                return name, about.harm
        if name not in declared and name not in HARMLESS and not _is_harmless(name, value):
            return name, _REASONS.get(name, "writes a file")
    return None


def _is_harmless(name: str, value: Any) -> bool:
    check = _CHECKS.get(name)
    values = value if isinstance(value, list) else [value]
    return check is not None and all(check(str(one)) for one in values)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "runtime": lambda text: text in ("torch", "mnn", "onnx", "simulated")
}
