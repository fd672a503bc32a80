"""Something done again and again while a window is open, in a thread of its own.

Takes a function and a period. What the function raises is kept and raised by ``stop``, where the
caller can see it: an error in a thread is otherwise lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from joulecast.errors import JoulecastError


class Ticking(Protocol):
    """What a ticker is to its owner."""

    def start(self) -> None:
        """Begin, anew if it is already going."""

    def stop(self) -> None:
        """End, and raise what went wrong meanwhile. Stopping twice does no harm."""


MakeTicker = Callable[[float, Callable[[], object]], Ticking]


class Ticker:
    """Calls ``tick`` every ``every_s`` seconds from start to stop, first after one period."""

    def __init__(self, every_s: float, tick: Callable[[], object]) -> None:
        self._every_s = every_s
        self._tick = tick
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: JoulecastError | None = None

    def start(self) -> None:
        # What went wrong in a window that nobody ended is nobody's concern any more.
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
