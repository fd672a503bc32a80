"""Choose the next kernel to measure.

First the overhead of a run, two kernels of every kind that the target runs, up to three whole
networks and two more kernels of every kind, spread over their work. From then on, whatever reduces
the variance of the target's totals most for the device time:

    w_ik      share of kernel k in the cost of network i
    C         covariance of the logarithms of the kernels' costs
    r_c       = mean over i of (Σ_k w_ik·C_kc)² / (C_cc + noise)      by measuring kernel c
    next      = argmax r_c / seconds
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.base import Floats, Proposal, Target
from joulecast.estimators.kernels.fitted_kernels import (
    FittedKernels,
    KernelSums,
    SetupModel,
    group_places,
    predict_sums,
)
from joulecast.estimators.kernels.kernel_points import list_distinct_kernels, make_overhead_trial
from joulecast.fusion import FusedKernel, find_fusion_table
from joulecast.records import Network, Observation, Trial
from joulecast.variants import BLOCK, Part, make_isolated_trial

Fit = Callable[[Sequence[Observation]], FittedKernels]

# Kernels of each kind that are measured before anything is compared.
_FIRST_KERNELS = 4
_BEFORE_NETWORKS = 2
_WHOLE_NETWORKS = 3
# Only this many kernels of a kind, the costliest, are compared: the rest is like them.
_MOST_COMPARED = 250
# Setting up a trial takes about this long, whatever it runs.
_TRIAL_S = 1.0
_NOISE_VARIANCE = 0.02**2


@dataclass(frozen=True)
class _Candidate:
    """A kernel that could be measured alone, and why."""

    trial: Trial
    reason: str


def propose_kernel(target: Target, observations: Sequence[Observation], fit: Fit) -> Proposal:
    """Return the next trial for a target, or the reason to stop.

    Args:
        target: What profiling is for.
        observations: What was measured so far.
        fit: Fits an estimator that knows covariances.
    """
    runtime = target.runtime or next((one.runtime for one in observations if one.runtime), "")
    table = find_fusion_table(runtime, target.setup)
    tried = {seen.trial.key for seen in observations}
    networks = target.networks or (target.network,)
    own = [list_distinct_kernels(network, target.setup, table.name) for network in networks]
    sums = KernelSums.of_networks(own)
    points = sum(1 for seen in observations if seen.duration_s)
    for candidate in _list_first(target, networks, sums):
        if candidate.trial.key not in tried:
            return Proposal(candidate.trial, 1.0, candidate.reason, points)
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
) -> Iterable[_Candidate]:
    """Yield what is measured before anything is known."""
    yield _Candidate(make_overhead_trial(target.setup), "the overhead of a run")
    first = _spread_kinds(sums)
    for kernel, number in first:
        if number < _BEFORE_NETWORKS:
            yield _make_first(kernel, number, target)
    for network in [one for one in networks if one.buildable][:_WHOLE_NETWORKS]:
        reason = f"{network.name or 'a network'}, to compare with the sum of its kernels"
        yield _Candidate(Trial(network, target.setup), reason)
    for kernel, number in first:
        if number >= _BEFORE_NETWORKS:
            yield _make_first(kernel, number, target)


def _make_first(kernel: FusedKernel, number: int, target: Target) -> _Candidate:
    reason = f"{_describe(kernel)}, {number + 1} of the first of its kind"
    return _Candidate(make_kernel_trial(kernel, target), reason)


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
        cov, durations_s = _predict_kind(model, kernels)
        explained = weights @ cov
        total += float(np.mean((explained * weights).sum(axis=1)))
        reductions = np.mean(explained**2, axis=0) / (np.diag(cov) + _NOISE_VARIANCE)
        worth = reductions / (_TRIAL_S + durations_s)
        ranked += [
            (-float(worth[at]), float(reductions[at]), place)
            for at, place in enumerate(places)
            if kernels[at].network.buildable
        ]
    return [
        (sums.kernels[place], reduction / max(total, 1e-300))
        for _, reduction, place in sorted(ranked)
    ]


def _predict_kind(model: SetupModel, kernels: Sequence[FusedKernel]) -> tuple[Floats, Floats]:
    """Return the covariance of the logarithms of the costs of kernels, and their durations."""
    log_s, cov = model.duration.predict(kernels)
    if model.has_powers:
        cov = cov + model.power.predict(kernels)[1]
    return cov, np.exp(log_s)


def _describe(kernel: FusedKernel) -> str:
    names = ("HW", "C_in", "C_out", "KS", "S", "rows", "tokens", "heads")
    features = kernel.features
    sizes = [f"{name} {features[name]:.0f}" for name in names if name in features]
    return f"{kernel.kind} {', '.join(sizes)}".strip()
