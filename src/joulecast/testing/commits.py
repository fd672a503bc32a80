"""Find the commit of a script, to record it with benchmark results."""

from __future__ import annotations

import subprocess
from pathlib import Path


def find_commit(script: str) -> str:
    """Return the commit of the clone that contains a script (its ``__file__``).

    A plus marks uncommitted changes; untracked files and files in ``results`` folders do not count.
    Outside a clone the result is empty.
    """
    folder = str(Path(script).parent)
    commit = _run_git(folder, "rev-parse", "--short", "HEAD")
    changed = _run_git(
        folder, "status", "--porcelain", "-uno", "--", ":/", ":(exclude,top,glob)**/results/**"
    )
    return commit + "+" * bool(commit and changed)


def _run_git(folder: str, *arguments: str) -> str:
    command = ["git", "-C", folder, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
