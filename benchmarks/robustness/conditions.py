"""Say when, where and with which version a result was made."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def describe_conditions() -> dict[str, str | int]:
    """Return the date, the commit and the machine of a run."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": found.stdout.strip(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count() or 0,
    }
