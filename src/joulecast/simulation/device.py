"""Run steps on a simulated device: its clock, its energy, and disturbances."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass

from joulecast.records import Trial
from joulecast.simulation.chip import Chip, StepCost, compute_step_cost
from joulecast.system.errors import InputError

DISTURBANCES = ("other load", "throttled")
_WAKE_S = 30.0  # how long the clocks stay active after a load


def make_simulated_device(
    seed: int = 0, name: str = "", *, noise: float = 1.0, memory_bytes: int = 0
) -> SimulatedDevice:
    """Return a simulated device; the same seed gives the same costs and the same noise."""
    return SimulatedDevice(Chip(seed), name=name, noise=noise, memory_bytes=memory_bytes)


@dataclass(frozen=True)
class Disturbance:
    """A disturbance between two moments of the virtual clock.

    Attributes:
        what: One of ``DISTURBANCES``.
        slowdown: Steps take 1 + this times as long while it lasts.
        power_w: Additional power while it lasts.
        noticed: Whether the meter reports it, as NVML reports other processes and throttling.
    """

    what: str
    start_s: float
    end_s: float
    slowdown: float = 0.0
    power_w: float = 0.0
    noticed: bool = True


class SimulatedDevice:
    """A simulated device with its virtual clock and energy counter."""

    def __init__(
        self,
        chip: Chip,
        *,
        name: str = "",
        noise: float = 1.0,
        memory_bytes: int = 0,
        settle_share: float = 0.3,
        settle_steps: float = 3.0,
    ) -> None:
        """Start the clock at 0.

        Args:
            chip: The device's constants.
            name: Name of the device; "simulated-<seed>" by default.
            noise: Scales all noise: 0 for none, 1 for 0.5 % of device time and 4 % of host time.
            memory_bytes: 0 for unlimited memory.
            settle_share: Share by which the first step of a newly prepared network takes longer.
            settle_steps: Number of steps in which that share falls to 1/e.
        """
        self.chip = chip
        self.name = name or f"simulated-{chip.seed}"
        self.memory_bytes = memory_bytes
        self.disturbances: list[Disturbance] = []
        self._noise = noise
        self._settle = (settle_share, settle_steps)
        self._rng = random.Random(f"noise {chip.seed}")
        self._now_s = 0.0
        self._busy_until_s = 0.0
        self._awake_until_s = 0.0
        # Energy used by each of these moments; it grows linearly in between.
        self._times_s = [0.0]
        self._energies_j = [0.0]

    def true_cost(self, trial: Trial) -> StepCost:
        return compute_step_cost(self.chip, trial)

    def now(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Advance the host's clock; the device continues with issued steps."""
        self._now_s += max(0.0, seconds)
        self._idle_until(self._now_s)

    def disturb(
        self,
        what: str,
        duration_s: float,
        start_s: float | None = None,
        slowdown: float = 0.0,
        power_w: float = 0.0,
        noticed: bool = True,
    ) -> None:
        """Add a disturbance; it starts now by default."""
        if what not in DISTURBANCES:
            choices = ", ".join(DISTURBANCES)
            raise InputError(f"there is no disturbance {what!r}: choose one of {choices}")
        start_s = self._now_s if start_s is None else start_s
        event = Disturbance(what, start_s, start_s + duration_s, slowdown, power_w, noticed)
        self.disturbances.append(event)

    def list_faults(self, start_s: float, end_s: float) -> tuple[str, ...]:
        """Return the disturbances between two moments that a meter reports."""
        events = (one for one in self.disturbances if one.noticed)
        return tuple(one.what for one in events if one.start_s < end_s and one.end_s > start_s)

    def issue(self, cost: StepCost, count: int, done: int = 0) -> None:
        """Issue ``count`` steps of a network that has run ``done`` steps before."""
        # Host-bound steps have the noise of the host, which is larger.
        host = (cost.issue_s / cost.duration_s) ** 8
        host_noise = self._rng.gauss(0.0, 0.04 * self._noise)
        noise = host * host_noise + (1 - host) * self._rng.gauss(0.0, 0.005 * self._noise)
        # The warm-up of a network adds steps' worth of time: a geometric sum.
        share, steps = self._settle
        fade = math.exp(-1.0 / steps)
        extra = share * fade**done * (1 - fade**count) / (1 - fade)
        settled_s = cost.duration_s * math.exp(noise) * (count + extra)
        energy_j = cost.energy_j * count * math.exp(self._rng.gauss(0.0, 0.006 * self._noise))
        energy_j += self.chip.idle_w * (settled_s - cost.duration_s * count)
        start_s = max(self._now_s, self._busy_until_s)
        self._idle_until(start_s)
        self._load(start_s, settled_s, energy_j / settled_s)
        self._now_s += cost.issue_s * count * math.exp(host_noise)
        self._busy_until_s = max(self._busy_until_s, self._now_s)
        self._idle_until(self._busy_until_s)

    def wait(self) -> None:
        self._now_s = max(self._now_s, self._busy_until_s)

    def energy_at(self, time_s: float) -> float:
        """Return the energy used by a moment in the past."""
        place = bisect.bisect_right(self._times_s, time_s)
        if place == len(self._times_s):
            return self._energies_j[-1]
        t0, t1 = self._times_s[place - 1 : place + 1]
        e0, e1 = self._energies_j[place - 1 : place + 1]
        return e0 + (e1 - e0) * (time_s - t0) / (t1 - t0)

    def _load(self, start_s: float, work_s: float, power_w: float) -> None:
        """Run undisturbed seconds of work, which disturbances stretch."""
        while work_s > 1e-12:
            speed, extra_w, until_s = self._find_conditions(start_s)
            end_s = min(start_s + work_s / speed, until_s)
            work_s -= (end_s - start_s) * speed
            drawn_w = self.chip.idle_w + (power_w - self.chip.idle_w) * speed + extra_w
            self._add_energy(end_s, drawn_w)
            start_s = end_s
        self._busy_until_s = start_s
        self._awake_until_s = start_s + _WAKE_S

    def _idle_until(self, end_s: float) -> None:
        while self._times_s[-1] < end_s:
            now_s = self._times_s[-1]
            _, extra_w, until_s = self._find_conditions(now_s)
            awake = now_s < self._awake_until_s
            until_s = min(until_s, self._awake_until_s) if awake else until_s
            idle_w = self.chip.idle_w if awake else self.chip.asleep_w
            self._add_energy(min(end_s, until_s), idle_w + extra_w)

    def _find_conditions(self, time_s: float) -> tuple[float, float, float]:
        """Return speed and additional power at a moment, and until when they hold."""
        active = [d for d in self.disturbances if d.start_s <= time_s < d.end_s]
        edges = [d.end_s for d in active]
        edges += [d.start_s for d in self.disturbances if d.start_s > time_s]
        slow = math.prod(1 + d.slowdown for d in active)
        return 1 / slow, sum(d.power_w for d in active), min(edges, default=math.inf)

    def _add_energy(self, end_s: float, power_w: float) -> None:
        if end_s > self._times_s[-1]:
            energy_j = self._energies_j[-1] + power_w * (end_s - self._times_s[-1])
            self._times_s.append(end_s)
            self._energies_j.append(energy_j)
