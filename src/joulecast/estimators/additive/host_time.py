"""Host time: how long the host issues a step, and what that adds to the device's duration.

    H = c·(o + Σ_p h(p) + h·unattributed)   issuing a step on a host of pace c: overhead o, layers
                                            by calls, not by size
    D' = D + gap·launches                   device time, with its pauses between launches
    D'' = D + graph_gap·launches            a replayed graph, which no host issues; blocks that were
                                            measured whole contain their pauses
    T = (H^12 + D'^12)^(1/12)               the slower of both decides, a little more when equal
    T = Σ_w (r + max_k (Σ_i≤k H_i + Σ_i>k D'_i))    a step that waits: parts i between two waits w
    E = P·D_s + P0·(T - D_s)                a waiting device draws idle power P0 and nothing else;
    D_s = D + s·(D' - D)                    in pauses of microseconds its power falls part of the
                                            way: they count as a share s of running at P = G/D

Where the host needs what the device has computed (``x.item()``, the rows that a mask selects), it
waits until the device has finished everything, and the device then idles until the next kernel is
issued: a round trip r, in proportion to the pace of the host. In between, a kernel starts neither
before it is issued nor before all kernels ahead of it have ended, so that the host issues the first
k parts, and the device runs those after them, one after the other. After the last wait, the host
goes on to the first one of the next step. Parts are tenths of forward and backward, and the update.
Their shares are guesses: of H by launches, of D' by FLOPs and bytes. The issue time of a step that
waits contains the device's time, so that it tells nothing about the host.

Host times are fitted to eager steps by type of call, so that an unseen structure has a time too,
and by structure. What a network calls between its layers (views, masks) is in no layer: each such
call takes the host about as long as a launch, forward and backward together, and half as long in a
forward pass alone. Gap and exponent are stated priors where no observation shows them.

Durations of calls are fitted by robust least squares:

    h = (Σ_j x_j·t_j)·e^δ        a layer: its calls of each type j, and a factor of its structure
    H = c_u·(o + Σ_p n_p·h_p)    a step of host u, with a fixed overhead o; inference has none
    ln c_u ~ N(0, σ²)            the pace of a host, over that of all that were fitted

A host that issued eager steps has the posterior of its pace, any other one the prior. Pace also
changes by some 13 % from one measurement window to the next (one standard deviation), and a window
shows a structure at the pace of that window: a network that repeats one block would inherit all of
it. So what all structures share, the durations of a launch, a weight, a product and a cast, is
fitted to all windows together, and the factor of a single structure has a tight prior. Where few
steps were timed, the prior pulls calls of every type towards the duration of a launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from operator import mul
from statistics import median
from typing import NamedTuple

import numpy as np

from joulecast.estimators.additive.layers import FLOPS_PER_BYTE, SetupLayer
from joulecast.estimators.additive.observations import DecomposedObservation
from joulecast.gp.linalg import Floats
from joulecast.operators import HOST_CALLS, network_work
from joulecast.records import Network, Setup
from joulecast.records.codec import Record
from joulecast.records.network import WAIT_BINS

# Of the smooth maximum of host and device time: at equal times a step takes 6 % more than either.
EXPONENT = 12.0
# Prior of the pause between two launches.
LAUNCH_GAP_S = 1.9e-6
_LAUNCH_GAP_SD_S = 0.6e-6
# The same between two kernels of a graph: each starts with instructions that no cache holds, as a
# kernel that is repeated alone does not. Two language models on an H200 took 0.3 and 0.4 us longer
# a launch than their kernels.
GRAPH_GAP_S = 0.35e-6
_GRAPH_GAP_SD_S = 0.15e-6
# What a wait takes a typical host: a copy to it, 13 us for a number and 19 us for a small tensor on
# an H200. Kernels that find what a mask selects take 15 us each there; they count as calls.
ROUND_TRIP_S = 15e-6
# Relative standard deviation of the duration of one step.
_TIMING_SD_SHARE = 0.01
# Duration of a call, forward and backward, if no eager step was timed: 30 us on the host of an H200
# and 35 to 60 us on two cores of a shared server were observed.
CALL_S = 30e-6
# Host times of one network differ by about this from hour to hour (7.7 % on a shared H200 host).
# This prior counts as much as so many networks, and what is fitted is never below the minimum.
_PRIOR_SD_SHARE = 0.08
_PRIOR_NETWORKS = 4.0
_MIN_SD_SHARE = 0.03
# Pace of a host that was never seen, and its log standard deviation: five H200 hosts that ran plain
# loops (benchmarks/anywhere) had 0.57, 0.63, 0.83, 0.88 and 1.08 times the host time of the 13 that
# made the shipped profile, which differ among themselves from 0.5 to 1.4.
HOST_PACE, HOST_LOG_SD = 0.8, 0.3
# Relative standard deviation of the host time of unseen structures.
_UNSEEN_SD_SHARE = 0.4
# Fewer eager steps than this show the pace of a host, not what each type of call takes (a guess).
MIN_OWN_STEPS = 6
# Fewer networks than this show nothing of their spread.
_MIN_NETWORKS = 2
# Two steps show the duration of a call if one has at least this many times the calls of the other.
_MIN_CALL_RATIO = 1.5
# At inference a call between layers, mostly a view, takes this share of a launch: two language
# models of 12 layers on an H200 took 12.5 us a launch and 6.1 us a call between layers.
_BETWEEN_SHARE = 0.5
# Time to issue a step to an idle device over that behind another step: the median of 900 steps on
# H200 hosts that took at least twice as long as their kernels.
_IDLE_FACTOR = 1.05
# A step is bound by its host if it takes this many times as long as its kernels, and vice versa.
BOUND_RATIO = 1.2
# Of 435 steps on ten H200 hosts whose kernels, timed alone, took less than 0.7 of them, issuing
# took at least 0.72 of the step. Slow kernels of unseen sizes show below that.
LATE_SHARE = 0.65


@dataclass(frozen=True)
class HostTimeModel(Record):
    """The host of a device.

    Attributes:
        step_overhead_s: Fixed cost of a training step: what starts and ends it.
        per_call_s: Duration of one call, for each type in HOST_CALLS.
        structure_factors: Time of a structure over that of its calls; 1 for all others.
        launch_gap_s: Pause of the device between two launches.
        sd_share: Relative standard deviation of whole steps around the sum, on a known host.
        network_count: Networks that show it.
        graph_gap_s: Pause of the device between two kernels of a graph, at inference.
        step_count: Steps that it was fitted to.
        pace: Time that the host takes over that of the hosts that it was fitted to.
        pace_log_sd: Standard deviation of its logarithm.
    """

    step_overhead_s: float = field(metadata={"json_name": "begin_s"})
    per_call_s: tuple[float, ...] = field(metadata={"json_name": "calls_s"})
    structure_factors: dict[str, float] = field(metadata={"json_name": "habits"})
    launch_gap_s: float = field(metadata={"json_name": "gap_s"})
    sd_share: float = field(metadata={"json_name": "spread"})
    network_count: int = field(default=0, metadata={"json_name": "nets"})
    launch_gap_sd_s: float = field(default=_LAUNCH_GAP_SD_S, metadata={"json_name": "gap_sd_s"})
    graph_gap_s: float = GRAPH_GAP_S
    graph_gap_sd_s: float = _GRAPH_GAP_SD_S
    step_count: int = 0
    pace: float = HOST_PACE
    pace_log_sd: float = HOST_LOG_SD

    def for_any_host(self) -> HostTimeModel:
        """Return the model of a host that was never seen."""
        return replace(self, pace=HOST_PACE, pace_log_sd=HOST_LOG_SD)

    @property
    def variance_reduction_share(self) -> float:
        """About what timing one more network takes off the variance of host times."""
        if self.sd_share <= _MIN_SD_SHARE:
            return 0.0
        return 1.0 / (_PRIOR_NETWORKS + self.network_count + 1.0)

    def predict_issue_time(
        self, counts: Mapping[SetupLayer, float], unattributed_calls: float = 0.0, batches: int = 1
    ) -> tuple[float, float]:
        """Return the time to issue a step in seconds, and the standard deviation of its logarithm.

        ``unattributed_calls`` of a batch are in no layer; each batch has the overhead of a step.
        """
        is_training = trains(counts)
        launch, share = _find_between_call(is_training)
        guessed_s = batches * unattributed_calls * share * self.per_call_s[launch]
        total_s = guessed_s + (batches * self.step_overhead_s if is_training else 0.0)
        for layer, count in counts.items():
            calls_s = count * float(sum(map(mul, layer.host_calls, self.per_call_s)))
            total_s += calls_s * self.structure_factors.get(layer.structure, 1.0)
            guessed_s += 0.0 if layer.structure in self.structure_factors else calls_s
        unseen_sd = _UNSEEN_SD_SHARE * guessed_s / max(total_s, 1e-12)
        return self.pace * total_s, math.hypot(self.sd_share, unseen_sd, self.pace_log_sd)


def combine_times(host_s: Floats, device_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return durations of eager steps, and their derivatives in host and device time."""
    longest = np.maximum(host_s, device_s)
    host, device = host_s / longest, device_s / longest
    total = host**EXPONENT + device**EXPONENT
    duration_s = longest * total ** (1.0 / EXPONENT)
    factor = total ** (1.0 / EXPONENT - 1.0)
    grad_host, grad_device = factor * host ** (EXPONENT - 1.0), factor * device ** (EXPONENT - 1.0)
    return duration_s, grad_host, grad_device


