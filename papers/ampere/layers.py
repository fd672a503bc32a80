"""Experiments on single layers: Fig. 2, 4, 5, 11 and 12.

The paper trains small networks on MNIST: images of one channel and 28 x 28 positions, ten classes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import linregress

from benchmarks.rivals.neuralpower import list_stages
from joulecast import variants
from joulecast.estimators.base import Target
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.estimators.subtractive import curves as paper
from joulecast.gp.regression import GaussianProcess, fit_gaussian_process
from joulecast.operators import make_layer, make_op, network_work
from joulecast.records import Input, Network, Observation, Setup, Trial
from joulecast.system.errors import MissingError
from joulecast.variants.curves import CurveRange, plan_curves
from papers.ampere import experiment as ex
from papers.ampere.experiment import AMPERE, LIMITS, Findings, Json, Settings, Work
from papers.ampere.lab import Lab, find_median_j, list_energies
from papers.ampere.plots import DARK, GREY, ORANGE, RED, SKY, Canvas, draw_process

IMAGE = (1, 28, 28)
CLASSES = 10


def make_stack(count: int, channels: int) -> Network:
    """Return an input layer, equal convolutions, and a fully connected output layer."""
    relu = make_op("elementwise", fn="relu")
    sizes = {"cout": channels, "space": IMAGE[1:], "kernel": 3, "padding": 1}
    first = make_layer("conv2d", (relu,), cin=IMAGE[0], **sizes)
    hidden = make_layer("conv2d", (relu,), cin=channels, **sizes)
    convs = [replace(first, name="input", input_grad=False)]
    convs += [replace(hidden, name=f"hidden{number}") for number in range(1, count + 1)]
    convs[-1] = replace(convs[-1], tail=(*convs[-1].tail, make_op("flatten")))
    output = make_layer("linear", cin=channels * math.prod(IMAGE[1:]), cout=CLASSES)
    layers = (*convs, replace(output, name="output"))
    return Network(layers, Input(IMAGE), name=f"input, {count} hidden, output")


# -------------------------------------------------------------------------------------------------
# Fig. 2: networks with 0, 1, 2 ... equal convolutions, and NeuralPower's sum. NeuralPower profiles
# forward, backward and update of each layer separately and adds them up. Its stages are measured
# here at exactly the sizes of the layers, so that no regression adds an error: once with several
# copies side by side, as the estimator ``neuralpower`` does, and once alone.

_ROUNDS = 2
_COPIES, _ALONE = "neuralpower", "neuralpower, one copy"
_Stages = dict[str, list[list[Trial]]]


def _list_stacks(settings: Settings) -> list[tuple[str, list[Trial], _Stages]]:
    """Return title, networks, and stages of input, hidden and output layer of each stack.

    The first has the paper's batch, the second, on a GPU, one that keeps it busy.
    """
    small = (16, settings.make_paper_setup(), f"batch {ex.PAPER_BATCH}, 16 channels")
    busy = (64, Setup(batch=512, precision="tf32"), "batch 512, 64 channels, TF32")
    stacks = []
    for channels, setup, title in (small, busy) if settings.is_gpu else (small,):
        counts = range(settings.choose(9, 5))
        networks = [Trial(make_stack(count, channels), setup) for count in counts]
        # The last hidden layer has the flatten, which costs nothing.
        first, hidden, _, output = variants.split_network(make_stack(2, channels))
        stages = [list_stages(one.block, setup) for one in (first, hidden, output)]
        copies = [[stage.trial for stage in layer] for layer in stages]
        alone = [
            [replace(trial, execution=replace(trial.execution, copies=1)) for trial in layer]
            for layer in copies
        ]
        stacks.append((title, networks, {_COPIES: copies, _ALONE: alone}))
    return stacks


def plan_fig2(settings: Settings) -> list[Work]:
    stacks = _list_stacks(settings)
    networks = [trial for _, trials, _ in stacks for trial in trials]
    layers = [layer for *_, stages in stacks for found in stages.values() for layer in found]
    stages = [trial for layer in layers for trial in layer]
    return [
        ex.plan_trials("stacked convolutions", networks, "fig2", _ROUNDS),
        ex.plan_trials("stages for neuralpower", stages, "fig2.stages"),
    ]


def analyse_fig2(lab: Lab) -> Findings:
    """Fit a line to each stack and compare it with NeuralPower's sums."""
    stacks = [_analyse_stack(lab, *stack) for stack in _list_stacks(lab.settings)]
    least = LIMITS["fig2"]["least_r_squared_percent"] / 100
    is_linear = all(one["r_squared"] >= least for one in stacks)
    is_above = all(min(one["errors_percent"][_COPIES]) > 0 for one in stacks)
    means = [[fmean(one["errors_percent"][name]) for name in (_COPIES, _ALONE)] for one in stacks]
    parts = [
        {**one, "slope_mj": 1000 * one["slope_j"], "copies": copies, "alone": alone}
        for one, (copies, alone) in zip(stacks, means, strict=True)
    ]
    grew = "grew" if is_linear else "did not grow"
    over = "overestimated" if is_above else "did not always overestimate"
    words = {"grew": grew, "overestimated": over}
    return Findings(is_linear and is_above, {"stacks": stacks}, parts, words)


