"""Fig. 12: differences between estimated and observed energy of convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from joulecast.figures import (
    Axis,
    Caption,
    Plot,
    SampledCurve,
    combine_plots,
    plot_curve_errors,
)
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
)
from joulecast.uses.reproduce.laboratory import Laboratory
from joulecast.uses.reproduce.layer_surfaces import (
    compute_test_mape,
    load_surface,
    measure,
    plan,
    sample_surfaces,
)
from joulecast.uses.reproduce.scored_nets import name_device


def analyse(lab: Laboratory) -> Findings:
    """Compare relative and absolute errors at the test points."""
    surfaces = sample_surfaces(lab)
    verdict, finding, rows = judge(surfaces)
    return Findings(verdict, finding, {"surfaces": surfaces, "errors": rows})


def judge(surfaces: Sequence[Mapping[str, Any]]) -> tuple[str, str, list[dict[str, float]]]:
    """Return the verdict, the sentence, and the errors of each surface, the largest image first."""
    rows = [
        {
            "mape_percent": compute_test_mape(one),
            "mean_absolute_error_j": fmean(
                abs(test["predicted_j"] - test["measured_j"]) for test in one["tests"]
            ),
        }
        for one in surfaces
    ]
    largest = rows[0]
    others = rows[1:]
    is_relative_small = all(largest["mape_percent"] <= one["mape_percent"] for one in others)
    is_absolute_large = all(
        largest["mean_absolute_error_j"] >= one["mean_absolute_error_j"] for one in others
    )
    parts = [
        f"{one['label']}: {row['mape_percent']:.1f} % or "
        f"{1e3 * row['mean_absolute_error_j']:.3g} mJ"
        for one, row in zip(surfaces, rows, strict=True)
    ]
    finding = f"Mean error at test points: {'; '.join(parts)}."
    return HELD if is_relative_small and is_absolute_large else NOT_HELD, finding, rows


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw the error of every test point, with a row of panels for each device."""
    plots = []
    count = min(len(result.numbers["surfaces"]) for result in results)
    for result in results:
        for at in range(count):
            curve = load_surface(result.numbers["surfaces"][at])
            caption = Caption(f"{curve.label}, {name_device(result)}", "", result.provenance)
            plots.append(_show_range(plot_curve_errors(curve, caption), curve))
    subtitle = "estimate less observation at test points, as a share of the observation"
    return combine_plots("Fig. 12: differences of estimate and observation", plots, subtitle)


def _show_range(plot: Plot, curve: SampledCurve) -> Plot:
    """Return a plot whose axes cover the surface, not only the points."""
    x, y = ((axis[0], axis[-1]) for axis in curve.axes)
    panels = [replace(panel, x=_widen(panel.x, *x), y=_widen(panel.y, *y)) for panel in plot.panels]
    return replace(plot, panels=tuple(panels))


def _widen(axis: Axis, low: float, high: float) -> Axis:
    margin = 0.05 * (high - low)
    return replace(axis, low=low - margin, high=high + margin)


SURFACE_ERRORS = Experiment(
    "fig12",
    "Differences of estimated and observed convolutions",
    "The relative error may be small where the input is large, and still contribute most to the "
    "absolute error.",
    "The largest height and width has the smallest relative error of all on test points, and the "
    "largest absolute one.",
    plan,
    measure,
    analyse,
    draw,
    has_several_devices=True,
)