class WaitingStep(NamedTuple):
    """The parts of a step that waits for its device, in the order in which they are issued.

    Attributes:
        host_shares: Share of each part in the host time of the step.
        device_shares: The same in the time on the device.
        waits: How often the host waits in each part.
    """

    host_shares: Floats
    device_shares: Floats
    waits: Floats


def divide_waiting_step(network: Network, setup: Setup) -> WaitingStep | None:
    """Return the parts of a network's step between waits; None if it never waits."""
    if network.totals is None or not network.wait_count:
        return None
    work, bins = network_work(network, setup), WAIT_BINS
    passes = work.forward, work.backward
    sizes = [one.flops + FLOPS_PER_BYTE * one.size_bytes for one in (*passes, work.update)]
    launches = [float(one.launches) for one in passes]
    host_shares = np.append(np.repeat(launches, bins) / bins, 0.0) / max(sum(launches), 1.0)
    device_shares = np.append(np.repeat(sizes[:2], bins) / bins, sizes[2]) / max(sum(sizes), 1.0)
    # An inference ends after the forward pass.
    waits = np.append(network.totals.waits, 0.0) * (host_shares > 0)
    return WaitingStep(host_shares, device_shares, waits) if waits.any() else None


def add_waits(
    step: WaitingStep, host_s: Floats, device_s: float, wait_s: Floats
) -> tuple[Floats, Floats]:
    """Return durations of a step that waits, and their derivatives in device time.

    ``host_s`` are several host times, and ``wait_s`` how long each wait takes with each of them.
    """
    # A step begins after its last wait, where the host runs ahead to the first one of the next.
    last = int(np.flatnonzero(step.waits)[-1]) + 1
    host_shares, device_shares, waits = (np.roll(one, -last) for one in step)
    duration_s = waits.sum() * wait_s
    grad_device = np.zeros(host_s.shape)
    start = 0
    for stop in (np.flatnonzero(waits) + 1).tolist():
        issued = np.append(0.0, np.cumsum(host_shares[start:stop]))
        left = np.append(np.cumsum(device_shares[start:stop][::-1])[::-1], 0.0)
        times_s = np.multiply.outer(host_s, issued) + device_s * left
        longest = times_s.argmax(axis=-1)
        duration_s += times_s.max(axis=-1)
        grad_device += left[longest]
        start = stop
    return duration_s, grad_device


