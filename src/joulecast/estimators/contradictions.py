"""Drop observations that others of the same trial contradict.

A store only grows: a wrong observation stays, and measuring the trial again adds a right one. Two
observations of a trial contradict each other if their durations or energies differ by more than a
factor of AGREEMENT. Of those, the ones are believed that agree with most others; of equally many,
those that agree with the latest. A campaign repeats what it doubts until two agree, so one slow
measurement is outvoted, and running the campaign again repairs a profile.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from joulecast.records import Observation, Trial

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
    return all(_are_near(*pair) for pair in pairs)


def is_comparable(one: Observation, other: Observation) -> bool:
    """Return whether two observations are of the same trial, run by the same program."""
    # Imported runs are not repeated measurements: their programs differ in what they do.
    is_imported = "imported" in (one.provenance, other.provenance)
    return not is_imported and one.source == other.source and one.trial == other.trial


def make_quick_key(trial: Trial) -> Hashable:
    """Return what equal trials have in common, without hashing every layer of the network."""
    network, layers = trial.network, trial.network.layers
    first = (layers[0].kind, tuple(layers[0].sizes.items())) if layers else ()
    return trial.setup, trial.execution, network.input.shape, len(layers), first


def _are_near(one: float | None, other: float | None) -> bool:
    if not one or not other:
        return True  # nothing to compare
    return max(one, other) <= AGREEMENT * min(one, other)


def _find_contradicted(measured: Sequence[Observation], group: Sequence[int]) -> set[int]:
    dropped: set[int] = set()
    rest = list(group)
    while rest:
        first = measured[rest[0]]
        same = [index for index in rest if is_comparable(first, measured[index])]
        rest = [index for index in rest if index not in same and index != rest[0]]
        dropped |= set(same) - set(_find_believed(measured, same))
    return dropped


def _find_believed(measured: Sequence[Observation], same: Sequence[int]) -> list[int]:
    """Return the observations that agree with the one that most agree with."""
    circles = [
        [other for other in same if agree(measured[index], measured[other])] for index in same
    ]
    # The latest of the largest circles.
    return max(reversed(circles), key=len, default=[])
