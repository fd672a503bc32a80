"""Find where the store is, and whether its file exists.

The database's library is slow to import, and a machine that never measured has no store: this
module needs only the standard library.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from joulecast.system.errors import StoreError, arg

IN_MEMORY = ":memory:"
ELSEWHERE = f"or choose another store with {arg('store')} or JOULECAST_STORE"

# A URL with a password whose beginning is mistyped would pass for a path.
_LIKE_CREDENTIALS = re.compile(r":[^/]*@[^/]*")

# Programs that run as another user may do what that user may.
_EFFECTIVE = os.access in os.supports_effective_ids


def choose_place(place: str | Path | None = None) -> str:
    """Return the path or URL of the store: ``place``, else JOULECAST_STORE, else the data folder.

    Raises:
        StoreError: There is no home folder, no file can have this name, or it is a mistyped URL.
    """
    chosen = str(place or os.environ.get("JOULECAST_STORE") or find_default_file())
    if "\0" in chosen:
        raise StoreError(f"the store {chosen!r} has a null byte in its name: give another path")
    try:
        os.fsencode(chosen)
    except UnicodeEncodeError as error:
        raise StoreError(f"the store {chosen!r} is not valid text: give another path") from error
    if "://" in chosen or chosen == IN_MEMORY:
        return chosen
    credentials = _LIKE_CREDENTIALS.search(chosen)
    if credentials and is_missing_file(chosen[: credentials.end()]):
        # It is not shown, because it contains a password.
        raise StoreError(
            "the store is neither a path nor a URL: write a URL like "
            "postgresql://USER@HOST:5432/DATABASE"
        )
    try:
        return str(Path(chosen).expanduser())
    except RuntimeError as error:
        user = chosen.split("/", 1)[0]
        raise StoreError(
            f"the store {chosen} cannot be found, since {user} has no home folder: give a full path"
        ) from error


def find_default_file() -> Path:
    """Return where the store is if nothing else is said: a file in the user's data folder."""
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


def check_folder(file: Path) -> None:
    """Raise StoreError unless a store can be created at a path.

    A missing folder is more often a mistyped one than a wish: only that of the usual store is made.
    """
    folder = file.parent
    if file == find_default_file():
        folder = next(one for one in file.parents if one.exists())
    reason = advice = ""
    if not folder.is_dir():
        reason, advice = f"there is no folder {folder}", "create it"
    elif not can_access(folder, os.W_OK):
        reason, advice = f"{folder} cannot be written", "allow it"
    if reason:
        raise StoreError(
            f"the store {file} cannot be created, since {reason}: {advice}, {ELSEWHERE}"
        )


def can_access(path: Path, mode: int) -> bool:
    """Return whether this process may do something (``os.R_OK``, ``os.W_OK``) with a file."""
    return os.access(path, mode, effective_ids=_EFFECTIVE)
