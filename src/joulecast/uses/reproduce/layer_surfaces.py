"""Fig. 11: the energy of a convolution over its input and output channels, at several sizes.

The surfaces are the curves of the paper's method for the hidden convolutions of the five-layer CNN,
from its own campaign. Test points at random channels were measured for this experiment alone: they
are variants like those of the campaign, less the other layers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.subtractive.curves import (
    Curve,
    predict_locations,
    read_point,
)
from joulecast.features.evaluation import draw_nets
from joulecast.figures import (
    Caption,
    CurvePoint,
    Plot,
    SampledCurve,
    combine_plots,
    plot_curve,
    sample_curve,
)
from joulecast.records import Trial
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory, sum_cost_s
from joulecast.uses.reproduce.paper_settings import (
    AMPERE,
    TRIAL_S,
    PaperSettings,
    list_family_work,
)
from joulecast.uses.reproduce.scored_nets import name_device
from joulecast.uses.reproduce.statistics import compute_errors_percent, compute_mape
from joulecast.variants import CurveRange, Part, curve_key, part_widths, plan_curves, resize_part

ROLE = "fig11"
FAMILY = "cnn5"
LEAST_PLANE_ERROR_PERCENT = 10.0
_FEATURES = ("cin", "cout")
_FEWEST_POINTS = 4
_SEED = 511

Json = dict[str, Any]


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluation of the five-layer CNN, and the test points."""
    count = len(list_test_trials(settings))
    tests = PlannedWork("test points of convolutions", count, TRIAL_S * count)
    return (*list_family_work(settings, (FAMILY,)), tests)


def measure(lab: Laboratory) -> None:
    """Measure the evaluation of the five-layer CNN, then the test points."""
    lab.measure_family(lab.settings.get_family(FAMILY).make_plan())
    lab.measure(list_test_trials(lab.settings), ROLE)


def list_test_trials(settings: PaperSettings) -> list[Trial]:
    """Return variants of the hidden convolutions at random channels."""
    setting = settings.get_family(FAMILY)
    widest = draw_nets(setting.make_plan()).widest
    partition = settings.paper_options.partition
    rng = random.Random(_SEED)
    trials = []
    for found in list_hidden(settings):
        for _ in range(settings.choose(10, 4)):
            widths = [
                rng.randint(low, high) for low, high in zip(found.lows, found.highs, strict=True)
            ]
            part = resize_part(found.part, widths)
            trials.append(Trial(partition.make_variant(part, widest), setting.setup))
    return trials


def list_hidden(settings: PaperSettings) -> list[CurveRange]:
    """Return the hidden convolutions of the family, the largest image first."""
    widest = draw_nets(settings.get_family(FAMILY).make_plan()).widest
    partition = settings.paper_options.partition
    curves = plan_curves(widest, partition.split, partition.make_variant)
    hidden = [found for found in curves if len(found.lows) == len(_FEATURES)]
    return sorted(hidden, key=lambda found: -math.prod(_get_space(found.part)))


def sample_surfaces(lab: Laboratory) -> list[Json]:
    """Return every surface on a grid, with its profiled and its test points.

    Raises:
        MissingError: A surface has too few points.
    """
    setting = lab.settings.get_family(FAMILY)
    campaign = lab.find_training(setting.make_plan(), AMPERE).campaign
    curves = lab.settings.fit_paper_curves(campaign, "energy")
    tests = _list_tests(lab, curves)
    surfaces = []
    for found in list_hidden(lab.settings):
        key = curve_key(found.part, setting.setup)
        space = "x".join(map(str, _get_space(found.part)))
        if key not in curves or len(curves[key].process.values) < _FEWEST_POINTS:
            raise MissingError(f"the convolution at {space} was profiled at too few points")
        held_out = tests.get(key, {})
        if not held_out:
            raise MissingError(f"no test point of the convolution at {space} was measured")
        label = f"convolution, {space}, batch {setting.setup.batch}"
        sampled = sample_curve(curves[key].process, label, _FEATURES, held_out)
        surfaces.append(_store_surface(sampled, math.prod(_get_space(found.part))))
    return surfaces


def load_surface(data: Mapping[str, Any], label: str = "") -> SampledCurve:
    """Return a surface from its JSON."""
    return SampledCurve(
        label or data["label"],
        _FEATURES,
        tuple(tuple(axis) for axis in data["axes"]),
        tuple(data["means_j"]),
        tuple(data["sds_j"]),
        tuple(_load_point(one) for one in data["profiled"]),
        tuple(_load_point(one) for one in data["tests"]),
    )


