"""The fitted model of a device, and its predictions for networks given by their pieces.

d    = duration of a piece on the device        D = Σ d
g    = energy of a piece on the device          G = Σ g
T, E = duration and energy of an eager step, which may wait for the host (``host_time``)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.estimators.additive.encode import PieceEncoder, encode_counts
from joulecast.estimators.additive.host_time import HostTimeModel, combine_times
from joulecast.estimators.additive.pieces import Piece
from joulecast.estimators.additivity_error import DURATION_SUM_ERROR_SD_SHARE
from joulecast.gp.conditioning import FittedProcess
from joulecast.gp.inputs import Inputs
from joulecast.gp.linalg import Floats
from joulecast.gp.prediction import SumPrediction, predict_sum_means, predict_sums
from joulecast.gp.weighted_sums import WeightedSums

# Sources of the variance of an energy, as estimates show them.
UNSEEN_KINDS = "kinds never measured"
UNSEEN_SIZES = "sizes between those measured"
UNTIMED_LAYERS = "layers not timed"
HOST_TIME = "host time"
NON_ADDITIVITY = "noise and non-additivity"
# Relative standard deviation of FLOPs in a precision that was never measured.
_UNSEEN_PRECISION_SD_SHARE = 0.6
# Relative standard deviation of a layer that was not timed, per e-fold by which padding its tiles
# increases its FLOPs. Smooth residuals are overconfident about layers with mostly empty tiles.
_PADDING_SD_SHARE = 0.12


@dataclass(frozen=True)
class PieceProcess:
    """A Gaussian process and the pieces that its training data contain, in order."""

    pieces: tuple[Piece, ...]
    fitted: FittedProcess

    @cached_property
    def training_index(self) -> dict[str, int]:
        """Training input of each piece, by key."""
        return {piece.key: at for at, piece in enumerate(self.pieces)}


@dataclass(frozen=True)
class AdditiveModel:
    """A device as `additive` has fitted it.

    Attributes:
        mode: ``graph`` if pieces replay graphs, so that host and device time are separate; else
            ``eager``: durations contain both.
        idle_w: Power of the idle device.
        duration: Durations of pieces on the device.
        energy: Energies of pieces on the device.
    """

    mode: str
    idle_w: float
    encoder: PieceEncoder
    duration: PieceProcess
    energy: PieceProcess
    host_time: HostTimeModel

    @property
    def has_host_time(self) -> bool:
        """Whether host and device time are separate."""
        return self.mode == "graph"

    @property
    def marginal_power_w(self) -> float:
        """Energy of one more second on the device, in watts."""
        column = len(self.encoder.flop_classes) + 2
        return float(np.exp(self.energy.fitted.thetas[:, column]).mean())


@dataclass(frozen=True)
class NetworkTotals:
    """Energy and duration of a step of each of n networks.

    Attributes:
        energy_j: Energy, with waiting for the host.
        device_energy_j: Energy of the device alone.
        covariance: Joint covariance of the energies without the error of sums, n x n; None unless
            requested.
        pieces: Distinct pieces of all networks, p.
        sums: The networks as sums over these pieces.
        piece_energy_j: Energy of each piece in isolation, p.
        in_network_factor: Energy of pieces within each network over that in isolation, n.
        marginal_power_w: Energy of one more second on the device, for each network, n.
        variance_by_source: Variance of each network's energy by source.
        duration_var: Variance of each network's duration.
    """

    energy_j: Floats
    device_energy_j: Floats
    duration_s: Floats
    covariance: Floats | None
    pieces: tuple[Piece, ...]
    sums: WeightedSums
    piece_energy_j: Floats
    in_network_factor: Floats
    marginal_power_w: Floats
    variance_by_source: dict[str, Floats]
    duration_var: Floats

    @property
    def variance(self) -> Floats:
        """Variance of each network's energy."""
        return np.asarray(sum(self.variance_by_source.values()))