def count_launches_outside_blocks(counts: Mapping[SetupLayer, float]) -> float:
    """Return the launches of layers that are not whole blocks."""
    return sum(layer.launches * count for layer, count in counts.items() if not layer.is_block)


def set_pace(
    model: HostTimeModel, decomposed: Sequence[DecomposedObservation], device_s: Floats
) -> HostTimeModel:
    """Return the model at the pace of the host that issued eager steps.

    ``device_s`` is the device time of each step.
    """
    model, precision = replace(model, pace=1.0), HOST_LOG_SD**-2
    weighted = precision * math.log(HOST_PACE)
    for step in _find_steps(decomposed, device_s):
        weight = (_ISOLATED_TIMING_SD if step.observation.is_isolated else _PACE_SD) ** -2
        precision += weight
        weighted += weight * math.log(_host_time_ratio(model, step))
    return replace(model, pace=math.exp(weighted / precision), pace_log_sd=precision**-0.5)


def fit_host_time(
    decomposed: Sequence[DecomposedObservation],
    device_s: Floats,
    device_var: Floats,
    unit: str = "",
) -> HostTimeModel:
    """Fit the host to eager steps of all units; its pace is that of the host of one unit.

    ``device_s`` and ``device_var`` are means and variances of the device times.
    """
    steps = _find_steps(decomposed, device_s)
    launch, graph = _Pause(LAUNCH_GAP_S, _LAUNCH_GAP_SD_S), _Pause(GRAPH_GAP_S, _GRAPH_GAP_SD_S)
    times = zip(decomposed, device_s.tolist(), device_var.tolist(), strict=True)
    for one, busy_s, busy_var in times:
        if one.is_isolated or not one.duration_s:
            continue
        if one.mode == "graph" and not trains(one.counts):
            graph.add(one, busy_s, busy_var, count_launches_outside_blocks(one.counts))
        elif one.mode == "eager" and one.issue_s and one.issue_s * BOUND_RATIO < busy_s:
            launch.add(one, busy_s, busy_var, one.launches)
    model = HostTimeModel(
        pace=1.0,
        step_overhead_s=0.0,
        per_call_s=(CALL_S,) * len(HOST_CALLS),
        structure_factors={},
        launch_gap_s=launch.mean_s,
        sd_share=_UNSEEN_SD_SHARE,
        launch_gap_sd_s=launch.sd_s,
        graph_gap_s=graph.mean_s,
        graph_gap_sd_s=graph.sd_s,
        step_count=len(steps),
    )
    if not steps:
        return model
    launch_s = _estimate_call_duration(steps)
    overhead_s, per_call_s, factors, paces = _fit_call_durations(steps, launch_s)
    model = replace(
        model, step_overhead_s=overhead_s, per_call_s=per_call_s, structure_factors=factors
    )
    errors = [
        paces[one.observation.unit] / _host_time_ratio(model, one) - 1.0
        for one in steps
        if not one.observation.is_isolated
    ]
    model = replace(model, sd_share=_find_sd_share(errors), network_count=len(errors))
    if paces.keys() == {unit}:
        # All steps are of this host: its pace is part of what was fitted.
        return replace(model, pace_log_sd=0.0)
    own = [at for at, one in enumerate(decomposed) if one.unit == unit]
    return set_pace(model, [decomposed[at] for at in own], device_s[own])


