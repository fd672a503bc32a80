"""Claim trials, so that two campaigns with one store do not measure the same one.

A claim is a lock with a name: of a file beside a SQLite store, of the server for PostgreSQL. The
operating system or the server releases it when its process dies, however that happens, so no claim
outlives a campaign.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO, TypeVar

import sqlalchemy as sa

from joulecast.store.database import repeat_while_down

Found = TypeVar("Found")

_PAUSE_S = 0.1


class Claims:
    """Locks that all processes with the same store see; here of a store that only one can open."""

    @contextmanager
    def hold(self, name: str, wait_s: float) -> Iterator[bool]:
        """Hold a lock; yield whether it was free within ``wait_s``."""
        yield True

    def is_free(self, name: str) -> bool:
        """Return whether a lock is free, without taking it; False if that is unknown."""
        return False

    def renew(self) -> None:
        """Take the locks again that a server lost when it restarted."""


class FileClaims(Claims):
    """Claims as locked files beside the store, each there only while it is held."""

    def __init__(self, store: Path) -> None:
        # Processes may know the same store by different links.
        self._store = store.resolve()

    @contextmanager
    def hold(self, name: str, wait_s: float) -> Iterator[bool]:
        path = self._find_path(name)
        file = _wait_for(lambda: _lock_file(path), wait_s)
        try:
            yield file is not None
        finally:
            if file is not None:
                # Before it is released, so that nobody locks a file that is then removed.
                with suppress(OSError):
                    path.unlink()
                file.close()

    def is_free(self, name: str) -> bool:
        return _is_unlocked(self._find_path(name))

    def _find_path(self, name: str) -> Path:
        return Path(f"{self._store}-claim-{name}")


class ServerClaims(Claims):
    """Claims as advisory locks of PostgreSQL, all held by one connection.

    A server has few connections, and one process may measure on a hundred devices. Locks of one
    connection do not exclude each other, so threads of this process are told apart here. A server
    that cannot be reached is waited for ``restart_s``.
    """

    def __init__(self, engine: sa.Engine, restart_s: float) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._restart_s = restart_s
        self._guard = Lock()
        self._held: set[int] = set()
        self._connection: sa.Connection | None = None

    @contextmanager
    def hold(self, name: str, wait_s: float) -> Iterator[bool]:
        key = _make_key(name)

        def lock() -> bool | None:
            with self._guard:
                return repeat_while_down(lambda: self._lock(key), self._restart_s) or None

        is_held = bool(_wait_for(lock, wait_s))
        try:
            yield is_held
        finally:
            if is_held:
                with self._guard:
                    self._release(key)

    def is_free(self, name: str) -> bool:
        key = _make_key(name)
        with self._guard:
            if key in self._held:
                return False
        return repeat_while_down(lambda: self._is_unlocked(key), self._restart_s)

    def renew(self) -> None:
        with self._guard:
            if self._held:
                # A lost connection shows here, and the next attempt replaces it.
                repeat_while_down(
                    lambda: self._find_connection().execute(sa.select(1)), self._restart_s
                )

    def _lock(self, key: int) -> bool:
        """Return whether the lock could be had."""
        if key in self._held:
            return False
        if not _try_lock(self._find_connection(), key):
            self._close_if_unused()
            return False
        self._held.add(key)
        return True

    def _is_unlocked(self, key: int) -> bool:
        # The server lists the halves of a key apart, as numbers without a sign.
        high, low = divmod(key % 2**64, 2**32)
        query = sa.text(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
            " AND objsubid = 1 AND classid::bigint = :high AND objid::bigint = :low"
        )
        with self._engine.connect() as connection:
            return bool(connection.scalar(query, {"high": high, "low": low}) == 0)

    def _find_connection(self) -> sa.Connection:
        """Return a connection that holds all locks, as far as is known."""
        if self._connection is not None and self._connection.invalidated:
            self._connection.close()
            self._connection = None
        if self._connection is None:
            connection = self._engine.connect()
            # A server that has restarted has released them.
            for earlier in self._held:
                _try_lock(connection, earlier)
            self._connection = connection
        return self._connection

    def _release(self, key: int) -> None:
        self._held.discard(key)
        if self._connection is not None:
            # A server that has restarted has released it already.
            with suppress(sa.exc.SQLAlchemyError):
                self._connection.execute(sa.select(sa.func.pg_advisory_unlock(key)))
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._held and self._connection is not None:
            self._connection.close()
            self._connection = None


def _lock_file(path: Path) -> IO[str] | None:
    """Return a locked file; None if another process has locked it."""
    while True:
        try:
            # Processes of other users can lock a file that they can only read.
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError:
            # Where no file can be made, as on a full disk, nothing can be claimed.
            return io.StringIO()
        file = os.fdopen(descriptor)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner before may have removed the file after it was opened here.
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        except OSError:
            # Some network drives have no locks, so nothing can be claimed there either.
            return file
        file.close()


def _is_unlocked(path: Path) -> bool:
    """Return whether no process has locked a file; False where locks cannot be seen."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            # Shared, so that those who look at the same time do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        # A file is there as long as its lock is held.
        return True
    except OSError:
        return False


def _make_key(name: str) -> int:
    return int.from_bytes(bytes.fromhex(name)[:8], "big", signed=True)


def _try_lock(connection: sa.Connection, key: int) -> bool:
    return bool(connection.scalar(sa.select(sa.func.pg_try_advisory_lock(key))))


def _wait_for(find: Callable[[], Found | None], wait_s: float) -> Found | None:
    """Return what ``find`` finds; None if it finds nothing in time."""
    end_s = time.monotonic() + wait_s
    while (found := find()) is None and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)
    return found
