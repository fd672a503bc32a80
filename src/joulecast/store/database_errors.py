"""Explain errors of the database in one line that says what to do.

SQLite names its errors, PostgreSQL numbers them (SQLSTATE). What neither names is quoted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from joulecast.errors import StoreError
from joulecast.redaction import redact_url
from joulecast.store.places import ELSEWHERE

_FULL = ("there is no space left", f"free some, {ELSEWHERE}")
_READ_ONLY = ("it can be read but not written", f"allow writing, {ELSEWHERE}")
_LOCKED = ("another program has locked it", "wait for that program and try again")
# The start of an error's name or number, with what is wrong and what to do.
_ADVICE = {
    "SQLITE_FULL": _FULL,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_NOTADB": ("it is not a SQLite database", f"give the path of a store, {ELSEWHERE}"),
    "SQLITE_CORRUPT": (
        "the database is damaged",
        "move it away and import exported profiles, or restore a copy",
    ),
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_CANTOPEN": ("it cannot be opened", f"check the path and its permissions, {ELSEWHERE}"),
    "SQLITE_PERM": ("access is denied", f"check its permissions, {ELSEWHERE}"),
    "SQLITE_IOERR": ("the disk reported an error", f"check the disk, {ELSEWHERE}"),
    "53100": _FULL,
    "25006": _READ_ONLY,
    "55P03": _LOCKED,
}
# Errors that a full disk causes too: SQLite needs space for its index of the log, even to read.
_PERHAPS_FULL = ("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
_LEAST_FREE_BYTES = 64 * 1024
# Of PostgreSQL: lost connections, shutdown and start of the server, transactions that it undid, and
# profiles that another process removed at the same moment.
_TRANSIENT = ("08", "57P0", "40001", "40P01", "23503")


@contextmanager
def wrap_errors(place: str, file: Path | None = None) -> Iterator[None]:
    """Convert errors of the driver to StoreError.

    Args:
        place: What messages call the store.
        file: Its file, if it has one.
    """
    try:
        yield
    except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(_explain(error, place, file)) from error
    except UnicodeDecodeError as error:
        # The driver cannot decode even the message of SQLite, which quotes the file.
        damage = sqlite3.DatabaseError("Could not decode the text of an error")
        raise StoreError(_explain(damage, place, file)) from error


def is_transient(error: sa.exc.DBAPIError) -> bool:
    """Return whether a server may do the same later, because it is restarting for example."""
    if isinstance(error.orig, sqlite3.Error):
        return False
    if error.connection_invalidated or find_error_code(error).startswith(_TRANSIENT):
        return True
    # Where no connection could be made, there is no number.
    return isinstance(error, sa.exc.OperationalError) and not find_error_code(error)


def find_error_code(error: Exception) -> str:
    """Return SQLite's name of an error or PostgreSQL's number; empty if it has neither."""
    cause = getattr(error, "orig", None) or error
    # The driver itself decodes texts, and has no name for one that it cannot decode.
    if isinstance(cause, sqlite3.Error) and str(cause).startswith("Could not decode"):
        return "SQLITE_CORRUPT"
    return str(getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or "")


def is_disk_full(file: Path) -> bool:
    """Return whether hardly anything can be written beside a file."""
    try:
        room = os.statvfs(file.parent)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _LEAST_FREE_BYTES


def _explain(error: Exception, place: str, file: Path | None) -> str:
    code = find_error_code(error)
    if file is not None and code.startswith(_PERHAPS_FULL) and is_disk_full(file):
        code = "SQLITE_FULL"
    for known, (what, advice) in _ADVICE.items():
        if code.startswith(known):
            return f"the store {place}: {what}; {advice}"
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [""]
    reason = redact_url(" ".join(lines[0].split()))
    return f"the store {place} cannot be used ({reason}): check it, {ELSEWHERE}"
