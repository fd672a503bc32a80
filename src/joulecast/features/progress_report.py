"""Progress of a long operation, for a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressReport:
    """How much of an operation is done.

    Attributes:
        done: Amount done, in the unit of ``total``.
        total: Amount to do.
        what: What the operation is doing, like ``trials``.
        detail: What it is working on right now, like the name of a network.
    """

    done: float
    total: float
    what: str
    detail: str = ""


ReportProgress = Callable[[ProgressReport], None]
