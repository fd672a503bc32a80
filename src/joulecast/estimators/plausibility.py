"""Score how implausible observed durations are, compared with those of similar trials.

    t     measured duration of a step, per copy
    w     work of a step: bytes, and what FLOPs and launches are worth in bytes
    r     log (t / w)
    z     (r - median of r over the nearest similar trials) / sd

Similar trials run the same kinds of layers in the same precision and mode. The standard deviation
is that of the same difference over all similar trials, by the median absolute deviation, and at
least 0.15: the cost of a layer is jagged in its sizes.

A store only grows: a wrong observation stays, and measuring the trial again adds a right one. Two
observations of a trial contradict each other if their durations or energies differ by more than a
factor of AGREEMENT. Of those, the ones are believed that agree with most others; of equally many,
those that agree with the latest. A campaign repeats what it doubts until two agree, so one slow
measurement is outvoted, and running the campaign again repairs a profile.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.operators import network_work
from joulecast.records import Observation, Trial
from joulecast.records.codec import cache_on_record

IMPLAUSIBLE_Z = 4.0
"""Score above which an observation is implausible.

H200, 1,292 layers with enough neighbours: 3 % are above; of durations that were made 4 times as
long, 38 %, and 10 times as long, 74 %.
"""

_NEIGHBOURS = 5
_LEAST_SD = 0.15
_MAD_TO_SD = 1.4826
_FLOPS_PER_BYTE = 100.0
_LAUNCH_BYTES = 1e6


def score_by_neighbours(observations: Sequence[Observation]) -> Floats:
    """Return |z| of each observation among similar ones; 0 if there are too few of them."""
    scores = np.zeros(len(observations))
    groups: dict[Hashable, list[int]] = {}
    for index, one in enumerate(observations):
        if one.duration_s and one.trial.network.layers and one.provenance != "imported":
            trial, setup, execution = one.trial, one.trial.setup, one.trial.execution
            kinds = tuple((layer.kind, layer.sizes.get("fn", "")) for layer in trial.network.layers)
            how = setup.precision, setup.phase, setup.optimizer, execution.stage, execution.mode
            groups.setdefault((kinds, *how), []).append(index)
    for group in groups.values():
        if len(group) > _NEIGHBOURS + 1:
            scores[group] = _score_group([observations[index] for index in group])
    return scores


def list_implausible(observations: Sequence[Observation]) -> list[Observation]:
    """Return implausible observations, the worst first."""
    scores = score_by_neighbours(observations)
    order = np.argsort(-scores, kind="stable")
    return [observations[at] for at in order if scores[at] > IMPLAUSIBLE_Z]


def _score_group(group: Sequence[Observation]) -> Floats:
    work = [network_work(one.trial.network, one.trial.setup).total for one in group]
    amounts = np.array([[one.flops, one.size_bytes, one.launches] for one in work], float)
    sizes = np.log1p(amounts[:, :2])
    equal_bytes = amounts @ [1.0 / _FLOPS_PER_BYTE, 1.0, _LAUNCH_BYTES]
    durations_s = [one.duration_s or 0.0 for one in group]
    runs = [one.trial.execution.copies * one.trial.execution.steps for one in group]
    rates = np.log(np.array(durations_s) / runs / equal_bytes)
    distances = np.sqrt(((sizes[:, None] - sizes[None]) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
    errors = rates - np.median(rates[nearest], axis=1)
    sd = max(_LEAST_SD, _MAD_TO_SD * float(np.median(np.abs(errors))))
    scores: Floats = np.abs(errors) / sd
    return scores


AGREEMENT = 1.5
"""Factor between two measurements of one trial that still agree.

Steps on a shared processor easily differ by a fifth, and units of one device by 6 %.
"""


def drop_contradicted(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the observations that are believed, in their order; refused trials are left out."""
    measured = [one for one in observations if not one.refusal]
    groups: dict[Hashable, list[int]] = {}
    for index, one in enumerate(measured):
        groups.setdefault(make_quick_key(one.trial), []).append(index)
    dropped: set[int] = set()
    for group in groups.values():
        if len(group) > 1:
            dropped |= _find_contradicted(measured, group)
    return tuple(one for index, one in enumerate(measured) if index not in dropped)


def agree(one: Observation, other: Observation) -> bool:
    """Return whether two observations of the same trial have about the same values."""
    pairs = ((one.duration_s, other.duration_s), (one.energy_j, other.energy_j))
    return all(max(a, b) <= AGREEMENT * min(a, b) for a, b in pairs if a and b)


def is_comparable(one: Observation, other: Observation) -> bool:
    """Return whether two observations are of the same trial, run by the same program."""
    # Imported runs are not repeated measurements: their programs differ in what they do.
    is_imported = "imported" in (one.provenance, other.provenance)
    return not is_imported and one.source == other.source and one.trial == other.trial


@cache_on_record
def make_quick_key(trial: Trial) -> Hashable:
    """Return what equal trials have in common, without hashing every layer of the network."""
    network, layers = trial.network, trial.network.layers
    first = (layers[0].kind, tuple(layers[0].sizes.items())) if layers else ()
    return trial.setup, trial.execution, network.input.shape, len(layers), first


def _find_contradicted(measured: Sequence[Observation], group: Sequence[int]) -> set[int]:
    dropped: set[int] = set()
    rest = list(group)
    while rest:
        first = measured[rest[0]]
        same = [index for index in rest if is_comparable(first, measured[index])]
        rest = [index for index in rest if index not in same and index != rest[0]]
        # Those are believed that agree with the one that most agree with; the latest of equals.
        circles = [
            [other for other in same if agree(measured[index], measured[other])] for index in same
        ]
        believed: list[int] = max(reversed(circles), key=len, default=[])
        dropped |= set(same) - set(believed)
    return dropped