def _analyse_stack(lab: Lab, title: str, trials: Sequence[Trial], stages: _Stages) -> Json:
    found = lab.find(trials, "fig2")
    seen = {at: found[trial.key] for at, trial in enumerate(trials) if found[trial.key]}
    if len(seen) < 3:
        raise MissingError(f"only {len(seen)} networks of {title} were measured")
    counts, windows = np.array(list(seen), float), list(map(list_energies, seen.values()))
    energies_j = np.array(list(map(find_median_j, seen.values())))
    line, increments_j = linregress(counts, energies_j), np.diff(energies_j) / np.diff(counts)
    estimates_j = {}
    for name, layers in stages.items():
        parts = [lab.find(layer, "fig2.stages").values() for layer in layers]
        if not all(one for part in parts for one in part):
            raise MissingError(f"NeuralPower's stages of {title} were not measured")
        first_j, hidden_j, output_j = (sum(map(find_median_j, part)) for part in parts)
        estimates_j[name] = first_j + counts * hidden_j + output_j
    errors = {name: ex.list_errors(sums, energies_j) for name, sums in estimates_j.items()}
    mean_j = abs(increments_j.mean())
    return {
        "title": title,
        "counts": counts.tolist(),
        "energies_j": energies_j.tolist(),
        "lows_j": list(map(min, windows)),
        "highs_j": list(map(max, windows)),
        "line_j": (line.intercept + line.slope * counts).tolist(),
        "offset_j": float(line.intercept),
        "slope_j": float(line.slope),
        "r_squared": float(line.rvalue**2),
        "increments_j": increments_j.tolist(),
        "increment_sd_percent": float(100 * increments_j.std() / mean_j) if mean_j else 0.0,
        "estimates_j": {name: sums.tolist() for name, sums in estimates_j.items()},
        "errors_percent": {name: one.tolist() for name, one in errors.items()},
    }


def draw_fig2(canvas: Canvas) -> None:
    stacks = canvas.numbers["stacks"]
    for panel, one in zip(canvas.add(len(stacks)), stacks, strict=True):
        x, y = one["counts"], np.array(one["energies_j"])
        panel.plot(x, one["line_j"], label="straight line")
        for name, sums in one["estimates_j"].items():
            panel.plot(x, sums, "--^", label=name)
        spread = (y - one["lows_j"], one["highs_j"] - y)
        panel.errorbar(x, y, spread, fmt="o", color=DARK, label="whole network")
        panel.set(title=f"{one['title']}: R² = {one['r_squared']:.4f}", ylim=(0.0, None))
        panel.set(xlabel="Equal hidden layers", ylabel="Energy per step (J)")


# -------------------------------------------------------------------------------------------------
# Fig. 5: a network of a fully connected layer alone, on inputs of (batch, C, height, width). Every
# second point is held out from the fits, to see how well a Gaussian process, energy proportional to
# FLOPs, and energy linear in FLOPs describe the others.

_CHANNELS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
_QUICK_CHANNELS = (1, 4, 12, 24, 40, 64)
# Standard deviation of a single window as a share of its energy, as the subtractive estimator has.
_SD_SHARE = 0.02


def _list_layers(settings: Settings) -> dict[str, dict[int, Trial]]:
    """Return a network of the layer alone by its input and number of input channels.

    The inputs are the paper's two; on a GPU also one that keeps it busy.
    """
    inputs: dict[str, dict[int, Trial]] = {}
    for batch, height in [(10, 28), (4, 50), (4096, 28)][: 3 if settings.is_gpu else 2]:
        trials = inputs[f"input ({batch}, C, {height}, {height})"] = {}
        for channels in _QUICK_CHANNELS if settings.is_quick else _CHANNELS:
            features = channels * height**2
            layer = make_layer("linear", cin=features, cout=CLASSES)
            layer = replace(layer, name="fc", input_grad=False)
            network = Network((layer,), Input((features,)), name=f"fc on {channels} channels")
            trials[channels] = Trial(network, settings.make_paper_setup(batch))
    return inputs


