"""Forecast a run on every device of a fleet: who can finish it, and what it takes there.

A device can finish if the step fits its memory and if, with a given probability, its charge above
the reserve suffices and the deadline is met. Energy and duration of a run are taken to err in the
same direction, so both hold with the smaller of their probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from joulecast.estimators.forecast import RunForecast, forecast_run
from joulecast.fleet.fleet_devices import FleetDevice
from joulecast.records import Estimate, Setup
from joulecast.records.codec import Record
from joulecast.store.campaigns import StoredDevice
from joulecast.system.errors import InputError, JoulecastError
from joulecast.system.units import battery_share, format_bytes, format_duration, format_energy

MEMORY, BATTERY, DEADLINE, UNKNOWN = "memory", "battery", "deadline", "unknown"


@dataclass(frozen=True)
class RunQuestion:
    """A run, and when a device counts as able to finish it.

    Attributes:
        deadline_s: Longest duration; None for any.
        confidence: Probability with which battery and deadline must suffice.
        charges: Charged shares of batteries by device, where they differ from the fleet file.
    """

    steps: int
    deadline_s: float | None = None
    confidence: float = 0.9
    charges: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:
            raise InputError(f"deadline_s is {self.deadline_s}: give seconds above 0")
        for name, share in self.charges.items():
            if not 0 <= share <= 1:
                raise InputError(f"the charge of {name} is {share}: give a share from 0 to 1")


@dataclass(frozen=True)
class DeviceForecast(Record):
    """What a run takes on one device of a fleet.

    Attributes:
        state: Whether the device answered last time: ``ready``, ``away``, ``parked``, ``refused``.
        can_finish: Whether it can finish the run; None if nothing is known about the device.
        obstacle: Why it cannot: ``memory``, ``battery``, ``deadline`` or ``unknown``; else empty.
        reason: The obstacle as a sentence.
        probability: That the charge suffices and the deadline is met.
        energy_j: Expected energy of the run, including power that the meter does not see.
        interval_j: Credible interval of it.
        battery_share: Share of the full battery that the run takes; None without a battery.
        step_energy_j: Energy of one step, as the meter sees it.
        unseen_share: Share of the energy in layers whose kind was never measured.
    """

    name: str
    state: str
    can_finish: bool | None = None
    obstacle: str = ""
    reason: str = ""
    probability: float | None = None
    energy_j: float | None = None
    interval_j: tuple[float, float] | None = None
    duration_s: float | None = None
    duration_interval_s: tuple[float, float] | None = None
    battery_share: float | None = None
    peak_memory_bytes: int | None = None
    step_energy_j: float | None = None
    unseen_share: float | None = None
    provenance: str = ""
    covers: str = ""
    profile_key: str = ""


@dataclass(frozen=True)
class FleetEstimate(Record):
    """What a run takes on every device of a fleet: those that can finish come first, by energy.

    Attributes:
        level: Probability of the intervals.
        confidence: Probability with which battery and deadline must suffice.
        deadline_s: Longest duration; None for any.
    """

    network: str
    setup: Setup
    steps: int
    level: float
    confidence: float
    deadline_s: float | None
    devices: tuple[DeviceForecast, ...]


def forecast_fleet(
    devices: Sequence[StoredDevice], question: RunQuestion, estimate: Callable[[str], Estimate]
) -> tuple[DeviceForecast, ...]:
    """Forecast a run on every device, from estimates of one step by the key of a profile.

    Raises:
        InputError: A charge is given for a device that is not in the fleet or has no battery.
    """
    known = {one.name: FleetDevice.from_dict(one.payload) for one in devices}
    charges = question.charges
    for name in charges:
        if name not in known:
            raise InputError(f"no device of the fleet is called {name!r}: {', '.join(known)}")
        if known[name].battery_j is None:
            raise InputError(f"{name} has no battery: give battery_wh in the fleet file")
    estimates: dict[str, Estimate | JoulecastError] = {}
    for key in {one.profile_key for one in devices if one.profile_key}:
        try:
            estimates[key] = estimate(key)
        except JoulecastError as error:
            estimates[key] = error
    found = []
    for one in devices:
        device = known[one.name]
        device = replace(device, charge_share=charges.get(one.name, device.charge_share))
        answer = estimates.get(one.profile_key)
        if isinstance(answer, Estimate):
            found.append(_forecast(one, device, answer, question))
        else:
            reason = str(answer or f"{one.name} has never answered: see `joulecast fleet status`")
            found.append(DeviceForecast(one.name, one.state, None, UNKNOWN, reason))
    order = {True: 0, False: 1, None: 2}
    return tuple(
        sorted(found, key=lambda one: (order[one.can_finish], one.energy_j or 0.0, one.name))
    )


def _forecast(
    stored: StoredDevice, device: FleetDevice, estimate: Estimate, question: RunQuestion
) -> DeviceForecast:
    run = forecast_run(estimate, question.steps, device.rest_w)
    probability, obstacle, reason = _find_obstacle(device, estimate, run, question)
    energy_j, tail = run.energy_j, estimate.level / 2
    return DeviceForecast(
        stored.name,
        stored.state,
        not obstacle,
        obstacle,
        reason,
        probability,
        energy_j,
        run.energy_interval(estimate.level),
        run.duration_s,
        (run.duration_quantile(0.5 - tail), run.duration_quantile(0.5 + tail)),
        None if device.battery_j is None else battery_share(energy_j, device.battery_j),
        estimate.peak_memory_bytes,
        estimate.energy_j,
        estimate.unseen_share,
        estimate.provenance,
        estimate.covers,
        stored.profile_key,
    )


def _find_obstacle(
    device: FleetDevice, estimate: Estimate, run: RunForecast, question: RunQuestion
) -> tuple[float, str, str]:
    """Return the probability of finishing, and what prevents it, in a word and in a sentence."""
    memory_bytes = device.memory_bytes or estimate.device_memory_bytes
    if memory_bytes and estimate.peak_memory_bytes > memory_bytes:
        needed, there = format_bytes(estimate.peak_memory_bytes), format_bytes(memory_bytes)
        return 0.0, MEMORY, f"needs {needed} of memory, has {there}"
    in_time = 1.0
    if question.deadline_s is not None:
        in_time = float(run.duration_s <= question.deadline_s)
        if run.duration_log_sd:
            distance = math.log(question.deadline_s / run.duration_s)
            in_time = NormalDist().cdf(distance / run.duration_log_sd)
    available_j, on_battery = math.inf, 1.0
    if device.battery_j is not None:
        available_j = device.battery_j * max(0.0, device.charge_share - device.reserve_share)
        on_battery = run.probability_below(available_j) if available_j else 0.0
    probability = min(in_time, on_battery)
    if probability >= question.confidence:
        return probability, "", ""
    if on_battery <= in_time:
        needed = format_energy(run.energy_quantile(question.confidence))
        return probability, BATTERY, f"needs up to {needed}, has {format_energy(available_j)}"
    needed = format_duration(run.duration_quantile(question.confidence))
    return probability, DEADLINE, f"takes up to {needed}"
