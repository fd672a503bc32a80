"""Run transactions, and run them again while a server restarts.

What a transaction of the store does twice has the effect of doing it once, so a transaction whose
answer was lost can be repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from joulecast.store.database_errors import is_transient, wrap_errors

Result = TypeVar("Result")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_log = logging.getLogger(__name__)


class Transactions:
    """Transactions of a database.

    Args:
        engine: The database.
        place: What messages call it.
        file: Its file, if it has one.
        wait_s: How long a transaction is tried again if a server cannot be reached.
    """

    def __init__(self, engine: sa.Engine, place: str, file: Path | None, wait_s: float) -> None:
        self._writer = engine.execution_options(writes=True)
        self._reader = engine
        if engine.dialect.name == "postgresql":
            # All statements of a transaction see the same rows, as they do with SQLite.
            self._reader = engine.execution_options(isolation_level="REPEATABLE READ")
        self.place = place
        self._file = file
        self._wait_s = wait_s

    def read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Return what ``work`` reads in one transaction."""
        return self._run(self._reader, work)

    def write(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Return the result of ``work``, whose changes are on disk when this returns."""
        return self._run(self._writer, work)

    def _run(self, engine: sa.Engine, work: Callable[[sa.Connection], Result]) -> Result:
        def run() -> Result:
            with engine.begin() as connection:
                return work(connection)

        with wrap_errors(self.place, self._file):
            return repeat_while_down(run, self._wait_s)


def repeat_while_down(work: Callable[[], Result], wait_s: float) -> Result:
    """Return the result of ``work``, tried again for ``wait_s`` if a server cannot be reached."""
    end_s, pause_s = time.monotonic() + wait_s, _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except sa.exc.DBAPIError as error:
            if not is_transient(error) or time.monotonic() + pause_s > end_s:
                raise
            _log.info("the store's server does not answer; trying again")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
