"""Check the order in which a meter is used, once for all instruments.

    open ── begin ── end ── begin ── end ── close ── open …

An instrument implements four hooks, which are always called in order: opening and closing twice
does nothing, ``begin`` needs an open meter, and ``end`` needs ``begin``. A second ``begin``
restarts the window, because a load that failed never reaches its ``end``. An instrument that fails
in between raises MeterLostError.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from joulecast.errors import MeasurementError, MeterLostError
from joulecast.meters.base import Meter, Reading


class GuardedMeter(Meter):
    """A meter that checks the order of calls; an instrument implements the four hooks."""

    _is_open = False
    _has_begun = False

    def open(self) -> None:
        if not self._is_open:
            self._connect()
            self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = self._has_begun = False
            self._release()

    def begin(self) -> None:
        if not self._is_open:
            raise MeasurementError(
                f"begin() was called on meter {self.name} before open(): use `with`"
            )
        with _name_loss():
            self._start()
        self._has_begun = True

    def end(self) -> Reading:
        if not self._has_begun:
            raise MeasurementError(
                f"end() was called on meter {self.name} before begin(): call begin() first"
            )
        self._has_begun = False
        with _name_loss():
            return self._stop()

    def _connect(self) -> None:
        """Connect to the instrument; most need nothing."""

    def _release(self) -> None:
        """Disconnect; a window may still be open."""

    @abstractmethod
    def _start(self) -> None:
        """Mark the start of a window, discarding one that was not ended."""

    @abstractmethod
    def _stop(self) -> Reading:
        """Return the energy since the start."""


@contextmanager
def _name_loss() -> Iterator[None]:
    """Turn an error of the instrument into one that no trial is blamed for."""
    try:
        yield
    except MeasurementError as error:
        raise MeterLostError(str(error)) from error
