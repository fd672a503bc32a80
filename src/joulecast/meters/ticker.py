"""Call a function periodically in a thread while a window is open.

Errors of the function are raised by ``stop``, because an error in a thread is otherwise lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from joulecast.errors import JoulecastError


class TickerLike(Protocol):
    """The interface of a ticker."""

    def start(self) -> None:
        """Start, or restart if it is running."""

    def stop(self) -> None:
        """Stop, and raise the error of the function if there was one. May be called twice."""


MakeTicker = Callable[[float, Callable[[], object]], TickerLike]


class Ticker:
    """A thread that calls ``tick`` every ``every_s`` seconds, first after one period."""

    def __init__(self, every_s: float, tick: Callable[[], object]) -> None:
        self._every_s = every_s
        self._tick = tick
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: JoulecastError | None = None

    def start(self) -> None:
        # An error in a window that was never ended no longer matters.
        with suppress(JoulecastError):
            self.stop()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="joulecast-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._tick()
            except JoulecastError as error:
                self._error = error
                return
