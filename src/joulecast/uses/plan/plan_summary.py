"""Read a plan from the JSON that ``Plan.to_dict`` wrote, as pictures and reports need it."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.records import Json, weakest_provenance
from joulecast.records.codec import Record, load_partial


@dataclass(frozen=True)
class PlannedJob(Record):
    """A job of a plan on its device.

    Attributes:
        start_s: Seconds from the beginning of the plan; ``end_s`` likewise.
        interval_j: 95 % interval of the energy.
        charge_share: State of charge at its end; None on mains power.
    """

    job: str
    start_s: float
    end_s: float
    energy_j: float
    interval_j: tuple[float, float]
    provenance: str
    charge_share: float | None = None


@dataclass(frozen=True)
class PlannedDevice(Record):
    """What a device does in a plan.

    Attributes:
        charge: Times in seconds with the state of charge as a share; None on mains power.
        reserve_share: Share of the battery that must always be left.
        charging_windows: Start and end, in seconds, of each time on the charger.
    """

    device: str
    energy_j: float
    idle_j: float
    jobs: tuple[PlannedJob, ...]
    charge: tuple[tuple[float, float], ...] | None = None
    reserve_share: float = 0.0
    charging_windows: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class LeftOutJob(Record):
    """A job that no device can run."""

    job: str


@dataclass(frozen=True)
class PlanSummary(Record):
    """A plan as it was written.

    Attributes:
        now: When second 0 is, with its time zone.
        confidence: Probability with which each job stays below its planned energy and duration.
        gap_share: How much less energy the optimum could take.
    """

    now: str
    confidence: float
    energy_j: float
    interval_j: tuple[float, float]
    idle_j: float
    gap_share: float
    is_optimal: bool
    devices: tuple[PlannedDevice, ...]
    left_out: tuple[LeftOutJob, ...] = ()
    covers: tuple[str, ...] = ()

    @property
    def provenance(self) -> str:
        """The weakest provenance that the plan rests on."""
        return weakest_provenance(job.provenance for one in self.devices for job in one.jobs)

    @property
    def job_count(self) -> int:
        """How many jobs run."""
        return sum(len(one.jobs) for one in self.devices)


def read_plan(data: Json, what: str = "the plan") -> PlanSummary:
    """Return the plan that ``Plan.to_dict`` or ``joulecast plan --out`` wrote.

    Raises:
        FileError: The data is something else; ``what`` names it.
    """
    return load_partial(PlanSummary, data, what)
