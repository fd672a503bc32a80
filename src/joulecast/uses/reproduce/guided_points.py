"""Fig. 4: the order in which a campaign measures the points of one curve.

The curve is that of the fully connected output layer behind an input layer, over its input
channels. The campaign is a real one: both ends of each curve first, then the point of the largest
standard deviation. What is drawn is its history, in the order in which points were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from joulecast.errors import MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Target
from joulecast.estimators.contradictions import drop_contradicted
from joulecast.estimators.subtractive.curves import read_point
from joulecast.figures import Caption, Plot, plot_acquisition_step, sample_curve
from joulecast.gp.regression import GaussianProcess, ProcessOptions, fit_gaussian_process
from joulecast.records import Setup
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory, sum_cost_s
from joulecast.uses.reproduce.paper_settings import TRIAL_S, PaperSettings
from joulecast.uses.reproduce.small_networks import IMAGE, choose_busy_setup, make_stack
from joulecast.variants import part_widths

ROLE = "fig4"
BEFORE, AFTER = 4, 5
"""Points of the two fits that the paper draws."""

_CHANNELS, _BATCH = 64, 4096
_POSITIONS = math.prod(IMAGE[1:])
_FEATURE = "cin"


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the campaign."""
    points = _count_points(settings)
    return (PlannedWork("campaign of one input and one output layer", points, TRIAL_S * points),)


def measure(lab: Laboratory) -> None:
    """Run the campaign up to a number of points; no uncertainty is small enough to stop it."""
    target = Target(
        make_stack(0, _CHANNELS),
        _choose_setup(lab.settings),
        acquisition="energy",
        uncertainty_share=0.0,
    )
    estimator = find_estimator(lab.settings.ampere)
    lab.run_campaign(estimator, target, ROLE, _count_points(lab.settings))


def analyse(lab: Laboratory) -> Findings:
    """Fit the curve after each of its points, in the order they were measured."""
    points = _list_points(lab)
    if len(points) < AFTER:
        raise MissingError(f"the curve has {len(points)} points, and {AFTER} are needed")
    options = lab.settings.paper_options.process
    sds_j = {
        count: _largest_sd_j(_fit(points[:count], options)) for count in range(2, len(points) + 1)
    }
    order = [int(channels) for channels, _, _ in points]
    is_smaller = sds_j[AFTER] < sds_j[BEFORE]
    ends = {order[0], order[1]}
    finding = (
        f"The campaign measured {', '.join(map(str, order))} input channels in this order "
        f"({'both ends first' if ends == {min(order), max(order)} else 'not both ends first'}); "
        f"the {AFTER}th point changed the largest standard deviation of the curve from "
        f"{1e3 * sds_j[BEFORE]:.3g} to {1e3 * sds_j[AFTER]:.3g} mJ."
    )
    numbers: dict[str, Any] = {
        "points": [
            {"channels": channels, "energy_j": energy_j, "variance_j2": variance}
            for channels, energy_j, variance in points
        ],
        "largest_sds_j": {str(count): sd_j for count, sd_j in sds_j.items()},
        "batch": _choose_setup(lab.settings).batch,
        "is_faithful": lab.settings.is_faithful,
    }
    verdict = HELD if is_smaller else NOT_HELD
    return Findings(verdict, finding, numbers, sum_cost_s(lab.list_role(ROLE)))


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw the curve after four and after five points."""
    result = results[0]
    points = [(p["channels"], p["energy_j"], p["variance_j2"]) for p in result.numbers["points"]]
    label = f"FC layer, input ({result.numbers['batch']}, C, 28, 28)"
    is_faithful = bool(result.numbers.get("is_faithful"))
    options = PaperSettings(is_faithful=is_faithful).paper_options.process
    before, after = (
        sample_curve(_fit(points[:count], options), label, (_FEATURE,)) for count in (BEFORE, AFTER)
    )
    order = ", ".join(f"{channels:g}" for channels, _, _ in points)
    subtitle = f"{label} on {result.device.name}; measured in the order {order} channels"
    caption = Caption("Fig. 4: the campaign's own points", subtitle, result.provenance)
    return plot_acquisition_step(before, after, caption)


def _count_points(settings: PaperSettings) -> int:
    return settings.choose(20, 14)


def _choose_setup(settings: PaperSettings) -> Setup:
    return choose_busy_setup(settings, _BATCH)


def _list_points(lab: Laboratory) -> list[tuple[float, float, float]]:
    """Return channels, energy and variance of the output layer's points, as they were measured."""
    points: dict[float, tuple[float, float, float]] = {}
    # At the end, a campaign may measure again what looks wrong: that is no new point.
    for one in drop_contradicted(lab.list_role(ROLE)):
        found = read_point(one, "energy")
        if found is not None and found.part.role == "output":
            (features,) = part_widths(found.part)
            channels = features / _POSITIONS
            points.setdefault(channels, (channels, found.value, found.variance))
    return list(points.values())


def _fit(points: Sequence[tuple[float, float, float]], options: ProcessOptions) -> GaussianProcess:
    channels, energies_j, variances = zip(*points, strict=True)
    inputs = [(int(count),) for count in channels]
    return fit_gaussian_process(inputs, energies_j, variances, options=options)


def _largest_sd_j(process: GaussianProcess) -> float:
    curve = sample_curve(process, "", (_FEATURE,))
    return max(curve.sds_j)


GUIDED_POINTS = Experiment(
    "fig4",
    "The order of guided points",
    "Profiling starts at both bounds, and each further point is where the variance is largest; "
    "after it is fitted, the uncertainty is diminished.",
    f"The largest standard deviation of the curve is smaller after {AFTER} points than after "
    f"{BEFORE}.",
    plan,
    measure,
    analyse,
    draw,
)
