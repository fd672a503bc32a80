"""What a run takes, and how unsure that is: joules and seconds, each with a width of its own.

    seconds(z) = duration_s · exp(z · width_s)
    joules(z)  = device_j · exp(z · width) + rest_w · seconds(z)

z counts deviations: 0 is the mean of the logarithm, 1.28 what a run stays below with 90 %. Both are
taken to be off together, in the same direction: that is safe, since it makes sums widest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulecast.gp.lognormal import interval_log_sd, lognormal_quantile, probability_below
from joulecast.records import Estimate

_HALVINGS = 200


@dataclass(frozen=True)
class Spread:
    """Joules and seconds of a run.

    Attributes:
        device_j: What the meter behind the estimate sees.
        width: Deviation of its logarithm; ``width_s`` that of the seconds.
        rest_w: What the meter does not see, drawn for as long as the run takes.
    """

    device_j: float
    duration_s: float
    width: float
    width_s: float
    rest_w: float = 0.0

    @property
    def energy_j(self) -> float:
        """What the whole machine draws meanwhile."""
        return self.find_energy(0.5)

    def find_device(self, share: float) -> float:
        """Joules of the device that a run stays below with this probability."""
        return lognormal_quantile(self.device_j, self.width, share)

    def find_seconds(self, share: float) -> float:
        """Seconds that a run stays below with this probability."""
        return lognormal_quantile(self.duration_s, self.width_s, share)

    def find_energy(self, share: float) -> float:
        """Joules of the whole machine that a run stays below with this probability."""
        return self.find_device(share) + self.rest_w * self.find_seconds(share)

    def find_interval(self, level: float) -> tuple[float, float]:
        """Where the joules are with this probability."""
        return self.find_energy(0.5 - level / 2), self.find_energy(0.5 + level / 2)

    def find_probability(self, available_j: float) -> float:
        """How probable it is that so many joules are enough."""
        low, high = -40.0, 40.0
        if self._at(low) > available_j or self._at(high) <= available_j:
            return float(self._at(high) <= available_j)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._at(middle) <= available_j else (low, middle)
        return probability_below(low, 1.0)

    def _at(self, z: float) -> float:
        rest_j = self.rest_w * self.duration_s * math.exp(z * self.width_s)
        return self.device_j * math.exp(z * self.width) + rest_j


def spread_run(answer: Estimate, steps: int, rest_w: float = 0.0) -> Spread:
    """So many steps: they share their error, so it grows with their number.

    Seconds of an estimator that says none of their width are as unsure as its joules.
    """
    width = interval_log_sd(answer.energy_j, answer.interval_j, answer.level)
    known_s = answer.duration_interval_s
    width_s = (
        width if known_s is None else interval_log_sd(answer.duration_s, known_s, answer.level)
    )
    return Spread(steps * answer.energy_j, steps * answer.duration_s, width, width_s, rest_w)
