"""Estimate networks as sums of fused kernels, each kind with a Gaussian process around its work.

For inference runtimes, which fuse operators (``onnx_nets.fusion``). Durations and mean powers are
those of kernels that ran alone; whole networks show how far the sum of kernels is off.

    t_k, p_k      duration and power of kernel k, log-normal, jointly within a kind
    T = T₀ + f·Σ n_k·t_k                 f: factor of whole networks over the sum of their kernels
    E = E₀ + g·Σ n_k·t_k·p_k             T₀, E₀: overhead of a run, such as its call
    cov(x_i, x_j) = x_i·x_j·(exp(C_ij) - 1)      C: covariance of the logarithms

The logarithm of a cost is a Gaussian process over the logarithms of a kernel's features, around

    cost ≈ a·FLOPs + b·bytes + c·depth + d     all ≥ 0, by least squares of relative errors
    depth = FLOPs of one output element

Kinds that were never measured cost what their work costs in other kernels, with errors that are
common to the kind. The overhead is that of the smallest graph, one ReLU of one number; 0 where none
was observed.

A campaign measures the overhead of a run, two kernels of every kind that the target runs, up to
three whole networks and two more kernels of every kind, spread over their work. From then on,
whatever reduces the variance of the target's totals most for the device time:

    w_ik      share of kernel k in the cost of network i
    r_c       = mean over i of (Σ_k w_ik·C_kc)² / (C_cc + noise)      by measuring kernel c
    next      = argmax r_c / seconds
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median_high
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from joulecast.estimators.base import (
    FitComponent,
    Fitted,
    FittedBySetup,
    Floats,
    Json,
    Prediction,
    Proposal,
    Target,
    decline_probes,
    fit_work_rates,
    list_layers,
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
from joulecast.records.codec import Record, add_codec, always_stored
from joulecast.system.errors import MissingError
from joulecast.variants import REPEATED, Block, make_isolated_trial, unfold_blocks

T = TypeVar("T")
FitRegression = Callable[[Sequence[FusedKernel], Floats, Floats, bool], "KernelRegression"]

# Priors of the factor of whole networks over the sum of their kernels: what is in a cache when a
# kernel starts is different, and so is the clock. Standard deviations of logarithms.
_FACTOR_LOG_SD = 0.1
_SCATTER_LOG_SD = 0.03
# Observations that the scatter's prior counts for.
_SCATTER_WEIGHT = 4.0
# Kernels of each kind that are measured before anything is compared.
_FIRST_KERNELS = 4
_BEFORE_NETWORKS = 2
_WHOLE_NETWORKS = 3
# Only this many kernels of a kind, the costliest, are compared: the rest is like them.
_MOST_COMPARED = 250
# Setting up a trial takes about this long, whatever it runs.
_TRIAL_S = 1.0
_NOISE_VARIANCE = 0.02**2


FEWEST_POINTS = 3
"""Kernels of a kind that its regression needs."""
_LARGEST_ALIGNMENT = 8


# Without any error to learn from, a linear function of work is off by about this much.
_UNKNOWN_LOG_SD = 0.5
_LEAST_LOG_SD = 0.2
_LEAST_LEVEL_LOG_SD = 0.1


# Measurements repeat to about this much at best, whatever their rounds say.
_LEAST_SD_SHARE = 0.01
# At least this share of what was measured belongs to the kernels, whatever the overhead.
_LEAST_KERNEL_SHARE = 0.1


class KernelProcessEstimator:
    """Sums of kernels, each kind with a Gaussian process; rivals have another regression."""

    name = "kernel-gp"
    version = 2
    uses_anchors = False

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is a whole eager step whose duration was measured."""
        trial = observation.trial
        is_step = trial.execution.stage == "step" and trial.execution.mode == "eager"
        return is_step and bool(trial.network.layers and observation.duration_s)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the kernels of the target, and then what reduces its variance most."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        # Rivals share this campaign: only a covariance can guide it.
        return propose_kernel(target, observations, KernelProcessEstimator().fit)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedKernels:
        """Fit the kernels of every setup."""
        groups: dict[str, list[Observation]] = {}
        for seen in filter(self.uses, observations):
            groups.setdefault(name_setup(seen.trial.setup), []).append(seen)
        if not groups:
            raise MissingError(
                f"no step was observed on this device that {self.name} can learn from: profile a "
                "net there first"
            )
        runtime = next((seen.runtime for seen in observations if seen.runtime), "")
        points = {
            key: read_points(group, find_fusion_table(runtime, group[0].trial.setup))
            for key, group in groups.items()
        }
        points = {key: one for key, one in points.items() if one[1]}
        if not points:
            raise MissingError("only empty graphs were observed on this device: profile a net")
        order = sorted(points, key=lambda key: (-len(points[key][1]), key))
        models = {key: fit_setup(*points[key], self.fit_kind) for key in order}
        count = sum(map(len, groups.values()))
        table = find_fusion_table(runtime, Setup())
        return FittedKernels(table.name, models, count, self.version)

    def load(self, data: Json) -> FittedKernels:
        """Restore a fit from its JSON."""
        return FittedKernels.from_dict(data)

    @staticmethod
    def fit_kind(
        kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool
    ) -> KernelRegression:
        """Fit the regression of one kind of kernel."""
        return fit_process(kernels, costs, sd_shares, by_work)


