"""Describe what was measured: the device, one observation, and the profile of all of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, overload

from joulecast.records.codec import (
    Amount,
    ByteCount,
    Choices,
    Count,
    Json,
    MaxLength,
    PositiveCount,
    Record,
    UnixTime,
    always_stored,
    check_fields,
    not_stored,
    omit_default,
    stable_hash,
)
from joulecast.records.data_sheet import DataSheet
from joulecast.records.network import Network, StepTotals
from joulecast.records.trial import LOSSES, Setup, Trial, compute_power

# From the strongest claim to the weakest; an estimate reports the weakest one it rests on.
# A data sheet is of a real device that was not measured, a simulated device does not exist.
PROVENANCES = ("measured", "imported", "modelled", "datasheet", "simulated")
Provenance = Annotated[str, Choices(PROVENANCES)]
MOST_OBSERVATIONS = 1_000_000
MOST_LOAD_WINDOWS = 1000
_POWER_LIMIT = re.compile(r"limit (\d+(?:\.\d+)?) ?W")
OWN_NET = "own net"
"""Source of an observation of a user's own module: it may do more than its network says."""

MEDIAN_SD_FACTOR = 1.25
"""Standard error of a median over that of a mean."""

# How much two counts of one step may differ.
_SAME_WORK_SHARE = 0.05


@dataclass(frozen=True)
class Device(Record):
    """What runs the step. The power mode is part of its identity.

    Attributes:
        unit: Identifies one of several devices of the same type, which differ by a few percent.
            Units share a profile.
    """

    name: str
    processor: str = ""
    memory_bytes: ByteCount = 0
    driver: str = ""
    power_mode: str = ""
    unit: str = omit_default("")

    @property
    def power_limit_w(self) -> float | None:
        """The power limit that is part of the power mode of a GPU; None if there is none."""
        found = _POWER_LIMIT.search(self.power_mode)
        return float(found[1]) if found else None


@dataclass(frozen=True)
class LoadWindow(Record):
    """Steps that ran without a pause, on the clock of the run.

    Attributes:
        start_s: When the first step was issued, in seconds since 1970.
        end_s: When the device had finished the last one.
        steps: Number of steps; 1 where the idle device was observed for a second.
    """

    start_s: UnixTime
    end_s: UnixTime
    steps: PositiveCount = 1

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Observation(Record):
    """A trial and what meter and clock showed: medians over ``count`` rounds, with their spread.

    Energy and durations are those of ``trial.execution.steps`` steps. A time probe has no
    ``energy_j``; a trial that the device refused has no values at all.

    Attributes:
        issue_s: Host time until all kernels are queued, without waiting for the device.
        count: Number of rounds.
        run: Identifies the run of Joulecast that made it; observations of one run share its
            conditions.
        covers: What the meter sees (``gpu``, ``cpu``, ``board`` ...).
        source: Where an imported observation comes from.
        taken_at_s: Seconds since 1970.
        cost_s: Device time that measuring took, warm-up included.
        refusal: Why the device refused the trial; empty if it was measured.
        unchecked: What the meter could not check about its readings: ``other load``,
            ``power limit``, ``second sensor``, ``idle power``.
        windows: With the meter ``later``: when energy is to be integrated.
        pulses: With the meter ``later``: short loads around the windows, by which a power trace is
            aligned with the clock of the run.
        warmup_steps: Steps that ran before the windows; 0 if it is not known.
        measured_steps: Steps in all valid windows together; 0 if it is not known.
    """

    trial: Trial
    energy_j: Amount | None = None
    energy_sd_j: Amount | None = None
    duration_s: Amount | None = None
    duration_sd_s: Amount | None = None
    issue_s: Amount | None = None
    issue_sd_s: Amount | None = None
    count: Count = 1
    peak_memory_bytes: ByteCount | None = None
    run: str = ""
    device: Device = Device("")
    runtime: str = ""
    meter: str = ""
    covers: str = ""
    provenance: Provenance = "measured"
    source: str = ""
    taken_at_s: UnixTime = 0.0
    cost_s: Amount = 0.0
    refusal: str = omit_default("")
    unchecked: tuple[str, ...] = omit_default(())
    windows: Annotated[tuple[LoadWindow, ...], MaxLength(MOST_LOAD_WINDOWS)] = omit_default(())
    pulses: Annotated[tuple[LoadWindow, ...], MaxLength(MOST_LOAD_WINDOWS)] = omit_default(())
    warmup_steps: Count = omit_default(0)
    measured_steps: Count = omit_default(0)

    @property
    def is_measured_step(self) -> bool:
        """Whether it has energy and duration of a whole step as a user runs it."""
        has_values = bool(self.energy_j and self.duration_s and self.trial.network.layers)
        return has_values and self.trial.execution.is_user_step and not self.is_imported_run

    @property
    def is_imported_run(self) -> bool:
        """Whether it is a whole imported run, which contains more than its steps."""
        return self.provenance == "imported" and self.trial.execution.steps > 1

    @property
    def is_pending(self) -> bool:
        """Whether its energy is still to be read from a power trace."""
        return bool(self.windows) and self.energy_j is None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Profile(Record):
    """All observations of one device and the fits made from them.

    A profile never mixes devices or power modes, runtimes, meter coverages or provenances.

    Attributes:
        observations: They may be parsed only when they are first read (``LazyObservations``).
        fits: Each estimator's fitted parameters, as JSON.
        data_sheet: What the maker says about the device; None where measurements do not need it.
        shipped: It came with the package, measured on another unit of the device.
    """

    device: Device
    runtime: str
    covers: str
    provenance: Provenance
    observations: Annotated[Sequence[Observation], MaxLength(MOST_OBSERVATIONS)] = always_stored(
        default=()
    )
    fits: Mapping[str, Any] = always_stored(default_factory=dict)
    data_sheet: DataSheet | None = omit_default(None)
    shipped: bool = not_stored(False, compare=False)

    @property
    def key(self) -> str:
        """A stable name of device, runtime, coverage and provenance, or of a data sheet."""
        # The kernel may change how much memory is usable, and units share a profile.
        ignored = ("memory_bytes", "unit")
        device: Json = {k: v for k, v in self.device.to_dict().items() if k not in ignored}
        identity: list[Any] = [device, self.runtime, self.covers, self.provenance]
        if self.provenance == "datasheet" and self.data_sheet is not None:
            # Users may change the figures of their own devices.
            identity.append(self.data_sheet.to_dict())
        return stable_hash(identity)

    def add_fits(self, fits: Mapping[str, Any]) -> Profile:
        """Return the profile with fits that were made from its present observations."""
        counts = dict.fromkeys(fits, len(self.observations))
        made = StoredFits({name: partial(fits.__getitem__, name) for name in fits}, counts)
        return replace(self, fits=merge_fits(self.fits, made))


