"""The fitted model of a device, and its predictions for networks given by their pieces.

d    = duration of a leaf on the device          D = Σ d
p    = power of a leaf on the device             G = Σ d·p, its energy
T, E = duration and energy of an eager step, which may wait for the host (``host_time``)

The power of a sum is the mean of its leaves' powers over time: Σ d·p / D. The logarithms of D and
of this mean are predicted by two processes, ln G is their sum. A longer duration means lower
rates, so that powers fall with durations: the elasticity of G in D is less than 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecast.estimators.additive.encode import DeviceEncoder, PieceEncoder, PieceSums
from joulecast.estimators.additive.host_time import (
    HostTimeModel,
    combine_times,
    count_launches_outside_blocks,
)
from joulecast.estimators.additive.layers import Piece, PlacedPiece, make_piece
from joulecast.estimators.base import DURATION_SUM_ERROR_SD_SHARE
from joulecast.gp.linalg import Bools, Floats, WeightedSums
from joulecast.gp.logsums.inputs import LogInputs, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums, LogSumPosterior
from joulecast.gp.logsums.selection import condition_for
from joulecast.gp.logsums.totals import (
    LogPrediction,
    posterior_elasticities,
    predict_inputs,
    predict_log_totals,
)
from joulecast.records import LayerEstimate, Network, Setup
from joulecast.variants import Part, make_isolated_network, split_network, unfold_blocks

# Sources of the variance of an energy, as estimates show them.
POWERS = "power of its layers"
DURATIONS = "layers not timed"
HOST_TIME = "host time"
NON_ADDITIVITY = "noise and non-additivity"
# Hyper-parameters that observations have to determine before variances can be believed: with ten
# networks of EC-NAS, 95 % intervals of the MAP estimate hold 72 to 96 %.
_FITTED_PARAMETERS = 6.0
# Leaves that observations are selected for; of more, so many evenly spaced ones.
_MAX_QUERIES = 128
# Observations that variances rest on where devices share a process. For an RTX 4090, a V100 and an
# L4 from the catalogue, standard deviations are the same within 1 % with 400 of 2,400 and with 700.
_SHARED_ROWS = 400
# Step of the logarithm of durations by which elasticities are found.
_LOG_STEP = 0.2


@dataclass(frozen=True)
class AdditiveModel:
    """A device as `additive` has fitted it.

    Attributes:
        mode: ``graph`` if pieces replay graphs, so that host and device time are separate; else
            ``eager``: durations contain both.
        idle_w: Power of the idle device.
        unit: The unit of the device to estimate for; empty for any.
        duration: Durations of leaves on the device.
        power: Powers of leaves on the device.
    """

    mode: str
    idle_w: float
    unit: str
    encoder: DeviceEncoder
    duration: FittedLogSums
    power: FittedLogSums
    host_time: HostTimeModel

    @property
    def has_host_time(self) -> bool:
        """Whether host and device time are separate."""
        return self.mode == "graph"


@dataclass(frozen=True)
class HostIssue:
    """How the host issues a step.

    Attributes:
        unattributed_calls: Calls of a batch that are in no piece.
        is_graph: The step is a CUDA graph, which the host issues with one call.
        batches: Batches of a step, one after another.
    """

    unattributed_calls: float = 0.0
    is_graph: bool = False
    batches: int = 1


@dataclass(frozen=True)
class DeviceTotals:
    """Sums of leaves on the device alone.

    Attributes:
        sums: The sums.
        duration: Durations of leaves and sums.
        power: Powers of leaves and sums.
        elasticity: Derivative of the logarithm of each energy by that of its duration.
    """

    sums: PieceSums
    duration: SumPrediction
    power: SumPrediction
    elasticity: Floats

    @property
    def energy_j(self) -> Floats:
        """Energies of the sums."""
        return np.asarray(self.duration.total * self.power.total)

    @property
    def leaf_j(self) -> Floats:
        """Energies of the leaves."""
        return np.asarray(self.duration.leaf * self.power.leaf)

    @property
    def energy_by_leaf_j(self) -> dict[Piece, float]:
        """Energies of the leaves, also of those that were split into passes."""
        found = dict(zip(self.sums.leaves, self.leaf_j.tolist(), strict=True))
        for leaf, passes in self.sums.passes.items():
            found[leaf] = sum(found[one] * count for one, count in passes)
        return found


@dataclass(frozen=True)
class NetworkTotals:
    """Energy and duration of a step of each of n networks.

    Attributes:
        energy_j: Energy, with waiting for the host.
        device_energy_j: Energy of the device alone.
        covariance: Joint covariance of the energies without the error of sums, n x n; None unless
            requested.
        device: The device alone.
        grad_time_j: Derivative of each energy by the logarithm of the time on the device.
        variance_by_source: Variance of each network's energy by source.
        duration_var: Variance of each network's duration.
    """

    energy_j: Floats
    device_energy_j: Floats
    duration_s: Floats
    covariance: Floats | None
    device: DeviceTotals
    grad_time_j: Floats
    variance_by_source: dict[str, Floats]
    duration_var: Floats

    @property
    def variance(self) -> Floats:
        """Variance of each network's energy."""
        return np.asarray(sum(self.variance_by_source.values()))