def _find_steps(decomposed: Sequence[DecomposedObservation], device_s: Floats) -> list[_TimedStep]:
    """Return eager steps with their host times: durations if host-bound, else issue times."""
    steps = []
    for one, busy_s in zip(decomposed, device_s.tolist(), strict=True):
        if one.mode != "eager" or not one.issue_s or not one.duration_s:
            continue
        # The device time may be underestimated: a host that finished long before the end of the
        # step has not bound it.
        is_late = one.issue_s > LATE_SHARE * one.duration_s
        is_host_bound = is_late and one.duration_s > BOUND_RATIO * busy_s > 0
        issue_s = min(one.issue_s / _IDLE_FACTOR, one.duration_s)
        steps.append(_TimedStep(one, one.duration_s if is_host_bound else issue_s))
    return steps


def _host_time_ratio(model: HostTimeModel, step: _TimedStep) -> float:
    """Return the host time of a step over that of the model."""
    one = step.observation
    return step.host_s / model.predict_issue_time(one.counts, one.between_calls, one.batches)[0]


def _find_sd_share(errors: Sequence[float]) -> float:
    """Return the relative standard deviation of networks around the sum, given its prior."""
    if len(errors) < _MIN_NETWORKS:
        return 2.0 * _PRIOR_SD_SHARE
    # Fitted times are nearer to what they were fitted to than to new ones.
    correction = len(errors) / max(1.0, len(errors) - 1.0)
    total = _PRIOR_NETWORKS * _PRIOR_SD_SHARE**2 + correction * float(np.square(errors).sum())
    return max(_MIN_SD_SHARE, math.sqrt(total / (_PRIOR_NETWORKS + len(errors))))


