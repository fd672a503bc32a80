"""Plot the energy curve of a layer over its widths, its uncertainty and its errors.

``sample_curve`` evaluates a Gaussian process on a grid; other curves can fill a ``SampledCurve``
directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulecast.errors import InputError
from joulecast.figures.marks import Band, Floats, Line, Mark, Points, Surface
from joulecast.figures.plot import (
    Axis,
    Caption,
    Panel,
    Plot,
    choose_limits,
    make_plot,
    require_data,
)
from joulecast.units import format_energy
from joulecast.views.style import BLUE, MUTED, RED, SKY, TEXT

if TYPE_CHECKING:
    from joulecast.gp.regression import GaussianProcess

Widths = tuple[float, ...]

# Standard deviations of a 95 % interval.
_Z95 = 1.96
# Grid points per axis, by number of widths.
_GRID_POINTS = {1: 121, 2: 25}
_WIDTH_TITLES = {"cin": "Input channels", "cout": "Output channels", "hidden": "Hidden size"}
_ENERGY_TITLE = "Energy per step"
_CURVE, _MEASURED, _HELD_OUT = "Gaussian process mean", "measured", "held out"
_INTERVAL = "95 % interval"
_INTERVAL_OPACITY = 0.25


@dataclass(frozen=True)
class CurvePoint:
    """A measured point of a curve, with the curve's prediction."""

    widths: Widths
    measured_j: float
    predicted_j: float

    @property
    def error_percent(self) -> float:
        """The relative error of the prediction."""
        return 100.0 * (self.predicted_j / self.measured_j - 1.0) if self.measured_j else 0.0


@dataclass(frozen=True)
class SampledCurve:
    """A fitted curve on a grid, with its training and held-out points.

    Attributes:
        features: Names of the widths, one or two.
        axes: Grid points of each width.
        means_j: Predicted means, in the order of ``itertools.product(*axes)``.
        sds_j: Standard deviations of the prediction.
        next_point: Where it would be measured next, and the prediction there; None where unknown.
        curve_name: What its mean is called.
    """

    label: str
    features: tuple[str, ...]
    axes: tuple[Floats, ...]
    means_j: Floats
    sds_j: Floats
    training_points: tuple[CurvePoint, ...] = ()
    held_out_points: tuple[CurvePoint, ...] = ()
    next_point: tuple[Widths, float] | None = None
    curve_name: str = _CURVE

    def __post_init__(self) -> None:
        if not 1 <= len(self.features) <= 2 or len(self.axes) != len(self.features):
            names = ", ".join(self.features) or "none"
            raise InputError(f"{self.label}: widths are {names}: give one or two to plot")
        require_data(self.means_j, f"grid point of {self.label}")


def sample_curve(
    gp: GaussianProcess,
    label: str,
    features: Sequence[str],
    held_out_j: Mapping[Widths, float] | None = None,
) -> SampledCurve:
    """Evaluate a Gaussian process between the smallest and the largest training widths.

    Args:
        gp: The fitted process.
        label: Name of the layer.
        features: Names of its widths.
        held_out_j: Energies measured at other widths.
    """
    import numpy as np

    count = _GRID_POINTS.get(len(features), 2)
    lows, highs = gp.inputs.min(axis=0), gp.inputs.max(axis=0)
    axes = tuple(tuple(np.linspace(a, b, count).tolist()) for a, b in zip(lows, highs, strict=True))
    grid = np.array(list(itertools.product(*axes)))
    means, sds = gp.predict(grid)[0], gp.standard_deviations(grid)
    training = list(zip(gp.inputs.tolist(), gp.values.tolist(), strict=True))
    return SampledCurve(
        label,
        tuple(features),
        axes,
        tuple(means.tolist()),
        tuple(sds.tolist()),
        _predict_points(gp, training),
        _predict_points(gp, list((held_out_j or {}).items())),
    )


