"""Find the processor of this machine, to record it with benchmark results."""

from __future__ import annotations

import platform
from pathlib import Path


def find_processor() -> str:
    """Return the name of the processor according to Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
