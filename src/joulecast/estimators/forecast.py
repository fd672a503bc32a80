"""Forecast the energy and duration of a run of many steps, and whether a battery suffices.

    duration(z) = duration_s * exp(z * duration_log_sd)
    energy(z)   = device_energy_j * exp(z * energy_log_sd) + rest_w * duration(z)

z is a standard normal: the errors of energy and duration are taken to have the same sign, which is
safe, since it makes the sum widest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from joulecast.gp.lognormal import interval_log_sd
from joulecast.records import Estimate
from joulecast.records.codec import Record
from joulecast.system.errors import InputError

_NORMAL = NormalDist()
_Z_RANGE, _BISECTIONS = 40.0, 200


@dataclass(frozen=True)
class RunForecast:
    """Energy and duration of a run."""

    device_energy_j: float  # what the meter behind the estimate sees
    duration_s: float
    energy_log_sd: float
    duration_log_sd: float
    rest_w: float = 0.0  # what it does not see, for as long as the run takes

    @property
    def energy_j(self) -> float:
        """Return the expected energy of the whole device."""
        return self.energy_quantile(0.5)

    def device_quantile(self, probability: float) -> float:
        """Return the metered energy that a run stays below with this probability."""
        return self.device_energy_j * math.exp(_NORMAL.inv_cdf(probability) * self.energy_log_sd)

    def duration_quantile(self, probability: float) -> float:
        """Return the duration that a run stays below with this probability."""
        return self.duration_s * math.exp(_NORMAL.inv_cdf(probability) * self.duration_log_sd)

    def energy_quantile(self, probability: float) -> float:
        """Return the energy of the whole device that a run stays below with this probability."""
        return self._energy_at(_NORMAL.inv_cdf(probability))

    def energy_interval(self, level: float) -> tuple[float, float]:
        """Return the central interval of the energy with this probability."""
        return self.energy_quantile(0.5 - level / 2), self.energy_quantile(0.5 + level / 2)

    def probability_below(self, available_j: float) -> float:
        """Return the probability that this much energy suffices."""
        low, high = -_Z_RANGE, _Z_RANGE
        if self._energy_at(low) > available_j or self._energy_at(high) <= available_j:
            return float(self._energy_at(high) <= available_j)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._energy_at(middle) <= available_j else (low, middle)
        return _NORMAL.cdf(low)

    def _energy_at(self, z: float) -> float:
        rest_j = self.rest_w * self.duration_s * math.exp(z * self.duration_log_sd)
        return self.device_energy_j * math.exp(z * self.energy_log_sd) + rest_j


@dataclass(frozen=True)
class BatteryForecast(Record):
    """The energy a run needs, the energy available, and the probability that it suffices."""

    available_j: float
    needed_j: float
    interval_j: tuple[float, float]
    probability: float
    steps_left: int  # expected number of steps that the charge is enough for


def forecast_run(estimate: Estimate, steps: int, rest_w: float = 0.0) -> RunForecast:
    """Forecast a run; its steps share their error.

    Durations of estimators without a duration interval are as uncertain as the energy.
    """
    log_sd = interval_log_sd(estimate.energy_j, estimate.interval_j, estimate.level)
    interval_s, duration_log_sd = estimate.duration_interval_s, log_sd
    if interval_s is not None:
        duration_log_sd = interval_log_sd(estimate.duration_s, interval_s, estimate.level)
    energy_j, duration_s = steps * estimate.energy_j, steps * estimate.duration_s
    return RunForecast(energy_j, duration_s, log_sd, duration_log_sd, rest_w)


def will_finish(
    estimate: Estimate,
    steps: int,
    battery_j: float,
    charge_share: float = 1.0,
    reserve_share: float = 0.0,
    rest_w: float = 0.0,
) -> BatteryForecast:
    """Forecast whether a run finishes on a battery."""
    if not 0 <= rest_w < math.inf:
        raise InputError(f"rest_w is {rest_w:g} W: give a power of at least 0")
    available_j = battery_j * (charge_share - reserve_share)
    if available_j <= 0:
        raise InputError(
            f"a charge of {100 * charge_share:g} % with a reserve of {100 * reserve_share:g} % "
            "leaves no energy: charge the battery, or lower the reserve"
        )
    run = forecast_run(estimate, steps, rest_w)
    return BatteryForecast(
        available_j,
        run.energy_j,
        run.energy_interval(estimate.level),
        run.probability_below(available_j),
        int(available_j / run.energy_j * steps),
    )
