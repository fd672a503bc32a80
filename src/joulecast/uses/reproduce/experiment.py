"""Define what an experiment of the AMPERE paper is, and the record of its result.

    plan     settings → what will be measured, with expected seconds
    measure  laboratory → nothing; every observation is kept at once
    analyse  laboratory → Findings, from kept observations alone
    draw     results of one or more devices → Plot

``measure`` skips what the folder of the laboratory holds already, and ``analyse`` and ``draw`` need
no device. To add an experiment, write one module with one ``Experiment`` and add it to
``experiment_table.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.records import Device
from joulecast.records.codec import Choices, Record
from joulecast.records.observation import Provenance

if TYPE_CHECKING:
    from joulecast.figures import Plot
    from joulecast.uses.reproduce.laboratory import Laboratory
    from joulecast.uses.reproduce.paper_settings import PaperSettings

HELD, NOT_HELD, UNTESTED = "held", "did not hold", "could not be tested"
VERDICTS = (HELD, NOT_HELD, UNTESTED)
"""Whether a statement of the paper held on a device."""


@dataclass(frozen=True)
class PlannedWork:
    """Something that an experiment measures. Experiments that share it name it alike.

    Attributes:
        name: What is measured; equal names are measured once.
        trials: About how many trials it has.
        seconds: Expected device time.
    """

    name: str
    trials: int
    seconds: float


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes:
        verdict: One of ``VERDICTS``, as the experiment's criterion decides.
        finding: One sentence with the figures that decide it.
        numbers: Everything that the picture shows, as JSON.
        device_seconds: Device time of the observations that it rests on.
        notes: What a reader has to know about the numbers.
    """

    verdict: str
    finding: str
    numbers: Mapping[str, Any]
    device_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def mark_partial(self, done: int, planned: int, what: str) -> Findings:
        """Return findings that decide nothing where less was measured than planned.

        Args:
            done: How many were measured.
            planned: How many the experiment has.
            what: What they are, in the plural.
        """
        if done >= planned:
            return self
        finding = f"Only {done} of {planned} {what} measured so far. {self.finding}"
        return replace(self, verdict=UNTESTED, finding=finding)


@dataclass(frozen=True)
class ExperimentResult(Record):
    """The outcome of an experiment on a device.

    Attributes:
        statement: What the paper states.
        criterion: What decides whether it held.
        verdict: Whether it did.
        finding: One sentence with the figures that decide it.
        numbers: Everything that the picture shows.
        date: Day of the last observation; empty if nothing was measured.
        is_quick: Whether the experiment was run with fewer networks and less time.
        device_seconds: Device time of the observations that it rests on.
        notes: What a reader has to know about the numbers.
    """

    name: str
    title: str
    statement: str
    criterion: str
    verdict: Annotated[str, Choices(VERDICTS)]
    finding: str
    numbers: Mapping[str, Any]
    device: Device
    runtime: str
    covers: str
    provenance: Provenance
    date: str
    is_quick: bool
    device_seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: ``fig2`` ... ``table1``, as the paper numbers it.
        title: What it shows.
        statement: What the paper states about it, in our words.
        criterion: The numeric rule that decides whether the statement held.
        plan: Lists what will be measured.
        measure: Measures what the laboratory's folder does not hold yet.
        analyse: Returns what was found. It raises MissingError where too little was measured.
        draw: Draws results: that of this folder first, then those of other folders.
        has_several_devices: Whether its plot shows results of other folders too.
    """

    name: str
    title: str
    statement: str
    criterion: str
    plan: Callable[[PaperSettings], Sequence[PlannedWork]]
    measure: Callable[[Laboratory], None]
    analyse: Callable[[Laboratory], Findings]
    draw: Callable[[Sequence[ExperimentResult]], Plot]
    has_several_devices: bool = field(default=False)
