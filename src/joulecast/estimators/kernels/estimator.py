"""Estimate networks as sums of fused kernels, each kind with a Gaussian process around its work.

For inference runtimes, which fuse operators (``onnx_nets.fusion``). Durations and mean powers are
those of kernels that ran alone; whole networks show how far the sum of kernels is off.

A campaign measures the overhead of a run, two kernels of every kind that the target runs, up to
three whole networks and two more kernels of every kind, spread over their work. From then on,
whatever reduces the variance of the target's totals most for the device time:

    w_ik      share of kernel k in the cost of network i
    C         covariance of the logarithms of the kernels' costs
    r_c       = mean over i of (Σ_k w_ik·C_kc)² / (C_cc + noise)      by measuring kernel c
    next      = argmax r_c / seconds
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from joulecast.estimators.base import Fitted, Floats, Json, Proposal, Target, decline_probes
from joulecast.estimators.kernels.fitted_kernels import (
    FEWEST_POINTS,
    CostModel,
    CostPoint,
    FittedKernels,
    KernelRegression,
    KernelSums,
    ProcessRegression,
    RunOverhead,
    SetupModel,
    SumFactor,
    WorkMean,
    fit_process,
    fit_work_mean,
    group_by_setup,
    group_places,
    is_readable,
    list_distinct_kernels,
    make_overhead_trial,
    name_main,
    predict_sums,
    read_points,
)
from joulecast.onnx_nets.fusion import FusedKernel, find_fusion_table
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.system.errors import MissingError
from joulecast.variants import BLOCK, Part, make_isolated_trial

FitRegression = Callable[[Sequence[FusedKernel], Floats, Floats, bool], KernelRegression]

# Priors of the factor of whole networks over the sum of their kernels: what is in a cache when a
# kernel starts is different, and so is the clock. Standard deviations of logarithms.
_FACTOR_LOG_SD = 0.1
_SCATTER_LOG_SD = 0.03
# Observations that the scatter's prior counts for.
_SCATTER_WEIGHT = 4.0
NO_FACTOR = SumFactor(0.0, _FACTOR_LOG_SD**2, _SCATTER_LOG_SD**2)
# Kernels of each kind that are measured before anything is compared.
_FIRST_KERNELS = 4
_BEFORE_NETWORKS = 2
_WHOLE_NETWORKS = 3
# Only this many kernels of a kind, the costliest, are compared: the rest is like them.
_MOST_COMPARED = 250
# Setting up a trial takes about this long, whatever it runs.
_TRIAL_S = 1.0
_NOISE_VARIANCE = 0.02**2


class KernelProcessEstimator:
    """Sums of kernels, each kind with a Gaussian process; rivals have another regression."""

    name = "kernel-gp"
    version = 2
    uses_anchors = False
    regression = ProcessRegression

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is an eager step of a kernel or a network."""
        return is_readable(observation)

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
        groups = group_by_setup(observations)
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
        models = {key: fit_setup(*points[key], self._get_fit()) for key in order}
        seen = sum(map(len, groups.values()))
        table = find_fusion_table(runtime, Setup())
        return FittedKernels(table.name, models, seen, self.version)

    def load(self, data: Json) -> FittedKernels:
        """Restore a fit from its JSON."""

        def load_cost(cost: Json) -> CostModel:
            kinds = {key: self.regression.from_dict(one) for key, one in cost["kinds"].items()}
            factor = SumFactor.from_dict(cost["factor"])
            return CostModel(kinds, WorkMean.from_dict(cost["mean"]), factor)

        models = {
            key: SetupModel(
                RunOverhead(*one["overhead"]), load_cost(one["duration"]), load_cost(one["power"])
            )
            for key, one in data["setups"].items()
        }
        return FittedKernels(data["table"], models, data["seen"], data["version"])

    def _get_fit(self) -> FitRegression:
        return fit_process


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
    if not places:
        mean = WorkMean((0.0, 0.0, 0.0, 1.0), 0.5, 0)
    elif by_work:
        mean = fit_work_mean([points[at].kernels for at in places], costs[places])
    else:
        logs = np.log(costs[places])
        level, log_sd = float(np.exp(logs.mean())), float(max(0.1, logs.std()))
        mean = WorkMean((0.0, 0.0, 0.0, level), log_sd, len(places))
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
    bare = replace(model, overhead=type(model.overhead)())
    costs = predict_sums(bare, KernelSums.of_networks([point.kernels for point in networks]))
    durations = np.array([point.duration_s for point in networks])
    own_variance = costs.duration_variance / costs.duration_s**2
    common = model.duration.factor.log_variance + model.duration.factor.scatter_variance
    variance = np.maximum(own_variance - common, 0.0)
    duration = _fit_factor(np.log(durations / costs.duration_s), variance)
    powers = np.array([point.power_w or np.nan for point in networks])
    ratios = np.log(powers / (costs.energy_j / costs.duration_s))
    has_power = np.isfinite(ratios)
    power = model.power.factor
    if has_power.any():
        spread = np.maximum(costs.power_log_variance - common, 0.0)
        power = _fit_factor(ratios[has_power], spread[has_power])
    return replace(
        model,
        duration=replace(model.duration, factor=duration),
        power=replace(model.power, factor=power),
    )


def _fit_factor(log_ratios: Floats, variances: Floats) -> SumFactor:
    """Return the posterior of the factor: networks vary around it, and their kernels are unsure."""
    scatter = _SCATTER_LOG_SD**2
    for _ in range(3):
        precisions = 1.0 / (variances + scatter)
        variance = 1.0 / (1.0 / _FACTOR_LOG_SD**2 + precisions.sum())
        mean = variance * (precisions * log_ratios).sum()
        squares = np.maximum((log_ratios - mean) ** 2 - variances, 0.0)
        weight = _SCATTER_WEIGHT + len(log_ratios)
        scatter = (_SCATTER_WEIGHT * _SCATTER_LOG_SD**2 + squares.sum()) / weight
    return SumFactor(float(mean), float(variance), float(scatter), len(log_ratios))


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
    return make_isolated_trial(Part(BLOCK, kernel.network.layers), target.setup)


def _list_first(
    target: Target, networks: Sequence[Network], sums: KernelSums
) -> Iterable[tuple[Trial, str]]:
    """Yield what is measured before anything is known, and why."""
    yield make_overhead_trial(target.setup), "the overhead of a run"
    first = [
        (number, make_kernel_trial(kernel, target), _describe(kernel))
        for kernel, number in _spread_kinds(sums)
    ]
    for number, trial, name in first:
        if number < _BEFORE_NETWORKS:
            yield trial, f"{name}, {number + 1} of the first of its kind"
    for network in [one for one in networks if one.buildable][:_WHOLE_NETWORKS]:
        reason = f"{network.name or 'a network'}, to compare with the sum of its kernels"
        yield Trial(network, target.setup), reason
    for number, trial, name in first:
        if number >= _BEFORE_NETWORKS:
            yield trial, f"{name}, {number + 1} of the first of its kind"


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
