"""Predict networks as sums of kernels.

    t_k, p_k      duration and power of kernel k, log-normal, jointly within a kind
    T = T₀ + f·Σ n_k·t_k                 f: factor of whole networks over the sum of their kernels
    E = E₀ + g·Σ n_k·t_k·p_k
    cov(x_i, x_j) = x_i·x_j·(exp(C_ij) - 1)      C: covariance of the logarithms

The logarithm of a cost is a Gaussian process over the logarithms of a kernel's features, around

    cost ≈ a·FLOPs + b·bytes + c·depth + d     all ≥ 0, by least squares of relative errors
    depth = FLOPs of one output element

Kinds that were never measured cost what their work costs in other kernels, with errors that are
common to the kind.

Observations are read as costs of kernels, of whole networks and of an empty run:

    run of n copies of a kernel    T = T₀ + n·t        T₀: overhead of a run, such as its call
    run of a network               T = T₀ + Σ t

The overhead is that of the smallest graph, one ReLU of one number; 0 where none was observed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median_high
from typing import Protocol, TypeVar

import numpy as np

from joulecast.estimators.base import (
    FitComponent,
    Floats,
    Json,
    Prediction,
    fit_work_rates,
    predict_by_setup,
    setup_key,
)
from joulecast.gp.regression import ResidualProcess, fit_residual_process
from joulecast.onnx_nets.fusion import (
    FUSION_TABLES,
    FusedKernel,
    FusionTable,
    find_fusion_table,
    list_kernels,
    merge_kernels,
)
from joulecast.operators import make_layer, output_shape
from joulecast.records import Input, LayerEstimate, Network, Observation, Setup, Trial
from joulecast.records.codec import Record
from joulecast.variants import unfold_blocks

T = TypeVar("T")


@dataclass(frozen=True)
class SumFactor(Record):
    """The factor of whole networks over the sum of their kernels, log-normal.

    Attributes:
        log_mean: Mean of its logarithm.
        log_variance: Variance of it, common to all networks.
        scatter_variance: Variance of the logarithm of single networks around it.
        count: Networks that it was fitted to.
    """

    log_mean: float
    log_variance: float
    scatter_variance: float
    count: int = 0


@dataclass(frozen=True)
class CostModel:
    """A cost of kernels, duration or power, under one setup.

    Attributes:
        regressions: By kind, and by main operator for kinds that have none.
        mean: Cost by work, for kernels without a regression.
        factor: What whole networks cost more than their kernels.
    """

    regressions: Mapping[str, KernelRegression]
    mean: WorkMean
    factor: SumFactor

    def find_regression(self, kind: str) -> KernelRegression | None:
        """Return the regression of a kind, or that of kinds with the same main operator."""
        return self.regressions.get(kind) or self.regressions.get(name_main(kind))

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of the cost of each kernel and their covariance."""
        log_costs = np.zeros(len(kernels))
        cov = np.zeros((len(kernels),) * 2)
        for kind, places in group_places([kernel.kind for kernel in kernels]).items():
            own = [kernels[at] for at in places]
            regression = self.find_regression(kind)
            if regression is not None:
                mean, block = regression.predict(own)
            else:
                mean = self.mean.log_costs(own)
                block = np.full((len(own),) * 2, self.mean.log_sd**2)
            log_costs[places] = mean
            cov[np.ix_(places, places)] = block
        return log_costs, cov

    def to_dict(self) -> Json:
        """Return JSON from which it is restored."""
        regressions = {kind: one.to_dict() for kind, one in self.regressions.items()}
        return {
            "kinds": regressions,
            "mean": self.mean.to_dict(),
            "factor": self.factor.to_dict(),
        }


@dataclass(frozen=True)
class SetupModel:
    """Durations and powers under one setup."""

    overhead: RunOverhead
    duration: CostModel
    power: CostModel

    @property
    def has_powers(self) -> bool:
        """Whether any power was measured; if none was, it counts as 1 W."""
        return bool(self.power.mean.count)

    def to_dict(self) -> Json:
        """Return JSON from which it is restored."""
        return {
            "overhead": [self.overhead.duration_s, self.overhead.energy_j],
            "duration": self.duration.to_dict(),
            "power": self.power.to_dict(),
        }