def analyse(lab: Laboratory) -> Findings:
    """Compare surfaces with planes, and errors at large images with those at small ones."""
    surfaces = sample_surfaces(lab)
    verdict, finding = judge(surfaces)
    setting = lab.settings.get_family(FAMILY)
    seconds = lab.find_training(setting.make_plan(), AMPERE).device_seconds
    seconds += sum_cost_s(lab.list_role(ROLE))
    return Findings(verdict, finding, {"surfaces": surfaces}, seconds)


def judge(surfaces: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the verdict and the sentence about surfaces, the largest image first."""
    planes = [fit_plane_error(one) for one in surfaces]
    errors = [compute_test_mape(one) for one in surfaces]
    is_nonlinear = min(planes) >= LEAST_PLANE_ERROR_PERCENT
    is_smooth = errors[0] <= errors[-1]
    parts = [
        f"{one['label']}: plane {plane:.0f} %, Gaussian process {error:.1f} % on test points"
        for one, plane, error in zip(surfaces, planes, errors, strict=True)
    ]
    finding = f"MAPE of the best plane through all points, and of the estimate: {'; '.join(parts)}."
    return HELD if is_nonlinear and is_smooth else NOT_HELD, finding


def fit_plane_error(surface: Mapping[str, Any]) -> float:
    """Return the MAPE of the plane that fits all points best, in percent."""
    points = [*surface["profiled"], *surface["tests"]]
    energies_j = np.array([one["measured_j"] for one in points])
    rows = np.array([[1.0, *one["widths"]] for one in points]) / energies_j[:, None]
    coefficients = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)[0]
    return compute_mape((100 * (rows @ coefficients - 1)).tolist())


def compute_test_mape(surface: Mapping[str, Any]) -> float:
    """Return the MAPE of a surface at its test points, in percent."""
    tests = surface["tests"]
    return compute_mape(
        compute_errors_percent(
            [one["predicted_j"] for one in tests], [one["measured_j"] for one in tests]
        )
    )


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw every surface with its 95 % interval; devices stand side by side."""
    plots = []
    count = min(len(result.numbers["surfaces"]) for result in results)
    for at in range(count):
        for result in results:
            curve = load_surface(result.numbers["surfaces"][at])
            name = f"{curve.label}, {name_device(result)}"
            caption = Caption(name, "", result.provenance)
            plots.append(plot_curve(curve, caption, with_interval=True))
    subtitle = "energy per step; curves of the paper's method, with their 95 % intervals"
    return combine_plots("Fig. 11: profiled and estimated convolutions", plots, subtitle)


def _list_tests(
    lab: Laboratory, curves: Mapping[str, Curve]
) -> dict[str, dict[tuple[float, ...], float]]:
    """Return test energies by curve and widths: a variant less its other layers."""
    tests: dict[str, dict[tuple[float, ...], float]] = {}
    for one in lab.list_role(ROLE):
        point = read_point(one, "energy", lab.settings.paper_options.partition)
        if point is None:
            continue
        costs = predict_locations(curves, point.other_locations)
        if len(costs) < len(set(point.other_locations)):
            continue
        value_j = point.value - sum(costs[location][0] for location in point.other_locations)
        key = curve_key(point.part, point.setup)
        # A difference within the noise has no relative error.
        if value_j > 2 * math.sqrt(point.variance):
            widths = tuple(map(float, part_widths(point.part)))
            tests.setdefault(key, {})[widths] = value_j
    return tests


def _store_surface(curve: SampledCurve, positions: int) -> Json:
    return {
        "label": curve.label,
        "positions": positions,
        "axes": [list(axis) for axis in curve.axes],
        "means_j": list(curve.means_j),
        "sds_j": list(curve.sds_j),
        "profiled": [_store_point(one) for one in curve.training_points],
        "tests": [_store_point(one) for one in curve.held_out_points],
    }


def _store_point(point: CurvePoint) -> Json:
    return {
        "widths": list(point.widths),
        "measured_j": point.measured_j,
        "predicted_j": point.predicted_j,
    }


def _load_point(data: Mapping[str, Any]) -> CurvePoint:
    return CurvePoint(tuple(data["widths"]), data["measured_j"], data["predicted_j"])


def _get_space(part: Part) -> tuple[int, ...]:
    return tuple(part.layers[0].sizes["space"])


LAYER_SURFACES = Experiment(
    "fig11",
    "Convolutions over input and output channels",
    "The energy of a convolution varies non-linearly with its input and output channels, and is "
    "relatively smooth where height and width are large.",
    "At every height and width the best plane over both channels has a MAPE of at least "
    f"{LEAST_PLANE_ERROR_PERCENT:g} %, and the estimate's MAPE on test points is no larger at the "
    "largest height and width than at the smallest.",
    plan,
    measure,
    analyse,
    draw,
    has_several_devices=True,
)
