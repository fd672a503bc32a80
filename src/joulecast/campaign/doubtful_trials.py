"""Find stored observations that look wrong, so that a campaign measures their trials again.

An observation is doubted if its windows disagreed, if another one of the same trial contradicts it
and no third decides, or if it is implausible beside similar trials or under the fit. A trial that
was repeated is believed as ``contradictions`` says, and is not doubted again.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.campaign.trial_log import TrialLog
from joulecast.errors import ContaminatedError
from joulecast.estimators.base import Fitted
from joulecast.estimators.plausibility import agree, list_implausible
from joulecast.records import Observation

MOST_REPEATED = 20
"""How many doubtful trials a campaign measures again at most."""
# Windows of one measurement that differ by more than this share disagree.
_WIDE_SHARE = 0.25


def list_doubtful(
    observations: Sequence[Observation], unit: str, fitted: Fitted | None = None
) -> list[Observation]:
    """Return observations to repeat, the worst first.

    Args:
        observations: Everything stored about a device.
        unit: The unit of the device at hand; those of other units are not repeated on it.
        fitted: A fit to them, which judges them if it can.
    """
    own = [
        one
        for one in observations
        if not one.refusal and one.trial.network.layers and one.device.unit == unit
    ]
    places = {id(one) for one in own}
    unsure = [one for one in own if _has_wide_spread(one)]
    implausible = [one for one in list_implausible(observations, fitted) if id(one) in places]
    doubted = list(dict.fromkeys([*unsure, *implausible]))
    return [one for one in doubted if not _is_settled(one, own)][:MOST_REPEATED]


def repeat_doubtful(
    trials: TrialLog,
    fitted: Fitted | None = None,
    most: int = MOST_REPEATED,
    until_s: float | None = None,
) -> int:
    """Measure doubtful trials again; return how many were.

    Args:
        trials: The observations of a campaign.
        fitted: A fit to them.
        most: How many are repeated at most.
        until_s: Start no more of them after this moment on the measurer's clock.
    """
    unit, before, count = trials.measurer.runtime.device.unit, trials.new, 0
    for one in list_doubtful(trials.stored, unit, fitted)[:most]:
        if until_s is not None and trials.measurer.now() > until_s:
            break
        try:
            with_energy, reason = one.energy_j is not None, "doubtful, measured again"
            # Another campaign that measures it has the same doubts.
            done = trials.measure(one.trial, with_energy, reason, waits=False)
        except ContaminatedError as error:
            trials.skipped.append(f"doubtful, not measured again: {error}")
        else:
            count += done is not None
    # They are no new points.
    trials.new = before
    return count


def _has_wide_spread(one: Observation) -> bool:
    pairs = ((one.duration_sd_s, one.duration_s), (one.energy_sd_j, one.energy_j))
    return any(sd and value and sd > _WIDE_SHARE * value for sd, value in pairs)


def _is_settled(one: Observation, own: Sequence[Observation]) -> bool:
    """Return whether the trial was measured often enough to know which observation is right."""
    same = [other for other in own if other.trial == one.trial]
    return (
        any(agree(same[at], same[other]) for at in range(len(same)) for other in range(at))
        or len(same) > 3
    )
