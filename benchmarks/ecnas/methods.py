"""Methods that are fitted to runs of some nets and predict runs of others.

A method takes all runs, the names of the nets that it is fitted to (all their repeats) and the
names of the test nets, of which it uses only the network.
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
from joulecast.estimators.additive.estimator import AdditiveEstimator, predict_runs
from joulecast.kinds import network_work
from joulecast.records import Network, Observation

Floats = NDArray[np.float64]
Names = Sequence[str]

OPS = ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3")
FLOPS, BYTES, LAUNCHES, PARAMS = range(4)


@dataclass(frozen=True)
class RunData:
    """Runs grouped by net.

    Attributes:
        features: FLOPs, bytes, launches and parameters of a step; the count of each operator in
            the cell; how many vertices read its input, and how many it concatenates.
    """

    nets: Mapping[str, Network]
    runs: Mapping[str, Sequence[Run]]
    features: Mapping[str, Floats]

    def mean_energy_j(self, name: str) -> float:
        """Return the mean energy over the repeats of a net."""
        return float(np.mean([run.energy_j for run in self.runs[name]]))

    def observe(self, names: Names) -> list[Observation]:
        """Return every run of some nets as observations."""
        return [observe(run, self.nets[name]) for name in names for run in self.runs[name]]

    def table(self, names: Names) -> tuple[Floats, Floats, Floats]:
        """Return features, energy and training time of every run of some nets."""
        rows = [(self.features[name], run) for name in names for run in self.runs[name]]
        energies = np.array([run.energy_j for _, run in rows])
        return np.array([row for row, _ in rows]), energies, np.array([r.train_s for _, r in rows])

    def list_features(self, names: Names) -> Floats:
        """Return the features of test nets."""
        return np.array([self.features[name] for name in names])


def group_runs(runs: Sequence[Run]) -> RunData:
    """Group runs by net, with each net's network and features."""
    by_net: dict[str, list[Run]] = {}
    for run in runs:
        by_net.setdefault(run.net, []).append(run)
    nets = {name: make_network(found[0].cell, name) for name, found in by_net.items()}
    features = {name: _describe(nets[name], found[0]) for name, found in by_net.items()}
    return RunData(nets, by_net, features)


def _describe(network: Network, run: Run) -> Floats:
    work, cell = network_work(network, SETUP), run.cell
    counts = [cell.ops.count(op) for op in OPS]
    edges = [sum(cell.matrix[0]), len(cell.sources(cell.last))]
    total = work.total
    return np.array([total.flops, total.size_bytes, total.launches, work.params, *counts, *edges])


@dataclass(frozen=True)
class RunPrediction:
    """The prediction of test nets.

    Attributes:
        variance: Takes the number of runs of each net and returns the variance of their mean;
            None if the method has none.
        train_s: Duration of their 625 steps, if the method predicts it.
    """

    energy_j: Floats
    variance: Callable[[Floats], Floats] | None = None
    train_s: Floats | None = None


Method = Callable[[RunData, Names, Names], RunPrediction]


# ---------------------------------------------------------------------------------------------
# Joulecast