@dataclass(frozen=True)
class FittedKernels:
    """Regressions of kernels by setup.

    Attributes:
        table: Name of the fusion table of all setups that are not compiled.
        models: By the key of a setup; that of most points is first and serves other setups.
    """

    table: str
    models: Mapping[str, SetupModel]
    observation_count: int
    version: int

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Predict the energy and duration of one step of each network.

        Energies are NaN where only durations were measured with a setup.
        """
        predict = partial(self._predict_setup, joint=joint, per_layer=per_layer)
        return predict_by_setup(predict, networks, setups)

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the kinds of kernels with their numbers of data points."""
        found: dict[str, tuple[int, int, tuple[str, ...]]] = {}
        for model in self.models.values():
            for kind, one in model.duration.regressions.items():
                power = model.power.regressions.get(kind)
                before = found.get(kind, (0, 0, ()))
                powers = before[0] + (power.count if power else 0)
                found[kind] = (powers, before[1] + one.count, getattr(one, "names", ()))
        return tuple(FitComponent(kind, *counts) for kind, counts in sorted(found.items()))

    def to_dict(self) -> Json:
        """Return JSON from which the estimator restores the fit."""
        return {
            "version": self.version,
            "table": self.table,
            "seen": self.observation_count,
            "setups": {key: model.to_dict() for key, model in self.models.items()},
        }

    def find_model(self, setup: Setup) -> tuple[SetupModel, bool]:
        """Return the model of a setup, and whether that setup was measured."""
        key = name_setup(setup)
        if key in self.models:
            return self.models[key], True
        return next(iter(self.models.values())), False

    def _predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        table = find_fusion_table(self.table, setup)
        model, is_seen = self.find_model(setup)
        own = [list_kernels(network, setup, table) for network in networks]
        sums = KernelSums.of_networks(own)
        costs = predict_sums(model, sums)
        # Without a measured power, kernels count by their time.
        known = 1.0 if model.has_powers else np.nan
        is_unseen = np.array(
            [model.duration.find_regression(one.kind) is None for one in sums.kernels], bool
        )
        unseen = {one.kind for one, flag in zip(sums.kernels, is_unseen, strict=True) if flag}
        notes = []
        for kernels in own:
            kinds = ", ".join(sorted(unseen.intersection(kernel.kind for kernel in kernels)))
            notes.append(
                (f"kernels that were never measured on this device: {kinds}",) * bool(kinds)
            )
        kernel_j = sums.counts * costs.kernel_energy_j
        shares = kernel_j @ is_unseen / np.maximum(kernel_j.sum(axis=1), 1e-30)
        shares = np.minimum(shares, 1.0)
        layers = tuple(
            _list_layers(network, kernels, sums, costs, at, is_seen)
            if per_layer and model.has_powers
            else ()
            for at, (network, kernels) in enumerate(zip(networks, own, strict=True))
        )
        return Prediction(
            energy_j=costs.energy_j * known,
            energy_sd_j=np.sqrt(np.diag(costs.energy_cov)) * known,
            energy_cov=costs.energy_cov * known if joint else None,
            duration_s=costs.duration_s,
            layers=layers,
            unseen_share=tuple(shares.tolist()) if is_seen else (1.0,) * len(networks),
            duration_sd_s=np.sqrt(costs.duration_variance),
            notes=tuple(notes),
        )


@dataclass(frozen=True)
class KernelSums:
    """Networks as sums of distinct kernels.

    Attributes:
        kernels: The distinct kernels of all networks.
        counts: How often each network runs each kernel, networks x kernels.
    """

    kernels: tuple[FusedKernel, ...]
    counts: Floats

    @classmethod
    def of_networks(cls, networks: Sequence[Sequence[FusedKernel]]) -> KernelSums:
        """Return the sums of networks whose kernels are given."""
        merged = [merge_kernels(kernels) for kernels in networks]
        places: dict[FusedKernel, int] = {}
        for kernel in (one for kernels in merged for one in kernels):
            places.setdefault(kernel, len(places))
        counts = np.zeros((len(networks), len(places)))
        for row, kernels in enumerate(merged):
            for kernel in kernels:
                counts[row, places[kernel]] = kernel.count
        return cls(tuple(places), counts)


@dataclass(frozen=True)
class SumCosts:
    """Costs of networks, and of each distinct kernel in joules."""

    energy_j: Floats
    energy_cov: Floats
    duration_s: Floats
    duration_variance: Floats
    power_log_variance: Floats
    kernel_energy_j: Floats


