"""What was measured of each kind: how many pieces, and how large the largest one was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulecast.estimators.additive.layers import (
    OVERHEAD,
    Piece,
    PlacedPiece,
    split_passes,
    split_pieces,
)
from joulecast.estimators.additive.observations import DecomposedObservation, is_imported_run
from joulecast.estimators.additive.predict import DeviceTotals
from joulecast.estimators.base import Prediction
from joulecast.gp.linalg import Floats
from joulecast.records import Observation, Trial, stable_hash
from joulecast.records.codec import Record
from joulecast.records.record_cache import cache_on_record

# Sizes beyond the largest measured ones, and shares of the energy, that are worth a note.
_MIN_FACTOR, _MIN_SHARE = 2.0, 0.05


@dataclass(frozen=True)
class MeasuredKind(Record):
    """Measurements of one label.

    Attributes:
        energy_points: Distinct pieces measured in isolation, with energy.
        duration_points: Likewise, with duration.
        largest_flops: FLOPs of the largest leaf that any observation contains.
        largest_bytes: Bytes of the leaf that moves most.
    """

    energy_points: int = 0
    duration_points: int = 0
    largest_flops: float = 0.0
    largest_bytes: float = 0.0


def summarise_kinds(
    decomposed: Iterable[DecomposedObservation], splits_passes: bool = False
) -> dict[str, MeasuredKind]:
    """Return what was measured of each label; blocks count as a label of their own.

    Args:
        decomposed: The observations.
        splits_passes: Whether passes count too, beside the leaves of training steps.
    """
    energies: dict[str, set[str]] = {}
    durations: dict[str, set[str]] = {}
    leaves: dict[str, set[Piece]] = {}
    for one in decomposed:
        for piece in one.counts:
            if one.is_isolated:
                durations.setdefault(piece.label, set()).add(piece.key)
                if one.energy_j:
                    energies.setdefault(piece.label, set()).add(piece.key)
            for leaf, _ in piece.own_leaves:
                for own in (leaf, *(one for one, _ in split_passes(leaf) if splits_passes)):
                    leaves.setdefault(own.label, set()).add(own)
    return {
        label: MeasuredKind(
            len(energies.get(label, ())),
            len(durations.get(label, ())),
            max((leaf.flops for leaf in leaves.get(label, ())), default=0.0),
            max((leaf.size_bytes for leaf in leaves.get(label, ())), default=0.0),
        )
        for label in sorted(durations.keys() | leaves.keys())
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

    A piece that was measured both before and since counts twice.
    """
    nothing = MeasuredKind()
    pairs = {
        label: (earlier.get(label, nothing), added.get(label, nothing))
        for label in sorted(earlier.keys() | added.keys())
    }
    return {
        label: MeasuredKind(
            one.energy_points + two.energy_points,
            one.duration_points + two.duration_points,
            max(one.largest_flops, two.largest_flops),
            max(one.largest_bytes, two.largest_bytes),
        )
        for label, (one, two) in pairs.items()
    }


def find_unseen_shares(
    measured: Mapping[str, MeasuredKind], device: DeviceTotals
) -> tuple[float, ...]:
    """Return the share of each network's energy in labels that were never measured."""
    sums = device.sums
    leaf_j = device.leaf_j
    is_unseen = np.array([leaf.label not in measured for leaf in sums.leaves], float)
    return tuple((sums.counts.total(leaf_j * is_unseen) / sums.counts.total(leaf_j)).tolist())


def note_extrapolation(
    measured: Mapping[str, MeasuredKind], device: DeviceTotals
) -> tuple[tuple[str, ...], ...]:
    """Return for each network how far it reaches beyond measured sizes, and into unseen kinds."""
    sums, leaf_j = device.sums, device.leaf_j
    factors = np.array([_find_factor(measured, leaf) for leaf in sums.leaves])
    total_j = sums.counts.total(leaf_j)
    notes: list[list[str]] = [[] for _ in range(sums.size)]
    counts = sums.counts
    for row in range(sums.size):
        own = counts.column[counts.row == row]
        weight = counts.weight[counts.row == row]
        notes[row] = _note_network(sums.leaves, factors, own, weight * leaf_j[own] / total_j[row])
    return tuple(map(tuple, notes))


