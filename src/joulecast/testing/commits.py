"""Which commit ran, for results that are kept."""

from __future__ import annotations

import subprocess
from pathlib import Path


def find_commit(script: str) -> str:
    """The commit of the clone that a script (its ``__file__``) stands in; empty outside a clone.

    Changes that stand in no commit are told by a plus behind it; results that a run is writing, and
    files that git does not know yet, are none.
    """
    folder = str(Path(script).parent)
    commit = _ask_git(folder, "rev-parse", "--short", "HEAD")
    changed = _ask_git(
        folder, "status", "--porcelain", "-uno", "--", ":/", ":(exclude,top,glob)**/results/**"
    )
    return commit + "+" * bool(commit and changed)


def _ask_git(folder: str, *words: str) -> str:
    try:
        asked = ["git", "-C", folder, *words]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
