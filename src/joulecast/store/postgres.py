"""Connect to PostgreSQL with psycopg 3, and give up on a server that does not answer.

A server that hangs, or whose machine does, keeps its connections: the system confirms what it
receives, and a client would wait for ever. Every answer is therefore awaited for a limited time.
"""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any

import sqlalchemy as sa

from joulecast.errors import InputError, MissingError

_PORTS = range(1, 65536)
# Connecting takes milliseconds; whoever mistypes a host should not wait long.
_CONNECT_S = 10.0
_LEAST_CONNECT_S = 2.0
# Any number, the same in all versions of Joulecast.
_SCHEMA_LOCK = 0x6A6F756C65636173


def make_server_engine(url: sa.URL, wait_s: float) -> sa.Engine:
    """Return an engine whose connections wait ``wait_s`` for an answer at most.

    Raises:
        InputError: The URL has a port or a parameter that does not exist.
        MissingError: psycopg is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise MissingError(
            "a store in PostgreSQL needs psycopg: run pip install 'joulecast[postgres]'"
        ) from error
    _check_url(url, {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()})

    class LimitedConnection(psycopg.Connection[Any]):
        """A connection that is closed when an answer takes too long."""

        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            """Await an answer of the server."""
            return super().wait(self._limit(gen), *args, **options)

        def _limit(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            # psycopg wakes its generators several times a second, so that Ctrl-C works.
            end_s = monotonic() + wait_s
            try:
                state = next(gen)
                while True:
                    ready = yield state
                    if not ready and monotonic() > end_s:
                        self.close()
                        raise psycopg.OperationalError(
                            f"the server has not answered for {wait_s:.0f} s"
                        )
                    state = gen.send(ready)
            except StopIteration as end:
                return end.value

    def connect(_dialect: object, _record: object, args: Any, options: Any) -> Any:
        try:
            return LimitedConnection.connect(*args, **options)
        except UnicodeError as error:
            raise psycopg.OperationalError(f"no host has the name {url.host}") from error

    timeout_s = round(max(_LEAST_CONNECT_S, min(wait_s, _CONNECT_S)))
    engine = sa.create_engine(
        url, pool_pre_ping=True, connect_args={"connect_timeout": timeout_s} | dict(url.query)
    )
    sa.event.listen(engine, "do_connect", connect)
    return engine


def lock_schema(connection: sa.Connection) -> None:
    """Wait for other processes that create or change the tables; released with the transaction."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))


def _check_url(url: sa.URL, parameters: set[str]) -> None:
    if url.port is not None and url.port not in _PORTS:
        raise InputError(f"the store's URL has the port {url.port}: give one from 1 to 65535")
    unknown = sorted(set(url.query) - parameters)
    if unknown:
        raise InputError(
            f"the store's URL has the parameter {unknown[0]!r}, which PostgreSQL does not know: "
            "leave it out"
        )
