"""Decompose observations into layers, with energy and duration per step.

Isolated layers, variants and whole networks all become the same record. What is known in advance
about an observation's error is its relative variance: the spread of its rounds, the error of sums
over layers, and the work of a network that belongs to no layer. An imported run pays the overhead
of its source once.

What was measured of each kind is also summed up, how many layers and how large, so that estimates
say how far they reach beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from joulecast.estimators.additive.layers import (
    SetupLayer,
    count_layers,
    make_overhead,
    set_up_layer,
    split_layers,
    split_passes,
)
from joulecast.estimators.base import (
    ISOLATED_SUM_ERROR_SD_SHARE,
    MIXED_TIME_SUM_ERROR_SD_SHARE,
    READ_MODULE_SUM_ERROR_SD_SHARE,
)
from joulecast.records import MEDIAN_SD_FACTOR, OWN_NET, Observation
from joulecast.records.codec import Record, cache_on_record
from joulecast.variants import read_isolated_block

# Relative standard deviation assumed for something that was measured once.
_DEFAULT_SD_SHARE = 0.01
# A host that issues a step in less than this share of its duration runs ahead of the device.
_AHEAD_SHARE = 0.8


@dataclass(frozen=True)
class DecomposedObservation:
    """One observation as a sum over layers, per step.

    Attributes:
        counts: Distinct layers and how often the step runs each, copies included.
        issue_s: Host time; None if unknown, or if the host waits for the device in between.
        is_isolated: It is one layer alone; otherwise a variant or a network.
        unit: The unit of the device that ran it; empty if unknown.
        between_calls: Calls of a batch that are in no layer.
        batches: Batches of a step, whose gradients are accumulated.
    """

    counts: Mapping[SetupLayer, float]
    mode: str
    energy_j: float | None
    energy_relative_var: float
    duration_s: float | None
    duration_relative_var: float
    issue_s: float | None
    is_isolated: bool
    trial_key: str
    is_imported: bool = False
    unit: str = ""
    between_calls: float = 0.0
    batches: int = 1

    @property
    def launches(self) -> float:
        """Kernels of a step."""
        return sum(layer.launches * count for layer, count in self.counts.items())


def is_step(observation: Observation) -> bool:
    """Return whether an observation is a whole step with an energy or a duration."""
    trial = observation.trial
    has_value = bool(observation.energy_j or observation.duration_s)
    return bool(trial.network.layers) and trial.execution.stage == "step" and has_value


def decompose_observations(observations: Iterable[Observation]) -> list[DecomposedObservation]:
    """Return all usable observations.

    A user's own module may do more than its layers show: its family has a discrepancy for that.
    """
    usable = filter(is_step, observations)
    return [found for one in usable if (found := _decompose(one)) is not None]


def find_latest_unit(observations: Iterable[Observation]) -> str:
    """Return the unit of the device that ran last: the one that estimates are for."""
    latest = max(observations, key=lambda one: one.taken_at_s, default=None)
    return latest.device.unit if latest is not None else ""


def find_idle_power(observations: Iterable[Observation]) -> float | None:
    """Return the power of the idle device in watts; None if it was not measured."""
    powers_w = [
        one.energy_j / one.duration_s
        for one in observations
        if not one.trial.network.layers and one.energy_j is not None and one.duration_s
    ]
    return median(powers_w) if powers_w else None


def shows_host_time(one: Observation) -> bool:
    """Return whether an eager step was issued without waiting for the device in between."""
    is_timed = bool(one.issue_s and one.duration_s)
    return one.trial.mode == "eager" and is_timed and not one.trial.network.wait_count


def choose_sum_error_sd_share(decomposed: Sequence[DecomposedObservation]) -> float:
    """Return how far sums may be off: more if a host runs ahead and no graph separates the two."""
    has_graphs = any(one.mode == "graph" for one in decomposed)
    is_ahead = any(
        one.issue_s and one.duration_s and one.issue_s < _AHEAD_SHARE * one.duration_s
        for one in decomposed
    )
    if has_graphs or not is_ahead:
        return ISOLATED_SUM_ERROR_SD_SHARE
    return MIXED_TIME_SUM_ERROR_SD_SHARE


# A campaign asks for all observations before each measurement.
@cache_on_record
def _decompose(observation: Observation) -> DecomposedObservation | None:
    """Return an observation as a sum over layers; None if it contains none."""
    trial, count = observation.trial, observation.count
    steps, copies, block = trial.execution.steps, trial.execution.copies, read_isolated_block(trial)
    if block is not None:
        counts = {set_up_layer(block, trial.setup): float(copies)}
    else:
        counts = count_layers(split_layers(trial.network, trial.setup), copies)
    if not counts:
        return None
    if observation.is_imported_run:
        counts[make_overhead(observation.source)] = 1.0 / steps
    energy_j, duration_s, issue_s = (
        value / steps if value else None
        for value in (observation.energy_j, observation.duration_s, observation.issue_s)
    )
    sum_var = 0.0 if block is not None else ISOLATED_SUM_ERROR_SD_SHARE**2
    if observation.source == OWN_NET:
        sum_var += READ_MODULE_SUM_ERROR_SD_SHARE**2
    if (totals := trial.network.totals) is not None:
        # Work that belongs to no layer, or that no rule counts.
        shares = totals.unattributed_flops_share, totals.unattributed_bytes_share
        sum_var += max(*shares, totals.uncounted_bytes_share) ** 2
    return DecomposedObservation(
        counts=counts,
        mode=trial.mode,
        energy_j=energy_j,
        energy_relative_var=sum_var
        + _relative_var(observation.energy_j, observation.energy_sd_j, count),
        duration_s=duration_s,
        duration_relative_var=sum_var
        + _relative_var(observation.duration_s, observation.duration_sd_s, count),
        issue_s=issue_s if shows_host_time(observation) else None,
        is_isolated=block is not None,
        trial_key=trial.key,
        is_imported=observation.provenance == "imported",
        unit=observation.device.unit,
        between_calls=0.0 if totals is None else float(totals.between),
        batches=max(trial.setup.accumulate, 1),
    )


def _relative_var(value: float | None, sd: float | None, count: int) -> float:
    if not value or sd is None or count < 2:
        return _DEFAULT_SD_SHARE**2
    return (MEDIAN_SD_FACTOR * sd / value / math.sqrt(count)) ** 2


# Training and inference have models of their own if so many energies of each were measured. On two
# language models of an H200 (10 steps as CUDA graphs, 162 energies of inferences beside 1,473 of
# training steps) the mean error was 4.7 % with two models and 7.1 % with one.
_MIN_OWN_ENERGIES = 60


def split_phases(
    observations: Sequence[Observation],
) -> tuple[list[Observation], list[Observation]]:
    """Return observations of training and of inference, each with the idle device.

    The second list is empty unless both have enough for a model of their own.
    """
    training, inference = [], []
    for one in observations:
        is_idle = not one.trial.network.layers
        if is_idle or one.trial.setup.phase == "train":
            training.append(one)
        if is_idle or one.trial.setup.phase == "inference":
            inference.append(one)
    energies = [
        sum(bool(one.energy_j and is_step(one)) for one in phase) for phase in (training, inference)
    ]
    if min(energies) < _MIN_OWN_ENERGIES:
        return list(observations), []
    return training, inference


@dataclass(frozen=True)
class MeasuredKind(Record):
    """Measurements of one label.

    Attributes:
        energy_points: Distinct layers measured in isolation, with energy.
        duration_points: Likewise, with duration.
        largest_flops: FLOPs of the largest operator that any observation contains.
        largest_bytes: Bytes of the operator that moves most.
    """

    energy_points: int = 0
    duration_points: int = 0
    largest_flops: float = 0.0
    largest_bytes: float = 0.0


def summarise_kinds(
    decomposed: Iterable[DecomposedObservation], splits_passes: bool = False
) -> dict[str, MeasuredKind]:
    """Return what was measured of each label; blocks count as a label of their own.

    With ``splits_passes``, passes count too, beside the operators of training steps.
    """
    energies: dict[str, set[str]] = {}
    durations: dict[str, set[str]] = {}
    operators: dict[str, set[SetupLayer]] = {}
    for one in decomposed:
        for layer in one.counts:
            if one.is_isolated:
                durations.setdefault(layer.label, set()).add(layer.key)
                if one.energy_j:
                    energies.setdefault(layer.label, set()).add(layer.key)
            for operator, _ in layer.own_operators:
                passes = split_passes(operator) if splits_passes else ()
                for own in (operator, *(each for each, _ in passes)):
                    operators.setdefault(own.label, set()).add(own)
    return {
        label: MeasuredKind(
            len(energies.get(label, ())),
            len(durations.get(label, ())),
            max((each.flops for each in operators.get(label, ())), default=0.0),
            max((each.size_bytes for each in operators.get(label, ())), default=0.0),
        )
        for label in sorted(durations.keys() | operators.keys())
    }


def share_half_precisions(measured: Mapping[str, MeasuredKind]) -> dict[str, MeasuredKind]:
    """Return labels in fp16 under their names in bf16 too, and the other way round.

    Devices that share a process have one regime for both.
    """
    swapped = {}
    for label, kind in measured.items():
        for one, other in (("fp16", "bf16"), ("bf16", "fp16")):
            if one in label.split():
                swapped[label.replace(one, other)] = kind
    return dict(sorted({**swapped, **measured}.items()))


def add_kinds(
    earlier: Mapping[str, MeasuredKind], added: Mapping[str, MeasuredKind]
) -> dict[str, MeasuredKind]:
    """Return what was measured of each label before and since.

    A layer that was measured both before and since counts twice.
    """
    nothing = MeasuredKind()
    found = {}
    for label in sorted(earlier.keys() | added.keys()):
        one, two = earlier.get(label, nothing), added.get(label, nothing)
        found[label] = MeasuredKind(
            one.energy_points + two.energy_points,
            one.duration_points + two.duration_points,
            max(one.largest_flops, two.largest_flops),
            max(one.largest_bytes, two.largest_bytes),
        )
    return found