def _estimate_call_duration(steps: Sequence[_TimedStep]) -> float:
    """Return the duration of a call: the median slope between steps, free of their overhead.

    A recurrent layer issues many kernels at once, and a small network is mostly overhead: the
    median is robust to both.
    """
    groups: dict[float, list[float]] = {}
    for step in steps:
        counts = step.observation.counts
        calls = sum(count * sum(layer.host_calls) for layer, count in counts.items())
        groups.setdefault(calls, []).append(step.host_s)
    points = sorted((calls, median(times_s)) for calls, times_s in groups.items())
    slopes = [
        (longer_s - shorter_s) / (more - fewer)
        for (fewer, shorter_s), (more, longer_s) in combinations(points, 2)
        if more >= _MIN_CALL_RATIO * fewer
    ]
    slope = median(slopes) if slopes else 0.0
    return slope if slope > 0 else median(time_s / max(calls, 1.0) for calls, time_s in points)


class _Pause:
    """The pause between two launches: a normal prior and what observed networks say."""

    def __init__(self, prior_s: float, prior_sd_s: float) -> None:
        self.precision = 1.0 / prior_sd_s**2
        self.weighted = prior_s * self.precision

    def add(
        self, one: DecomposedObservation, busy_s: float, busy_var: float, launches: float
    ) -> None:
        """Add a network whose kernels take ``busy_s``, and which pauses after each launch."""
        if not launches or not one.duration_s:
            return
        timing_var = (_TIMING_SD_SHARE * one.duration_s) ** 2
        added = launches**2 / (busy_var + timing_var)
        self.precision += added
        self.weighted += added * (one.duration_s - busy_s) / launches

    @property
    def mean_s(self) -> float:
        """Posterior mean, never negative."""
        return max(0.0, self.weighted / self.precision)

    @property
    def sd_s(self) -> float:
        """Posterior standard deviation."""
        return float(self.precision**-0.5)


# Standard deviations of logarithms. Timing of one step, of a network and of an isolated layer:
_NETWORK_TIMING_SD = 0.08
_ISOLATED_TIMING_SD = 0.25
# A network beside others of its host, by which the pace of that is judged.
_PACE_SD = 0.15
# Factor of a structure: its residual on one H200 host hardly predicted that on another (49 pairs),
# so that nearly all of it was the window.
_STRUCTURE_SD = 0.15
# Duration of one type of call, and of a step's overhead, around the duration of launches.
_CALL_SD = 0.5
# The overhead of a step, its start and end, takes about as long as this many launches.
_OVERHEAD_LAUNCHES = 10.0


class _TimedStep(NamedTuple):
    """An observed step and the time that its host took."""

    observation: DecomposedObservation
    host_s: float


