"""What learns from some nets' runs and predicts other nets': `additive` and its rivals.

A method takes a shelf of runs, the names of nets that it may learn from (all their repeats) and
the names of nets under test, of which it sees the network and nothing that was measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cells import SETUP, SOURCE, STEPS, Run, make_network, observe
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from joulecast.estimators import find_estimator
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.imported_runs import predict_runs
from joulecast.kinds import network_work
from joulecast.records import Network, Observation

Floats = NDArray[np.float64]
Names = Sequence[str]

OPS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
FLOPS, BYTES, LAUNCHES, PARAMS = range(4)


@dataclass(frozen=True)
class Shelf:
    """Runs by net.

    Attributes:
        features: FLOPs, bytes, launches and parameters of a step; how often a cell has each
            operator; how many vertices read its input, and how many it concatenates.
    """

    nets: Mapping[str, Network]
    runs: Mapping[str, Sequence[Run]]
    features: Mapping[str, Floats]

    def mean_j(self, name: str) -> float:
        """The truth of a net: the mean over its repeats."""
        return float(np.mean([run.energy_j for run in self.runs[name]]))

    def observe(self, names: Names) -> list[Observation]:
        """Every run of some nets."""
        return [observe(run, self.nets[name]) for name in names for run in self.runs[name]]

    def table(self, names: Names) -> tuple[Floats, Floats, Floats]:
        """Features, joules and training seconds of every run of some nets."""
        rows = [(self.features[name], run) for name in names for run in self.runs[name]]
        energies = np.array([run.energy_j for _, run in rows])
        return np.array([row for row, _ in rows]), energies, np.array([r.train_s for _, r in rows])

    def ask(self, names: Names) -> Floats:
        """Features of nets under test."""
        return np.array([self.features[name] for name in names])


def make_shelf(runs: Sequence[Run]) -> Shelf:
    """Runs by net, with each net's network and features."""
    by_net: dict[str, list[Run]] = {}
    for run in runs:
        by_net.setdefault(run.net, []).append(run)
    nets = {name: make_network(found[0].cell, name) for name, found in by_net.items()}
    features = {name: _describe(nets[name], found[0]) for name, found in by_net.items()}
    return Shelf(nets, by_net, features)


def _describe(network: Network, run: Run) -> Floats:
    work, cell = network_work(network, SETUP), run.cell
    counts = [cell.ops.count(op) for op in OPS]
    edges = [sum(cell.matrix[0]), len(cell.sources(cell.last))]
    total = work.total
    return np.array([total.flops, total.size_bytes, total.launches, work.params, *counts, *edges])


@dataclass(frozen=True)
class Answer:
    """What a method says of nets under test.

    Attributes:
        variance: Of the mean over so many runs of each net; None where a method has no doubts.
        train_s: The seconds of their 625 steps, where a method predicts those.
    """

    energy_j: Floats
    variance: Callable[[Floats], Floats] | None = None
    train_s: Floats | None = None


Method = Callable[[Shelf, Names, Names], Answer]


# ---------------------------------------------------------------------------------------------
# Of this package


def ask_additive(shelf: Shelf, learn: Names, test: Names) -> Answer:
    """Joules of whole runs, and the seconds of their steps."""
    return _ask_additive(shelf, shelf.observe(learn), test)


def ask_additive_total(shelf: Shelf, learn: Names, test: Names) -> Answer:
    """The same where the log has no seconds but those of the whole run."""
    runs = [run for name in learn for run in shelf.runs[name]]
    seen = [
        replace(one, duration_s=run.total_s)
        for one, run in zip(shelf.observe(learn), runs, strict=True)
    ]
    return replace(_ask_additive(shelf, seen, test), train_s=None)


def _ask_additive(shelf: Shelf, seen: Sequence[Observation], test: Names) -> Answer:
    fitted = AdditiveEstimator().fit(seen)
    totals = predict_runs(fitted, [shelf.nets[name] for name in test], SETUP, STEPS, SOURCE)
    return Answer(totals.energy_j, totals.variance, totals.duration_s)