def plan_fig5(settings: Settings) -> list[Work]:
    trials = [trial for one in _list_layers(settings).values() for trial in one.values()]
    return [ex.plan_trials("fully connected layers", trials, "fig5")]


def analyse_fig5(lab: Lab) -> Findings:
    layers = [_analyse_input(lab, *one) for one in _list_layers(lab.settings).items()]
    errors, limits = [one["errors_percent"] for one in layers], LIMITS["fig5"]
    has_held = min(one["flops"] for one in errors) >= limits["least_flops_percent"]
    has_held &= max(one["process"] for one in errors) <= limits["most_process_percent"]
    parts, linear = [], []
    for one, found in zip(layers, errors, strict=True):
        (least, *_, most), (least_j, *_, most_j) = one["channels"], one["energies_j"]
        parts.append({**one, "first": least, "last": most, "growth": most_j / least_j})
        linear += [one["title"]] if found["flops-linear"] <= found["process"] else []
    note = (
        f"A line with a constant, which the paper does not try, describes {' and '.join(linear)} "
        "at least as well as the Gaussian process."
    )
    return Findings(has_held, {"layers": layers}, parts, notes=[note] if linear else [])


def _analyse_input(lab: Lab, title: str, trials: Mapping[int, Trial]) -> Json:
    found = lab.find(trials.values(), "fig5")
    known = {count: trial for count, trial in trials.items() if found[trial.key]}
    if len(known) < 5:
        raise MissingError(f"only {len(known)} layers with {title} were measured")
    flops = np.array([network_work(t.network, t.setup).total.flops for t in known.values()])
    energies_j = np.array([find_median_j(found[trial.key]) for trial in known.values()])
    # Both ends are fitted: nothing is extrapolated.
    is_held_out = [bool(at % 2) and at < len(known) - 1 for at in range(len(known))]
    used = ~np.array(is_held_out)
    used_flops, used_j = flops[used], energies_j[used]
    # The factor that minimises relative squared errors.
    ratios = used_flops / used_j
    factor, line = ratios.sum() / (ratios @ ratios), linregress(used_flops, used_j)
    grid = np.array([[float(count)] for count in known])
    widths = [(int(count),) for (count,) in grid[used]]
    process = fit_gaussian_process(widths, used_j.tolist(), ((_SD_SHARE * used_j) ** 2).tolist())
    means = process.predict(grid)[0]
    halves = 1.96 * np.sqrt(process.standard_deviations(grid) ** 2 + process.nugget_variance)
    lined = line.intercept + line.slope * flops
    fits = {"flops": factor * flops, "flops-linear": lined, "process": means}
    errors = {name: ex.list_errors(fit, energies_j)[~used] for name, fit in fits.items()}
    return {
        "title": title,
        "channels": [float(count) for count in known],
        "flops": flops.tolist(),
        "energies_j": energies_j.tolist(),
        "is_held_out": is_held_out,
        "proportional_j": fits["flops"].tolist(),
        "linear_j": lined.tolist(),
        "means_j": means.tolist(),
        "lows_j": (means - halves).tolist(),
        "highs_j": (means + halves).tolist(),
        "errors_percent": {name: ex.compute_mape(found) for name, found in errors.items()},
    }


def draw_fig5(canvas: Canvas) -> None:
    layers = canvas.numbers["layers"]
    for panel, one in zip(canvas.add(len(layers)), layers, strict=True):
        x, y = np.array(one["channels"]), np.array(one["energies_j"])
        draw_process(panel, one["channels"], one["lows_j"], one["means_j"], one["highs_j"])
        panel.plot(x, one["proportional_j"], "--", color=GREY, label="proportional to FLOPs")
        panel.plot(x, one["linear_j"], "--", color=ORANGE, label="linear in FLOPs")
        is_out = np.array(one["is_held_out"])
        panel.plot(x[~is_out], y[~is_out], "o", color=DARK, label="measured")
        panel.plot(x[is_out], y[is_out], "X", color=RED, label="measured, held out")
        panel.set(title=one["title"], ylim=(0.0, None))