def _find_factor(measured: Mapping[str, MeasuredKind], leaf: Piece) -> float:
    """Return how many times larger a leaf is than the largest of its label; infinite if unseen."""
    known = measured.get(leaf.label)
    if known is None:
        return 1.0 if leaf.operator_class == OVERHEAD else np.inf
    by_flops = leaf.flops / known.largest_flops if known.largest_flops else 1.0
    return max(by_flops, leaf.size_bytes / max(known.largest_bytes, 1.0))


def _note_network(
    leaves: Sequence[Piece], factors: Floats, own: Floats, shares: Floats
) -> list[str]:
    by_label: dict[str, float] = {}
    largest: dict[str, float] = {}
    for at, share in zip(own.tolist(), shares.tolist(), strict=True):
        if factors[at] >= _MIN_FACTOR:
            label = leaves[at].label
            by_label[label] = by_label.get(label, 0.0) + share
            largest[label] = max(largest.get(label, 0.0), float(factors[at]))
    notes = []
    for label, share in sorted(by_label.items(), key=lambda item: -item[1]):
        if share < _MIN_SHARE:
            continue
        if np.isinf(largest[label]):
            notes.append(f"{label} was never measured: estimated from similar operators")
        else:
            notes.append(f"extrapolated {largest[label]:.0f}x beyond the largest measured {label}")
    return notes


# Relative standard deviation of one network at another hour, whatever its own windows show.
_REPEAT_SD_SHARE = 0.03


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


def summarise_networks(observations: Iterable[Observation]) -> dict[str, MeasuredNetwork]:
    """Return the measured networks by the hash of their pieces."""
    groups: dict[str, list[Observation]] = {}
    for one in observations:
        trial = one.trial
        # An imported run is not the cost of a step: it contains start-up and evaluation.
        is_step = trial.execution.is_user_step and not is_imported_run(one)
        if trial.network.layers and is_step and one.energy_j and one.duration_s:
            groups.setdefault(_hash_trial(trial), []).append(one)
    return {name: _summarise(group) for name, group in sorted(groups.items())}


def find_measured(
    measured: Mapping[str, MeasuredNetwork],
    networks: Sequence[Sequence[PlacedPiece]],
    are_graphs: Sequence[bool],
) -> list[MeasuredNetwork | None]:
    """Return the measurements of each network, None if it was not measured."""
    if not measured:
        return [None for _ in networks]
    return [measured.get(key) for key in map(hash_pieces, networks, are_graphs)]


def hash_pieces(pieces: Iterable[PlacedPiece], is_graph: bool = False) -> str:
    """Return a hash of a network's pieces, the same for equal networks that are run alike."""
    keys = sorted(f"{one.piece.key} {one.count}" for one in pieces)
    return stable_hash([*keys, "graph"] if is_graph else keys)


def update_prediction(
    prediction: Prediction, measured: Sequence[MeasuredNetwork | None]
) -> Prediction:
    """Return a prediction in which measured networks moved towards their measurements."""
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
    layers = tuple(
        tuple(replace(layer, energy_j=layer.energy_j * factor) for layer in network_layers)
        for network_layers, factor in zip(prediction.layers, scale.tolist(), strict=True)
    )
    return replace(
        prediction,
        energy_j=energy_j,
        energy_sd_j=prediction.energy_sd_j * sd_factor,
        energy_cov=_scale(prediction.energy_cov, np.outer(sd_factor, sd_factor)),
        duration_s=duration_s,
        device_energy_j=_scale(prediction.device_energy_j, scale),
        layers=layers,
        duration_sd_s=_scale(prediction.duration_sd_s, sd_factor),
    )


@cache_on_record
def _hash_trial(trial: Trial) -> str:
    return hash_pieces(split_pieces(trial.network, trial.setup), trial.setup.cuda_graphs)


def _scale(array: Floats | None, factor: Floats) -> Floats | None:
    return None if array is None else np.asarray(array * factor)


def _summarise(group: Sequence[Observation]) -> MeasuredNetwork:
    steps = np.array([one.trial.execution.steps for one in group])
    energies_j = np.sort(np.array([one.energy_j or 0.0 for one in group]) / steps)
    durations_s = np.sort(np.array([one.duration_s or 0.0 for one in group]) / steps)
    mean_j = float(energies_j.mean())
    sd_share = max(_REPEAT_SD_SHARE, float(energies_j.std()) / mean_j)
    # Measurements of one run share its hour, its clocks and its host.
    variance = (sd_share * mean_j) ** 2 / len({one.run for one in group})
    return MeasuredNetwork(mean_j, variance, float(durations_s.mean()))
