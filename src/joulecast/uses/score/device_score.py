"""Compute the two scores of DeepEn2023 from the energy and power of inferences on a device.

    PCS    power consumption score              100 x mean of (1 - power / TDP), rounded
    IECS   inference energy consumption score   sum of inferences per joule (our reading)

Both are over configurations: applications, each on some processors or with some numbers of threads.
TDP is the thermal design power. The exact weights of IECS are not public.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from joulecast.records.trial import INFERENCES
from joulecast.units import format_power, joules_to_wh
from joulecast.uses.score.score_labels import ENERGY_SCALE, POWER_SCALE, choose_worse

IECS_CAVEAT = (
    "IECS is our reading of DeepEn2023: the sum of inferences per joule over applications and "
    "processors. Its exact weights are not public. Compare it only between devices with the same "
    "applications and processors."
)
SCALE_NOTE = (
    f"The thresholds of A to G are ours. PCS: {POWER_SCALE.describe()}. "
    f"Inferences per joule, on average: {ENERGY_SCALE.describe()}. The label is the worse of both."
)


@dataclass(frozen=True)
class ScoredConfiguration:
    """An application on a processor, and what one inference took there.

    Attributes:
        application: Name of the application, or of its network.
        processor: Processor or number of threads.
        energy_j: Energy of an inference; None where it is not known.
        power_w: Average power during inferences; None where it is not known.
        missing: Why a value is not known; empty if all are.
        count: How many observations it rests on.
    """

    application: str
    processor: str
    energy_j: float | None = None
    power_w: float | None = None
    missing: str = ""
    count: int = 1

    @property
    def duration_s(self) -> float | None:
        """The duration of an inference."""
        if self.energy_j is None or not self.power_w:
            return None
        return self.energy_j / self.power_w


@dataclass(frozen=True)
class DeviceFacts:
    """What no meter tells about a device.

    Attributes:
        tdp_w: Thermal design power.
        tdp_source: Where it comes from.
        price: What the device costs, in ``currency``.
        inferences_per_s: Performance that somebody states; by default it is what was observed.
    """

    tdp_w: float | None = None
    tdp_source: str = "given"
    price: float | None = None
    currency: str = ""
    inferences_per_s: float | None = None


@dataclass(frozen=True)
class DeviceScore:
    """The scores of a device, and what they rest on.

    Attributes:
        name: Name of the device.
        runtime: Framework and version.
        covers: What the meter sees.
        provenance: Where energies come from.
        source: Who published imported energies.
    """

    name: str
    runtime: str
    covers: str
    provenance: str
    configurations: tuple[ScoredConfiguration, ...]
    facts: DeviceFacts = DeviceFacts()
    source: str = ""

    @cached_property
    def energies_j(self) -> tuple[float, ...]:
        """Energies of an inference, of the configurations whose energy is known."""
        return tuple(one.energy_j for one in self.configurations if one.energy_j)

    @cached_property
    def mean_power_w(self) -> float | None:
        """Average power, over the configurations."""
        powers_w = [one.power_w for one in self.configurations if one.power_w is not None]
        return fmean(powers_w) if powers_w else None

    @property
    def pcs(self) -> int | None:
        """The power consumption score; None if TDP or power is not known."""
        return score_power(self.configurations, self.facts.tdp_w)

    @property
    def iecs(self) -> float | None:
        """The inference energy consumption score, as we read it; None without energies."""
        return sum(1.0 / one for one in self.energies_j) if self.energies_j else None

    @property
    def inferences_per_joule(self) -> float | None:
        """IECS divided by the number of configurations."""
        return None if self.iecs is None else self.iecs / len(self.energies_j)

    @property
    def inferences_per_s(self) -> float | None:
        """The stated performance, else the geometric mean over configurations."""
        if self.facts.inferences_per_s is not None:
            return self.facts.inferences_per_s
        durations_s = [one.duration_s for one in self.configurations if one.duration_s]
        if not durations_s:
            return None
        return math.exp(-fmean(map(math.log, durations_s)))

    @property
    def wh_per_1000_inferences(self) -> float | None:
        """Watt-hours per 1,000 inferences: the mean over applications."""
        own = [wh for _, wh in self.list_applications() if wh is not None]
        return fmean(own) if own else None

    def list_applications(self) -> list[tuple[str, float | None]]:
        """Return each application with its watt-hours per 1,000 inferences, over processors."""
        names = dict.fromkeys(one.application for one in self.configurations)
        return [(name, self._average_application(name)) for name in names]

    def _average_application(self, name: str) -> float | None:
        own = (one for one in self.configurations if one.application == name)
        energies_j = [one.energy_j for one in own if one.energy_j]
        return joules_to_wh(INFERENCES * fmean(energies_j)) if energies_j else None

    @cached_property
    def unscored(self) -> tuple[str, ...]:
        """Applications without an energy on any processor: without them there are no letters."""
        return tuple(name for name, wh in self.list_applications() if wh is None)

    @property
    def pcs_label(self) -> str | None:
        """The letter of PCS; None unless all applications were scored."""
        pcs = self.pcs
        return None if pcs is None or self.unscored else POWER_SCALE.choose_letter(pcs)

    @property
    def iecs_label(self) -> str | None:
        """The letter of inferences per joule; None unless all applications were scored."""
        mean = self.inferences_per_joule
        return None if mean is None or self.unscored else ENERGY_SCALE.choose_letter(mean)

    @property
    def label(self) -> str | None:
        """The worse of both letters; None unless both scores are known."""
        if self.pcs_label is None or self.iecs_label is None:
            return None
        return choose_worse(self.pcs_label, self.iecs_label)

    def list_notes(self) -> list[str]:
        """Return sentences about what limits the scores of this device."""
        notes = []
        tdp_w = self.facts.tdp_w
        if tdp_w is None:
            notes.append(
                "PCS and the label need the thermal design power of the device: give it, like "
                "--tdp 15W."
            )
        elif self.mean_power_w is not None and self.mean_power_w > tdp_w:
            notes.append(
                f"PCS is negative: the device drew {format_power(self.mean_power_w)} on average, "
                f"more than its TDP of {format_power(tdp_w)}. Check the TDP, and what the meter "
                "covers besides the processor."
            )
        if self.provenance == "modelled":
            notes.append(
                "Power was not measured but stated, so PCS repeats that statement and IECS ranks "
                "by processor time. Measure with a meter of `joulecast detect` for real scores."
            )
        if self.provenance == "simulated":
            notes.append("The device is simulated: its scores say nothing about a real one.")
        notes += _describe_missing(self.configurations)
        if self.unscored:
            missing = ", ".join(self.unscored).replace("_", " ")
            notes.append(f"There are no letters, because not all applications ran: {missing}.")
        return notes


def score_power(configurations: Iterable[ScoredConfiguration], tdp_w: float | None) -> int | None:
    """Return PCS for a thermal design power; None if that or all powers are unknown."""
    shares = [1.0 - one.power_w / tdp_w for one in configurations if one.power_w and tdp_w]
    return round(100.0 * fmean(shares)) if shares else None


def _describe_missing(configurations: Sequence[ScoredConfiguration]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for one in configurations:
        if one.missing:
            name = f"{one.application}, {one.processor}" if one.processor else one.application
            reasons.setdefault(one.missing, []).append(name)
    total = len(configurations)
    return [
        f"Not scored: {len(names)} of {total} configurations ({'; '.join(names)}): {reason}"
        for reason, names in reasons.items()
    ]
