"""Connect to PostgreSQL with psycopg 3, and give up on a server that does not answer.

A server that hangs, or whose machine does, keeps its connections: the system confirms what it
receives, and a client would wait for ever. Every answer is therefore awaited for a limited time.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from time import monotonic
from typing import Any

import sqlalchemy as sa

from joulecast.system.errors import InputError, MissingError

try:
    import psycopg
except ImportError as error:
    raise MissingError(
        "a store in PostgreSQL needs psycopg: run pip install 'joulecast[postgres]'"
    ) from error

_PORTS = range(1, 65536)
# Connecting takes milliseconds, and the host may be mistyped.
_CONNECT_S = 10.0
_LEAST_CONNECT_S = 2.0
# Any number, the same in all versions of Joulecast.
_SCHEMA_LOCK = 0x6A6F756C65636173


def make_server_engine(url: sa.URL, wait_s: float) -> sa.Engine:
    """Return an engine whose connections wait ``wait_s`` for an answer at most.

    Raises:
        InputError: The URL has a port or a parameter that does not exist.
    """
    _check_url(url)
    timeout_s = round(max(_LEAST_CONNECT_S, min(wait_s, _CONNECT_S)))
    own = {} if "connect_timeout" in url.query else {"connect_timeout": timeout_s}
    engine = sa.create_engine(url, pool_pre_ping=True, connect_args=own)
    sa.event.listen(engine, "do_connect", partial(_connect, wait_s))
    return engine


def lock_schema(connection: sa.Connection) -> None:
    """Wait for other processes that create or change the tables; released with the transaction."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes longer than ``wait_s``."""

    wait_s = 60.0

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Await an answer of the server."""
        return super().wait(self._limit(gen), *args, **options)

    def _limit(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        # psycopg wakes its generators several times a second, so that Ctrl-C works.
        end_s = monotonic() + self.wait_s
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready:
                    end_s = monotonic() + self.wait_s
                elif monotonic() > end_s:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server has not answered for {self.wait_s:.0f} s"
                    )
                state = gen.send(ready)
        except StopIteration as end:
            return end.value


def _connect(wait_s: float, _dialect: object, _record: object, args: Any, options: Any) -> Any:
    try:
        connection = LimitedConnection.connect(*args, **options)
    except UnicodeError as error:
        raise psycopg.OperationalError("no host can have this name") from error
    connection.wait_s = wait_s
    return connection


def _check_url(url: sa.URL) -> None:
    if url.port is not None and url.port not in _PORTS:
        raise InputError(f"the store's URL has the port {url.port}: give one from 1 to 65535")
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    unknown = sorted(set(url.query) - known)
    if unknown:
        raise InputError(
            f"the store's URL has the parameter {unknown[0]!r}, which PostgreSQL does not know: "
            "leave it out"
        )
