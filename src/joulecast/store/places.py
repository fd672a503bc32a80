"""Find where the store is, and whether its file exists.

The database's library is slow to import, and a machine that never measured has no store: this
module needs only the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path

from joulecast.errors import StoreError

IN_MEMORY = ":memory:"


def choose_place(place: str | Path | None = None) -> str:
    """Return the path or URL of the store: ``place``, else JOULECAST_STORE, else the data folder.

    Raises:
        StoreError: There is no home folder.
    """
    chosen = str(place or os.environ.get("JOULECAST_STORE") or _find_default())
    is_path = "://" not in chosen and chosen != IN_MEMORY
    return str(Path(chosen).expanduser()) if is_path else chosen


def is_missing_file(place: str) -> bool:
    """Return whether a place is the path of a file that does not exist."""
    return "://" not in place and place != IN_MEMORY and not Path(place).exists()


def _find_default() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        folder = data if data.is_absolute() else Path.home() / ".local/share"
    except RuntimeError as error:
        raise StoreError("there is no home folder: set JOULECAST_STORE to a path") from error
    return folder / "joulecast" / "store.sqlite"
