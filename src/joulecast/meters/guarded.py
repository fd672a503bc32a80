"""The order in which a meter is used, guarded once for all instruments.

        open ── begin ── end ── begin ── end ── close ── open …

An instrument fills in four hooks and never sees them out of order: opening and closing twice does
nothing, ``begin`` needs an open meter, ``end`` needs a begun window. A second ``begin`` starts the
window anew, because a load that failed never reached its ``end``.
"""

from __future__ import annotations

from abc import abstractmethod

from joulecast.errors import MeasurementError
from joulecast.meters.base import Meter, Reading


class GuardedMeter(Meter):
    """A meter whose order of use is checked; an instrument implements the four hooks."""

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
                f"meter {self.name} was begun before it was opened: call open() or use `with`"
            )
        self._start()
        self._has_begun = True

    def end(self) -> Reading:
        if not self._has_begun:
            raise MeasurementError(
                f"meter {self.name} was ended before it was begun: call begin() first"
            )
        self._has_begun = False
        return self._stop()

    def _connect(self) -> None:
        """Take hold of the instrument; most need nothing."""

    def _release(self) -> None:
        """Let go of it; a window may still be open."""

    @abstractmethod
    def _start(self) -> None:
        """Mark the start of a window, forgetting one that was not ended."""

    @abstractmethod
    def _stop(self) -> Reading:
        """Say what passed since the start."""
