"""Plot an evaluation: estimates against measurements, errors, durations and device time."""

from __future__ import annotations

from joulecast.figures import (
    Judged,
    Picture,
    Taken,
    draw_agreement,
    draw_error_shares,
    draw_errors,
    draw_profiling_time,
    draw_time_energy,
)
from joulecast.uses.evaluate.evaluation import Evaluation


def draw_evaluation(result: Evaluation) -> dict[str, Picture]:
    """Return the plots of an evaluation by name."""
    rows = [
        Judged(
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
    about = f"{len(result.nets)} random nets of {result.family} on {result.device.name}"
    noise = {} if result.noise_percent is None else {result.family: result.noise_percent}
    taken = [Taken(net.name, net.measured_s, net.measured_j) for net in result.nets]
    seconds = {score.estimator: score.device_seconds for score in result.scores}
    provenance = result.provenance
    return {
        "agreement": draw_agreement(rows, about=about, provenance=provenance),
        "errors": draw_errors(rows, noise_percent=noise, about=about, provenance=provenance),
        "error-shares": draw_error_shares(rows, about=about, provenance=provenance),
        "time-energy": draw_time_energy({result.family: taken}, about=about, provenance=provenance),
        "profiling-time": draw_profiling_time(
            {result.device.name: seconds}, about=about, provenance=provenance
        ),
    }
