"""The paper's figures, drawn anew from this project's own measurements on an NVIDIA H200.

    python benchmarks/figures/run.py --out benchmarks/figures/results

Takes what the other benchmarks keep: the evaluation's observations (test nets, isolated layers,
NeuralPower's stages, the paper's variants) and measures nothing.
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
KEPT = HERE.parent / "evaluation" / "results" / "nvidia-h200-observations.json"
NETS = 5
# Every fifth point of a surface tests it instead of teaching it.
TEST_EVERY = 5


def main() -> None:
    """Draw everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--observations", type=Path, default=KEPT)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--html", type=Path, help="also all of them as one page")
    args = parser.parse_args()
    seen = [s for s in read_profile(args.observations).observations if is_cnn(s)]
    plots = {
        "fig2-additivity": draw_layers(seen),
        "fig4-guided-point": draw_guide(of_run(seen, ".subtractive")),
        "fig5-sizes": draw_conv(of_run(seen, ".additive")),
        "fig6-time-energy": draw_seconds(seen),
        **draw_surface(of_run(seen, ".subtractive")),
    }
    for name, plot in plots.items():
        print(save_svg(plot, args.out / f"{name}.svg"))
    if args.html:
        print(save_html(list(plots.values()), args.html))


def is_cnn(seen: Observation) -> bool:
    """Of the evaluation's two families, the five-layer CNNs; and the waiting device."""
    return not seen.trial.network.layers or seen.trial.setup.precision == "tf32"


def of_run(seen: Sequence[Observation], end: str) -> list[Observation]:
    """What one estimator learnt from."""
    return [one for one in seen if one.run.endswith(end)]


def draw_layers(seen: Sequence[Observation]) -> Plot:
    """Fig. 2: layers as `additive` sees them, the whole net, and NeuralPower's sum."""
    tests = of_run(seen, ".test1")[:NETS]
    networks, setup = [one.trial.network for one in tests], tests[0].trial.setup
    ours = find_estimator("additive")
    learnt = of_run(seen, ".additive") + of_run(seen, ".additive.probe")
    answer = ours.fit(learnt).predict(networks, [setup] * len(networks), per_layer=True)
    theirs = find_estimator("neuralpower")
    sums = theirs.fit(of_run(seen, ".neuralpower")).predict(networks, [setup] * len(networks))
    wholes = [
        NetworkBreakdown(
            one.trial.network.name,
            one.energy_j or 0.0,
            {layer.name: layer.energy_j for layer in answer.layers[at]},
            float(sums.energy_j[at]),
        )
        for at, one in enumerate(tests)
    ]
    caption = Caption(subtitle="cnn5 on an NVIDIA H200; layers estimated by additive")
    return plot_additivity(wholes, caption)


def draw_conv(seen: Sequence[Observation]) -> Plot:
    """Fig. 5: hidden convolutions alone, by where they stand in the net."""
    series: dict[str, list[LayerMeasurement]] = {}
    for one in seen:
        layer = one.trial.network.layers[0] if one.trial.network.layers else None
        alone = one.trial.execution.upstream == "random" and one.energy_j is not None
        if layer is None or not alone or layer.kind != "conv2d":
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


def draw_seconds(seen: Sequence[Observation]) -> Plot:
    """Fig. 6: whole nets, and layers alone."""
    nets = [one for one in of_run(seen, ".test1") if one.energy_j and one.duration_s]
    alone = [o for o in of_run(seen, ".additive") if o.energy_j and o.trial.network.layers]
    series = {
        "whole networks, eager": [take(one) for one in nets],
        "isolated layers, CUDA graph": [take(one) for one in alone],
    }
    caption = Caption(subtitle="cnn5 on an NVIDIA H200, batch 128, TF32")
    return plot_energy_by_time(series, caption)


def take(one: Observation) -> StepMeasurement:
    """Seconds and joules of one copy."""
    copies = one.trial.execution.copies
    name = one.trial.network.name or one.trial.network.layers[0].kind
    return StepMeasurement(name, (one.duration_s or 0.0) / copies, (one.energy_j or 0.0) / copies)


def draw_guide(seen: Sequence[Observation]) -> Plot:
    """Fig. 4: the paper's curve of one width, without and with its last point."""
    curves = fit_curves(seen, "energy", fit_gaussian_process).values()
    curve = max(
        (c for c in curves if c.process.widths.shape[1] == 1), key=lambda c: len(c.process.values)
    )
    features, label = width_names(curve.part), describe_part(curve.part)
    gp = curve.process
    order = sorted(range(len(gp.values)), key=lambda at: _farthest(gp.widths[:, 0].tolist(), at))
    fewer = sorted(order[:-1], key=lambda at: float(gp.widths[at, 0]))
    before = fit_gaussian_process(
        tuple(tuple(gp.widths[at]) for at in fewer),
        tuple(gp.values[at] for at in fewer),
        tuple(gp.variances[at] for at in fewer),
    )
    return plot_acquisition_step(
        sample_curve(before, label, features), sample_curve(gp, label, features)
    )


def _farthest(widths: Sequence[float], at: int) -> float:
    """How far a point is from the next one, ends aside: the one that teaches most comes last."""
    if widths[at] in (min(widths), max(widths)):
        return 0.0
    return min(abs(widths[at] - other) for place, other in enumerate(widths) if place != at)


def draw_surface(seen: Sequence[Observation]) -> dict[str, Plot]:
    """Fig. 11, 12: a curve over two widths, taught by most points and tested by the others."""
    curves = fit_curves(seen, "energy", fit_gaussian_process).values()
    curve = max(
        (c for c in curves if c.process.widths.shape[1] == 2), key=lambda c: len(c.process.values)
    )
    gp = curve.process
    points = list(zip(gp.widths.tolist(), gp.values.tolist(), gp.variances.tolist(), strict=True))
    tests = points[2::TEST_EVERY]
    taught = [point for point in points if point not in tests]
    widths, values, variances = zip(*_as_tuples(taught), strict=True)
    fitted = fit_gaussian_process(widths, values, variances)
    label = describe_part(curve.part)
    aside = {tuple(widths): value for widths, value, _ in tests}
    sampled = sample_curve(fitted, label, width_names(curve.part), aside)
    return {"fig11-surface": plot_curve(sampled), "fig12-differences": plot_curve_errors(sampled)}


def _as_tuples(
    points: Sequence[tuple[list[float], float, float]],
) -> list[tuple[tuple[float, ...], float, float]]:
    return [(tuple(widths), value, variance) for widths, value, variance in points]


if __name__ == "__main__":
    main()