def fit_setup(overhead: RunOverhead, points: Sequence[CostPoint], fit: FitRegression) -> SetupModel:
    """Return the model of a setup."""
    metered = [one for one in points if one.power_w]
    durations_s = np.array([one.duration_s for one in points])
    duration_sds = np.array([one.duration_sd_share for one in points])
    powers_w = np.array([one.power_w for one in metered], float)
    power_sds = np.array([one.power_sd_share for one in metered])
    duration = _fit_cost(points, durations_s, duration_sds, True, fit)
    power = _fit_cost(metered, powers_w, power_sds, False, fit)
    return _add_factors(SetupModel(overhead, duration, power), points)


def _fit_cost(
    points: Sequence[CostPoint],
    costs: Floats,
    sd_shares: Floats,
    by_work: bool,
    fit: FitRegression,
) -> CostModel:
    """Return regressions of the kernels that ran alone, and a mean by work for the others."""
    single = [at for at, point in enumerate(points) if point.is_single]
    groups: dict[str, list[int]] = {}
    for at in single:
        (kernel,) = points[at].kernels
        groups.setdefault(kernel.kind, []).append(at)
        groups.setdefault(name_main(kernel.kind), []).append(at)
    regressions = {}
    for kind, places in sorted(groups.items()):
        kernels = tuple(points[at].kernels[0] for at in places)
        if len({kernel.features for kernel in kernels}) >= FEWEST_POINTS:
            own = costs[places]
            if by_work:
                own = own / np.array([kernel.count for kernel in kernels])
            sds = tuple(sd_shares[places])
            regressions[kind] = _fit_cached(fit, kernels, tuple(own), sds, by_work)
    # The mean is that of kernels that ran alone; of whole networks if none did.
    places = single or list(range(len(costs)))
    mean = WorkMean((0.0, 0.0, 0.0, 1.0), 0.5, 0)
    if places:
        mean = fit_mean([points[at].kernels for at in places], costs[places], by_work)
    return CostModel(regressions, mean, NO_FACTOR)


# One more observation changes the regressions of one kind; the others are the same as before.
@lru_cache(maxsize=512)
def _fit_cached(
    fit: FitRegression,
    kernels: tuple[FusedKernel, ...],
    costs: tuple[float, ...],
    sd_shares: tuple[float, ...],
    by_work: bool,
) -> KernelRegression:
    return fit(kernels, np.array(costs), np.array(sd_shares), by_work)


