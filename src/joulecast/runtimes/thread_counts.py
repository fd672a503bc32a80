"""Choose how many threads of the processor a runtime uses."""

from __future__ import annotations

import os

from joulecast.records import Setup


def count_threads(setup: Setup) -> int:
    """Return the threads that a setup names, else the processors that this process may use."""
    if setup.threads:
        return setup.threads
    # macOS and Windows do not say which processors a process may use.
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))
