"""Hold samples of power over time, and integrate them.

E(t) = ∫ P dt     by the trapezoidal rule between samples: exact energies of any window are
                  differences of it
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError
from joulecast.meters.trace import GAP_PERIODS

Floats = npt.NDArray[np.float64]
_LEAST_SAMPLES = 100


@dataclass(frozen=True)
class PowerTrace:
    """Power over time on the clock of an instrument; ``make_trace`` checks the samples.

    Attributes:
        times_s: Increasing times.
        powers_w: Power at each of them.
    """

    times_s: Floats
    powers_w: Floats

    @cached_property
    def interval_s(self) -> float:
        """Median time between two samples."""
        return float(np.median(np.diff(self.times_s)))

    @cached_property
    def noise_w(self) -> float:
        """Standard deviation of a sample, from the differences of neighbours."""
        # The median distance of two draws is 0.9539 standard deviations of one.
        return float(np.median(np.abs(np.diff(self.powers_w)))) / 0.9539

    @cached_property
    def energies_j(self) -> Floats:
        """Energy since the first sample, at each sample."""
        means_w = (self.powers_w[1:] + self.powers_w[:-1]) / 2
        return np.concatenate(([0.0], np.cumsum(means_w * np.diff(self.times_s))))

    def find_energy(self, times_s: npt.ArrayLike) -> Floats:
        """Return the energy since the first sample at any times inside the trace."""
        return np.asarray(np.interp(np.asarray(times_s), self.times_s, self.energies_j))

    def find_power(self, starts_s: npt.ArrayLike, ends_s: npt.ArrayLike) -> Floats:
        """Return the mean power between starts and ends."""
        starts, ends = np.asarray(starts_s, float), np.asarray(ends_s, float)
        return np.asarray((self.find_energy(ends) - self.find_energy(starts)) / (ends - starts))

    def covers(self, start_s: float, end_s: float) -> bool:
        """Return whether a window lies inside the trace."""
        return bool(self.times_s[0] <= start_s and end_s <= self.times_s[-1])

    def find_gap(self, start_s: float, end_s: float) -> float:
        """Return the longest time without a sample in a window; 0 if no sample is missing."""
        first = max(int(np.searchsorted(self.times_s, start_s)) - 1, 0)
        last = int(np.searchsorted(self.times_s, end_s)) + 1
        widest_s = float(np.max(np.diff(self.times_s[first:last]), initial=0.0))
        return widest_s if widest_s > GAP_PERIODS * self.interval_s else 0.0


def make_trace(times_s: npt.ArrayLike, powers_w: npt.ArrayLike) -> PowerTrace:
    """Return a trace; samples at the same time become their mean.

    Raises:
        InputError: There are too few samples, one is not finite, or time goes back.
    """
    times, powers = np.asarray(times_s, float), np.asarray(powers_w, float)
    if not (np.isfinite(times).all() and np.isfinite(powers).all()):
        raise InputError("a time or a power is not a finite number")
    steps = np.diff(times)
    if (steps < 0).any():
        place = int(np.argmax(steps < 0)) + 2
        raise InputError(f"time goes back at sample {place}: give one recording")
    # Instruments that send packets give all samples of a packet one time.
    starts = np.flatnonzero(np.concatenate(([True], steps > 0)))
    counts = np.diff(np.append(starts, len(times)))
    if len(starts) < _LEAST_SAMPLES:
        raise InputError(f"it has only {len(starts)} samples: record while the campaign runs")
    return PowerTrace(times[starts], np.add.reduceat(powers, starts) / counts)