def _add_factors(model: SetupModel, points: Sequence[CostPoint]) -> SetupModel:
    """Return the model with the factors that whole networks show."""
    networks = [point for point in points if not point.is_single]
    if not networks:
        return model
    bare = replace(model, overhead=RunOverhead())
    costs = predict_sums(bare, KernelSums.of_networks([point.kernels for point in networks]))
    durations = np.array([point.duration_s for point in networks])
    powers = np.array([point.power_w or np.nan for point in networks])
    variances = costs.duration_variance / costs.duration_s**2
    duration = _fit_factor(np.log(durations / costs.duration_s), variances)
    ratios = np.log(powers * costs.duration_s / costs.energy_j)
    power = _fit_factor(ratios, costs.power_log_variance)
    return replace(
        model,
        duration=replace(model.duration, factor=duration),
        power=replace(model.power, factor=power),
    )


def _fit_factor(log_ratios: Floats, variances: Floats) -> SumFactor:
    """Return the posterior of the factor: networks vary around it, and their kernels are unsure.

    Ratios may be NaN. Variances contain those of the factor's prior.
    """
    is_known = np.isfinite(log_ratios)
    if not is_known.any():
        return NO_FACTOR
    common = NO_FACTOR.log_variance + NO_FACTOR.scatter_variance
    log_ratios, variances = log_ratios[is_known], np.maximum(variances[is_known] - common, 0.0)
    scatter = NO_FACTOR.scatter_variance
    for _ in range(3):
        precisions = 1.0 / (variances + scatter)
        variance = 1.0 / (1.0 / NO_FACTOR.log_variance + precisions.sum())
        mean = variance * (precisions * log_ratios).sum()
        squares = np.maximum((log_ratios - mean) ** 2 - variances, 0.0)
        weight = _SCATTER_WEIGHT + len(log_ratios)
        scatter = (_SCATTER_WEIGHT * NO_FACTOR.scatter_variance + squares.sum()) / weight
    return SumFactor(float(mean), float(variance), float(scatter), len(log_ratios))


@dataclass(frozen=True)
class SumFactor(Record):
    """The factor of whole networks over the sum of their kernels, log-normal.

    Attributes:
        log_variance: Variance of it, common to all networks.
        scatter_variance: Variance of the logarithm of single networks around it.
    """

    log_mean: float
    log_variance: float
    scatter_variance: float
    count: int = 0


NO_FACTOR = SumFactor(0.0, _FACTOR_LOG_SD**2, _SCATTER_LOG_SD**2)


@dataclass(frozen=True)
class CostModel(Record):
    """A cost of kernels, duration or power, under one setup.

    Attributes:
        regressions: By kind, and by main operator for kinds that have none.
        mean: Cost by work, for kernels without a regression.
        factor: What whole networks cost more than their kernels.
    """

    regressions: Mapping[str, KernelRegression] = always_stored(json_name="kinds")
    mean: WorkMean = always_stored()
    factor: SumFactor = always_stored()

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


class RunOverhead(NamedTuple):
    """What a run costs before its first kernel."""

    duration_s: float = 0.0
    energy_j: float = 0.0


add_codec(RunOverhead, list, lambda values: RunOverhead(*values))


@dataclass(frozen=True)
class SetupModel(Record):
    """Durations and powers under one setup."""

    overhead: RunOverhead
    duration: CostModel
    power: CostModel

    @property
    def has_powers(self) -> bool:
        """Whether any power was measured; if none was, it counts as 1 W."""
        return bool(self.power.mean.count)


