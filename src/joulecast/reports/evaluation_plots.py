"""Plot an evaluation: estimates against measurements, errors, durations and device time."""

from __future__ import annotations

from joulecast.features.evaluate import Evaluation
from joulecast.figures import (
    Caption,
    Plot,
    ScoredEstimate,
    StepMeasurement,
    plot_energy_by_time,
    plot_error_by_time,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_profiling_time,
)
from joulecast.records import name_step


def plot_evaluation(result: Evaluation) -> dict[str, Plot]:
    """Return the plots of an evaluation by name."""
    rows = [
        ScoredEstimate(
            net.name,
            name,
            net.measured_j,
            estimate.energy_j,
            estimate.interval95_j,
            family=result.family,
        )
        for net in result.nets
        for name, estimate in net.estimates.items()
    ]
    subtitle = f"{len(result.nets)} random networks of {result.family} on {result.device.name}"
    caption = Caption(subtitle=subtitle, provenance=result.provenance)
    noise = {} if result.noise_percent is None else {result.family: result.noise_percent}
    steps = [StepMeasurement(net.name, net.measured_s, net.measured_j) for net in result.nets]
    step = name_step(result.setup)
    seconds = {score.estimator: score.device_seconds for score in result.scores}
    costs = {one.estimator: (one.device_seconds, one.mape_percent) for one in result.scores}
    return {
        "agreement": plot_estimates(rows, caption, step),
        "errors": plot_mape_bars(rows, noise, caption),
        "error-shares": plot_error_distribution(rows, caption),
        "time-energy": plot_energy_by_time({result.family: steps}, caption, step),
        "error-time": plot_error_by_time(costs, caption),
        "profiling-time": plot_profiling_time({result.device.name: seconds}, caption),
    }
