"""Which commit ran, for results that are kept."""

from __future__ import annotations

import subprocess
from pathlib import Path


def find_commit(script: str) -> str:
    """The commit of the clone that a script (its ``__file__``) stands in; empty outside a clone."""
    words = ["git", "-C", str(Path(script).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