def ask_flops(name: str) -> Method:
    """The package's own baselines."""

    def ask(shelf: Shelf, learn: Names, test: Names) -> Answer:
        estimator = find_estimator(name)
        fitted = estimator.fit(shelf.observe(learn))
        said = fitted.predict([shelf.nets[net] for net in test], [SETUP] * len(test))
        # Its doubt is how far it was off on single runs, their noise included.
        variance = np.asarray((STEPS * said.energy_sd_j) ** 2)
        return Answer(STEPS * said.energy_j, lambda _: variance)

    return ask


# ---------------------------------------------------------------------------------------------
# Regressions over whole nets


def ask_line(*columns: int) -> Method:
    """Joules as a sum of what some features cost, none of it negative, and a constant."""

    def ask(shelf: Shelf, learn: Names, test: Names) -> Answer:
        features, energies, _ = shelf.table(learn)
        costs = _fit_costs(_with_one(features[:, columns]), energies)
        return Answer(_with_one(shelf.ask(test)[:, columns]) @ costs)

    return ask


def ask_quadratic(shelf: Shelf, learn: Names, test: Names) -> Answer:
    """All features, their squares and products, drawn to zero as far as cross-validation wants."""
    features, energies, _ = shelf.table(learn)
    shape = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False))
    regression = make_pipeline(shape, StandardScaler(), RidgeCV(np.logspace(-3, 4, 22)))
    regression.fit(np.log1p(features), np.log(energies))
    return Answer(np.exp(regression.predict(np.log1p(shelf.ask(test)))))


def ask_gp(shelf: Shelf, learn: Names, test: Names) -> Answer:
    """A Gaussian process over logarithms, a length scale for each feature."""
    features, energies, _ = shelf.table(learn)
    said, share, noise = _ask_process(features, energies, shelf.ask(test))
    return Answer(said, lambda repeats: said**2 * (share - noise + noise / repeats))


def ask_two_steps(shelf: Shelf, learn: Names, test: Names) -> Answer:
    """What `additive` is given, seconds too: that process for seconds, then joules from seconds."""
    features, energies, seconds = shelf.table(learn)
    said, _, _ = _ask_process(features, seconds, shelf.ask(test))
    costs = _fit_costs(_with_one(seconds[:, None]), energies)
    return Answer(_with_one(said[:, None]) @ costs, train_s=said)


def _ask_process(features: Floats, values: Floats, asked: Floats) -> tuple[Floats, Floats, float]:
    """Medians, their relative variance with noise, and the noise's."""
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * Matern(
        np.full(features.shape[1], 3.0), (0.3, 100.0), nu=2.5
    )
    process = GaussianProcessRegressor(kernel + WhiteKernel(0.02, (1e-5, 1.0)), normalize_y=True)
    regression = make_pipeline(StandardScaler(), process)
    with warnings.catch_warnings():
        # Length scales of features that say nothing end at their bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(np.log1p(features), np.log(values))
    mean, sd = regression.predict(np.log1p(asked), return_std=True)
    noise = float(process.kernel_.k2.noise_level * np.log(values).var())
    return np.exp(mean), sd**2, noise


def ask_nearest(shelf: Shelf, learn: Names, test: Names) -> Answer:
    """The mean of the three nearest runs, the nearest counting most."""
    features, energies, _ = shelf.table(learn)
    nearest = KNeighborsRegressor(3, weights="distance")
    regression = make_pipeline(StandardScaler(), nearest).fit(np.log1p(features), np.log(energies))
    return Answer(np.exp(regression.predict(np.log1p(shelf.ask(test)))))


def _with_one(features: Floats) -> Floats:
    return np.column_stack([np.ones(len(features)), features])


def _fit_costs(columns: Floats, values: Floats) -> Floats:
    """Costs of least relative error, none of them negative."""
    units = columns.max(axis=0)
    costs, _ = nnls(columns / units / values[:, None], np.ones(len(values)))
    return np.asarray(costs / units)


METHODS: dict[str, Method] = {
    "additive": ask_additive,
    "additive, total seconds": ask_additive_total,
    "flops": ask_flops("flops"),
    "flops-linear": ask_flops("flops-linear"),
    "params-linear": ask_line(PARAMS),
    "physics-linear": ask_line(FLOPS, BYTES, LAUNCHES),
    "quadratic": ask_quadratic,
    "gp": ask_gp,
    "gp, seconds first": ask_two_steps,
    "nearest": ask_nearest,
}