@dataclass(frozen=True)
class FittedKernels(FittedBySetup, Record):
    """Regressions of kernels by setup.

    Attributes:
        table: Name of the fusion table of all setups that are not compiled.
        models: By the key of a setup; that of most points is first and serves other setups.
    """

    table: str
    models: Mapping[str, SetupModel] = always_stored(json_name="setups")
    observation_count: int = always_stored(json_name="seen")
    version: int = always_stored()

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

    def find_model(self, setup: Setup) -> tuple[SetupModel, bool]:
        """Return the model of a setup, and whether that setup was measured."""
        key = name_setup(setup)
        if key in self.models:
            return self.models[key], True
        return next(iter(self.models.values())), False

    def predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        table = find_fusion_table(self.table, setup)
        model, is_seen = self.find_model(setup)
        own = [list_kernels(network, setup, table) for network in networks]
        sums = KernelSums.of_networks(own)
        costs = predict_sums(model, sums)
        # Without a measured power, kernels count by their time.
        known = 1.0 if model.has_powers else np.nan
        kinds = {kernel.kind for kernel in sums.kernels}
        unseen = {kind for kind in kinds if model.duration.find_regression(kind) is None}
        is_unseen = np.array([kernel.kind in unseen for kernel in sums.kernels], bool)
        notes = []
        for kernels in own:
            named = ", ".join(sorted(unseen.intersection(kernel.kind for kernel in kernels)))
            note = f"kernels that were never measured on this device: {named}"
            notes.append((note,) * bool(named))
        kernel_j = sums.counts * costs.kernel_energy_j
        shares = kernel_j @ is_unseen / np.maximum(kernel_j.sum(axis=1), 1e-30)
        unseen_shares = np.minimum(shares, 1.0) if is_seen else np.ones(len(networks))
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
            unseen_share=tuple(unseen_shares.tolist()),
            duration_sd_s=np.sqrt(costs.duration_variance),
            notes=tuple(notes),
        )


@dataclass(frozen=True)
class KernelSums:
    """Networks as sums of distinct kernels."""

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
    return list_layers(network.layers, energies.tolist(), is_seen)


class KernelRegression(Protocol):
    """A fitted regression of one kind of kernel; ``count`` is the number of its kernels."""

    @property
    def count(self) -> int: ...

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        """Return the mean of the logarithm of each cost and their joint covariance."""

    def to_dict(self) -> Json:
        """Return JSON from which it is restored."""


