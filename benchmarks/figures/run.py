"""Redraw the paper's figures from our own measurements on an NVIDIA H200.

    python benchmarks/figures/run.py --out benchmarks/figures/results

Uses the stored observations of the evaluation (test nets, isolated layers, NeuralPower's stages,
the paper's variants) and measures nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from joulecast.estimators import find_estimator
from joulecast.estimators.subtractive.curves import fit_curves
from joulecast.figures import (
    Caption,
    LayerMeasurement,
    NetworkBreakdown,
    Plot,
    StepMeasurement,
    plot_acquisition_step,
    plot_additivity,
    plot_curve,
    plot_curve_errors,
    plot_energy_by_size,
    plot_energy_by_time,
    sample_curve,
    save_html,
    save_svg,
)
from joulecast.files import read_profile
from joulecast.gp.regression import fit_gaussian_process
from joulecast.kinds import network_work
from joulecast.records import Observation
from joulecast.variants import describe_part, width_names

HERE = Path(__file__).parent
OBSERVATIONS = HERE.parent / "evaluation" / "results" / "nvidia-h200-observations.json"
NETS = 5
# Every fifth point of a surface is held out to test it.
TEST_EVERY = 5


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--observations", type=Path, default=OBSERVATIONS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--html", type=Path, help="also write all figures to one page")
    args = parser.parse_args()
    observations = [s for s in read_profile(args.observations).observations if is_cnn(s)]
    plots = {
        "fig2-additivity": plot_layers(observations),
        "fig4-guided-point": plot_acquisition(select_run(observations, ".subtractive")),
        "fig5-sizes": plot_convolutions(select_run(observations, ".additive")),
        "fig6-time-energy": plot_time(observations),
        **plot_surface(select_run(observations, ".subtractive")),
    }
    for name, plot in plots.items():
        print(save_svg(plot, args.out / f"{name}.svg"))
    if args.html:
        print(save_html(list(plots.values()), args.html))


def is_cnn(observation: Observation) -> bool:
    """Return whether an observation is of a five-layer CNN, or of the idle device."""
    return not observation.trial.network.layers or observation.trial.setup.precision == "tf32"


def select_run(observations: Sequence[Observation], end: str) -> list[Observation]:
    """Return the observations with this ending of the run tag."""
    return [one for one in observations if one.run.endswith(end)]


def plot_layers(observations: Sequence[Observation]) -> Plot:
    """Plot Fig. 2: layers estimated by additive, the whole net, and NeuralPower's sum."""
    tests = select_run(observations, ".test1")[:NETS]
    networks, setup = [one.trial.network for one in tests], tests[0].trial.setup
    additive = find_estimator("additive")
    training = select_run(observations, ".additive") + select_run(observations, ".additive.probe")
    prediction = additive.fit(training).predict(networks, [setup] * len(networks), per_layer=True)
    neuralpower = find_estimator("neuralpower")
    sums = neuralpower.fit(select_run(observations, ".neuralpower")).predict(
        networks, [setup] * len(networks)
    )
    networks_shown = [
        NetworkBreakdown(
            one.trial.network.name,
            one.energy_j or 0.0,
            {layer.name: layer.energy_j for layer in prediction.layers[at]},
            float(sums.energy_j[at]),
        )
        for at, one in enumerate(tests)
    ]
    caption = Caption(subtitle="cnn5 on an NVIDIA H200; layers estimated by additive")
    return plot_additivity(networks_shown, caption)


def plot_convolutions(observations: Sequence[Observation]) -> Plot:
    """Plot Fig. 5: isolated hidden convolutions by their position in the net."""
    series: dict[str, list[LayerMeasurement]] = {}
    for one in observations:
        layer = one.trial.network.layers[0] if one.trial.network.layers else None
        isolated = one.trial.execution.upstream == "random" and one.energy_j is not None
        if layer is None or not isolated or layer.kind != "conv2d":
            continue
        flops = network_work(one.trial.network, one.trial.setup).total.flops
        energy_j = (one.energy_j or 0.0) / one.trial.execution.copies
        note = f"{layer.sizes['cin']} to {layer.sizes['cout']} channels"
        name = "conv at " + "x".join(map(str, layer.sizes["space"]))
        series.setdefault(name, []).append(
            LayerMeasurement(layer.sizes["cout"], flops, energy_j, note)
        )
    subtitle = "isolated layers of cnn5 on an NVIDIA H200, batch 128, TF32"
    return plot_energy_by_size(series, Caption(subtitle=subtitle))


