"""Sample the energy of a layer over its widths, as a profile's fit predicts it.

A curve is everything about a layer but its widths: its kind, its image size, what follows it, and
how it is trained. A profile has curves of the layers that were measured in isolation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulecast.records import Observation, Profile, Setup
from joulecast.system.errors import InputError, MissingError
from joulecast.views.plot_kinds import CurvePoint, SampledCurve, plot_curve
from joulecast.views.report import Report, Text

if TYPE_CHECKING:
    from joulecast.estimators import FittedProfile
    from joulecast.variants import Part

Widths = tuple[int, ...]
# Grid points of each width, by the number of widths.
_GRID_POINTS = {1: 41, 2: 15}
_MOST_WIDTHS = 2
_SEEN = (
    "The fit has seen these points: their errors say how well it agrees with them, not how well it "
    "predicts others."
)


@dataclass(frozen=True)
class MeasuredEnergy:
    """Energy of a layer at some widths, of one copy and one step."""

    widths: Widths
    energy_j: float


@dataclass(frozen=True)
class LayerCurve:
    """A curve of which a profile has measured points.

    Attributes:
        key: Identifies the curve.
        kind: Kind of the layer.
        description: The layer in words, such as ``hidden conv2d 48x48 kernel 3x3, relu``.
        image: Image size or number of positions, such as ``48x48``; empty if there is none.
        setup: How the layer was trained or run.
        features: Names of the widths, one or two.
        part: The layer at the largest measured widths.
        points: What was measured.
    """

    key: str
    kind: str
    description: str
    image: str
    setup: Setup
    features: tuple[str, ...]
    part: Part
    points: tuple[MeasuredEnergy, ...]


def list_layer_curves(profile: Profile) -> tuple[LayerCurve, ...]:
    """Return the curves of a profile, those with the most measured points first."""
    groups: dict[str, list[tuple[Part, Observation]]] = {}
    for observation in profile.observations:
        found = _read_point(observation)
        if found is not None:
            groups.setdefault(found[0], []).append((found[1], observation))
    curves = [_make_curve(key, found) for key, found in groups.items()]
    return tuple(sorted(curves, key=lambda one: (-len(one.points), one.description, one.key)))


def sample_layer_curve(fitted: FittedProfile, curve: LayerCurve) -> SampledCurve:
    """Evaluate a curve on a grid over its measured widths, with the next point to measure.

    The next point is where the standard deviation is largest.

    Raises:
        InputError: The profile's estimator does not predict single layers.
    """
    axes = _make_axes(curve)
    grid = list(itertools.product(*axes))
    measured = [point.widths for point in curve.points]
    means_j, sds_j = _predict(fitted, curve, [*grid, *measured])
    count = len(grid)
    worst = _find_next(grid, sds_j[:count], set(measured))
    return SampledCurve(
        curve.description,
        curve.features,
        tuple(tuple(map(float, axis)) for axis in axes),
        tuple(means_j[:count]),
        tuple(sds_j[:count]),
        tuple(
            CurvePoint(tuple(map(float, point.widths)), point.energy_j, means_j[count + at])
            for at, point in enumerate(curve.points)
        ),
        None if worst is None else (tuple(map(float, grid[worst])), means_j[worst]),
    )


def report_layer_curve(curve: LayerCurve, sampled: SampledCurve, provenance: str) -> Report:
    """Return the report of a curve: its plot, and the next point to measure."""
    setup = curve.setup
    how = setup.optimizer if setup.phase == "train" else "inference"
    text = f"Batch size {setup.batch}, {setup.precision}, {how}; n = {len(curve.points)}."
    if sampled.next_point is not None:
        pairs = zip(sampled.features, sampled.next_point[0], strict=True)
        widths = ", ".join(f"{name} = {width:g}" for name, width in pairs)
        text += f" Next point to measure: {widths}."
    blocks = (Text(text), plot_curve("curve", sampled, provenance), Text(_SEEN, "note"))
    return Report(curve.description, blocks, provenance, "curve")


def find_layer_curve(curves: Sequence[LayerCurve], **wanted: Any) -> LayerCurve:
    """Return the curve with the most measured points that has all the values asked for.

    Args:
        curves: Curves to choose from, the best ones first.
        wanted: ``key``, ``kind``, ``image``, ``batch`` and ``precision``; empty values match all.

    Raises:
        MissingError: There is none.
    """
    asked = {name: value for name, value in wanted.items() if value}
    for curve in curves:
        facts = describe_layer_curve(curve)
        if all(facts[name] == value for name, value in asked.items()):
            return curve
    if not curves:
        raise MissingError(
            "the profile has no layers that were measured alone: profile a net with "
            "`joulecast profile NET`"
        )
    listed = ", ".join(f"{name} {value}" for name, value in asked.items())
    raise MissingError(f"no layer with {listed} was measured: choose another one")


def describe_layer_curve(curve: LayerCurve) -> dict[str, Any]:
    """Return a curve as JSON values, without its points."""
    return {
        "key": curve.key,
        "kind": curve.kind,
        "image": curve.image,
        "batch": curve.setup.batch,
        "precision": curve.setup.precision,
        "phase": curve.setup.phase,
        "optimizer": curve.setup.optimizer,
        "description": curve.description,
        "features": list(curve.features),
        "point_count": len(curve.points),
    }


def _read_point(observation: Observation) -> tuple[str, Part] | None:
    """Return the key of a curve and the layer that an observation shows; None for any other."""
    from joulecast.variants import curve_key, read_isolated_part, width_names

    # Some baselines measure forward, backward and update alone.
    if not observation.energy_j or observation.trial.execution.stage != "step":
        return None
    part = read_isolated_part(observation.trial)
    if part is None or len(part.layers) != 1:
        return None
    if not 1 <= len(width_names(part)) <= _MOST_WIDTHS:
        return None
    return curve_key(part, observation.trial.setup), part


def _make_curve(key: str, found: Sequence[tuple[Part, Observation]]) -> LayerCurve:
    from joulecast.variants import describe_part, part_widths, width_names

    points = []
    for part, seen in found:
        execution = seen.trial.execution
        energy_j = (seen.energy_j or 0.0) / execution.steps / execution.copies
        points.append(MeasuredEnergy(part_widths(part), energy_j))
    widest = max((part for part, _ in found), key=part_widths)
    layer = widest.layers[0]
    positions = layer.sizes.get("space") or layer.sizes.get("lead") or ()
    if "tokens" in layer.sizes:
        positions = (layer.sizes["tokens"],)
    return LayerCurve(
        key,
        layer.kind,
        describe_part(widest),
        "x".join(map(str, positions)),
        found[0][1].trial.setup,
        width_names(widest),
        widest,
        tuple(sorted(points, key=lambda one: one.widths)),
    )


def _make_axes(curve: LayerCurve) -> list[list[int]]:
    """Return the grid values of each width: from the smallest to the largest measured one."""
    import numpy as np

    axes = []
    for values in zip(*(point.widths for point in curve.points), strict=True):
        low, high = min(values), max(values)
        if low == high:
            low, high = max(1, low // 2), 2 * high
        count = _GRID_POINTS[len(curve.features)]
        axes.append([int(value) for value in np.unique(np.linspace(low, high, count).round())])
    return axes


def _predict(
    fitted: FittedProfile, curve: LayerCurve, widths: Sequence[Widths]
) -> tuple[list[float], list[float]]:
    from joulecast.estimators.additive.estimator import FittedAdditive
    from joulecast.estimators.additive.layers import set_up_layer
    from joulecast.estimators.additive.predict import predict_layer_energies
    from joulecast.variants import resize_part

    own = fitted.fitted
    if not isinstance(own, FittedAdditive):
        raise InputError(
            f"{fitted.estimator.name} does not predict single layers: choose a profile of a "
            "framework that does not fuse them"
        )
    layers = [set_up_layer(resize_part(curve.part, one), curve.setup) for one in widths]
    model = own.for_phase(curve.setup.phase)
    means_j, sds_j = predict_layer_energies(model, layers)
    return means_j.tolist(), sds_j.tolist()


def _find_next(grid: Sequence[Widths], sds_j: Sequence[float], measured: set[Widths]) -> int | None:
    """Return the place of the largest standard deviation that was not measured."""
    places = [at for at, widths in enumerate(grid) if widths not in measured]
    return max(places, key=lambda at: sds_j[at], default=None)
