"""Real runs: what a net took when it ran renews what its layers say.

    E' = E + k·(y - E),  k = var(E) / (var(E) + var(y))

A module may do more than its layers show, and what they leave out is its own: no other net learns
it. So a measured net is not only a row of the joint process; its own estimate is drawn to what was
seen, as far as that is surer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.estimators.additive.decompose import is_strangers_run
from joulecast.estimators.additive.pieces import Stand, split_pieces
from joulecast.estimators.base import Floats, Prediction
from joulecast.estimators.subtractive.curves import is_plain_step
from joulecast.records import Observation, stable_hash

Json = dict[str, Any]

# One net at another hour differs by about this, whatever its own windows say.
_REPEAT_SHARE = 0.03


def read_runs(observations: Iterable[Observation], labels: Collection[str]) -> Json:
    """Eager steps of whole nets by their pieces: mean joules, their variance, mean seconds."""
    groups: dict[str, list[Observation]] = {}
    for seen in observations:
        trial = seen.trial
        plain = bool(trial.network.layers) and is_plain_step(trial.execution)
        # A stranger's run is no step's cost: start-up and evaluation are in it.
        plain = plain and not is_strangers_run(seen)
        if plain and seen.energy_j and seen.duration_s:
            stands = split_pieces(trial.network, trial.setup, labels)
            groups.setdefault(name_net(stands), []).append(seen)
    return {name: _sum_up(group) for name, group in sorted(groups.items())}


def name_net(stands: Iterable[Stand]) -> str:
    """A name of what a net consists of, the same for equal nets."""
    words = sorted(f"{stand.piece.key} {stand.count}" for stand in stands)
    return stable_hash(words)


def renew(answer: Prediction, runs: Sequence[Json | None]) -> Prediction:
    """A prediction in which nets that ran are drawn to what they took."""
    gain, energy_j, duration_s = (
        np.zeros(len(runs)),
        answer.energy_j.copy(),
        answer.duration_s.copy(),
    )
    for at, run in enumerate(runs):
        if run is not None:
            variance = float(answer.energy_sd_j[at]) ** 2
            gain[at] = variance / (variance + run["variance"])
            energy_j[at] += gain[at] * (run["energy_j"] - energy_j[at])
            duration_s[at] += gain[at] * (run["duration_s"] - duration_s[at])
    left = np.sqrt(1.0 - gain)
    scale = energy_j / answer.energy_j
    layers = tuple(
        tuple(replace(layer, energy_j=layer.energy_j * factor) for layer in net)
        for net, factor in zip(answer.layers, scale.tolist(), strict=True)
    )
    return replace(
        answer,
        energy_j=energy_j,
        energy_sd_j=answer.energy_sd_j * left,
        energy_cov=_shrink(answer.energy_cov, left),
        duration_s=duration_s,
        device_energy_j=None if answer.device_energy_j is None else answer.device_energy_j * scale,
        layers=layers,
        duration_sd_s=None if answer.duration_sd_s is None else answer.duration_sd_s * left,
    )


def _shrink(cov: Floats | None, left: Floats) -> Floats | None:
    return None if cov is None else np.asarray(cov * np.outer(left, left))


def _sum_up(group: Sequence[Observation]) -> Json:
    steps = np.array([seen.trial.execution.steps for seen in group])
    energies_j = np.sort(np.array([seen.energy_j or 0.0 for seen in group]) / steps)
    durations_s = np.sort(np.array([seen.duration_s or 0.0 for seen in group]) / steps)
    mean_j = float(energies_j.mean())
    spread = max(_REPEAT_SHARE, float(energies_j.std()) / mean_j)
    return {
        "energy_j": mean_j,
        # Measurements of one run share its hour, its clocks and its host.
        "variance": (spread * mean_j) ** 2 / len({seen.run for seen in group}),
        "duration_s": float(durations_s.mean()),
    }