# -------------------------------------------------------------------------------------------------
# Fig. 4: the order in which a campaign measures the points of one curve, that of the output layer
# behind an input layer over its input channels. The campaign is a real one: both ends of each curve
# first, then the point of the largest standard deviation.


def _choose_setup(settings: Settings) -> Setup:
    busy = Setup(batch=4096, precision="tf32")
    return busy if settings.is_gpu else settings.make_paper_setup()


def plan_fig4(settings: Settings) -> list[Work]:
    points = settings.choose(20, 14)

    def measure(lab: Lab) -> None:
        # No uncertainty is small enough to end the campaign.
        network, setup = make_stack(0, 64), _choose_setup(settings)
        target = Target(network, setup, acquisition="energy", uncertainty_share=0.0)
        lab.run_campaign(settings.name_estimator(), target, "fig4", points)

    name = "campaign of one input and one output layer"
    return [Work(name, points, ex.TRIAL_S * points, measure)]


def analyse_fig4(lab: Lab) -> Findings:
    """Fit the curve after each of its points, in the order they were measured."""
    before, after = LIMITS["fig4"]["before"], LIMITS["fig4"]["after"]
    found: dict[float, Json] = {}
    # At the end, a campaign may measure again what looks wrong: that is no new point.
    for one in drop_contradicted(lab.list_role("fig4")):
        seen = paper.read_point(one, "energy")
        if seen is not None and seen.block.role == "output":
            (features,) = variants.block_widths(seen.block)
            channels = features / math.prod(IMAGE[1:])
            point = {"channels": channels, "energy_j": seen.value, "variance_j2": seen.variance}
            found.setdefault(channels, point)
    points = list(found.values())
    if len(points) < after:
        raise MissingError(f"the curve has {len(points)} points, and {after} are needed")
    counts = range(2, len(points) + 1)
    sds_j = {count: max(_fit_points(points[:count], lab.settings)[2]) for count in counts}
    order = [int(point["channels"]) for point in points]
    is_from_ends = {order[0], order[1]} == {min(order), max(order)}
    words: Json = {"order": ", ".join(map(str, order)), "ends": "" if is_from_ends else "not "}
    words |= {"before_mj": 1e3 * sds_j[before], "after_mj": 1e3 * sds_j[after], "after": after}
    numbers = {
        "points": points,
        "largest_sds_j": {str(count): sd_j for count, sd_j in sds_j.items()},
        "batch": _choose_setup(lab.settings).batch,
        "is_faithful": lab.settings.is_faithful,
    }
    return Findings(sds_j[after] < sds_j[before], numbers, words=words)


def _fit_points(points: Sequence[Json], settings: Settings) -> _Sampled:
    widths = [(int(point["channels"]),) for point in points]
    values, variances = ([p[name] for p in points] for name in ("energy_j", "variance_j2"))
    options = settings.paper_options
    return _sample(fit_gaussian_process(widths, values, variances, options=options))


def draw_fig4(canvas: Canvas) -> None:
    numbers, before = canvas.numbers, LIMITS["fig4"]["before"]
    points, settings = numbers["points"], Settings(is_faithful=bool(numbers.get("is_faithful")))
    order = ", ".join(f"{point['channels']:g}" for point in points)
    subtitle = f"FC layer, input ({numbers['batch']}, C, 28, 28); measured in the order {order}"
    panels = canvas.add(2, subtitle)
    for panel, count in zip(panels, LIMITS["fig4"].values(), strict=True):
        (x,), means_j, sds_j = _fit_points(points[:count], settings)
        means, halves = np.array(means_j), 1.96 * np.array(sds_j)
        draw_process(panel, x, means - halves, means, means + halves)
        xs, ys = ([point[name] for point in points] for name in ("channels", "energy_j"))
        panel.plot(xs[:before], ys[:before], "o", color=DARK, label="measured")
        panel.plot(xs[before:count], ys[before:count], "*", color=RED, label="newly measured")
        panel.set(title=f"n = {count}")
        if count == before:
            at = x[int(np.argmax(sds_j))]
            panel.axvline(at, linestyle="--", color=RED, label="largest variance")
    panels[1].sharey(panels[0])


# -------------------------------------------------------------------------------------------------
# Fig. 11 and 12: a convolution over its input and output channels at several sizes of the image.
# The surfaces are the curves of the paper's method for the hidden convolutions of the five-layer
# CNN, from its own campaign. Test points at random channels were measured for this experiment
# alone: variants like those of the campaign, less the other layers.