def predict_sums(model: SetupModel, sums: KernelSums) -> SumCosts:
    """Return the costs of networks as sums of their kernels, with the overhead of a run."""
    log_s, cov_s = model.duration.predict(sums.kernels)
    log_w, cov_w = model.power.predict(sums.kernels)
    variance_s = np.diag(cov_s)
    kernel_s = np.exp(log_s + variance_s / 2.0)
    kernel_j = np.exp(log_s + log_w + (variance_s + np.diag(cov_w)) / 2.0)
    duration_s, cov_duration = _add_up(sums, kernel_s, cov_s, (model.duration.factor,))
    factors = (model.duration.factor, model.power.factor)
    energy_j, cov_energy = _add_up(sums, kernel_j, cov_s + cov_w, factors)
    power_cov = _add_up(sums, kernel_j, cov_w, (model.power.factor,))[1]
    return SumCosts(
        energy_j + model.overhead.energy_j,
        cov_energy,
        duration_s + model.overhead.duration_s,
        np.diag(cov_duration),
        np.log1p(np.diag(power_cov) / np.maximum(energy_j, 1e-30) ** 2),
        kernel_j,
    )


def name_main(kind: str) -> str:
    """Return the name of the regression that kinds with the same main operator share."""
    return f"{kind.split('+', 1)[0]}+..."


def group_places(values: Sequence[T]) -> dict[T, list[int]]:
    """Return the positions of each distinct value."""
    groups: dict[T, list[int]] = {}
    for at, value in enumerate(values):
        groups.setdefault(value, []).append(at)
    return groups


def _add_up(
    sums: KernelSums, costs: Floats, log_cov: Floats, factors: Sequence[SumFactor]
) -> tuple[Floats, Floats]:
    """Return the sums of log-normal costs, times factors, and their covariance."""
    scale = float(np.exp(sum(factor.log_mean for factor in factors)))
    weights = sums.counts * costs * scale
    totals = weights.sum(axis=1)
    cov = weights @ np.expm1(log_cov) @ weights.T
    common = sum(factor.log_variance for factor in factors)
    scatter = sum(factor.scatter_variance for factor in factors)
    # Equal networks have equal errors.
    _, numbers = np.unique(sums.counts, axis=0, return_inverse=True)
    equal = np.equal.outer(numbers.ravel(), numbers.ravel())
    return totals, cov + np.outer(totals, totals) * (common + scatter * equal)


def _list_layers(
    network: Network,
    kernels: Sequence[FusedKernel],
    sums: KernelSums,
    costs: SumCosts,
    row: int,
    is_seen: bool,
) -> tuple[LayerEstimate, ...]:
    """Return the energy of each layer; the overhead of the run is divided like the kernels'."""
    owners = [at for at, layer in enumerate(network.layers) for _ in unfold_blocks([layer])]
    energies = np.zeros(len(network.layers))
    places = {kernel: at for at, kernel in enumerate(sums.kernels)}
    for kernel in kernels:
        for layer, share in kernel.layers:
            energy_j = costs.kernel_energy_j[places[kernel]] * kernel.count * share
            energies[owners[layer]] += energy_j
    total = energies.sum()
    energies = energies * (costs.energy_j[row] / total) if total else energies
    return tuple(
        LayerEstimate(layer.name or layer.kind, layer.kind, energy_j, layer.calls, is_seen)
        for layer, energy_j in zip(network.layers, energies.tolist(), strict=True)
    )


FEWEST_POINTS = 3
"""Kernels of a kind that its regression needs."""
_LARGEST_ALIGNMENT = 8


class KernelRegression(Protocol):
    """A fitted regression of one kind of kernel."""

    @property
    def count(self) -> int:
        """Number of kernels that it was fitted to."""

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance."""

    def to_dict(self) -> Json:
        """Return JSON from which it is restored."""


@dataclass(frozen=True)
class ProcessRegression(Record):
    """A Gaussian process around a linear function of work.

    Attributes:
        names: Names of the features.
        mean: The mean; its rates are those of one kind.
        process: The residuals.
    """

    names: tuple[str, ...]
    mean: WorkMean
    process: ResidualProcess

    @property
    def count(self) -> int:
        """Number of kernels that it was fitted to."""
        return len(self.process.residuals)

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance."""
        mean, cov = self.process.predict(list_log_features(kernels, self.names))
        cov = cov + np.eye(len(kernels)) * self.process.point_variance
        return self.mean.log_costs(kernels) + mean, cov


def fit_process(
    kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool = True
) -> ProcessRegression:
    """Fit a Gaussian process to the costs of kernels of one kind.

    Costs are durations, powers or energies; ``by_work`` says whether they grow with the work.
    """
    names, mean = name_features(kernels), fit_mean(kernels, costs, by_work)
    residuals = np.log(costs) - mean.log_costs(kernels)
    points = list_log_features(kernels, names)
    return ProcessRegression(names, mean, fit_residual_process(points, residuals, sd_shares**2))


