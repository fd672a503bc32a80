"""Describe a training run: what is asked for, how it trains, and what it has taken."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.records import Setup
from joulecast.records.codec import Record, omit_default
from joulecast.units import parse_energy


@dataclass(frozen=True)
class CallbackOptions:
    """What a callback is asked for.

    Attributes:
        budget: Energy at which training is stopped, like ``500 kJ``; None for no limit.
        meter: Name of a meter, as ``joulecast detect`` lists them.
        device: Device, key or file of the profile to estimate from; by default that of the device
            that trains.
        store: Path or URL of the store, if not the usual one.
        save: Whether the observation is stored, so that the profile learns from it.
    """

    budget: str | None = None
    meter: str = "auto"
    device: str = ""
    store: str | None = None
    save: bool = True

    def __post_init__(self) -> None:
        if self.budget is not None and not self.budget_j:
            raise InputError(f"the budget is {self.budget}: give more than 0, like 500kJ")

    @property
    def budget_j(self) -> float | None:
        """The budget in joules."""
        return None if self.budget is None else parse_energy(self.budget)


@dataclass(frozen=True)
class TrainingRun:
    """A run, as its trainer describes it.

    Attributes:
        on: The device that trains: ``cpu``, ``cuda:0``.
        steps: Updates of the weights that are to come; None if the trainer does not know.
        setup: How the net is trained; its batch size is that of the first batch.
        processes: Number of processes that train together.
        notes: What was assumed, in sentences.
    """

    on: str
    steps: int | None
    setup: Setup
    processes: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Projection(Record):
    """The energy of the whole run, with an interval."""

    energy_j: float
    low_j: float
    high_j: float


@dataclass(frozen=True)
class TrainingSummary(Record):
    """What a run has taken.

    Attributes:
        energy_j: Energy of the whole run, evaluation and checkpoints included; None if the meter
            could not tell.
        estimated_j: Estimate of all steps from before the run; None without a profile.
        estimated_interval_j: Its interval.
        stopped_by_budget: Whether the run was stopped because its budget was passed.
        error: Name of the exception that ended the run, or its measurement.
    """

    energy_j: float | None
    duration_s: float
    steps: int
    meter: str
    covers: str
    provenance: str
    estimated_j: float | None = None
    estimated_interval_j: tuple[float, float] | None = None
    stopped_by_budget: bool = False
    error: str = omit_default("")