def predict_additive(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
    """Predict the energy of whole runs and the duration of their steps."""
    return _predict_additive(run_data, run_data.observe(learn), test)


def predict_additive_total(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
    """Do the same if only the total duration of a run is known."""
    runs = [run for name in learn for run in run_data.runs[name]]
    observations = [
        replace(one, duration_s=run.total_s)
        for one, run in zip(run_data.observe(learn), runs, strict=True)
    ]
    return replace(_predict_additive(run_data, observations, test), train_s=None)


def _predict_additive(
    run_data: RunData, observations: Sequence[Observation], test: Names
) -> RunPrediction:
    fitted = AdditiveEstimator().fit(observations)
    totals = predict_runs(fitted, [run_data.nets[name] for name in test], SETUP, STEPS, SOURCE)
    return RunPrediction(totals.energy_j, totals.variance, totals.duration_s)


def make_baseline_method(name: str) -> Method:
    """Return a method that uses one of Joulecast's baselines."""

    def predict(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
        estimator = find_estimator(name)
        fitted = estimator.fit(run_data.observe(learn))
        prediction = fitted.predict([run_data.nets[net] for net in test], [SETUP] * len(test))
        # Its variance is that of single runs, including their noise.
        variance = np.asarray((STEPS * prediction.energy_sd_j) ** 2)
        return RunPrediction(STEPS * prediction.energy_j, lambda _: variance)

    return predict


# ---------------------------------------------------------------------------------------------
# Regressions over whole nets


def make_linear_method(*columns: int) -> Method:
    """Return a non-negative linear regression over some features, with a constant."""

    def predict(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
        features, energies, _ = run_data.table(learn)
        costs = _fit_costs(_with_one(features[:, columns]), energies)
        return RunPrediction(_with_one(run_data.list_features(test)[:, columns]) @ costs)

    return predict


def predict_quadratic(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
    """Predict with a ridge regression over all features, their squares and products."""
    features, energies, _ = run_data.table(learn)
    shape = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False))
    regression = make_pipeline(shape, StandardScaler(), RidgeCV(np.logspace(-3, 4, 22)))
    regression.fit(np.log1p(features), np.log(energies))
    return RunPrediction(np.exp(regression.predict(np.log1p(run_data.list_features(test)))))


def predict_gp(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
    """Predict with a Gaussian process over logarithms, with one length scale per feature."""
    features, energies, _ = run_data.table(learn)
    predicted_j, share, noise = _predict_process(features, energies, run_data.list_features(test))
    return RunPrediction(
        predicted_j, lambda repeats: predicted_j**2 * (share - noise + noise / repeats)
    )


def predict_in_two_steps(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
    """Predict durations with the Gaussian process, then energy from durations."""
    features, energies, seconds = run_data.table(learn)
    predicted_j, _, _ = _predict_process(features, seconds, run_data.list_features(test))
    costs = _fit_costs(_with_one(seconds[:, None]), energies)
    return RunPrediction(_with_one(predicted_j[:, None]) @ costs, train_s=predicted_j)


def _predict_process(
    features: Floats, values: Floats, asked: Floats
) -> tuple[Floats, Floats, float]:
    """Return medians, their relative variance including noise, and that of the noise."""
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * Matern(
        np.full(features.shape[1], 3.0), (0.3, 100.0), nu=2.5
    )
    process = GaussianProcessRegressor(kernel + WhiteKernel(0.02, (1e-5, 1.0)), normalize_y=True)
    regression = make_pipeline(StandardScaler(), process)
    with warnings.catch_warnings():
        # Length scales of irrelevant features end at their bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(np.log1p(features), np.log(values))
    mean, sd = regression.predict(np.log1p(asked), return_std=True)
    noise = float(process.kernel_.k2.noise_level * np.log(values).var())
    return np.exp(mean), sd**2, noise


def predict_nearest(run_data: RunData, learn: Names, test: Names) -> RunPrediction:
    """Predict with the three nearest runs, weighted by distance."""
    features, energies, _ = run_data.table(learn)
    nearest = KNeighborsRegressor(3, weights="distance")
    regression = make_pipeline(StandardScaler(), nearest).fit(np.log1p(features), np.log(energies))
    return RunPrediction(np.exp(regression.predict(np.log1p(run_data.list_features(test)))))


def _with_one(features: Floats) -> Floats:
    return np.column_stack([np.ones(len(features)), features])


def _fit_costs(columns: Floats, values: Floats) -> Floats:
    """Fit non-negative costs with the least relative error."""
    units = columns.max(axis=0)
    costs, _ = nnls(columns / units / values[:, None], np.ones(len(values)))
    return np.asarray(costs / units)


METHODS: dict[str, Method] = {
    "additive": predict_additive,
    "additive, total seconds": predict_additive_total,
    "constant": make_linear_method(),
    "flops": make_baseline_method("flops"),
    "flops-linear": make_baseline_method("flops-linear"),
    "params-linear": make_linear_method(PARAMS),
    # The fit of Joulecast's baseline of this name, from work that is counted once per net.
    "work-linear": make_linear_method(FLOPS, BYTES, LAUNCHES),
    "quadratic": predict_quadratic,
    "gp": predict_gp,
    "gp, seconds first": predict_in_two_steps,
    "nearest": predict_nearest,
}
