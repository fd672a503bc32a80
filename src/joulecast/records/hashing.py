"""Hash JSON values into short names that are the same on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def stable_hash(data: Any) -> str:
    """Return sixteen hex digits that depend only on the JSON value."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
