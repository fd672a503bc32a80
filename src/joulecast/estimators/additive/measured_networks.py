"""Networks that were measured as a whole: their measurements update their own estimates.

    E' = E + k·(y - E),  k = var(E) / (var(E) + var(y))

A module may do more than its layers show, and that is its own: no other network learns it. So a
measured network is not only an observation of the processes; its own estimate also moves towards
the measurement, as far as that is more certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulecast.estimators.additive.decompose import is_imported_run
from joulecast.estimators.additive.pieces import PlacedPiece, split_pieces
from joulecast.estimators.base import Floats, Prediction
from joulecast.records import Observation, Trial, stable_hash
from joulecast.records.codec import Record, cache_on_record

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
