"""Score how implausible observed durations are, compared with those of similar trials.

    t     measured duration of a step, per copy
    w     work of a step: bytes, and what FLOPs and launches are worth in bytes
    r     log (t / w)
    z     (r - median of r over the nearest similar trials) / sd

Similar trials run the same kinds of layers in the same precision and mode. The standard deviation
is that of the same difference over all similar trials, by the median absolute deviation, and at
least 0.15: the cost of a layer is jagged in its sizes. A fit that can score observations itself
knows more, and is asked instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.kinds import network_work
from joulecast.records import Observation

FIT_Z = 6.0
"""Score under a fit above which an observation is implausible."""
NEIGHBOUR_Z = 4.0
"""Score among neighbours above which an observation is implausible.

H200, 1,292 layers with enough neighbours: 3 % are above; of durations that were made 4 times as
long, 38 %, and 10 times as long, 74 %.
"""

_NEIGHBOURS = 5
_LEAST_SD = 0.15
_MAD_TO_SD = 1.4826
_FLOPS_PER_BYTE = 100.0
_LAUNCH_BYTES = 1e6


@runtime_checkable
class JudgingFit(Protocol):
    """A fit that can say how implausible the observations are that it was fitted to."""

    def score_observations(self, observations: Sequence[Observation]) -> Floats:
        """Return |z| of each observation under the fit without it; 0 if it cannot tell."""


def score_by_neighbours(observations: Sequence[Observation]) -> Floats:
    """Return |z| of each observation among similar ones; 0 if there are too few of them."""
    scores = np.zeros(len(observations))
    groups: dict[Hashable, list[int]] = {}
    for index, one in enumerate(observations):
        if one.duration_s and one.trial.network.layers and one.provenance != "imported":
            groups.setdefault(_describe_trial(one), []).append(index)
    for group in groups.values():
        if len(group) > _NEIGHBOURS + 1:
            scores[group] = _score_group([observations[index] for index in group])
    return scores


def list_implausible(
    observations: Sequence[Observation], fitted: object = None
) -> list[Observation]:
    """Return implausible observations, the worst first.

    Args:
        observations: All observations of a profile.
        fitted: A fit to them; it judges them itself if it can.
    """
    if isinstance(fitted, JudgingFit):
        ratios = fitted.score_observations(observations) / FIT_Z
    else:
        ratios = score_by_neighbours(observations) / NEIGHBOUR_Z
    return [observations[at] for at in np.argsort(-ratios, kind="stable") if ratios[at] > 1.0]


def _describe_trial(one: Observation) -> Hashable:
    """Return what similar trials have in common."""
    trial = one.trial
    kinds = tuple((layer.kind, layer.sizes.get("fn", "")) for layer in trial.network.layers)
    setup, execution = trial.setup, trial.execution
    return kinds, setup.precision, setup.phase, setup.optimizer, execution.stage, execution.mode


def _score_group(group: Sequence[Observation]) -> Floats:
    work = [network_work(one.trial.network, one.trial.setup).total for one in group]
    sizes = np.log([[1.0 + one.flops, 1.0 + one.size_bytes] for one in work])
    equal_bytes = np.array(
        [
            one.size_bytes + one.flops / _FLOPS_PER_BYTE + one.launches * _LAUNCH_BYTES
            for one in work
        ]
    )
    durations_s = [
        (one.duration_s or 0.0) / one.trial.execution.copies / one.trial.execution.steps
        for one in group
    ]
    rates = np.log(np.array(durations_s) / equal_bytes)
    distances = np.sqrt(((sizes[:, None] - sizes[None]) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
    errors = rates - np.median(rates[nearest], axis=1)
    sd = max(_LEAST_SD, _MAD_TO_SD * float(np.median(np.abs(errors))))
    scores: Floats = np.abs(errors) / sd
    return scores