def predict_totals(
    model: AdditiveModel,
    networks: Sequence[Mapping[Piece, float]],
    sum_error_sd_share: float,
    joint: bool = False,
    unattributed_calls: Sequence[float] = (),
) -> NetworkTotals:
    """Return energy and duration of networks given by their pieces.

    Args:
        model: The fitted model.
        networks: Pieces of each network and how often a step runs each.
        sum_error_sd_share: Standard deviation of a total around the sum of its pieces, as a share.
        joint: Whether to return the joint covariance of the energies.
        unattributed_calls: Calls of each network's host that are in no piece; none by default.
    """
    pieces, sums = encode_counts(networks)
    busy = predict_durations(model.encoder, model.duration, pieces, sums, joint)
    inputs = model.encoder.encode(pieces, busy.input_mean, model.energy.training_index)
    device = predict_sums(model.energy.fitted, inputs, sums, joint)
    host = _predict_host_times(model, networks, unattributed_calls)
    steps = _predict_steps(model, host, _count_launches(pieces, sums), busy.mean, device.mean)
    waiting_w = model.idle_w * (steps.grad_device - steps.includes_idle_power)
    marginal_power_w = model.marginal_power_w + waiting_w
    padding_sd_s = _find_padding_sd(model, pieces, busy.input_mean)
    padding_var = sums.sum_entries((sums.weight * padding_sd_s[sums.column]) ** 2)
    unseen_precision_j = _find_unseen_precision_sd(model, pieces, sums, device.input_mean)
    unseen_kind_var = _find_unseen_kind_var(model, pieces, inputs, sums)
    unseen_kind_var = np.minimum(unseen_kind_var, device.variance)
    host_j, gap_j = model.idle_w * steps.host_sd_s, model.idle_w * steps.launch_gap_sd_s
    sources = {
        UNSEEN_KINDS: unseen_precision_j**2 + unseen_kind_var,
        UNSEEN_SIZES: np.maximum(device.variance - unseen_kind_var, 0.0),
        UNTIMED_LAYERS: marginal_power_w**2 * (busy.variance + padding_var),
        HOST_TIME: host_j**2 + gap_j**2,
        NON_ADDITIVITY: (sum_error_sd_share * steps.energy_j) ** 2,
    }
    covariance = None
    if device.covariance is not None and busy.covariance is not None:
        padding = sums.to_matrix(len(pieces)) * padding_sd_s
        duration_cov = busy.covariance + padding @ padding.T
        covariance = device.covariance + duration_cov * np.outer(marginal_power_w, marginal_power_w)
        for shared_j in (host_j, gap_j, unseen_precision_j):
            covariance += np.outer(shared_j, shared_j)
    idle_j = (1.0 - steps.includes_idle_power) * model.idle_w * busy.input_mean
    return NetworkTotals(
        energy_j=steps.energy_j,
        device_energy_j=device.mean if steps.includes_idle_power else steps.energy_j,
        duration_s=steps.duration_s,
        covariance=covariance,
        pieces=pieces,
        sums=sums,
        piece_energy_j=device.input_mean + idle_j,
        in_network_factor=device.mean / sums.total(device.input_mean),
        marginal_power_w=marginal_power_w,
        variance_by_source=sources,
        duration_var=steps.duration_var(busy.variance + padding_var, sum_error_sd_share),
    )


def predict_total_means(
    model: AdditiveModel,
    networks: Sequence[Mapping[Piece, float]],
    unattributed_calls: Sequence[float] = (),
) -> Floats:
    """Return the energies of ``predict_totals`` in half its time, without any variance."""
    pieces, sums = encode_counts(networks)
    inputs = model.encoder.encode(pieces, None, model.duration.training_index)
    busy_s, piece_s = predict_sum_means(model.duration.fitted, inputs, sums)
    inputs = model.encoder.encode(pieces, piece_s, model.energy.training_index)
    device_j, _ = predict_sum_means(model.energy.fitted, inputs, sums)
    host = _predict_host_times(model, networks, unattributed_calls)
    return _predict_steps(model, host, _count_launches(pieces, sums), busy_s, device_j).energy_j


def predict_durations(
    encoder: PieceEncoder,
    process: PieceProcess,
    pieces: Sequence[Piece],
    sums: WeightedSums,
    joint: bool = False,
) -> SumPrediction:
    """Return durations of sums over pieces on the device."""
    inputs = encoder.encode(pieces, None, process.training_index)
    return predict_sums(process.fitted, inputs, sums, joint)


