"""Will it finish on this charge? A run's energy is log-normal, a charge is a number.

    needed = steps · joules a step + rest_w · seconds        P(needed <= charge - reserve)

What the meter does not see, the battery has to give as well: ``rest_w``, for as long as the run
takes. Seconds are as unsure as the estimate says, and off together with its joules (spread.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.records import Estimate
from joulecast.uses.plan.spread import spread_run


@dataclass(frozen=True)
class Finish:
    """What a run needs of what a battery has, and how probable it is that it suffices.

    Attributes:
        steps_left: How many steps the charge is worth on average, whatever was asked for.
    """

    available_j: float
    needed_j: float
    interval_j: tuple[float, float]
    probability: float
    steps_left: int

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "interval_j": list(self.interval_j)}


def will_finish(
    answer: Estimate,
    steps: int,
    battery_j: float,
    charge_share: float = 1.0,
    reserve_share: float = 0.0,
    rest_w: float = 0.0,
) -> Finish:
    """Whether a run's energy is there.

    Args:
        answer: What a step takes.
        steps: How many there shall be.
        battery_j: What the battery holds when it is full.
        charge_share: What of that it holds now.
        reserve_share: What of that shall be left.
        rest_w: What the machine draws beside what the meter behind the estimate sees.

    Raises:
        InputError: The charge is not above the reserve, or a number cannot be.
    """
    if rest_w < 0 or not math.isfinite(rest_w):
        raise InputError(f"the rest of the machine draws {rest_w:g} W: give watts from 0 on")
    available_j = battery_j * (charge_share - reserve_share)
    if available_j <= 0:
        raise InputError(
            f"a charge of {100 * charge_share:g} % with a reserve of {100 * reserve_share:g} % "
            "leaves nothing to run on: charge it, or keep less in reserve"
        )
    run = spread_run(answer, steps, rest_w)
    return Finish(
        available_j,
        run.energy_j,
        run.find_interval(answer.level),
        run.find_probability(available_j),
        int(available_j / run.energy_j * steps),
    )