def predict_totals(
    model: AdditiveModel,
    networks: Sequence[Mapping[Piece, float]],
    sum_error_sd_share: float | Floats,
    joint: bool = False,
    issues: Sequence[HostIssue] = (),
) -> NetworkTotals:
    """Return energy and duration of networks given by their pieces.

    Args:
        model: The fitted model.
        networks: Pieces of each network and how often a step runs each.
        sum_error_sd_share: Standard deviation of a total around the sum of its pieces, as a share;
            one for each network, or the same for all.
        joint: Whether to return the joint covariance of the energies.
        issues: How the host issues each network; eagerly by default.
    """
    device = predict_device(model, networks, joint)
    busy_s = device.duration.total
    issues = issues or (HostIssue(),) * len(networks)
    host = _predict_host_times(model, networks, issues)
    is_graph = np.array([one.is_graph for one in issues])
    launches = np.where(
        is_graph,
        list(map(count_launches_outside_blocks, networks)),
        _count_launches(device.sums),
    )
    steps = _predict_steps(model, host, is_graph, launches, busy_s)
    # Pauses of microseconds are too short for the power to fall; in a graph they are the start of
    # kernels, which draws next to nothing.
    paused_w = np.where(is_graph, model.idle_w, device.power.total)
    paused_j = paused_w * steps.paused_s
    energy_j = device.energy_j + paused_j
    energy_j = energy_j + model.idle_w * (steps.duration_s - busy_s - steps.paused_s)
    # Of a step that the host binds, more time on the device is less waiting for the host.
    waiting_j = model.idle_w * (steps.grad_device - 1.0) * busy_s
    active_j = device.elasticity * (device.energy_j + paused_j) - paused_j
    grad_time_j = np.maximum(active_j + waiting_j, 0.0)
    host_j, gap_j = model.idle_w * steps.host_sd_s, paused_w * steps.launch_gap_sd_s
    widened = _widen_few(model)
    sources = {
        POWERS: widened * device.energy_j**2 * np.expm1(device.power.logs.log_variance),
        DURATIONS: widened * grad_time_j**2 * np.expm1(device.duration.logs.log_variance),
        HOST_TIME: host_j**2 + gap_j**2,
        NON_ADDITIVITY: (sum_error_sd_share * energy_j) ** 2,
    }
    covariance = _combine_covariances(device, grad_time_j, widened, (host_j, gap_j))
    return NetworkTotals(
        energy_j=energy_j,
        device_energy_j=device.energy_j,
        duration_s=steps.duration_s,
        covariance=covariance,
        device=device,
        grad_time_j=grad_time_j,
        variance_by_source=sources,
        duration_var=steps.duration_var(device.duration.variance, sum_error_sd_share),
    )