def weakest_provenance(provenances: Iterable[str]) -> str:
    """Return the weakest of several provenances."""
    return max(provenances, key=PROVENANCES.index, default="measured")


@dataclass(frozen=True)
class ObservationSummary(Record):
    """What is known of observations without parsing them.

    Attributes:
        units: Number of observations by unit of the device.
        runs: Number of observations by run of Joulecast.
        setups: Setups of trials with layers, each with its number of observations.
        latest_at_s: When the latest was taken, in seconds since 1970; 0 without any.
        steps: Keys of trials that are whole steps with energy; None if that is not known.
        latest_unit: The unit of the device that the latest was taken on.
        reference: An isolated layer whose energy shows how a unit differs from others; None without
            any.
    """

    count: Count
    units: Mapping[str, Count]
    runs: Mapping[str, Count]
    setups: tuple[tuple[Setup, Count], ...]
    device_time_s: Amount
    latest_at_s: UnixTime
    steps: tuple[str, ...] | None = omit_default(None)
    latest_unit: str = omit_default("")
    reference: Trial | None = omit_default(None)

    def join(self, other: ObservationSummary) -> ObservationSummary:
        """Return the summary of shipped observations and of a user's own, of other runs."""
        is_known = self.steps is not None and other.steps is not None
        return ObservationSummary(
            self.count + other.count,
            dict(Counter(self.units) + Counter(other.units)),
            dict(Counter(self.runs) + Counter(other.runs)),
            tuple((Counter(dict(self.setups)) + Counter(dict(other.setups))).items()),
            self.device_time_s + other.device_time_s,
            max(self.latest_at_s, other.latest_at_s),
            tuple(sorted({*(self.steps or ()), *(other.steps or ())})) if is_known else None,
            other.latest_unit if other.count else self.latest_unit,
            self.reference or other.reference,
        )


class LazyObservations(Sequence[Observation]):
    """Observations of one profile that are parsed once, when they are first read.

    Its length is known before, perhaps a summary too, and perhaps those of some trials are found
    without parsing all. It equals the tuple of the same observations. ``parse`` raises an error
    that says what is damaged.
    """

    def __init__(
        self,
        count: int,
        parse: Callable[[], tuple[Observation, ...]],
        summarise: Callable[[], ObservationSummary] | None = None,
        find: Callable[[Set[str]], Iterable[Observation]] | None = None,
    ) -> None:
        self._count = count
        self._parse = parse
        self._summarise = summarise
        self._find = find

    @cached_property
    def parsed(self) -> tuple[Observation, ...]:
        """The observations."""
        return self._parse()

    @cached_property
    def summary(self) -> ObservationSummary:
        """What is known of them, without parsing them if it came with them."""
        return self._summarise() if self._summarise else _summarise(self.parsed)

    def find_steps(self, keys: Set[str]) -> list[Observation]:
        """Return what ``select_steps`` does, parsing no more than it must."""
        if self._find is not None:
            return select_steps(tuple(self._find(keys)), keys)
        steps = self.summary.steps
        is_known = steps is not None and keys.isdisjoint(steps)
        return [] if is_known else select_steps(self.parsed, keys)

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
    """Return the summary of observations: the one they came with, if there is one."""
    if isinstance(observations, LazyObservations):
        return observations.summary
    return _summarise(observations)