def plot_curve(
    curve: SampledCurve, caption: Caption = Caption(), *, with_interval: bool = False
) -> Plot:
    """Plot a curve with its points: a line with a 95 % band, or a surface over two widths.

    Args:
        curve: The curve.
        caption: What is written above.
        with_interval: Also draw the ends of the 95 % interval as surfaces.
    """
    is_surface = len(curve.features) == 2
    panel = _make_surface_panel(curve, with_interval) if is_surface else _make_line_panel(curve)
    return make_plot((panel,), caption, f"Energy of {curve.label}")


def plot_curve_errors(curve: SampledCurve, caption: Caption = Caption()) -> Plot:
    """Plot a curve's relative error at its held-out points, or at its training points."""
    points = curve.held_out_points or curve.training_points
    require_data(points, f"point of {curve.label}")
    columns = tuple(zip(*(point.widths for point in points), strict=True))
    errors = tuple(point.error_percent for point in points)
    name = _HELD_OUT if curve.held_out_points else _MEASURED
    texts = tuple(_describe_point(curve, point) for point in points)
    if len(columns) == 2:
        coloured = Points(
            name,
            *columns,
            TEXT,
            hover_texts=texts,
            colour_values=errors,
            colourbar_title="Prediction error (%)",
        )
        marks: tuple[Mark, ...] = (coloured,)
        y = _make_width_axis(curve, 1)
    else:
        ends = curve.axes[0][0], curve.axes[0][-1]
        zero = Line("no error", ends, (0.0, 0.0), MUTED, is_dashed=True)
        marks = (zero, Points(name, columns[0], errors, RED, hover_texts=texts, marker="cross"))
        y = Axis("Prediction error", "%")
    panel = Panel(_make_width_axis(curve, 0), y, marks)
    return make_plot((panel,), caption, f"Prediction errors of {curve.label}")


def plot_acquisition_step(
    before: SampledCurve, after: SampledCurve, caption: Caption = Caption()
) -> Plot:
    """Plot a curve over one width before and after measuring where its variance was largest."""
    for curve in (before, after):
        if len(curve.features) != 1:
            raise InputError(
                f"{curve.label} has {len(curve.features)} widths: give a curve over one width"
            )
    sds = before.sds_j
    most_uncertain = before.axes[0][sds.index(max(sds))]
    known = {point.widths for point in before.training_points}
    new = tuple(point for point in after.training_points if point.widths not in known)
    ends = [end for curve in (before, after) for edge in _compute_band(curve) for end in edge]
    low, high = choose_limits(ends, is_log=False)
    panels = (
        replace(_make_line_panel(before, most_uncertain), title=_count_points(before)),
        replace(_make_line_panel(after, new_points=new), title=_count_points(after)),
    )
    aligned = [replace(panel, y=replace(panel.y, low=low, high=high)) for panel in panels]
    title = f"Measuring where the variance is largest: {before.label}"
    return make_plot(aligned, caption, title)


def _make_line_panel(
    curve: SampledCurve,
    most_uncertain: float | None = None,
    new_points: Sequence[CurvePoint] = (),
) -> Panel:
    (x,) = curve.axes
    lows, highs = _compute_band(curve)
    marks: list[Mark] = [Band(_INTERVAL, x, lows, highs, BLUE)]
    marks.append(Line(curve.curve_name, x, curve.means_j, BLUE))
    if most_uncertain is not None:
        height = (min(lows), max(highs))
        marks.append(Line("largest variance", (most_uncertain,) * 2, height, RED, is_dashed=True))
    old = [point for point in curve.training_points if point not in new_points]
    marks += _make_points(curve, _MEASURED, old, TEXT, "circle")
    marks += _make_points(curve, "newly measured", new_points, RED, "star")
    marks += _make_points(curve, _HELD_OUT, curve.held_out_points, RED, "cross")
    marks += _mark_next(curve)
    return Panel(_make_width_axis(curve, 0), Axis(_ENERGY_TITLE, "J", True), tuple(marks))