def _combine_covariances(
    device: DeviceTotals, grad_time_j: Floats, widened: float, shared: Sequence[Floats]
) -> Floats | None:
    """Return the joint covariance of energies; None unless that of powers and durations is known.

    Args:
        device: The device alone.
        grad_time_j: Derivative of each energy by the logarithm of the time on the device.
        widened: Factor of variances.
        shared: Standard deviations of energies that all networks have in common.
    """
    by_time, by_power = device.duration.logs.log_covariance, device.power.logs.log_covariance
    if by_time is None or by_power is None:
        return None
    covariance = np.outer(device.energy_j, device.energy_j) * np.expm1(by_power)
    covariance += np.outer(grad_time_j, grad_time_j) * np.expm1(by_time)
    covariance *= widened
    for shared_j in shared:
        covariance += np.outer(shared_j, shared_j)
    return np.asarray(covariance)


def predict_device(
    model: AdditiveModel, networks: Sequence[Mapping[Piece, float]], joint: bool = False
) -> DeviceTotals:
    """Return durations and powers of sums over pieces on the device alone."""
    sums = model.encoder.sum_pieces(networks)
    durations = predict_durations(model.encoder, model.duration, sums, joint)
    powers = predict_powers(model, sums, durations.leaf, joint)
    encode, factor = model.encoder.encode_powers, np.exp(0.5 * _LOG_STEP)
    lower, upper = (encode(sums.leaves, durations.leaf * ratio) for ratio in (1.0 / factor, factor))
    by_leaf = 1.0 + posterior_elasticities(powers.posterior, lower, upper, _LOG_STEP)
    leaf_j = durations.leaf * powers.leaf
    elasticity = sums.counts.total(leaf_j * by_leaf) / sums.counts.total(leaf_j)
    return DeviceTotals(sums, durations, powers, elasticity)


@dataclass(frozen=True)
class SumPrediction:
    """A process at the leaves of sums, and the sums.

    Attributes:
        posterior: The process that they were predicted with.
        inputs: The leaves as inputs of it.
        log_sums: The sums over these inputs.
        leaf: Medians at the leaves.
        logs: Posterior of the logarithms of the sums.
    """

    posterior: LogSumPosterior
    inputs: LogInputs
    log_sums: LogSums
    leaf: Floats
    logs: LogPrediction

    @property
    def total(self) -> Floats:
        """Medians of the sums."""
        return np.asarray(np.exp(self.logs.log_mean))

    @property
    def variance(self) -> Floats:
        """Variances of the sums."""
        return np.asarray(self.total**2 * np.expm1(self.logs.log_variance))


def predict_durations(
    encoder: PieceEncoder,
    process: FittedLogSums | LogSumPosterior,
    sums: PieceSums,
    joint: bool = False,
) -> SumPrediction:
    """Return durations of sums over leaves on the device.

    Args:
        encoder: Encodes leaves.
        process: The process of durations, or what it was conditioned on already.
        sums: The sums.
        joint: Whether to return their joint covariance.
    """
    inputs = encoder.encode_durations(sums.leaves)
    if isinstance(process, FittedLogSums):
        posterior = _condition(process, inputs, encoder.hardware is not None)
    else:
        posterior = process
    leaf_s = _predict_medians(posterior, inputs)
    log_sums = sums.make_log_sums(leaf_s)
    logs = predict_log_totals(posterior, inputs, log_sums, joint, np.log(leaf_s))
    return SumPrediction(posterior, inputs, log_sums, leaf_s, logs)


def predict_powers(
    model: AdditiveModel,
    sums: PieceSums,
    leaf_s: Floats,
    joint: bool = False,
    posterior: LogSumPosterior | None = None,
) -> SumPrediction:
    """Return mean powers of sums over leaves, given the durations of the leaves.

    Args:
        model: The fitted model.
        sums: The sums.
        leaf_s: Durations of their leaves.
        joint: Whether to return their joint covariance.
        posterior: The process of powers, if it was conditioned already.
    """
    inputs = model.encoder.encode_powers(sums.leaves, leaf_s)
    is_shared = model.encoder.hardware is not None
    posterior = posterior or _condition(model.power, inputs, is_shared)
    leaf_w = _predict_medians(posterior, inputs)
    log_sums = weigh_by_time(sums.make_log_sums(leaf_s, [model.unit] * sums.size), leaf_s)
    logs = predict_log_totals(posterior, inputs, log_sums, joint, np.log(leaf_w))
    limit = np.log(model.encoder.power_limit_w)
    logs = replace(logs, log_mean=np.minimum(logs.log_mean, limit))
    return SumPrediction(posterior, inputs, log_sums, leaf_w, logs)


