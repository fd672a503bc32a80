"""Predict whole runs as an imported log would report them.

    E = steps·Σ g + overhead             a run from that source, start-up and evaluation included
    y = E·exp(ε),  ε ~ N(0, noise²)      one run: repeats differ

`predict` gives the cost of a step, wherever it runs. A comparison with runs of the same log also
needs their overhead, and how far one run is from the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.additive.device_model import predict_totals
from joulecast.estimators.additive.estimator import FittedAdditive
from joulecast.estimators.additive.pieces import (
    count_pieces,
    make_overhead_piece,
    split_pieces,
)
from joulecast.gp.linalg import Floats
from joulecast.records import Network, Setup


@dataclass(frozen=True)
class RunTotals:
    """Energy and duration of a whole run of each of n networks.

    Attributes:
        energy_j: Mean energy over many runs.
        energy_sd_j: Standard deviation of this mean.
        duration_s: Mean duration.
        repeat_sd_share: Relative standard deviation of one run around the mean.
    """

    energy_j: Floats
    energy_sd_j: Floats
    duration_s: Floats
    repeat_sd_share: float

    def variance(self, repeats: float | Floats = 1.0) -> Floats:
        """Return the variance of the mean over this many runs, in joules squared."""
        return np.asarray(
            self.energy_sd_j**2 + (self.repeat_sd_share * self.energy_j) ** 2 / repeats
        )


def predict_runs(
    fitted: FittedAdditive, networks: Sequence[Network], setup: Setup, steps: int, source: str
) -> RunTotals:
    """Predict runs of this many steps, as the source of imported runs reports them.

    Raises:
        MissingError: The fit contains no run from that source.
    """
    model, overhead = fitted.model, make_overhead_piece(source)
    if overhead.kind not in model.encoder.overheads:
        raise MissingError(
            f"the fit contains no run from {source!r}: import some of its runs first"
        )
    counts = [
        {**count_pieces(split_pieces(network, setup)), overhead: 1.0 / steps}
        for network in networks
    ]
    totals = predict_totals(model, counts, fitted.sum_error_sd_share)
    noise_var = model.power.hyper.noise_sd**2 + model.duration.hyper.noise_sd**2
    return RunTotals(
        steps * totals.energy_j,
        steps * np.sqrt(totals.variance),
        steps * totals.duration_s,
        float(np.sqrt(noise_var)),
    )
