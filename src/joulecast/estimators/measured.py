"""Answer with the measurement where the step itself was measured.

    H, T    issue time and duration of the step
    h       how far the host limits it: min(1, H / T)^12, the elasticity of T in H (``host_time``)
    s_T²    = t² + (b·h)² + spread²     relative variance of a duration, measured again
    s_E²    = e² + (c·b·h)² + spread²   that of an energy: waiting draws less than working
    spread  standard error of the median over the windows

A model of the device says where the energy goes: its layers are scaled to what was measured.
182 networks that were measured twice on one H200 differed by 0.3 to 0.75 % in energy and 0.05 to
0.2 % in duration where the GPU limits the step, by 7 to 9 % and 11 % where the host does (standard
deviations of one measurement).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from joulecast.estimators.base import UNIT_SD_SHARE
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import MEDIAN_SD_FACTOR, Estimate, Observation, weakest_provenance

REPEATED = "the step measured again"
UNIT_VARIATION = "unit-to-unit variation"
"""Names of uncertainty sources."""

# Standard deviations e, t and b, and the share c.
_ENERGY_SD, _DURATION_SD, _HOST_SD, _WAITING_SHARE = 0.01, 0.004, 0.11, 0.75
# On another host; and on a processor, which is its own host (2 to 4 % with one thread).
_OTHER_HOST_SD, _PROCESSOR_SD = 0.25, 0.05
_HOST_EXPONENT = 12.0


@dataclass(frozen=True)
class KnownStep:
    """What a step took, over all runs that measured it, with relative standard deviations.

    Attributes:
        sources: Relative variance of the energy by source.
    """

    energy_j: float
    duration_s: float
    duration_sd_share: float
    sources: dict[str, float]
    provenance: str

    @property
    def variance_share(self) -> float:
        """Relative variance of the energy."""
        return sum(self.sources.values())

    @property
    def energy_sd_j(self) -> float:
        """Standard deviation of the energy."""
        return self.energy_j * math.sqrt(self.variance_share)


def combine_steps(observations: Sequence[Observation], unit: str | None) -> KnownStep:
    """Return what observations of one step say of it on a unit of the device; None for any unit."""
    own = [one for one in observations if unit is not None and one.device.unit == unit]
    runs: dict[str, list[Observation]] = {}
    used = own or observations
    for one in used:
        runs.setdefault(one.run, []).append(one)
    host_sd = _HOST_SD if own else _OTHER_HOST_SD
    variances = [_find_variances(one, host_sd) for one in used]
    expected = map(fmean, zip(*variances, strict=True))
    energies_j = [fmean(map(_energy_j, same)) for same in runs.values()]
    durations_s = [fmean(map(_duration_s, same)) for same in runs.values()]
    # Runs may differ by more than one shows: by clocks, drivers or other programs.
    energy_var, duration_var = (
        max(one, variance(values) / fmean(values) ** 2 if len(runs) > 1 else 0.0) / len(runs)
        for one, values in zip(expected, (energies_j, durations_s), strict=True)
    )
    sources = {REPEATED: energy_var}
    if not own:
        units = {one.device.unit for one in observations}
        sources[UNIT_VARIATION] = UNIT_SD_SHARE**2 * (1.0 + 1.0 / len(units))
    return KnownStep(
        fmean(energies_j),
        fmean(durations_s),
        math.sqrt(duration_var),
        sources,
        weakest_provenance(one.provenance for one in used),
    )


def answer_measured(estimate: Estimate, step: KnownStep) -> Estimate:
    """Return an estimate with what was measured of its step; its layers are scaled."""
    factor, total = step.energy_j / estimate.energy_j, step.variance_share
    device_j = estimate.device_energy_j
    duration_var_s2 = (step.duration_sd_share * step.duration_s) ** 2
    return replace(
        estimate,
        energy_j=step.energy_j,
        interval_j=lognormal_interval(step.energy_j, step.energy_sd_j**2, estimate.level),
        duration_s=step.duration_s,
        duration_interval_s=lognormal_interval(step.duration_s, duration_var_s2, estimate.level),
        layers=tuple(replace(one, energy_j=factor * one.energy_j) for one in estimate.layers),
        blocks=tuple(replace(one, energy_j=factor * one.energy_j) for one in estimate.blocks),
        device_energy_j=None if device_j is None else factor * device_j,
        provenance=step.provenance,
        uncertainty_sources={name: var / total for name, var in step.sources.items()},
        unseen_share=0.0,
        is_measured=True,
    )


def _energy_j(one: Observation) -> float:
    return (one.energy_j or 0.0) / one.trial.execution.steps


def _duration_s(one: Observation) -> float:
    return (one.duration_s or 0.0) / one.trial.execution.steps


def _find_variances(one: Observation, host_sd: float) -> tuple[float, float]:
    """Return the relative variances of the energy and the duration of one observation."""
    assert one.energy_j and one.duration_s
    # Without an issue time the host may have limited it.
    ratio = 1.0 if one.issue_s is None else min(1.0, one.issue_s / one.duration_s)
    host_sd = host_sd if one.covers.startswith("gpu") else _PROCESSOR_SD
    host_sd *= ratio**_HOST_EXPONENT
    spreads = [
        (MEDIAN_SD_FACTOR * sd / value) ** 2 / one.count if sd and one.count > 1 else 0.0
        for sd, value in ((one.energy_sd_j, one.energy_j), (one.duration_sd_s, one.duration_s))
    ]
    energy_var = _ENERGY_SD**2 + (_WAITING_SHARE * host_sd) ** 2 + spreads[0]
    return energy_var, _DURATION_SD**2 + host_sd**2 + spreads[1]
