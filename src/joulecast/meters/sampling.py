"""Read an instrument while a window is open, and compute the energy of the window.

        ·   ·  │·   ·   ·   ·│  ·         only samples inside the window count: those outside
               t0            t1           belong to another load

Power is interpolated linearly between samples, and constant from each end of the window to the
nearest sample inside. Counts are those of an energy counter at both ends, or more often.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from joulecast.meters.base import GuardedMeter, Reading
from joulecast.system.errors import JoulecastError

MIN_SAMPLES = 3
# An instrument without a sample for this many of its intervals has missed some.
GAP_PERIODS = 5.0
# A device counts something in this time, however idle it is.
_STUCK_S = 0.5


class Sample(NamedTuple):
    """The power at a moment."""

    time_s: float
    power_w: float


def integrate(samples: Sequence[Sample], start_s: float, end_s: float) -> Reading:
    """Return the energy of a window from the samples inside it, with their faults."""
    inside = [sample for sample in samples if start_s <= sample.time_s <= end_s]
    faults = tuple(_find_faults(inside, start_s, end_s))
    duration_s = end_s - start_s
    if not inside or duration_s <= 0 or any(fault.startswith("reset") for fault in faults):
        return Reading(0.0, max(duration_s, 0.0), faults)
    first, last = inside[0], inside[-1]
    held = [Sample(start_s, first.power_w), *inside, Sample(end_s, last.power_w)]
    energy_j = sum(
        (after.time_s - before.time_s) * (after.power_w + before.power_w) / 2
        for before, after in pairwise(held)
    )
    return Reading(max(energy_j, 0.0), duration_s, faults)


def subtract_counts(counts_j: Sequence[float], duration_s: float) -> Reading:
    """Return the energy of a window from the counts at its start, within it, and at its end."""
    faults = []
    if any(after < before for before, after in pairwise(counts_j)):
        faults.append("reset: the energy counter fell")
    elif counts_j[-1] == counts_j[0]:
        kind = "stuck" if duration_s >= _STUCK_S else "too short"
        faults.append(f"{kind}: the energy counter did not change in {duration_s:.3g} s")
    return Reading(max(counts_j[-1] - counts_j[0], 0.0), duration_s, tuple(faults))


def median_interval_s(samples: Sequence[Sample]) -> float:
    """Return the median time between two samples; 0 for fewer than two."""
    steps = [after.time_s - before.time_s for before, after in pairwise(samples)]
    return max(median(steps), 0.0) if steps else 0.0


def _find_faults(inside: list[Sample], start_s: float, end_s: float) -> Iterator[str]:
    times = [start_s, *(sample.time_s for sample in inside), end_s]
    widest_s = max(after - before for before, after in pairwise(times))
    if len(inside) < MIN_SAMPLES:
        yield f"too short: {len(inside)} power samples in {max(end_s - start_s, 0.0):.3g} s"
    elif widest_s > GAP_PERIODS * median_interval_s(inside):
        yield f"gap: {widest_s:.3g} s without a sample"
    if any(after.time_s < before.time_s for before, after in pairwise(inside)):
        yield "reset: the instrument's clock went back"
    lowest_w = min((sample.power_w for sample in inside), default=0.0)
    if lowest_w < 0:
        yield f"negative: a sample of {lowest_w:.3g} W"


class Ticker:
    """A thread that calls ``tick`` every ``every_s`` seconds, first after one period.

    An error of ``tick`` is raised by ``stop``, because an error in a thread is otherwise lost.
    """

    def __init__(self, every_s: float, tick: Callable[[], object]) -> None:
        self._every_s = every_s
        self._tick = tick
        self._stopped = threading.Event()
        self._error: JoulecastError | None = None
        self._thread = threading.Thread(target=self._run, name="joulecast-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._tick()
            except JoulecastError as error:
                self._error = error
                return


class TickedMeter(GuardedMeter):
    """A meter whose instrument is also read while a window is open; hooks say how.

    Attributes:
        tick_s: Time between two readings; 0 to read only both ends of a window.
        make_ticker: Starts what calls ``_tick`` again and again, until it is stopped.
    """

    tick_s = 0.0
    make_ticker: type[Ticker] = Ticker
    _ticker: Ticker | None = None
    _begun_s = 0.0

    @abstractmethod
    def _tick(self) -> None:
        """Read the instrument."""

    @abstractmethod
    def _begin(self) -> None:
        """Discard what was read before, and read the instrument at the start if that matters."""

    @abstractmethod
    def _finish(self, end_s: float) -> Reading:
        """Return the energy from ``_begun_s`` to the end."""

    def _start(self) -> None:
        # An error in a window that was never ended no longer matters.
        with suppress(JoulecastError):
            self._release()
        if self.tick_s:
            # Its first tick is a period away.
            self._ticker = self.make_ticker(self.tick_s, self._tick)
        self._begin()
        self._begun_s = self.clock.now()

    def _stop(self) -> Reading:
        end_s = self.clock.now()
        self._release()
        return self._finish(end_s)

    def _release(self) -> None:
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.stop()


class SampledMeter(TickedMeter):
    """A number that is read while a window is open: power (W) to integrate, or a counter (J)."""

    unit = "W"

    @abstractmethod
    def _read(self) -> float:
        """Return the present power or count."""

    def _begin(self) -> None:
        self._samples: list[Sample] = []
        if self.unit == "J":
            self._tick()

    def _finish(self, end_s: float) -> Reading:
        if self.unit == "W":
            return integrate(self._samples, self._begun_s, end_s)
        self._tick()
        return subtract_counts([value for _, value in self._samples], end_s - self._begun_s)

    def _tick(self) -> None:
        begin_s = self.clock.now()
        value = self._read()
        # Reading takes milliseconds, or as long as a program runs: assume the middle.
        self._samples.append(Sample((begin_s + self.clock.now()) / 2, value))
