"""Sample the energy of a layer over its widths, as a profile's fit predicts it.

A curve is everything about a layer but its widths: its kind, its image size, what follows it, and
how it is trained. A profile has curves of the layers that were measured in isolation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from joulecast.records import Observation, Profile, Setup
from joulecast.system.errors import InputError, MissingError
from joulecast.views.plot_kinds import CurvePoint, SampledCurve, plot_curve
from joulecast.views.report import Report, Text

if TYPE_CHECKING:
    from joulecast.estimators import FittedProfile
    from joulecast.variants import Block

Widths = tuple[int, ...]
# Grid points of each width, by the number of widths.
_GRID_POINTS = {1: 41, 2: 15}
_SEEN = (
    "The fit has seen these points: their errors say how well it agrees with them, not how well it "
    "predicts others."
)


@dataclass(frozen=True)
class LayerCurve:
    """A curve of which a profile has measured points.

    Attributes:
        points: Measured widths, and the energy of one copy and one step at them.
    """

    key: str  # identifies the curve
    kind: str
    description: str  # the layer in words, such as hidden conv2d 48x48 kernel 3x3, relu
    image: str  # image size or number of positions, such as 48x48; empty if there is none
    setup: Setup
    features: tuple[str, ...]  # names of the widths, one or two
    block: Block  # the layer at the largest measured widths
    points: tuple[tuple[Widths, float], ...]


def list_layer_curves(profile: Profile) -> tuple[LayerCurve, ...]:
    """Return the curves of a profile, those with the most measured points first."""
    from joulecast.variants import curve_key, read_isolated_block, width_names

    groups: dict[str, list[tuple[Block, Observation]]] = {}
    for observation in profile.observations:
        trial = observation.trial
        # Some baselines measure forward, backward and update alone.
        if not observation.energy_j or trial.execution.stage != "step":
            continue
        block = read_isolated_block(trial)
        if block is None or len(block.layers) != 1 or len(width_names(block)) not in _GRID_POINTS:
            continue
        groups.setdefault(curve_key(block, trial.setup), []).append((block, observation))
    curves = [_make_curve(key, found) for key, found in groups.items()]
    return tuple(sorted(curves, key=lambda one: (-len(one.points), one.description, one.key)))


def sample_layer_curve(fitted: FittedProfile, curve: LayerCurve) -> SampledCurve:
    """Evaluate a curve on a grid over its measured widths, with the next point to measure.

    The next point is where the standard deviation is largest.

    Raises:
        InputError: The profile's estimator does not predict single layers.
    """
    import numpy as np

    from joulecast.estimators.additive.estimator import FittedAdditive
    from joulecast.estimators.additive.layers import set_up_layer
    from joulecast.estimators.additive.predict import predict_layer_energies
    from joulecast.variants import resize_block

    own = fitted.fitted
    if not isinstance(own, FittedAdditive):
        raise InputError(
            f"{fitted.estimator.name} does not predict single layers: choose a profile of a "
            "framework that does not fuse them"
        )
    measured, energies_j = zip(*curve.points, strict=True)
    axes = []
    for values in zip(*measured, strict=True):
        low, high = min(values), max(values)
        if low == high:
            low, high = max(1, low // 2), 2 * high
        ends = np.linspace(low, high, _GRID_POINTS[len(curve.features)])
        axes.append(tuple(np.unique(ends.round()).tolist()))
    grid = [tuple(map(int, widths)) for widths in itertools.product(*axes)]
    layers = [
        set_up_layer(resize_block(curve.block, widths), curve.setup)
        for widths in (*grid, *measured)
    ]
    found = predict_layer_energies(own.for_phase(curve.setup.phase), layers)
    means_j, sds_j = (values.tolist() for values in found)
    count = len(grid)
    places = [at for at, widths in enumerate(grid) if widths not in measured]
    worst = max(places, key=lambda at: sds_j[at], default=None)
    return SampledCurve(
        curve.description,
        curve.features,
        tuple(axes),
        tuple(means_j[:count]),
        tuple(sds_j[:count]),
        tuple(map(CurvePoint, measured, energies_j, means_j[count:])),
        None if worst is None else (grid[worst], means_j[worst]),
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


def find_layer_curves(curves: Sequence[LayerCurve], **wanted: Any) -> list[LayerCurve]:
    """Return the curves that have all the values asked for, at least one.

    Args:
        curves: Curves to choose from.
        wanted: ``kind``, ``image``, ``batch`` and ``precision``; empty values match all.

    Raises:
        MissingError: There is none.
    """
    asked = {name: value for name, value in wanted.items() if value}
    found = [one for one in curves if asked.items() <= describe_layer_curve(one).items()]
    if found:
        return found
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
        "features": curve.features,
        "point_count": len(curve.points),
    }


def _make_curve(key: str, found: Sequence[tuple[Block, Observation]]) -> LayerCurve:
    from joulecast.variants import block_widths, describe_block, width_names

    points = []
    for block, seen in found:
        run = seen.trial.execution
        points.append((block_widths(block), (seen.energy_j or 0.0) / run.steps / run.copies))
    widest = max((block for block, _ in found), key=block_widths)
    layer = widest.layers[0]
    positions = layer.sizes.get("space") or layer.sizes.get("lead") or ()
    if "tokens" in layer.sizes:
        positions = (layer.sizes["tokens"],)
    return LayerCurve(
        key,
        layer.kind,
        describe_block(widest),
        "x".join(map(str, positions)),
        found[0][1].trial.setup,
        width_names(widest),
        widest,
        tuple(sorted(points, key=itemgetter(0))),
    )
