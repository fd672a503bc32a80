"""Summarise what an atlas knows about a device, from its stored observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from joulecast.campaign.anchor_rates import MeasuredPeaks
from joulecast.records import Observation


@dataclass(frozen=True)
class AtlasSummary:
    """What is stored about a device.

    Attributes:
        trials: Distinct trials that were measured.
        with_energy: Those of them whose energy was measured.
        refused: Trials that the device refused, by reason, the most frequent first.
        idle_power_w: Median power of the idle device; None if it was not measured.
        peaks: The fastest rates seen.
    """

    trials: int
    with_energy: int
    refused: dict[str, int]
    idle_power_w: float | None
    peaks: MeasuredPeaks


def summarise_atlas(observations: Sequence[Observation], peaks: MeasuredPeaks) -> AtlasSummary:
    """Return a summary of the observations of a device."""
    measured = {one.trial for one in observations if one.duration_s and one.trial.network.layers}
    metered = {one.trial for one in observations if one.energy_j and one.trial.network.layers}
    refusals = {one.trial: _shorten(one.refusal) for one in observations if one.refusal}
    reasons = Counter(reason for trial, reason in refusals.items() if trial not in measured)
    idle_w = [
        one.energy_j / one.duration_s
        for one in observations
        if not one.trial.network.layers and one.energy_j is not None and one.duration_s
    ]
    power_w = median(idle_w) if idle_w else None
    return AtlasSummary(len(measured), len(metered), dict(reasons.most_common()), power_w, peaks)


def _shorten(reason: str) -> str:
    """Return the first clause of a refusal, so that equal ones are counted together."""
    return reason.partition(";")[0].partition(" (")[0].strip() or "no reason"
