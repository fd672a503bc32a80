"""The fitted model of a device, and its predictions for networks given by their layers.

d    = duration of an operator on the device     D = Σ d
p    = power of an operator on the device        G = Σ d·p, its energy
T, E = duration and energy of an eager step, which may wait for the host (``host_time``)

The power of a sum is the mean of its operators' powers over time: Σ d·p / D. The logarithms of D
and of this mean are predicted by two processes, ln G is their sum. A longer duration means lower
rates, so that powers fall with durations: the elasticity of G in D is less than 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.estimators.additive.encode import OperatorEncoder, OperatorSums
from joulecast.estimators.additive.host_time import (
    ROUND_TRIP_S,
    HostTimeModel,
    WaitingStep,
    add_waits,
    combine_times,
    count_launches_outside_blocks,
)
from joulecast.estimators.additive.layers import PlacedLayer, SetupLayer, set_up_layer
from joulecast.estimators.base import DURATION_SUM_ERROR_SD_SHARE
from joulecast.gp.linalg import Floats, WeightedSums
from joulecast.gp.logsums.inputs import LogInputs, LogSums
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    LogPrediction,
    LogSumPosterior,
    condition_logsums,
    posterior_elasticities,
    predict_log_means,
    predict_log_totals,
)
from joulecast.gp.logsums.selection import select_rows
from joulecast.records import LayerEstimate, Network, Setup
from joulecast.variants import Block, make_isolated_network, split_network, unfold_blocks

# Sources of the variance of an energy, as estimates show them.
POWERS = "power of its layers"
DURATIONS = "layers not timed"
HOST_TIME = "host time"
NON_ADDITIVITY = "noise and non-additivity"

# Hyper-parameters that observations have to determine before variances can be believed: with ten
# networks of EC-NAS, 95 % intervals of the MAP estimate hold 72 to 96 %.
_FITTED_PARAMETERS = 6.0
# Operators that observations are selected for; of more, so many evenly spaced ones.
_MAX_QUERIES = 128
# Observations that variances rest on where devices share a process. For an RTX 4090, a V100 and an
# L4 from the catalogue, standard deviations are the same within 1 % with 400 of 2,400 and with 700.
_SHARED_ROWS = 400
# Standard normal values, and their weights, at which hosts are slower or faster than expected.
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()
# Step of the logarithm of durations by which elasticities are found.
_LOG_STEP = 0.2


@dataclass(frozen=True)
class AdditiveModel:
    """A device as `additive` has fitted it.

    Attributes:
        mode: ``graph`` if layers replay graphs, so that host and device time are separate; else
            ``eager``: durations contain both.
        unit: The unit of the device to estimate for; empty for any.
        pause_share: Share of the way from idle power to its own that a device stays at in the
            pauses between kernels.
        sum_error_sd_share: Standard deviation of a network's total around the sum of its layers, as
            a share of the total.
    """

    mode: str
    idle_w: float
    unit: str
    encoder: OperatorEncoder
    duration: FittedLogSums
    power: FittedLogSums
    host_time: HostTimeModel
    sum_error_sd_share: float
    pause_share: float


Posteriors = tuple[LogSumPosterior, LogSumPosterior]
"""Of durations and of powers."""


@dataclass(frozen=True)
class SumPrediction:
    """A process at the operators of sums, and the sums.

    Attributes:
        by_operator: Medians at the operators.
        logs: Posterior of the logarithms of the sums.
        total: Medians of the sums.
    """

    posterior: LogSumPosterior
    inputs: LogInputs
    log_sums: LogSums
    by_operator: Floats
    logs: LogPrediction
    total: Floats

    @property
    def variance(self) -> Floats:
        """Variances of the sums."""
        return np.asarray(self.total**2 * np.expm1(self.logs.log_variance))


@dataclass(frozen=True)
class NetworkTotals:
    """Energy and duration of a step of each of n networks.

    Attributes:
        durations: The device alone: durations of operators and sums.
        operator_j: Energy of each operator on the device alone.
        device_energy_j: Energy of each network on the device alone.
        energy_j: Energy, with waiting for the host.
        duration_s: Duration, with waiting for the host.
        grad_time_j: Derivative of each energy by the logarithm of the time on the device.
        covariance: Joint covariance of the energies without the error of sums, n x n; None unless
            requested.
    """

    sums: OperatorSums
    durations: SumPrediction
    powers: SumPrediction
    operator_j: Floats
    device_energy_j: Floats
    energy_j: Floats
    duration_s: Floats
    duration_var: Floats
    grad_time_j: Floats
    variance_by_source: dict[str, Floats]
    covariance: Floats | None

    @property
    def variance(self) -> Floats:
        """Variance of each network's energy."""
        return np.asarray(sum(self.variance_by_source.values()))

    @property
    def energy_by_operator_j(self) -> dict[SetupLayer, float]:
        """Energies of the operators, also of those that were split into passes."""
        found = dict(zip(self.sums.operators, self.operator_j.tolist(), strict=True))
        for operator, passes in self.sums.passes.items():
            found[operator] = sum(found[one] * count for one, count in passes)
        return found


