"""Progress of a long operation, for a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressReport:
    """How much of an operation is done."""

    done: float  # amount done, in the unit of total
    total: float
    what: str  # what the operation is doing, like trials
    detail: str = ""  # what it is working on right now, like the name of a network


ReportProgress = Callable[[ProgressReport], None]