def _compute_band(curve: SampledCurve) -> tuple[Floats, Floats]:
    """Return the lower and the upper edge of the 95 % band."""
    pairs = list(zip(curve.means_j, curve.sds_j, strict=True))
    return tuple(m - _Z95 * sd for m, sd in pairs), tuple(m + _Z95 * sd for m, sd in pairs)


def _make_surface_panel(curve: SampledCurve, with_interval: bool) -> Panel:
    x, y = curve.axes
    marks: list[Mark] = [Surface(curve.curve_name, x, y, _make_rows(curve, curve.means_j), BLUE)]
    if with_interval:
        marks += [
            Surface(_INTERVAL, x, y, _make_rows(curve, edge_j), SKY, _INTERVAL_OPACITY)
            for edge_j in _compute_band(curve)
        ]
    marks += _make_points(curve, _MEASURED, curve.training_points, TEXT, "circle")
    marks += _make_points(curve, _HELD_OUT, curve.held_out_points, RED, "cross")
    marks += _mark_next(curve)
    x_axis, y_axis = (_make_width_axis(curve, index) for index in (0, 1))
    return Panel(x_axis, y_axis, tuple(marks), z=Axis(_ENERGY_TITLE, "J", True))


def _make_rows(curve: SampledCurve, values: Floats) -> tuple[Floats, ...]:
    # The grid runs along the second width fastest; a Surface needs a row for each of its values.
    count = len(curve.axes[1])
    return tuple(values[index::count] for index in range(count))


def _mark_next(curve: SampledCurve) -> list[Mark]:
    if curve.next_point is None:
        return []
    widths, energy_j = curve.next_point
    pairs = zip(curve.features, widths, strict=True)
    texts = ("next point: " + ", ".join(f"{name} = {width:g}" for name, width in pairs),)
    x, y, *z = (*((width,) for width in widths), (energy_j,))
    height = z[0] if z else ()
    return [Points("next point", x, y, RED, height, hover_texts=texts, marker="star")]


def _make_width_axis(curve: SampledCurve, index: int) -> Axis:
    name = curve.features[index]
    return Axis(_WIDTH_TITLES.get(name, name), is_integer=True)


def _make_points(
    curve: SampledCurve, name: str, points: Sequence[CurvePoint], colour: str, marker: str
) -> list[Mark]:
    if not points:
        return []
    columns = tuple(zip(*(point.widths for point in points), strict=True))
    energies_j = tuple(point.measured_j for point in points)
    texts = tuple(_describe_point(curve, point) for point in points)
    if len(columns) == 1:
        return [Points(name, columns[0], energies_j, colour, hover_texts=texts, marker=marker)]
    x, y = columns
    return [Points(name, x, y, colour, energies_j, hover_texts=texts, marker=marker)]


def _describe_point(curve: SampledCurve, point: CurvePoint) -> str:
    pairs = zip(curve.features, point.widths, strict=True)
    widths = ", ".join(f"{name} = {width:g}" for name, width in pairs)
    return (
        f"{curve.label}, {widths}\nmeasured {format_energy(point.measured_j)}, "
        f"predicted {format_energy(point.predicted_j)}, error {point.error_percent:+.1f} %"
    )


def _count_points(curve: SampledCurve) -> str:
    return f"n = {len(curve.training_points)}"


def _predict_points(
    gp: GaussianProcess, measured_j: Sequence[tuple[Sequence[float], float]]
) -> tuple[CurvePoint, ...]:
    import numpy as np

    if not measured_j:
        return ()
    means = gp.predict(np.array([list(widths) for widths, _ in measured_j], dtype=float))[0]
    return tuple(
        CurvePoint(tuple(map(float, widths)), energy_j, float(mean))
        for (widths, energy_j), mean in zip(measured_j, means, strict=True)
    )