def name_features(kernels: Sequence[FusedKernel]) -> tuple[str, ...]:
    """Return the names of all features of some kernels."""
    return tuple(sorted({name for kernel in kernels for name in kernel.features}))


def list_features(kernels: Sequence[FusedKernel], names: Sequence[str]) -> Floats:
    """Return the features of kernels, n x d; 0 for those that a kernel does not have."""
    return np.array([[float(one.features.get(name, 0.0)) for name in names] for one in kernels])


def list_log_features(kernels: Sequence[FusedKernel], names: Sequence[str]) -> Floats:
    """Return logarithms of the features of kernels, of the bytes they move and of their alignment.

    The alignment is the power of two, up to 8, that divides the last axis of the output: kernels
    compute tiles, and the tiles of an image of 13 x 13 are not full.
    """
    moved = [[one.size_bytes] for one in kernels]
    last_axes = [(1, *output_shape(one.network.layers[-1]))[-1] for one in kernels]
    aligned = [[math.log2(math.gcd(last, _LARGEST_ALIGNMENT))] for last in last_axes]
    logs = np.log1p(np.hstack([list_features(kernels, names), moved]))
    return np.asarray(np.hstack([logs, aligned]))


def fit_mean(kernels: Sequence[FusedKernel], costs: Floats, by_work: bool) -> WorkMean:
    """Return the cost of the kernels' work; without ``by_work`` their geometric mean."""
    if by_work:
        return fit_work_mean([(replace(kernel, count=1),) for kernel in kernels], costs)
    level = math.exp(float(np.log(costs).mean()))
    return WorkMean((0.0, 0.0, 0.0, level), 0.0, len(costs))


# Without any error to learn from, a linear function of work is off by about this much.
_UNKNOWN_LOG_SD = 0.5
_LEAST_LOG_SD = 0.2


@dataclass(frozen=True)
class WorkMean(Record):
    """Cost per FLOP, per byte, per FLOP of an output element and per kernel.

    Attributes:
        rates: a, b, c and d.
        log_sd: Standard deviation of the logarithm of a cost around it.
        count: Number of costs that it was fitted to.
    """

    rates: tuple[float, ...]
    log_sd: float
    count: int

    def log_costs(self, kernels: Sequence[FusedKernel]) -> Floats:
        """Return the logarithm of the cost of each kernel."""
        return np.asarray(np.log(np.maximum(count_kernels(kernels) @ np.array(self.rates), 1e-30)))


def count_kernels(kernels: Sequence[FusedKernel]) -> Floats:
    """Return FLOPs, bytes, depth (FLOPs of one output element) and 1 for each kernel."""
    rows = []
    for one in kernels:
        outputs = one.batch * math.prod(output_shape(one.network.layers[-1]))
        rows.append([one.flops, one.size_bytes, one.flops / max(1, outputs), 1.0])
    return np.array(rows)


def fit_work_mean(groups: Sequence[Sequence[FusedKernel]], costs: Floats) -> WorkMean:
    """Fit the costs of groups of kernels that ran together, each by its count."""
    counts = [np.array([one.count for one in group], float) for group in groups]
    pairs = zip(counts, map(count_kernels, groups), strict=True)
    work = np.array([own @ kernels for own, kernels in pairs])
    rates, error_share = fit_work_rates(work, costs, costs)
    freedom = len(costs) - int((rates > 0).sum())
    log_sd = _UNKNOWN_LOG_SD
    if freedom > 0:
        log_sd = max(_LEAST_LOG_SD, error_share * (len(costs) / freedom) ** 0.5)
    return WorkMean(tuple(rates.tolist()), log_sd, len(costs))


# Measurements repeat to about this much at best, whatever their rounds say.
_LEAST_SD_SHARE = 0.01
# At least this share of what was measured belongs to the kernels, whatever the overhead.
_LEAST_KERNEL_SHARE = 0.1


@dataclass(frozen=True)
class CostPoint:
    """The cost of kernels that ran together, without the overhead of the run.

    Attributes:
        kernels: Distinct kernels with their counts; one for a kernel that ran alone.
        duration_s: Time of all of them.
        duration_sd_share: Its standard deviation as a share of it.
        power_w: Mean power meanwhile; None if only the time was measured.
        power_sd_share: Its standard deviation as a share of it.
    """

    kernels: tuple[FusedKernel, ...]
    duration_s: float
    duration_sd_share: float
    power_w: float | None = None
    power_sd_share: float = 0.0

    @property
    def is_single(self) -> bool:
        """Whether it shows one kernel alone."""
        return len(self.kernels) == 1


