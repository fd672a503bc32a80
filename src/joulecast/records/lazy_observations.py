"""Parse the observations of a profile when somebody reads them, and not before.

A shipped profile holds thousands of observations, but most commands need only the fits made from
them. What they need of the observations is in a summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

from joulecast.records.codec import Record
from joulecast.records.field_checks import Amount, Count, UnixTime
from joulecast.records.observation import Observation
from joulecast.records.trial import Setup


@dataclass(frozen=True)
class ObservationSummary(Record):
    """What is known of observations without parsing them.

    Attributes:
        count: Number of observations.
        units: Number of observations by unit of the device.
        runs: Number of observations by run of Joulecast.
        setups: Setups of trials with layers, each with its number of observations.
        device_time_s: Device time that measuring took.
        latest_at_s: When the latest was taken, in seconds since 1970; 0 without any.
    """

    count: Count
    units: Mapping[str, Count]
    runs: Mapping[str, Count]
    setups: tuple[tuple[Setup, Count], ...]
    device_time_s: Amount
    latest_at_s: UnixTime


class LazyObservations(Sequence[Observation]):
    """Observations of one profile that are parsed once, when they are first read.

    Its length is known before. It equals the tuple of the same observations.

    Args:
        count: Number of observations.
        parse: Returns the observations; raises an error that says what is damaged.
        summary: Their summary, if it is known.
    """

    def __init__(
        self,
        count: int,
        parse: Callable[[], tuple[Observation, ...]],
        summary: ObservationSummary | None = None,
    ) -> None:
        self._count = count
        self._parse = parse
        self.summary = summary

    @cached_property
    def parsed(self) -> tuple[Observation, ...]:
        """The observations."""
        return self._parse()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Observation]:
        return iter(self.parsed)

    @overload
    def __getitem__(self, index: int) -> Observation: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Observation, ...]: ...

    def __getitem__(self, index: int | slice) -> Observation | tuple[Observation, ...]:
        return self.parsed[index]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (tuple, LazyObservations)):
            return NotImplemented
        return len(self) == len(other) and self.parsed == tuple(other)

    def __hash__(self) -> int:
        return hash(self.parsed)

    def __repr__(self) -> str:
        return f"LazyObservations({len(self)})"


def summarise_observations(observations: Sequence[Observation]) -> ObservationSummary:
    """Return the summary of observations: the one they came with, if they are not parsed yet."""
    if isinstance(observations, LazyObservations) and observations.summary is not None:
        return observations.summary
    # The empty network is the idle device, whose setup has no meaning.
    setups = Counter(one.trial.setup for one in observations if one.trial.network.layers)
    return ObservationSummary(
        count=len(observations),
        units=dict(Counter(one.device.unit for one in observations)),
        runs=dict(Counter(one.run for one in observations)),
        setups=tuple(setups.items()),
        device_time_s=sum(one.cost_s for one in observations),
        latest_at_s=max((one.taken_at_s for one in observations), default=0.0),
    )