_SEED = 511
_Sampled = tuple[list[list[float]], list[float], list[float]]
_Surface = Mapping[str, Any]


def fit_paper_curves(
    settings: Settings, observations: Sequence[Observation], quantity: str
) -> dict[str, paper.Curve]:
    options = settings.paper_options
    fit = partial(fit_gaussian_process, options=options)
    return paper.fit_curves(observations, quantity, fit, options.partition, options.carried)


def _sample(process: GaussianProcess) -> _Sampled:
    """Return axes between the profiled widths, and means and standard deviations on their grid."""
    lows, highs = process.inputs.min(axis=0), process.inputs.max(axis=0)
    count = 121 if len(lows) == 1 else 25
    axes = [np.linspace(a, b, count).tolist() for a, b in zip(lows, highs, strict=True)]
    grid = np.array(list(itertools.product(*axes)))
    return axes, process.predict(grid)[0].tolist(), process.standard_deviations(grid).tolist()


def plan_surfaces(settings: Settings) -> list[Work]:
    plan, rng, trials = settings.plan_family("cnn5"), random.Random(_SEED), []
    for found in _list_hidden(settings).values():
        for _ in range(settings.choose(10, 4)):
            ends = zip(found.lows, found.highs, strict=True)
            widths = [rng.randint(low, high) for low, high in ends]
            block = variants.resize_block(found.block, widths)
            variant = settings.paper_options.partition.make_variant(block, plan.drawn.widest)
            trials.append(Trial(variant, plan.setup))
    return [ex.plan_trials("test points of convolutions", trials, "fig11")]


def _list_hidden(settings: Settings) -> dict[tuple[int, ...], CurveRange]:
    """Return the hidden convolutions of the family by their image, the largest first."""
    partition = settings.paper_options.partition
    widest = settings.plan_family("cnn5").drawn.widest
    curves = plan_curves(widest, partition)
    hidden = {tuple(c.block.layers[0].sizes["space"]): c for c in curves if len(c.lows) == 2}
    return dict(sorted(hidden.items(), key=lambda one: -math.prod(one[0])))


def sample_surfaces(lab: Lab) -> list[Json]:
    """Return every surface on a grid, with its profiled and its test points."""
    setup = lab.settings.plan_family("cnn5").setup
    campaign = lab.find_training("cnn5", AMPERE).campaign
    curves = fit_paper_curves(lab.settings, campaign, "energy")
    tests, surfaces = _list_tests(lab, curves), []
    for image, found in _list_hidden(lab.settings).items():
        key, space = variants.curve_key(found.block, setup), "x".join(map(str, image))
        if key not in curves or len(curves[key].process.values) < 4:
            raise MissingError(f"the convolution at {space} was profiled at too few points")
        if key not in tests:
            raise MissingError(f"no test point of the convolution at {space} was measured")
        process = curves[key].process
        axes, means_j, sds_j = _sample(process)
        surface: Json = {"label": f"convolution, {space}, batch {setup.batch}", "axes": axes}
        surface |= {"positions": math.prod(image), "means_j": means_j, "sds_j": sds_j}
        profiled = zip(process.inputs.tolist(), process.values.tolist(), strict=True)
        for name, points in (("profiled", list(profiled)), ("tests", list(tests[key].items()))):
            means = process.predict(np.array([widths for widths, _ in points], dtype=float))[0]
            surface[name] = [
                {"widths": list(widths), "measured_j": energy_j, "predicted_j": float(mean)}
                for (widths, energy_j), mean in zip(points, means, strict=True)
            ]
        surfaces.append(surface)
    return surfaces


def _list_tests(
    lab: Lab, curves: Mapping[str, paper.Curve]
) -> dict[str, dict[tuple[float, ...], float]]:
    """Return test energies by curve and widths: a variant less its other layers."""
    tests: dict[str, dict[tuple[float, ...], float]] = {}
    for one in lab.list_role("fig11"):
        point = paper.read_point(one, "energy", lab.settings.paper_options.partition)
        for left in paper.subtract_others([point], curves, False) if point else ():
            # A difference within the noise has no relative error.
            if left.value > 2 * math.sqrt(left.variance):
                key = variants.curve_key(left.block, left.setup)
                widths = tuple(map(float, variants.block_widths(left.block)))
                tests.setdefault(key, {})[widths] = left.value
    return tests