@dataclass(frozen=True)
class _EagerSteps:
    """Eager steps of networks, host and device combined.

    Attributes:
        grad_device: Derivative of the duration with respect to device time.
        includes_idle_power: 1 if device energies contain the idle power of the busy time, else 0.
        host_sd_s: Standard deviation of the duration from host time.
        launch_gap_sd_s: Standard deviation of the duration from pauses between launches.
    """

    energy_j: Floats
    duration_s: Floats
    grad_device: Floats
    includes_idle_power: float
    host_sd_s: Floats
    launch_gap_sd_s: Floats

    def duration_var(self, device_var: Floats, sum_error_sd_share: float) -> Floats:
        """Return the variance of the durations, given that of the device time."""
        sum_var = (sum_error_sd_share**2 + DURATION_SUM_ERROR_SD_SHARE**2) * self.duration_s**2
        device_var = self.grad_device**2 * device_var + self.launch_gap_sd_s**2
        return np.asarray(device_var + self.host_sd_s**2 + sum_var)


def _predict_steps(
    model: AdditiveModel, host: Floats, launches: Floats, busy_s: Floats, device_j: Floats
) -> _EagerSteps:
    """Return steps whose device may wait for the host.

    Args:
        model: The fitted model.
        host: Time to issue each step and its standard deviation, n x 2.
        launches: Kernels of each step.
        busy_s: Time of each step on the device.
        device_j: Energy of each step on the device.
    """
    launch_gap_s, launch_gap_sd_s = model.host_time.launch_gap_s, model.host_time.launch_gap_sd_s
    duration_s, grad_host, grad_device = combine_times(host[:, 0], busy_s + launch_gap_s * launches)
    if not model.has_host_time:
        duration_s, grad_host, grad_device = busy_s, np.zeros(len(busy_s)), np.ones(len(busy_s))
    # Energies of graphs contain the idle power of the busy time; eager pieces come without it.
    includes_idle_power = float(model.has_host_time)
    return _EagerSteps(
        energy_j=device_j + model.idle_w * (duration_s - includes_idle_power * busy_s),
        duration_s=duration_s,
        grad_device=grad_device,
        includes_idle_power=includes_idle_power,
        host_sd_s=grad_host * host[:, 1],
        launch_gap_sd_s=grad_device * includes_idle_power * launch_gap_sd_s * launches,
    )


def _predict_host_times(
    model: AdditiveModel,
    networks: Sequence[Mapping[Piece, float]],
    unattributed_calls: Sequence[float],
) -> Floats:
    """Return the time to issue each step and its standard deviation, n x 2."""
    calls = unattributed_calls or (0.0,) * len(networks)
    times = list(map(model.host_time.predict_issue_time, networks, calls))
    return np.array(times, float).reshape(len(networks), 2)


def _count_launches(pieces: Sequence[Piece], sums: WeightedSums) -> Floats:
    return sums.total(np.array([piece.launches for piece in pieces], float))


def _find_padding_sd(model: AdditiveModel, pieces: Sequence[Piece], piece_s: Floats) -> Floats:
    """Return the standard deviation of each duration from tiles that are mostly padding."""
    timed = model.duration.training_index
    log_padding = [
        math.log(piece.padded_flops / piece.flops)
        if piece.key not in timed and piece.flops
        else 0.0
        for piece in pieces
    ]
    return np.asarray(_PADDING_SD_SHARE * np.array(log_padding) * piece_s)


def _find_unseen_precision_sd(
    model: AdditiveModel, pieces: Sequence[Piece], sums: WeightedSums, piece_j: Floats
) -> Floats:
    """Return the standard deviation of each energy from precisions that were never measured."""
    measured = {piece.flop_class for piece in model.energy.pieces}
    is_unseen = np.array([piece.flop_class not in measured for piece in pieces], float)
    return _UNSEEN_PRECISION_SD_SHARE * sums.total(piece_j * is_unseen)


def _find_unseen_kind_var(
    model: AdditiveModel, pieces: Sequence[Piece], inputs: Inputs, sums: WeightedSums
) -> Floats:
    """Return the variance of each energy from labels that were never measured."""
    measured = {piece.label for piece in model.energy.pieces}
    unseen = np.flatnonzero([piece.label not in measured for piece in pieces])
    piece_var = np.zeros(len(pieces))
    if len(unseen):
        single = WeightedSums.of_single_inputs(len(unseen))
        piece_var[unseen] = predict_sums(model.energy.fitted, inputs.take(unseen), single).variance
    return sums.sum_entries(sums.weight**2 * piece_var[sums.column])
