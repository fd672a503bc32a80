"""Whole runs of a stranger's log: what `additive` says that another run of it would take.

    E = steps·Σ g + overhead             of a net's run from that source, start-up and evaluation in
    y = E·(1 + ε),  ε ~ N(0, noise²)     of one run of it: repeats differ

`predict` says what a step costs, wherever it is run. Who compares with runs of the same log wants
what they pay besides, and how far one run is from the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.errors import MissingError
from joulecast.estimators.additive.estimator import FittedAdditive
from joulecast.estimators.additive.model import total_nets
from joulecast.estimators.additive.pieces import Count, count_stands, make_overhead, split_pieces
from joulecast.gp.kernels import Floats
from joulecast.records import Network, Setup


@dataclass(frozen=True)
class RunTotals:
    """Joules and seconds of a whole run of each of n networks.

    Attributes:
        energy_sd_j: How far the mean over many runs may be from ``energy_j``.
        repeat_share: Relative deviation of one run from that mean.
    """

    energy_j: Floats
    energy_sd_j: Floats
    duration_s: Floats
    repeat_share: float

    def variance(self, repeats: float | Floats = 1.0) -> Floats:
        """Variance of the mean over so many runs, in joules squared."""
        return np.asarray(self.energy_sd_j**2 + (self.repeat_share * self.energy_j) ** 2 / repeats)


def predict_runs(
    fitted: FittedAdditive, networks: Sequence[Network], setup: Setup, steps: int, source: str
) -> RunTotals:
    """What runs of so many steps take in the log that a fit has learnt from.

    Raises:
        MissingError: The fit has seen no run from that source.
    """
    state = fitted.model
    overhead = make_overhead(source)
    if overhead.label not in state.table.labels:
        raise MissingError(f"no run from {source!r} was learnt: import some of it first")
    known = set(state.table.labels)
    paid: Count = (overhead, 1.0 / steps)
    nets = [(*count_stands(split_pieces(net, setup, known)), paid) for net in networks]
    totals = total_nets(state, nets, fitted.sum_error_share)
    noises = [draw.parts.noise for draw in state.energy.learnt.draws]
    return RunTotals(
        steps * totals.energy_j,
        steps * np.sqrt(totals.var),
        steps * totals.duration_s,
        float(np.sqrt(np.mean(np.square(noises)))),
    )
