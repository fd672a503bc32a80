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
        StoreError: There is no home folder, or no file can have this name.
    """
    chosen = str(place or os.environ.get("JOULECAST_STORE") or find_default_file())
    if "\0" in chosen:
        raise StoreError(f"the store {chosen!r} has a null byte in its name: give another path")
    if "://" in chosen or chosen == IN_MEMORY:
        return chosen
    try:
        return str(Path(chosen).expanduser())
    except RuntimeError as error:
        user = chosen.split("/", 1)[0]
        raise StoreError(
            f"the store {chosen} cannot be found, since {user} has no home folder: give a full path"
        ) from error


def find_default_file() -> Path:
    """Return where the store is if nothing else is said: a file in the user's data folder.

    Raises:
        StoreError: There is no home folder.
    """
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    try:
        folder = data if data.is_absolute() else Path.home() / ".local/share"
    except RuntimeError as error:
        raise StoreError("there is no home folder: set JOULECAST_STORE to a path") from error
    return folder / "joulecast" / "store.sqlite"


def is_missing_file(place: str) -> bool:
    """Return whether a place is the path of a file that does not exist."""
    if "://" in place or place == IN_MEMORY:
        return False
    try:
        return not Path(place).exists()
    except OSError:
        # A path that the system does not accept; opening it says why.
        return False
