"""Recognise errors after which a process can no longer use its device."""

from __future__ import annotations

# Errors after which every further call of the process fails.
_LOST = ("cuda error", "cuda runtime error", "device-side assert")


def is_device_lost(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, makes every further call of the process fail."""
    while error is not None:
        text = str(error).lower()
        if any(part in text for part in _LOST) and "out of memory" not in text:
            return True
        error = error.__cause__
    return False
