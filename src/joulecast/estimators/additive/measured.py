"""What was measured: of each kind, how many layers and how large; and networks as a whole.

Estimates say how far they reach beyond it. A network that was measured as a whole is not only an
observation of the processes: a module may do more than its layers show, and that is its own, which
no other network learns. So its own estimate also moves towards the measurement, as far as that is
more certain:

    E' = E + k·(y - E),  k = var(E) / (var(E) + var(y))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulecast.estimators.additive.layers import (
    OVERHEAD,
    PlacedLayer,
    SetupLayer,
    split_layers,
    split_passes,
)
from joulecast.estimators.additive.observations import DecomposedObservation, is_imported_run
from joulecast.estimators.additive.predict import NetworkTotals
from joulecast.estimators.base import Prediction
from joulecast.gp.linalg import Floats
from joulecast.records import Observation, Trial, stable_hash
from joulecast.records.codec import Record, cache_on_record

# Sizes beyond the largest measured ones, and shares of the energy, that are worth a note.
_MIN_FACTOR, _MIN_SHARE = 2.0, 0.05
# Relative standard deviation of one network at another hour, whatever its own windows show: a plain
# loop repeats within 0.6 % on one H200, 1.5 % on a second one and 3 to 9 % on a third.
_REPEAT_SD_SHARE = 0.03


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


@dataclass(frozen=True)
class MeasuredNetwork(Record):
    """Measurements of one network's step.

    Attributes:
        energy_j: Mean energy.
        energy_var_j2: Variance of that mean.
        duration_s: Mean duration.
    """

    energy_j: float
    energy_var_j2: float = field(metadata={"json_name": "variance"})
    duration_s: float


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


def find_unseen_shares(
    measured: Mapping[str, MeasuredKind], totals: NetworkTotals
) -> tuple[float, ...]:
    """Return the share of each network's energy in labels that were never measured."""
    sums, operator_j = totals.sums, totals.operator_j
    is_unseen = np.array([one.label not in measured for one in sums.operators], float)
    unseen_j = sums.counts.total(operator_j * is_unseen)
    return tuple((unseen_j / sums.counts.total(operator_j)).tolist())


def note_extrapolation(
    measured: Mapping[str, MeasuredKind], totals: NetworkTotals
) -> tuple[tuple[str, ...], ...]:
    """Return for each network how far it reaches beyond measured sizes, and into unseen kinds."""
    operators, counts, operator_j = totals.sums.operators, totals.sums.counts, totals.operator_j
    # How many times larger each operator is than the largest measured one of its label.
    factors = []
    for one in operators:
        known = measured.get(one.label)
        if known is None:
            factors.append(1.0 if one.operator_class == OVERHEAD else np.inf)
        else:
            by_flops = one.flops / known.largest_flops if known.largest_flops else 1.0
            factors.append(max(by_flops, one.size_bytes / max(known.largest_bytes, 1.0)))
    shares = counts.weight * operator_j[counts.column] / counts.total(operator_j)[counts.row]
    found = []
    for row in range(counts.size):
        own = counts.row == row
        by_label: dict[str, float] = {}
        largest: dict[str, float] = {}
        for at, share in zip(counts.column[own].tolist(), shares[own].tolist(), strict=True):
            if factors[at] >= _MIN_FACTOR:
                label = operators[at].label
                by_label[label] = by_label.get(label, 0.0) + share
                largest[label] = max(largest.get(label, 0.0), factors[at])
        found.append(
            tuple(
                f"{label} was never measured: estimated from similar operators"
                if np.isinf(largest[label])
                else f"extrapolated {largest[label]:.0f}x beyond the largest measured {label}"
                for label, share in sorted(by_label.items(), key=lambda item: -item[1])
                if share >= _MIN_SHARE
            )
        )
    return tuple(found)


def summarise_networks(observations: Iterable[Observation]) -> dict[str, MeasuredNetwork]:
    """Return the measured networks by the hash of their layers."""
    groups: dict[str, list[Observation]] = {}
    for one in observations:
        trial = one.trial
        # An imported run is not the cost of a step: it contains start-up and evaluation.
        is_step = trial.execution.is_user_step and not is_imported_run(one)
        if trial.network.layers and is_step and one.energy_j and one.duration_s:
            groups.setdefault(_hash_trial(trial), []).append(one)
    found = {}
    for name, group in sorted(groups.items()):
        steps = np.array([one.trial.execution.steps for one in group])
        energies_j = np.sort(np.array([one.energy_j or 0.0 for one in group]) / steps)
        durations_s = np.sort(np.array([one.duration_s or 0.0 for one in group]) / steps)
        mean_j = float(energies_j.mean())
        sd_share = max(_REPEAT_SD_SHARE, float(energies_j.std()) / mean_j)
        # Measurements of one run share its hour, its clocks and its host.
        variance = (sd_share * mean_j) ** 2 / len({one.run for one in group})
        found[name] = MeasuredNetwork(mean_j, variance, float(durations_s.mean()))
    return found


def hash_layers(layers: Iterable[PlacedLayer], is_graph: bool = False) -> str:
    """Return a hash of a network's layers, the same for equal networks that are run alike."""
    keys = sorted(f"{one.layer.key} {one.count}" for one in layers)
    return stable_hash([*keys, "graph"] if is_graph else keys)


@cache_on_record
def _hash_trial(trial: Trial) -> str:
    return hash_layers(split_layers(trial.network, trial.setup), trial.setup.cuda_graphs)


def update_prediction(
    prediction: Prediction, measured: Sequence[MeasuredNetwork | None]
) -> Prediction:
    """Return a prediction in which measured networks moved towards their measurements."""
    if not any(measured):
        return prediction
    gain = np.zeros(len(measured))
    energy_j, duration_s = prediction.energy_j.copy(), prediction.duration_s.copy()
    for at, network in enumerate(measured):
        if network is not None:
            variance = float(prediction.energy_sd_j[at]) ** 2
            gain[at] = variance / (variance + network.energy_var_j2)
            energy_j[at] += gain[at] * (network.energy_j - energy_j[at])
            duration_s[at] += gain[at] * (network.duration_s - duration_s[at])
    sd_factor = np.sqrt(1.0 - gain)
    scale = energy_j / prediction.energy_j
    return replace(
        prediction,
        energy_j=energy_j,
        energy_sd_j=prediction.energy_sd_j * sd_factor,
        energy_cov=_scale(prediction.energy_cov, np.outer(sd_factor, sd_factor)),
        duration_s=duration_s,
        device_energy_j=_scale(prediction.device_energy_j, scale),
        layers=tuple(
            tuple(replace(layer, energy_j=layer.energy_j * factor) for layer in layers)
            for layers, factor in zip(prediction.layers, scale.tolist(), strict=True)
        ),
        duration_sd_s=_scale(prediction.duration_sd_s, sd_factor),
    )


def _scale(array: Floats | None, factor: Floats) -> Floats | None:
    return None if array is None else np.asarray(array * factor)
