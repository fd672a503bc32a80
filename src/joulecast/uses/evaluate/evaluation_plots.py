"""Plot an evaluation: estimates against measurements, errors, durations and device time."""

from __future__ import annotations

from joulecast.records import name_step
from joulecast.uses.evaluate.evaluation import Evaluation
from joulecast.views.plot_kinds import (
    ScoredEstimate,
    plot_energy_by_time,
    plot_error_by_time,
    plot_error_distribution,
    plot_estimates,
    plot_mape_bars,
    plot_profiling_time,
)
from joulecast.views.report import Plot


def plot_evaluation(result: Evaluation) -> list[Plot]:
    """Return the plots of an evaluation: three of its accuracy, then three of its cost."""
    rows = [
        ScoredEstimate(net.name, name, net.measured_j, estimate.energy_j, estimate.interval95_j)
        for net in result.nets
        for name, estimate in net.estimates.items()
    ]
    provenance, step = result.provenance, name_step(result.setup)
    steps = [(net.name, net.measured_s, net.measured_j) for net in result.nets]
    mapes = {one.estimator: one.mape_percent for one in result.scores}
    durations_s = {one.estimator: one.device_seconds for one in result.scores}
    costs = {one.estimator: (one.device_seconds, one.mape_percent) for one in result.scores}
    return [
        plot_estimates(rows, provenance, step),
        plot_mape_bars(mapes, result.noise_percent, provenance),
        plot_error_distribution(rows, provenance),
        plot_error_by_time(costs, provenance),
        plot_profiling_time(durations_s, provenance),
        plot_energy_by_time({result.family: steps}, provenance, step),
    ]