def plot_time(observations: Sequence[Observation]) -> Plot:
    """Plot Fig. 6: whole nets and isolated layers."""
    nets = [one for one in select_run(observations, ".test1") if one.energy_j and one.duration_s]
    isolated = [
        o for o in select_run(observations, ".additive") if o.energy_j and o.trial.network.layers
    ]
    series = {
        "whole networks, eager": [make_step(one) for one in nets],
        "isolated layers, CUDA graph": [make_step(one) for one in isolated],
    }
    caption = Caption(subtitle="cnn5 on an NVIDIA H200, batch 128, TF32")
    return plot_energy_by_time(series, caption)


def make_step(one: Observation) -> StepMeasurement:
    """Return duration and energy of one copy."""
    copies = one.trial.execution.copies
    name = one.trial.network.name or one.trial.network.layers[0].kind
    return StepMeasurement(name, (one.duration_s or 0.0) / copies, (one.energy_j or 0.0) / copies)


def plot_acquisition(observations: Sequence[Observation]) -> Plot:
    """Plot Fig. 4: a curve over one width, without and with its last point."""
    curves = fit_curves(observations, "energy", fit_gaussian_process).values()
    curve = max(
        (c for c in curves if c.process.inputs.shape[1] == 1), key=lambda c: len(c.process.values)
    )
    features, label = width_names(curve.part), describe_part(curve.part)
    gp = curve.process
    order = sorted(
        range(len(gp.values)), key=lambda at: _distance_to_next(gp.inputs[:, 0].tolist(), at)
    )
    fewer = sorted(order[:-1], key=lambda at: float(gp.inputs[at, 0]))
    before = fit_gaussian_process(
        tuple(tuple(gp.inputs[at]) for at in fewer),
        tuple(gp.values[at] for at in fewer),
        tuple(gp.variances[at] for at in fewer),
    )
    return plot_acquisition_step(
        sample_curve(before, label, features), sample_curve(gp, label, features)
    )


def _distance_to_next(widths: Sequence[float], at: int) -> float:
    """Return the distance of an inner point to the next one: the farthest comes last."""
    if widths[at] in (min(widths), max(widths)):
        return 0.0
    return min(abs(widths[at] - other) for place, other in enumerate(widths) if place != at)


def plot_surface(observations: Sequence[Observation]) -> dict[str, Plot]:
    """Plot Fig. 11 and 12: a curve over two widths, fitted to most points, tested on the others."""
    curves = fit_curves(observations, "energy", fit_gaussian_process).values()
    curve = max(
        (c for c in curves if c.process.inputs.shape[1] == 2), key=lambda c: len(c.process.values)
    )
    gp = curve.process
    points = list(zip(gp.inputs.tolist(), gp.values.tolist(), gp.variances.tolist(), strict=True))
    tests = points[2::TEST_EVERY]
    fitted_points = [point for point in points if point not in tests]
    widths, values, variances = zip(*_as_tuples(fitted_points), strict=True)
    fitted = fit_gaussian_process(widths, values, variances)
    label = describe_part(curve.part)
    test_values = {tuple(widths): value for widths, value, _ in tests}
    sampled = sample_curve(fitted, label, width_names(curve.part), test_values)
    return {"fig11-surface": plot_curve(sampled), "fig12-differences": plot_curve_errors(sampled)}


def _as_tuples(
    points: Sequence[tuple[list[float], float, float]],
) -> list[tuple[tuple[float, ...], float, float]]:
    return [(tuple(widths), value, variance) for widths, value, variance in points]


if __name__ == "__main__":
    main()