def _summarise(observations: Sequence[Observation]) -> ObservationSummary:
    # The empty network is the idle device, whose setup has no meaning.
    setups = Counter(one.trial.setup for one in observations if one.trial.network.layers)
    latest = max(observations, key=lambda one: one.taken_at_s, default=None)
    return ObservationSummary(
        count=len(observations),
        units=dict(Counter(one.device.unit for one in observations)),
        runs=dict(Counter(one.run for one in observations)),
        setups=tuple(setups.items()),
        device_time_s=sum(one.cost_s for one in observations),
        latest_at_s=latest.taken_at_s if latest is not None else 0.0,
        steps=tuple(dict.fromkeys(one.trial.key for one in observations if one.is_measured_step)),
        latest_unit=latest.device.unit if latest is not None else "",
        reference=_find_reference(observations),
    )


def _find_reference(observations: Sequence[Observation]) -> Trial | None:
    """Return the isolated layer that was measured on most units; of several, the most powerful."""
    seen: dict[str, list[Observation]] = {}
    for one in observations:
        if one.energy_j and one.duration_s and one.trial.execution.upstream == "random":
            seen.setdefault(one.trial.key, []).append(one)

    def rank(same: list[Observation]) -> tuple[int, float]:
        units = len({one.device.unit for one in same})
        return units, max(compute_power(one.energy_j, one.duration_s) or 0.0 for one in same)

    return max(seen.values(), key=rank)[0].trial if seen else None


def find_steps(
    observations: Sequence[Observation], network: Network, setup: Setup
) -> list[Observation]:
    """Return the observations of a whole step with energy.

    Equal losses have equal names, but a user's own may be any. Modules of the same layers may do
    different work outside them, which their totals show.
    """
    losses = LOSSES if setup.loss == "own" else (setup.loss, "own")
    keys = {Trial(network, replace(setup, loss=loss)).key for loss in losses}
    found = select_steps(observations, keys)
    return [one for one in found if _has_same_work(one.trial.network.totals, network.totals)]


def _has_same_work(one: StepTotals | None, other: StepTotals | None) -> bool:
    if one is None or other is None:
        return True
    # Where control flow depends on values, two counts differ a little.
    pairs = (one.flops, other.flops), (one.size_bytes, other.size_bytes)
    return one.params == other.params and all(
        math.isclose(*pair, rel_tol=_SAME_WORK_SHARE) for pair in pairs
    )


def select_steps(observations: Sequence[Observation], keys: Set[str]) -> list[Observation]:
    """Return the whole steps with energy whose trials have one of the keys."""
    if isinstance(observations, LazyObservations):
        return observations.find_steps(keys)
    return [one for one in observations if one.is_measured_step and one.trial.key in keys]


class StoredFits(Mapping[str, Any]):
    """Each estimator's fit as JSON, decoded once, when it is first asked for.

    ``observation_counts`` says how many observations the profile had when each fit was made, where
    that is known.
    """

    def __init__(
        self, decoders: Mapping[str, Callable[[], Any]], observation_counts: Mapping[str, int]
    ) -> None:
        self.observation_counts = dict(observation_counts)
        self._decoders = dict(decoders)
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, estimator: str) -> Any:
        if estimator not in self._decoded:
            self._decoded[estimator] = self._decoders[estimator]()
        return self._decoded[estimator]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoders)

    def __len__(self) -> int:
        return len(self._decoders)

    def __contains__(self, estimator: object) -> bool:
        # That of Mapping would decode it.
        return estimator in self._decoders

    def __repr__(self) -> str:
        return f"StoredFits({', '.join(self)})"


def merge_fits(fits: Mapping[str, Any], others: Mapping[str, Any]) -> StoredFits:
    """Return all fits without decoding any; of an estimator in both, the one of ``others``."""
    owners = {**dict.fromkeys(fits, fits), **dict.fromkeys(others, others)}
    counts = {name: find_fit_count(owner, name) for name, owner in owners.items()}
    return StoredFits(
        {name: partial(owner.__getitem__, name) for name, owner in owners.items()},
        {name: count for name, count in counts.items() if count is not None},
    )


def find_fit_count(fits: Mapping[str, Any], estimator: str) -> int | None:
    """Return how many observations the profile had when a fit was made; None if unknown."""
    return fits.observation_counts.get(estimator) if isinstance(fits, StoredFits) else None