@dataclass(frozen=True)
class ProcessRegression(Record):
    """A Gaussian process around a linear function of work."""

    names: tuple[str, ...]
    mean: WorkMean
    process: ResidualProcess

    @property
    def count(self) -> int:
        return len(self.process.residuals)

    def predict(self, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
        mean, cov = self.process.predict(list_log_features(kernels, self.names))
        cov = cov + np.eye(len(kernels)) * self.process.point_variance
        return self.mean.log_costs(kernels) + mean, cov


REGRESSIONS: dict[str, type[Record]] = {"process": ProcessRegression}
"""Classes of regressions, each by a field that only it has."""


def _load_regression(data: Json) -> Any:
    for name, regression in REGRESSIONS.items():
        if name in data:
            return regression.from_dict(data)
    raise LookupError(f"give one with {' or '.join(REGRESSIONS)}")


add_codec(KernelRegression, lambda regression: regression.to_dict(), _load_regression)


def fit_process(
    kernels: Sequence[FusedKernel], costs: Floats, sd_shares: Floats, by_work: bool = True
) -> ProcessRegression:
    """Fit a Gaussian process to the costs of kernels of one kind.

    Costs are durations, powers or energies; ``by_work`` says whether they grow with the work.
    """
    names, mean = name_features(kernels), fit_kind_mean(kernels, costs, by_work)
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


def fit_kind_mean(kernels: Sequence[FusedKernel], costs: Floats, by_work: bool) -> WorkMean:
    """Return the mean of one kind, from the cost of each of its kernels."""
    return fit_mean([(replace(kernel, count=1),) for kernel in kernels], costs, by_work)


@dataclass(frozen=True)
class WorkMean(Record):
    """Cost per FLOP, per byte, per FLOP of an output element and per kernel.

    Attributes:
        rates: a, b, c and d.
        log_sd: Standard deviation of the logarithm of a cost around it.
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


def fit_mean(
    groups: Sequence[Sequence[FusedKernel]], costs: Floats, by_work: bool = True
) -> WorkMean:
    """Return what groups of kernels that ran together cost by their work, each by its count.

    Without ``by_work`` it is the geometric mean of the costs.
    """
    if not by_work:
        logs = np.log(costs)
        rates = 0.0, 0.0, 0.0, float(np.exp(logs.mean()))
        return WorkMean(rates, max(_LEAST_LEVEL_LOG_SD, float(logs.std())), len(costs))
    counts = [np.array([one.count for one in group], float) for group in groups]
    pairs = zip(counts, map(count_kernels, groups), strict=True)
    work = np.array([own @ kernels for own, kernels in pairs])
    fitted, error_share = fit_work_rates(work, costs, costs)
    freedom = len(costs) - int((fitted > 0).sum())
    log_sd = _UNKNOWN_LOG_SD
    if freedom > 0:
        log_sd = max(_LEAST_LOG_SD, error_share * (len(costs) / freedom) ** 0.5)
    return WorkMean(tuple(fitted.tolist()), log_sd, len(costs))


@dataclass(frozen=True)
class CostPoint:
    """The cost of kernels that ran together, without the overhead of the run.

    Attributes:
        kernels: Distinct kernels with their counts; one for a kernel that ran alone.
        power_w: Mean power meanwhile; None if only the time was measured.
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


def make_overhead_trial(setup: Setup) -> Trial:
    """Return the trial that shows the overhead of a run: one ReLU of one number."""
    relu = make_layer("elementwise", fn="relu", shape=(1,))
    layer = replace(relu, trains=False, input_grad=False)
    return Trial(Network((layer,), Input((1,))), replace(setup, batch=1))


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


def propose_kernel(
    target: Target,
    observations: Sequence[Observation],
    fit: Callable[[Sequence[Observation]], FittedKernels],
) -> Proposal:
    """Return the next trial for a target, or the reason to stop; ``fit`` knows covariances."""
    runtime = target.runtime or next((one.runtime for one in observations if one.runtime), "")
    table = find_fusion_table(runtime, target.setup)
    tried = {seen.trial.key for seen in observations}
    networks = target.networks or (target.network,)
    own = [list_distinct_kernels(network, target.setup, table.name) for network in networks]
    sums = KernelSums.of_networks(own)
    points = sum(1 for seen in observations if seen.duration_s)
    for trial, reason in _list_first(target, networks, sums):
        if trial.key not in tried:
            return Proposal(trial, 1.0, reason, points)
    fitted = fit(observations)
    model, _ = fitted.find_model(target.setup)
    share = _find_uncertainty(model, sums)
    if share <= target.uncertainty_share:
        reason = f"the uncertainty is {share:.1%}, as low as asked for"
        return Proposal(None, share, reason, points, fitted=fitted)
    for kernel, reduction in _rank_kernels(model, sums):
        trial = make_kernel_trial(kernel, target)
        if trial.key not in tried:
            reason = f"{_describe(kernel)}, {reduction:.1%} of the variance"
            return Proposal(trial, share, reason, points, fitted=fitted)
    reason = "every kernel of the target was measured"
    return Proposal(None, share, reason, points, fitted=fitted)


def make_kernel_trial(kernel: FusedKernel, target: Target) -> Trial:
    """Return the trial that measures a kernel alone, in several copies."""
    return make_isolated_trial(Block(REPEATED, kernel.network.layers), target.setup)


def _list_first(
    target: Target, networks: Sequence[Network], sums: KernelSums
) -> Iterable[tuple[Trial, str]]:
    """Yield what is measured before anything is known, and why."""
    yield make_overhead_trial(target.setup), "the overhead of a run"
    kernels = _spread_kinds(sums)
    buildable = [one for one in networks if one.buildable][:_WHOLE_NETWORKS]
    for is_early in (True, False):
        for kernel, number in kernels:
            if (number < _BEFORE_NETWORKS) == is_early:
                reason = f"{_describe(kernel)}, {number + 1} of the first of its kind"
                yield make_kernel_trial(kernel, target), reason
        for network in buildable if is_early else ():
            reason = f"{network.name or 'a network'}, to compare with the sum of its kernels"
            yield Trial(network, target.setup), reason


def _spread_kinds(sums: KernelSums) -> list[tuple[FusedKernel, int]]:
    """Return the first kernels of each kind, numbered; the kinds with the most work come first."""
    work = sums.counts.sum(axis=0) * np.array([_weigh(one) for one in sums.kernels])
    groups = group_places([kernel.kind for kernel in sums.kernels])
    found = []
    for kind in sorted(groups, key=lambda kind: -float(work[groups[kind]].sum())):
        kernels = [sums.kernels[at] for at in groups[kind] if sums.kernels[at].network.buildable]
        found += [(kernel, number) for number, kernel in enumerate(_spread(kernels))]
    return found


def _spread(kernels: Sequence[FusedKernel]) -> list[FusedKernel]:
    """Return a few kernels that are spread evenly over the logarithm of their work."""
    ordered = sorted(kernels, key=_weigh)
    if len(ordered) <= _FIRST_KERNELS:
        return ordered[::-1]
    weights = np.log([1.0 + _weigh(kernel) for kernel in ordered])
    wanted = np.linspace(weights[-1], weights[0], _FIRST_KERNELS)
    places = [int(np.abs(weights - one).argmin()) for one in wanted]
    # The ends come first: what is between them is known better.
    return [ordered[at] for at in dict.fromkeys((places[0], places[-1], *places))]


def _weigh(kernel: FusedKernel) -> float:
    """Return the work of a kernel, in bytes that take about as long."""
    return kernel.size_bytes + kernel.flops / 30.0


def _find_uncertainty(model: SetupModel, sums: KernelSums) -> float:
    """Return half the 95 % interval of the networks' totals, as a share, on average."""
    costs = predict_sums(model, sums)
    if model.has_powers:
        sds, means = np.sqrt(np.diag(costs.energy_cov)), costs.energy_j
    else:
        sds, means = np.sqrt(costs.duration_variance), costs.duration_s
    return float(np.mean(1.96 * sds / means))


def _rank_kernels(model: SetupModel, sums: KernelSums) -> list[tuple[FusedKernel, float]]:
    """Return kernels by what measuring them is worth, with the variance that it takes away."""
    costs = predict_sums(model, sums)
    spent = sums.counts * costs.kernel_energy_j
    shares = spent / np.maximum(spent.sum(axis=1, keepdims=True), 1e-300)
    ranked: list[tuple[float, float, int]] = []
    total = 0.0
    for places in group_places([kernel.kind for kernel in sums.kernels]).values():
        weights = shares[:, places]
        kept = np.argsort(-weights.sum(axis=0), kind="stable")[:_MOST_COMPARED]
        places, weights = [places[at] for at in kept], weights[:, kept]
        kernels = [sums.kernels[at] for at in places]
        log_s, cov = model.duration.predict(kernels)
        if model.has_powers:
            cov = cov + model.power.predict(kernels)[1]
        explained = weights @ cov
        total += float(np.mean((explained * weights).sum(axis=1)))
        reductions = np.mean(explained**2, axis=0) / (np.diag(cov) + _NOISE_VARIANCE)
        worth = reductions / (_TRIAL_S + np.exp(log_s))
        ranked += [
            (-float(worth[at]), float(reductions[at]), place)
            for at, place in enumerate(places)
            if kernels[at].network.buildable
        ]
    return [
        (sums.kernels[place], reduction / max(total, 1e-300))
        for _, reduction, place in sorted(ranked)
    ]


def _describe(kernel: FusedKernel) -> str:
    names = ("HW", "C_in", "C_out", "KS", "S", "rows", "tokens", "heads")
    features = kernel.features
    sizes = [f"{name} {features[name]:.0f}" for name in names if name in features]
    return f"{kernel.kind} {', '.join(sizes)}".strip()
