"""Sort the windows of a training run: which are steps, and which of them a profile may learn.

    begin ─ start ─┬─ warm-up ─┬─ steps ─┬─ evaluation ─┬─ steps ─┬─ … ─ end
                   first steps           checkpoints

A window ends where training turns to something else and back, and after some seconds. A meter that
updates slowly cannot measure short windows, so that a window that is too short goes on: it is then
mixed, counts for the energy of the run, and tells nothing about a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

from joulecast.features.monitor import WindowEnergy
from joulecast.measurer.base import summarise_values
from joulecast.system.units import format_share

# The first steps choose algorithms, allocate memory and compile.
WARMUP_STEPS = 3
# Longest share of a window that the host may spend between steps, and largest share of batches
# with another shape: above, its steps are not those that a profile describes.
MOST_WAITING_SHARE = 0.05
MOST_ODD_SHARE = 0.02
LEAST_WINDOWS = 3
# Standard deviation of the rest of a run around its first steps; see ``update_estimate``.
_LEAST_SD_SHARE = 0.03


@dataclass
class TrainingWindow:
    """A window of a run: what happened in it and, once it has ended, what was measured.

    Attributes:
        is_warm: The first steps of the run were over when it began.
        is_mixed: Evaluation, a checkpoint or the start of the run is in it.
        steps: Updates of the weights that ended in it.
        batches: Batches that were trained on.
        odd_batches: Those of them whose shapes differ from the first batch of the run.
        waiting_s: Host time between the end of a step and the start of the next.
    """

    is_warm: bool = False
    is_mixed: bool = False
    steps: int = 0
    batches: int = 0
    odd_batches: int = 0
    waiting_s: float = 0.0
    measured: WindowEnergy | None = None

    @property
    def energy(self) -> WindowEnergy:
        """What was measured; only of a window that has ended."""
        assert self.measured is not None
        return self.measured

    @property
    def is_steady(self) -> bool:
        """Whether it contains nothing but steps of a run that is warm."""
        return self.is_warm and not self.is_mixed and self.steps > 0

    @property
    def step_energy_j(self) -> float:
        return (self.energy.energy_j or 0.0) / self.steps

    def find_obstacle(self, accumulate: int) -> str:
        """Return why its steps of so many batches are not those of a profile; empty if they are."""
        energy = self.energy
        if energy.error:
            return f"training ended by {energy.error}"
        if energy.energy_j is None or energy.faults:
            return f"the meter reported {', '.join(energy.faults) or 'no energy'}"
        if self.waiting_s > MOST_WAITING_SHARE * energy.duration_s:
            share = format_share(MOST_WAITING_SHARE)
            return f"more than {share} of the time passed between steps, as with slow data loading"
        wanted = self.steps * accumulate
        if self.odd_batches > MOST_ODD_SHARE * wanted:
            return "batches differ in shape"
        if abs(self.batches - wanted) > max(MOST_ODD_SHARE * wanted, accumulate - 1):
            return f"the module is not called {accumulate} times a step"
        return ""


@dataclass(frozen=True)
class WindowSums:
    """Sums over the windows of a run.

    Attributes:
        energy_j: Energy of all windows; time that could not be read has the mean power of the rest.
            None if less than half of the time could be read.
        other_j_per_step: Energy of evaluation and checkpoints so far, for each step of a warm run.
        steps: All steps.
        steady_j: Energy of the steady windows.
        steady_steps: Their steps.
        sd_share: Standard deviation of their mean energy per step, as a share; at least what the
            rest of a run usually differs by.
    """

    energy_j: float | None
    duration_s: float
    steps: int
    other_j_per_step: float
    steady_j: float
    steady_steps: int
    sd_share: float

    @property
    def power_w(self) -> float | None:
        return self.energy_j / self.duration_s if self.energy_j is not None else None


def sum_windows(windows: Sequence[TrainingWindow]) -> WindowSums:
    """Return the sums over windows, of which some could not be read."""
    read = [one for one in windows if one.energy.energy_j is not None]
    steady = [one for one in read if one.is_steady]
    _, duration_s, steps = _add_up(windows)
    read_j, read_s, _ = _add_up(read)
    steady_j, _, steady_steps = _add_up(steady)
    # The start of a run is not repeated.
    warm_j, _, warm_steps = _add_up([one for one in read if one.is_warm])
    other_j = 0.0
    if steady_steps:
        # Mixed windows contain steps too, which cost what steps cost elsewhere.
        other_j = max(0.0, warm_j / warm_steps - steady_j / steady_steps)
    sd_share, energies_j = _LEAST_SD_SHARE, [one.step_energy_j for one in steady]
    if len(energies_j) > 1 and median(energies_j):
        mean_sd_j = stdev(energies_j) / math.sqrt(len(energies_j))
        sd_share = max(sd_share, mean_sd_j / median(energies_j))
    is_known = read_s > 0 and read_s >= 0.5 * duration_s
    energy_j = read_j / read_s * duration_s if is_known else None
    return WindowSums(energy_j, duration_s, steps, other_j, steady_j, steady_steps, sd_share)


def _add_up(windows: Sequence[TrainingWindow]) -> tuple[float, float, int]:
    return (
        sum(one.energy.energy_j or 0.0 for one in windows),
        sum(one.energy.duration_s for one in windows),
        sum(one.steps for one in windows),
    )


def summarise_steps(
    windows: Sequence[TrainingWindow], accumulate: int
) -> tuple[dict[str, Any], str]:
    """Return what a profile may learn from a run, or nothing and the reason why it may not.

    These are fields of an Observation: medians over windows with their spread, and what was not
    checked.
    """
    steady = [one for one in windows if one.is_steady]
    obstacles = [one.find_obstacle(accumulate) for one in steady]
    usable = [one for one, obstacle in zip(steady, obstacles, strict=True) if not obstacle]
    if len(usable) < LEAST_WINDOWS:
        short = f"{len(steady)} of the {LEAST_WINDOWS} windows that are needed contain steps alone"
        return {}, "; ".join(sorted(set(filter(None, obstacles)))) or short
    durations_s = [one.energy.duration_s / one.steps for one in usable]
    found = {
        **summarise_values("energy", "j", [one.step_energy_j for one in usable]),
        **summarise_values("duration", "s", durations_s),
        "count": len(usable),
        "measured_steps": sum(one.steps for one in usable),
        "unchecked": tuple(dict.fromkeys(c for one in usable for c in one.energy.unchecked)),
    }
    return found, ""