def _condition(process: FittedLogSums, inputs: LogInputs, is_shared: bool) -> LogSumPosterior:
    """Return the posterior given the observations that matter for leaves.

    Where means are known given all observations, only variances depend on the selection: leaves of
    many networks are so similar that what matters for some of them matters for all.

    Args:
        process: The process.
        inputs: The leaves.
        is_shared: Whether it has observations of several devices, of which more matter.
    """
    if process.row_weights is not None and inputs.size > _MAX_QUERIES:
        order = np.lexsort((inputs.basis.sum(axis=1), inputs.cells[1]))
        step = -(-inputs.size // _MAX_QUERIES)
        inputs = inputs.take(np.sort(order[::step]))
    return condition_for(process, inputs, limit=_SHARED_ROWS if is_shared else None)


def _predict_medians(posterior: LogSumPosterior, inputs: LogInputs) -> Floats:
    return np.asarray(np.exp(predict_inputs(posterior, inputs, with_variance=False).log_mean))


def _widen_few(model: AdditiveModel) -> float:
    """Return the factor of variances by which few observations leave hyper-parameters unknown."""
    size = model.power.observations.size
    # Without any, hyper-parameters are stated rather than fitted.
    return 1.0 + _FITTED_PARAMETERS / size if size else 1.0


def weigh_by_time(sums: LogSums, durations_s: Floats) -> LogSums:
    """Return sums over durations as means over time."""
    counts = sums.counts
    cost = counts.weight * durations_s[counts.column]
    share = cost / counts.sum_entries(cost)[counts.row]
    return replace(sums, counts=WeightedSums(counts.size, counts.row, counts.column, share))


@dataclass(frozen=True)
class _Steps:
    """Steps of networks, host and device combined.

    Attributes:
        paused_s: Pauses of the device between launches, unless it waits for the host anyway.
        grad_device: Derivative of the duration with respect to device time.
        host_sd_s: Standard deviation of the duration from host time.
        launch_gap_sd_s: Standard deviation of the duration from pauses between launches.
    """

    duration_s: Floats
    paused_s: Floats
    grad_device: Floats
    host_sd_s: Floats
    launch_gap_sd_s: Floats

    def duration_var(self, device_var: Floats, sum_error_sd_share: float | Floats) -> Floats:
        """Return the variance of the durations, given that of the device time."""
        share_var = np.square(sum_error_sd_share) + DURATION_SUM_ERROR_SD_SHARE**2
        sum_var = share_var * self.duration_s**2
        device_var = self.grad_device**2 * device_var + self.launch_gap_sd_s**2
        return np.asarray(device_var + self.host_sd_s**2 + sum_var)


def _predict_steps(
    model: AdditiveModel, host: Floats, is_graph: Bools, launches: Floats, busy_s: Floats
) -> _Steps:
    """Return steps whose device may wait for the host.

    Args:
        model: The fitted model.
        host: Time to issue each step and its standard deviation, n x 2.
        is_graph: Whether each step is a graph, for whose kernels nothing waits.
        launches: Kernels of each step.
        busy_s: Time of each step on the device.
    """
    if not model.has_host_time:
        nothing = np.zeros(len(busy_s))
        return _Steps(busy_s, nothing, np.ones(len(busy_s)), nothing, nothing)
    times = model.host_time
    paused_s = np.where(is_graph, times.graph_gap_s, times.launch_gap_s) * launches
    duration_s, grad_host, grad_device = combine_times(host[:, 0], busy_s + paused_s)
    paused_sd_s = np.where(is_graph, times.graph_gap_sd_s, times.launch_gap_sd_s) * launches
    return _Steps(
        duration_s,
        grad_device * paused_s,
        grad_device,
        grad_host * host[:, 1],
        grad_device * paused_sd_s,
    )


def _predict_host_times(
    model: AdditiveModel,
    networks: Sequence[Mapping[Piece, float]],
    issues: Sequence[HostIssue],
) -> Floats:
    """Return the time to issue each step and its standard deviation, n x 2."""
    times = [
        (0.0, 0.0)
        if issue.is_graph
        else model.host_time.predict_issue_time(counts, issue.unattributed_calls, issue.batches)
        for counts, issue in zip(networks, issues, strict=True)
    ]
    return np.array(times, float).reshape(len(networks), 2)


def _count_launches(sums: PieceSums) -> Floats:
    return sums.counts.total(np.array([leaf.launches for leaf in sums.leaves], float))


def attribute_energies(
    networks: Sequence[Network],
    pieces: Sequence[Sequence[PlacedPiece]],
    totals: NetworkTotals,
    measured_labels: Collection[str],
) -> tuple[tuple[LayerEstimate, ...], ...]:
    """Return the energy of each layer of each network.

    A layer has its own energy on the device, and a share of waiting for the host by its launches.

    Args:
        networks: The networks.
        pieces: Pieces of each network.
        totals: Totals of all networks.
        measured_labels: Labels that were measured.
    """
    device = totals.device
    leaf_j = device.energy_by_leaf_j
    found = []
    for at, (network, placed) in enumerate(zip(networks, pieces, strict=True)):
        launches = sum(one.piece.launches * one.count for one in placed)
        waiting_j = float(totals.energy_j[at] - totals.device_energy_j[at]) / max(launches, 1)
        isolated_j = sum(_sum_leaves(one.piece, leaf_j) * one.count for one in placed)
        factor = float(totals.device_energy_j[at]) / max(isolated_j, 1e-300)
        layers = [
            LayerEstimate(leaf.name or leaf.kind, leaf.kind, 0.0, leaf.calls)
            for leaf in unfold_blocks(network.layers)
        ]
        for one in placed:
            energy_j = factor * _sum_leaves(one.piece, leaf_j) + one.piece.launches * waiting_j
            is_seen = all(leaf.label in measured_labels for leaf, _ in one.piece.own_leaves)
            for index, share in _share_piece(one, leaf_j):
                own_j = layers[index].energy_j + energy_j * one.count * share
                layers[index] = replace(layers[index], energy_j=own_j, seen=is_seen)
        found.append(tuple(layers))
    return tuple(found)


def _sum_leaves(piece: Piece, leaf_j: dict[Piece, float]) -> float:
    return sum(leaf_j[leaf] * count for leaf, count in piece.own_leaves)


def _share_piece(placed: PlacedPiece, leaf_j: Mapping[Piece, float]) -> list[tuple[int, float]]:
    """Return the layers of a piece by index, with their share of its energy."""
    part, start = placed.placed_part.part, placed.placed_part.index
    if len(part.layers) == 1:
        return [(start, 1.0)]
    energies = [0.0] * len(part.layers)
    for inner in split_network(make_isolated_network(part)):
        for offset, layer in enumerate(inner.part.layers):
            own = make_piece(Part("hidden", (layer,), inner.part.half_input), placed.setup)
            energies[inner.index + offset] += sum(
                leaf_j.get(leaf, 0.0) * count * inner.calls for leaf, count in own.own_leaves
            )
    total = sum(energies) or 1.0
    return [(start + at, energy_j / total) for at, energy_j in enumerate(energies)]


def predict_part_energies(
    model: AdditiveModel, parts: Sequence[Part], setup: Setup
) -> tuple[Floats, Floats]:
    """Return the mean energies of parts that run alone, and their standard deviations."""
    return predict_piece_energies(model, [make_piece(part, setup) for part in parts])


def predict_piece_energies(model: AdditiveModel, pieces: Sequence[Piece]) -> tuple[Floats, Floats]:
    """Return the mean energies of pieces that run alone, and their standard deviations."""
    sums = model.encoder.sum_pieces([{piece: 1.0} for piece in pieces], [False] * len(pieces))
    durations = predict_durations(model.encoder, model.duration, sums)
    powers = predict_powers(model, sums, durations.leaf)
    variance = powers.logs.log_variance + durations.logs.log_variance
    medians_j = durations.total * powers.total
    return np.asarray(medians_j), np.asarray(medians_j * np.sqrt(np.expm1(variance)))