def _fit_call_durations(
    steps: Sequence[_TimedStep], launch_s: float
) -> tuple[float, tuple[float, ...], dict[str, float], dict[str, float]]:
    """Return a step's overhead, durations of calls, factors of structures and paces of hosts.

    ``launch_s`` is about how long a launch takes.
    """
    from scipy.optimize import least_squares

    # One column for layers that the host cannot tell apart.
    distinct = {(p.structure, p.host_calls) for one in steps for p in one.observation.counts}
    index = {key: at for at, key in enumerate(sorted(distinct))}
    names, types = sorted({structure for structure, _ in distinct}), len(HOST_CALLS)
    counts = np.zeros((len(steps), len(index)))
    for row, one in zip(counts, steps, strict=True):
        for layer, count in one.observation.counts.items():
            row[index[layer.structure, layer.host_calls]] += count
    calls = np.array([calls for _, calls in index]).reshape(len(index), types)
    structures = np.array([[float(own == name) for name in names] for own, _ in index])
    # What is in no layer: the overhead of each batch, and calls between layers.
    overheads, between = np.zeros(len(steps)), np.zeros((len(steps), types))
    for at, (step, _) in enumerate(steps):
        is_training = trains(step.counts)
        overheads[at] = step.batches * is_training
        launch, share = _find_between_call(is_training)
        between[at, launch] = step.batches * share * step.between_calls
    log_times = np.log([one.host_s for one in steps])
    is_isolated = np.array([one.observation.is_isolated for one in steps])
    sds = np.where(is_isolated, _ISOLATED_TIMING_SD, _NETWORK_TIMING_SD)
    units = [one.observation.unit for one in steps]
    own_units = sorted(set(units)) if len(set(units)) > 1 else []
    hosts = np.array([[float(unit == one) for one in own_units] for unit in units])
    # θ: logarithms of the overhead, of the durations of calls, of the factors of structures and of
    # the paces of hosts.
    first, last = 1 + types, 1 + types + len(names)
    factors = [1.0] * (len(names) + len(own_units))
    medians = np.log([_OVERHEAD_LAUNCHES * launch_s, *[launch_s] * types, *factors])
    log_sds = [_CALL_SD] * first + [_STRUCTURE_SD] * len(names) + [HOST_LOG_SD] * len(own_units)
    prior = 1.0 / np.array(log_sds)

    def split_times(theta: Floats) -> tuple[Floats, Floats, Floats]:
        """Return overheads of steps, and durations of calls between layers and of each layer."""
        own, call_s = np.exp(structures @ theta[first:last]), np.exp(theta[1:first])
        return math.exp(theta[0]) * overheads, between * call_s, calls * call_s * own[:, None]

    def find_residuals(theta: Floats) -> Floats:
        overhead_s, between_s, calls_s = split_times(theta)
        outside_s = overhead_s + between_s.sum(axis=1)
        logs = np.log(outside_s + counts @ calls_s.sum(axis=1)) + hosts @ theta[last:]
        return np.hstack([(logs - log_times) / sds, prior * (theta - medians)])

    def find_jacobian(theta: Floats) -> Floats:
        overhead_s, between_s, calls_s = split_times(theta)
        layers_s = calls_s.sum(axis=1)
        total_s = overhead_s + between_s.sum(axis=1) + counts @ layers_s
        by_structure = (counts * layers_s) @ structures
        by_call = between_s + counts @ calls_s
        gradients = np.hstack([overhead_s[:, None], by_call, by_structure])
        by_step = np.hstack([gradients / total_s[:, None], hosts])
        return np.vstack([by_step / sds[:, None], np.diag(prior)])

    found = least_squares(find_residuals, medians, find_jacobian, loss="soft_l1")
    step_overhead_s, *values = np.exp(found.x).tolist()
    paces = dict.fromkeys(units, 1.0) | dict(zip(own_units, values[last - 1 :], strict=True))
    by_structure = dict(zip(names, values[types : last - 1], strict=True))
    return step_overhead_s, tuple(values[:types]), by_structure, paces


def _find_between_call(is_training: bool) -> tuple[int, float]:
    """Return the type of a call between layers in HOST_CALLS, and its share of such a call."""
    if is_training:
        return HOST_CALLS.index("launches"), 1.0
    return HOST_CALLS.index("inference launches"), _BETWEEN_SHARE


def trains(layers: Iterable[SetupLayer]) -> bool:
    """Return whether layers are those of a training step."""
    return any(layer.phase == "train" for layer in layers)