@dataclass(frozen=True)
class RunOverhead:
    """What a run costs before its first kernel."""

    duration_s: float = 0.0
    energy_j: float = 0.0


def is_readable(observation: Observation) -> bool:
    """Return whether an observation is a whole eager step whose duration was measured."""
    trial = observation.trial
    is_step = trial.execution.stage == "step" and trial.execution.mode == "eager"
    return is_step and bool(trial.network.layers and observation.duration_s)


def make_overhead_trial(setup: Setup) -> Trial:
    """Return the trial that shows the overhead of a run: one ReLU of one number."""
    relu = make_layer("elementwise", fn="relu", shape=(1,))
    layer = replace(relu, trains=False, input_grad=False)
    return Trial(Network((layer,), Input((1,))), replace(setup, batch=1))


def group_by_setup(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    """Return readable observations by the key of their setup."""
    groups: dict[str, list[Observation]] = {}
    for seen in observations:
        if is_readable(seen):
            groups.setdefault(name_setup(seen.trial.setup), []).append(seen)
    return groups


def name_setup(setup: Setup) -> str:
    """Return the key of a setup; batch sizes are features, and inference has no loss."""
    default = Setup()
    optimizer = setup.optimizer if setup.phase == "train" else default.optimizer
    return setup_key(replace(setup, batch=1, loss=default.loss, optimizer=optimizer))


def read_points(
    observations: Sequence[Observation], table: FusionTable
) -> tuple[RunOverhead, tuple[CostPoint, ...]]:
    """Return the overhead of a run, and the costs of kernels and networks, under one setup."""
    runs = [seen for seen in observations if _is_empty_graph(seen.trial)]
    durations_s = [_per_step(seen, seen.duration_s) for seen in runs]
    energies_j = [_per_step(seen, seen.energy_j) for seen in runs if seen.energy_j]
    overhead = RunOverhead(
        median_high(durations_s) if durations_s else 0.0,
        median_high(energies_j) if energies_j else 0.0,
    )
    points = (_read_point(seen, table, overhead) for seen in observations)
    return overhead, tuple(sorted((one for one in points if one), key=_order_point))


# A campaign reads all of its observations before every proposal.
@lru_cache(maxsize=16384)
def list_distinct_kernels(network: Network, setup: Setup, table: str) -> tuple[FusedKernel, ...]:
    """Return the distinct kernels of a network, with their counts."""
    return merge_kernels(list_kernels(network, setup, FUSION_TABLES[table]))


def _is_empty_graph(trial: Trial) -> bool:
    return trial.network == make_overhead_trial(trial.setup).network


def _read_point(seen: Observation, table: FusionTable, overhead: RunOverhead) -> CostPoint | None:
    trial = seen.trial
    if _is_empty_graph(trial):
        return None
    kernels = list_distinct_kernels(trial.network, trial.setup, table.name)
    if not kernels:
        return None
    copies = trial.execution.copies
    kernels = tuple(replace(one, count=one.count * copies) for one in kernels)
    run_s = _per_step(seen, seen.duration_s)
    duration_s = max(run_s - overhead.duration_s, _LEAST_KERNEL_SHARE * run_s)
    # What the overhead takes away leaves the noise as it is.
    duration_sd_share = _sd_share(seen.duration_sd_s, seen.duration_s) * run_s / duration_s
    if not seen.energy_j:
        return CostPoint(kernels, duration_s, duration_sd_share)
    run_j = _per_step(seen, seen.energy_j)
    energy_j = max(run_j - overhead.energy_j, _LEAST_KERNEL_SHARE * run_j)
    power_sd_share = _sd_share(seen.energy_sd_j, seen.energy_j) * run_j / energy_j
    return CostPoint(kernels, duration_s, duration_sd_share, energy_j / duration_s, power_sd_share)


def _per_step(seen: Observation, total: float | None) -> float:
    return (total or 0.0) / seen.trial.execution.steps


def _sd_share(sd: float | None, value: float | None) -> float:
    return max(_LEAST_SD_SHARE, (sd or 0.0) / value) if value else _LEAST_SD_SHARE


def _order_point(point: CostPoint) -> tuple[object, ...]:
    """Return what points are sorted by, so that the order of observations does not matter."""
    kinds = [(one.kind, tuple(one.features.items()), one.count) for one in point.kernels]
    return (repr(kinds), point.duration_s, point.power_w or 0.0)
