"""Fig. 5: the energy of a fully connected layer over its input channels.

A network of the layer alone is trained on inputs of (batch, C, height, width). Every second point
is held out from the fits, to see how well a Gaussian process, energy proportional to FLOPs, and
energy linear in FLOPs describe the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from joulecast.errors import MissingError
from joulecast.figures import Caption, ChannelCosts, Plot, plot_channel_costs
from joulecast.gp.regression import fit_gaussian_process
from joulecast.kinds import network_work
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
from joulecast.uses.reproduce.paper_settings import TRIAL_S, PaperSettings, make_paper_setup
from joulecast.uses.reproduce.small_networks import make_fully_connected
from joulecast.uses.reproduce.statistics import (
    compute_errors_percent,
    compute_mape,
    fit_line,
    fit_proportional,
)

ROLE = "fig5"
LEAST_FLOPS_ERROR_PERCENT = 10.0
MOST_PROCESS_ERROR_PERCENT = 10.0
_CHANNELS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
_QUICK_CHANNELS = (1, 4, 12, 24, 40, 64)
_FEWEST_POINTS = 5
# Standard deviation of a single window as a share of its energy, as the subtractive estimator has.
_SD_SHARE = 0.02
_Z95 = 1.96


@dataclass(frozen=True)
class LayerInput:
    """A batch and the height and width of its images."""

    batch: int
    space: tuple[int, int]

    @property
    def title(self) -> str:
        """The shape of the input, with C for the channels."""
        return f"input ({self.batch}, C, {self.space[0]}, {self.space[1]})"


def list_inputs(settings: PaperSettings) -> tuple[LayerInput, ...]:
    """Return the paper's two inputs, and on a GPU also one that keeps it busy."""
    paper = (LayerInput(10, (28, 28)), LayerInput(4, (50, 50)))
    return (*paper, LayerInput(4096, (28, 28))) if settings.is_gpu else paper


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the layer at all numbers of channels."""
    count = len(list_inputs(settings)) * len(_list_channels(settings))
    return (PlannedWork("fully connected layers", count, TRIAL_S * count),)


def measure(lab: Laboratory) -> None:
    """Measure the layer at all numbers of channels."""
    inputs = list_inputs(lab.settings)
    lab.measure([trial for one in inputs for trial in _list_trials(lab.settings, one)], ROLE)


def analyse(lab: Laboratory) -> Findings:
    """Compare three fits on held-out points."""
    layers = [_analyse_input(lab, one) for one in list_inputs(lab.settings)]
    is_nonlinear = all(
        one["errors_percent"]["flops"] >= LEAST_FLOPS_ERROR_PERCENT for one in layers
    )
    is_fitted = all(
        one["errors_percent"]["process"] <= MOST_PROCESS_ERROR_PERCENT for one in layers
    )
    parts = [
        f"{one['title']}: from {one['channels'][0]:g} to {one['channels'][-1]:g} channels energy "
        f"grows {one['energies_j'][-1] / one['energies_j'][0]:.1f} times; held-out MAPE "
        f"{one['errors_percent']['flops']:.0f} % proportional to FLOPs, "
        f"{one['errors_percent']['flops-linear']:.1f} % linear in FLOPs, "
        f"{one['errors_percent']['process']:.1f} % Gaussian process"
        for one in layers
    ]
    finding = "; ".join(parts) + "."
    verdict = HELD if is_nonlinear and is_fitted else NOT_HELD
    return Findings(
        verdict, finding, {"layers": layers}, sum_cost_s(lab.list_role(ROLE)), _list_notes(layers)
    )


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw one panel per input."""
    result = results[0]
    layers = [
        ChannelCosts(
            one["title"],
            tuple(one["channels"]),
            tuple(one["energies_j"]),
            tuple(one["is_held_out"]),
            *(tuple(one[name]) for name in _CURVES),
        )
        for one in result.numbers["layers"]
    ]
    subtitle = f"a step of the layer alone on {result.device.name}; fits to the round points"
    caption = Caption("Fig. 5: a fully connected layer", subtitle, result.provenance)
    return plot_channel_costs(layers, caption)