def predict_totals(
    model: AdditiveModel,
    networks: Sequence[Mapping[SetupLayer, float]],
    sum_error_sd_share: float | Floats,
    joint: bool = False,
    setups: Sequence[Setup] = (),
    between_calls: Sequence[float] = (),
    waiting: Sequence[WaitingStep | None] = (),
    posteriors: Posteriors | None = None,
) -> NetworkTotals:
    """Return energy and duration of networks given by their layers.

    ``sum_error_sd_share`` is the standard deviation of a total around the sum of its layers, as a
    share, of each network or of all. ``setups`` tell how the host issues each network, eagerly by
    default; ``between_calls`` of a batch are in no layer; ``waiting`` are the parts of steps that
    wait for the device. ``posteriors`` are those of ``condition_for``.
    """
    size, sums = len(networks), model.encoder.sum_layers(networks)
    by_time, by_power = posteriors or (model.duration, None)
    durations = predict_durations(model.encoder, by_time, sums, joint)
    powers = predict_powers(model, sums, durations.by_operator, joint, by_power)
    busy_s, device_j = durations.total, durations.total * powers.total
    is_graph = np.array([one.cuda_graphs for one in setups] or [False] * size, bool)
    batches = [max(one.accumulate, 1) for one in setups] or [1] * size
    # What pauses on the device and the host add: nothing where durations contain the host.
    steps_s, steps_j, grad_device = busy_s[:, None], device_j[:, None], np.ones(size)
    weights, paused_s, gap_sd_s = np.ones(1), np.zeros(size), np.zeros(size)
    # Pauses of microseconds are too short for the power to fall to idle; in a graph they are the
    # start of kernels, which draws next to nothing.
    running = np.where(is_graph, 0.0, model.pause_share)
    if model.mode == "graph":
        times = model.host_time
        # The host issues a graph with one call.
        host_s, host_log_sd = np.zeros(size), np.zeros(size)
        for at in np.flatnonzero(~is_graph).tolist():
            calls = between_calls[at] if between_calls else 0.0
            issue = times.predict_issue_time(networks[at], calls, batches[at])
            host_s[at], host_log_sd[at] = issue
        launches = sums.counts.total(np.array([one.launches for one in sums.operators], float))
        outside = list(map(count_launches_outside_blocks, networks))
        launches = np.where(is_graph, outside, launches)
        gaps_s = np.where(is_graph, times.graph_gap_s, times.launch_gap_s) * launches
        gap_sds_s = np.where(is_graph, times.graph_gap_sd_s, times.launch_gap_sd_s) * launches
        # How long a step takes is not linear in the host's time: a faster one does not limit it.
        weights = _NODE_WEIGHTS
        hosts_s = host_s[:, None] * np.exp(np.outer(host_log_sd, _NODES))
        steps_s, _, grads = combine_times(hosts_s, (busy_s + gaps_s)[:, None])
        for at, step in enumerate(waiting):
            if step is not None and not is_graph[at]:
                wait_s = ROUND_TRIP_S * times.pace * hosts_s[at] / host_s[at] * batches[at]
                device_s = float(busy_s[at] + gaps_s[at])
                steps_s[at], grads[at] = add_waits(step, hosts_s[at], device_s, wait_s)
        grad_device = grads @ weights
        paused_s, gap_sd_s = grad_device * gaps_s, grad_device * gap_sds_s
        ran_s = (busy_s + running * paused_s)[:, None]
        steps_j = powers.total[:, None] * ran_s + model.idle_w * np.maximum(steps_s - ran_s, 0.0)
    # Medians, as of all else: the host in the middle.
    energy_j, duration_s = (one[:, weights.size // 2] for one in (steps_j, steps_s))
    host_errors_j = (steps_j - energy_j[:, None]) * np.sqrt(weights)
    host_log_var = (np.log(steps_s / duration_s[:, None]) ** 2) @ weights
    paused_j = running * powers.total * paused_s
    # Of a step that the host binds, more time on the device is less waiting for the host.
    waiting_j = model.idle_w * (grad_device - 1.0) * busy_s
    # The derivative of the logarithm of each energy by that of its duration.
    operator_s, factor = durations.by_operator, np.exp(0.5 * _LOG_STEP)
    lower, upper = (
        model.encoder.encode_powers(sums.operators, operator_s * ratio)
        for ratio in (1.0 / factor, factor)
    )
    by_operator = 1.0 + posterior_elasticities(powers.posterior, lower, upper, _LOG_STEP)
    operator_j = operator_s * powers.by_operator
    elasticity = sums.counts.total(operator_j * by_operator) / sums.counts.total(operator_j)
    active_j = elasticity * (device_j + paused_j) - paused_j
    grad_time_j = np.maximum(active_j + waiting_j, 0.0)
    paused_w = model.idle_w + running * (powers.total - model.idle_w)
    gap_j = paused_w * gap_sd_s
    # Few observations leave hyper-parameters unknown; without any, these are stated, not fitted.
    rows = model.power.observations.size
    widened = 1.0 + _FITTED_PARAMETERS / rows if rows else 1.0
    sources = {
        POWERS: widened * device_j**2 * np.expm1(powers.logs.log_variance),
        DURATIONS: widened * grad_time_j**2 * np.expm1(durations.logs.log_variance),
        HOST_TIME: (host_errors_j**2).sum(axis=1) + gap_j**2,
        NON_ADDITIVITY: (sum_error_sd_share * energy_j) ** 2,
    }
    time_cov, power_cov = durations.logs.log_covariance, powers.logs.log_covariance
    covariance = None
    if time_cov is not None and power_cov is not None:
        covariance = np.outer(device_j, device_j) * np.expm1(power_cov)
        covariance += np.outer(grad_time_j, grad_time_j) * np.expm1(time_cov)
        covariance *= widened
        # All networks have the errors of the host and of pauses in common.
        covariance += host_errors_j @ host_errors_j.T + np.outer(gap_j, gap_j)
    share_var = np.square(sum_error_sd_share) + DURATION_SUM_ERROR_SD_SHARE**2
    device_var = grad_device**2 * durations.variance + gap_sd_s**2
    return NetworkTotals(
        sums=sums,
        durations=durations,
        powers=powers,
        operator_j=operator_j,
        device_energy_j=device_j,
        energy_j=energy_j,
        duration_s=duration_s,
        duration_var=device_var + (np.expm1(host_log_var) + share_var) * duration_s**2,
        grad_time_j=grad_time_j,
        variance_by_source=sources,
        covariance=covariance,
    )


def condition_for(
    model: AdditiveModel, networks: Sequence[Mapping[SetupLayer, float]]
) -> Posteriors:
    """Return the posteriors of durations and powers that predict networks like these."""
    sums = model.encoder.sum_layers(networks)
    durations = predict_durations(model.encoder, model.duration, sums)
    powers = predict_powers(model, sums, durations.by_operator)
    return durations.posterior, powers.posterior


def predict_durations(
    encoder: OperatorEncoder,
    process: FittedLogSums | LogSumPosterior,
    sums: OperatorSums,
    joint: bool = False,
) -> SumPrediction:
    """Return durations of sums over operators on the device."""
    inputs = encoder.encode_durations(sums.operators)
    if isinstance(process, FittedLogSums):
        process = _condition(process, inputs, encoder.hardware is not None)
    operator_s = np.exp(predict_log_means(process, inputs))
    log_sums = sums.make_log_sums(operator_s)
    logs = predict_log_totals(process, inputs, log_sums, joint, np.log(operator_s))
    return SumPrediction(process, inputs, log_sums, operator_s, logs, np.exp(logs.log_mean))


def predict_powers(
    model: AdditiveModel,
    sums: OperatorSums,
    operator_s: Floats,
    joint: bool = False,
    posterior: LogSumPosterior | None = None,
) -> SumPrediction:
    """Return mean powers of sums over operators, given the durations of the operators."""
    inputs = model.encoder.encode_powers(sums.operators, operator_s)
    posterior = posterior or _condition(model.power, inputs, model.encoder.hardware is not None)
    operator_w = np.exp(predict_log_means(posterior, inputs))
    log_sums = weigh_by_time(sums.make_log_sums(operator_s, [model.unit] * sums.size), operator_s)
    logs = predict_log_totals(posterior, inputs, log_sums, joint, np.log(operator_w))
    limit = np.log(model.encoder.power_limit_w)
    logs = replace(logs, log_mean=np.minimum(logs.log_mean, limit))
    return SumPrediction(posterior, inputs, log_sums, operator_w, logs, np.exp(logs.log_mean))


def predict_layer_energies(
    model: AdditiveModel, layers: Sequence[SetupLayer]
) -> tuple[Floats, Floats]:
    """Return the energies of layers that run alone, without a host, and standard deviations."""
    sums = model.encoder.sum_layers([{layer: 1.0} for layer in layers], [False] * len(layers))
    durations = predict_durations(model.encoder, model.duration, sums)
    powers = predict_powers(model, sums, durations.by_operator)
    variance = powers.logs.log_variance + durations.logs.log_variance
    medians_j = durations.total * powers.total
    return np.asarray(medians_j), np.asarray(medians_j * np.sqrt(np.expm1(variance)))


def weigh_by_time(sums: LogSums, durations_s: Floats) -> LogSums:
    """Return sums over durations as means over time."""
    counts = sums.counts
    cost = counts.weight * durations_s[counts.column]
    share = cost / counts.sum_entries(cost)[counts.row]
    return replace(sums, counts=WeightedSums(counts.size, counts.row, counts.column, share))


def attribute_energies(
    networks: Sequence[Network],
    layers: Sequence[Sequence[PlacedLayer]],
    totals: NetworkTotals,
    measured_labels: Collection[str],
) -> tuple[tuple[LayerEstimate, ...], ...]:
    """Return the energy of each layer of each network.

    A layer has its own energy on the device, and a share of waiting for the host by its launches.
    """
    operator_j, device_j = totals.energy_by_operator_j, totals.device_energy_j
    found = []
    for at, (network, placed) in enumerate(zip(networks, layers, strict=True)):
        launches = sum(one.layer.launches * one.count for one in placed)
        waiting_j = float(totals.energy_j[at] - device_j[at]) / max(launches, 1)
        alone_j = [
            sum(operator_j[operator] * count for operator, count in one.layer.own_operators)
            for one in placed
        ]
        isolated_j = sum(own_j * one.count for own_j, one in zip(alone_j, placed, strict=True))
        factor = float(device_j[at]) / max(isolated_j, 1e-300)
        rows = [
            LayerEstimate(one.name or one.kind, one.kind, 0.0, one.calls)
            for one in unfold_blocks(network.layers)
        ]
        for one, own_j in zip(placed, alone_j, strict=True):
            energy_j = factor * own_j + one.layer.launches * waiting_j
            is_seen = all(each.label in measured_labels for each, _ in one.layer.own_operators)
            # The layers of a block share its energy as their own operators would.
            block, start = one.placed_block.block, one.placed_block.index
            weights = [1.0]
            if len(block.layers) > 1:
                weights = [0.0] * len(block.layers)
                for inner in split_network(make_isolated_network(block)):
                    half = inner.block.half_input
                    for offset, layer in enumerate(inner.block.layers):
                        own = set_up_layer(Block("hidden", (layer,), half), one.setup)
                        weights[inner.index + offset] += sum(
                            operator_j.get(operator, 0.0) * count * inner.calls
                            for operator, count in own.own_operators
                        )
            total = sum(weights) or 1.0
            for index, weight in enumerate(weights, start):
                total_j = rows[index].energy_j + energy_j * one.count * (weight / total)
                rows[index] = replace(rows[index], energy_j=total_j, seen=is_seen)
        found.append(tuple(rows))
    return tuple(found)


def _condition(process: FittedLogSums, inputs: LogInputs, is_shared: bool) -> LogSumPosterior:
    """Return the posterior given the observations that matter for operators.

    Where means are known given all observations, only variances depend on the selection: operators
    of many networks are so similar that what matters for some of them matters for all. Of a process
    that several devices share, more observations matter.
    """
    if process.row_weights is not None and inputs.size > _MAX_QUERIES:
        order = np.lexsort((inputs.basis.sum(axis=1), inputs.cells[1]))
        step = -(-inputs.size // _MAX_QUERIES)
        inputs = inputs.take(np.sort(order[::step]))
    limit = _SHARED_ROWS if is_shared else None
    return condition_logsums(process, select_rows(process, inputs, limit))
