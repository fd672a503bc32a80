"""An evaluation as pictures: estimates beside what was measured, errors, seconds, what it cost."""

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
    """Pictures by name; the figures of the paper that they follow are in ``figures``."""
    rows = [
        Judged(
            net.name, name, net.measured_j, answer.energy_j, answer.interval95_j, family=result.net
        )
        for net in result.nets
        for name, answer in net.answers.items()
    ]
    words = f"{len(result.nets)} random nets of {result.net} on {result.device.name}"
    noise = {} if result.noise_percent is None else {result.net: result.noise_percent}
    taken = [Taken(net.name, net.measured_s, net.measured_j) for net in result.nets]
    seconds = {score.estimator: score.device_seconds for score in result.scores}
    basis = result.provenance
    return {
        "agreement": draw_agreement(rows, about=words, provenance=basis),
        "errors": draw_errors(rows, noise_percent=noise, about=words, provenance=basis),
        "error-shares": draw_error_shares(rows, about=words, provenance=basis),
        "time-energy": draw_time_energy({result.net: taken}, about=words, provenance=basis),
        "profiling-time": draw_profiling_time(
            {result.device.name: seconds}, about=words, provenance=basis
        ),
    }