_CURVES = ("proportional_j", "linear_j", "means_j", "lows_j", "highs_j")


def _list_channels(settings: PaperSettings) -> tuple[int, ...]:
    return _QUICK_CHANNELS if settings.is_quick else _CHANNELS


def _list_trials(settings: PaperSettings, given: LayerInput) -> list[Trial]:
    setup = make_paper_setup(given.batch, settings.is_gpu)
    return [
        Trial(make_fully_connected(channels, given.space), setup)
        for channels in _list_channels(settings)
    ]


def _analyse_input(lab: Laboratory, given: LayerInput) -> dict[str, Any]:
    trials = _list_trials(lab.settings, given)
    found = lab.find(trials, ROLE)
    rows = [
        (channels, network_work(trial.network, trial.setup).total.flops, found[trial.key])
        for channels, trial in zip(_list_channels(lab.settings), trials, strict=True)
        if found[trial.key]
    ]
    if len(rows) < _FEWEST_POINTS:
        raise MissingError(f"only {len(rows)} layers with {given.title} were measured")
    channels = [float(count) for count, _, _ in rows]
    flops = [work for _, work, _ in rows]
    energies_j = [median(one.energy_j or 0.0 for one in seen) for _, _, seen in rows]
    # Both ends are fitted: nothing is extrapolated.
    is_held_out = [bool(at % 2) and at < len(rows) - 1 for at in range(len(rows))]
    curves = _fit_curves(channels, flops, energies_j, is_held_out)
    errors = {
        name: compute_mape(
            [
                error
                for error, held_out in zip(
                    compute_errors_percent(curves[curve], energies_j), is_held_out, strict=True
                )
                if held_out
            ]
        )
        for name, curve in (
            ("flops", "proportional_j"),
            ("flops-linear", "linear_j"),
            ("process", "means_j"),
        )
    }
    return {
        "title": given.title,
        "channels": channels,
        "flops": flops,
        "energies_j": energies_j,
        "is_held_out": is_held_out,
        **curves,
        "errors_percent": errors,
    }


def _fit_curves(
    channels: Sequence[float],
    flops: Sequence[float],
    energies_j: Sequence[float],
    is_held_out: Sequence[bool],
) -> dict[str, list[float]]:
    """Return three fits to the points that are not held out, at all points."""
    used = [at for at, held_out in enumerate(is_held_out) if not held_out]
    known_flops, known_j = [flops[at] for at in used], [energies_j[at] for at in used]
    factor, line = fit_proportional(known_flops, known_j), fit_line(known_flops, known_j)
    process = fit_gaussian_process(
        [(int(channels[at]),) for at in used], known_j, [(_SD_SHARE * j) ** 2 for j in known_j]
    )
    grid = np.array([[count] for count in channels])
    means = process.predict(grid)[0]
    sds = np.sqrt(process.standard_deviations(grid) ** 2 + process.nugget_variance)
    return {
        "proportional_j": [factor * work for work in flops],
        "linear_j": [line.predict(work) for work in flops],
        "means_j": means.tolist(),
        "lows_j": (means - _Z95 * sds).tolist(),
        "highs_j": (means + _Z95 * sds).tolist(),
    }


def _list_notes(layers: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    linear = [
        one["title"]
        for one in layers
        if one["errors_percent"]["flops-linear"] <= one["errors_percent"]["process"]
    ]
    if not linear:
        return ()
    return (
        f"A line with a constant, which the paper does not try, describes {' and '.join(linear)} "
        "at least as well as the Gaussian process.",
    )


CHANNEL_COSTS = Experiment(
    "fig5",
    "A fully connected layer over its input channels",
    "FLOPs grow linearly with the input channels of a fully connected layer, but its energy does "
    "not follow the same pattern; a Gaussian process fits it aptly.",
    "On held-out points of every input, energy proportional to FLOPs has a MAPE of at least "
    f"{LEAST_FLOPS_ERROR_PERCENT:g} %, and a Gaussian process of at most "
    f"{MOST_PROCESS_ERROR_PERCENT:g} %.",
    plan,
    measure,
    analyse,
    draw,
)