def fit_plane_error(surface: _Surface) -> float:
    """Return the MAPE of the plane that fits all points best, in percent."""
    points = [*surface["profiled"], *surface["tests"]]
    energies_j = np.array([one["measured_j"] for one in points])
    rows = np.array([[1.0, *one["widths"]] for one in points]) / energies_j[:, None]
    coefficients = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)[0]
    return ex.compute_mape(ex.list_errors(rows @ coefficients, 1.0))


def _list_test_errors(surface: _Surface) -> ex.Floats:
    pairs = [(test["predicted_j"], test["measured_j"]) for test in surface["tests"]]
    return ex.list_errors(*np.transpose(pairs))


def _mape(surface: _Surface) -> float:
    return ex.compute_mape(_list_test_errors(surface))


def judge_fig11(surfaces: Sequence[_Surface]) -> Findings:
    """Compare surfaces with planes, and errors at large images with those at small ones."""
    parts = [{**one, "plane": fit_plane_error(one), "error": _mape(one)} for one in surfaces]
    has_held = min(part["plane"] for part in parts) >= LIMITS["fig11"]["least_plane_percent"]
    has_held &= parts[0]["error"] <= parts[-1]["error"]
    return Findings(has_held, {"surfaces": surfaces}, parts)


def judge_fig12(surfaces: Sequence[_Surface]) -> Findings:
    """Compare relative and absolute errors at the test points, the largest image first."""
    rows, parts = [], []
    for one in surfaces:
        share = _mape(one)
        error_j = fmean(abs(test["predicted_j"] - test["measured_j"]) for test in one["tests"])
        rows.append({"mape_percent": share, "mean_absolute_error_j": error_j})
        parts.append({"label": one["label"], "share": share, "error_mj": 1e3 * error_j})
    shares, errors_j = ([row[name] for row in rows] for name in rows[0])
    has_held = shares[0] == min(shares) and errors_j[0] == max(errors_j)
    return Findings(has_held, {"surfaces": surfaces, "errors": rows}, parts)


def draw_fig11(canvas: Canvas) -> None:
    """Draw every surface with its 95 % interval; devices stand side by side."""
    count = min(len(result.numbers["surfaces"]) for result in canvas.results)
    shown = [(one.numbers["surfaces"][at], one) for at in range(count) for one in canvas.results]
    panels = canvas.add(len(shown), "curves of the paper's method", projection="3d")
    for panel, (one, result) in zip(panels, shown, strict=True):
        x, y = np.meshgrid(*one["axes"], indexing="ij")
        means, sds = (np.array(one[name]).reshape(x.shape) for name in ("means_j", "sds_j"))
        # Every third point of the grid: pictures stay small.
        coarse = (slice(None, None, 3),) * 2
        panel.plot_surface(x[coarse], y[coarse], means[coarse], alpha=0.6)
        for sign in (-1.96, 1.96):
            edge = (means + sign * sds)[coarse]
            panel.plot_wireframe(x[coarse], y[coarse], edge, color=SKY, linewidth=0.3)
        for name, marker, colour in (("profiled", "o", DARK), ("tests", "X", RED)):
            widths = np.array([point["widths"] for point in one[name]])
            energies_j = [point["measured_j"] for point in one[name]]
            panel.plot(*widths.T, energies_j, marker, color=colour, label=name)
        panel.set(title=f"{one['label']}, {result.device_label}", zlabel="Energy per step (J)")
        panel.set(xlabel="Input channels", ylabel="Output channels")
        panel.locator_params(nbins=4)


def draw_fig12(canvas: Canvas) -> None:
    """Draw the error of every test point, with a row of panels for each device."""
    count = min(len(result.numbers["surfaces"]) for result in canvas.results)
    shown = [
        (surface, one) for one in canvas.results for surface in one.numbers["surfaces"][:count]
    ]
    panels = canvas.add(len(shown), "estimate less observation at test points")
    for panel, (one, result) in zip(panels, shown, strict=True):
        widths, errors = np.array([t["widths"] for t in one["tests"]]), _list_test_errors(one)
        most = max(map(abs, errors)) or 1.0
        dots = panel.scatter(*widths.T, c=errors, cmap="coolwarm", vmin=-most, vmax=most)
        canvas.figure.colorbar(dots, ax=panel, label="Error (%)")
        (left, *_, right), (low, *_, high) = one["axes"]
        panel.set(xlim=(left - 2, right + 2), ylim=(low - 2, high + 2))
        panel.set(title=f"{one['label']}, {result.device_label}")
        panel.set(xlabel="Input channels", ylabel="Output channels")
