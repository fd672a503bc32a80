"""Describe an error of a user's code in one line, with the place where it happened.

    ValueError: width is 3 (net.py, line 12, in forward)
    AssertionError: assert x.dim() == 4 (net.py, line 9, in forward)

The place is the innermost frame of the user's code. The frames below it are of PyTorch, of Python
and of other libraries, and say little about what to change.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from traceback import FrameSummary

from joulecast.system.redaction import redact_url

_MAX_SIZE = 300
_OWN = str(Path(__file__).parents[1]) + os.sep
_PYTHON = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = {"site-packages", "dist-packages"}
# Code that Python or PyTorch made: there is no file to open.
_GENERATED = ("<frozen ", "<eval_with_key>", "<string>")


def describe_user_error(error: BaseException) -> str:
    """Return the type of an error, its message or failing line, and its place."""
    frame = _find_frame(traceback.extract_tb(error.__traceback__))
    # Cut at the end: half a password is still half a password.
    text = redact_url(" ".join(_read_message(error).split()))[:_MAX_SIZE]
    if not text and frame is not None:
        text = (frame.line or "").strip()[:_MAX_SIZE]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return said if frame is None else f"{said} ({_describe_place(frame)})"


def _read_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the message is the user's code too
        return ""


def _find_frame(frames: Sequence[FrameSummary]) -> FrameSummary | None:
    """Return the innermost frame of the user's code, else of a library; None if there is none."""
    others = [frame for frame in frames if not frame.filename.startswith((_OWN, *_GENERATED))]
    users = [frame for frame in others if not _is_library(frame.filename)]
    found = users or others
    return found[-1] if found else None


def _is_library(filename: str) -> bool:
    return filename.startswith(_PYTHON) or not _PACKAGES.isdisjoint(Path(filename).parts)


def _describe_place(frame: FrameSummary) -> str:
    path = Path(frame.filename)
    # The current folder may have been removed.
    with suppress(OSError, ValueError):
        path = path.relative_to(Path.cwd())
    where = "" if frame.name == "<module>" else f", in {frame.name}"
    return f"{path}, line {frame.lineno}{where}"
