"""Estimate a training step on several GPUs of one machine, from that of one GPU.

The model is of PyTorch's DistributedDataParallel: every GPU runs the step on its own batch, and a
ring all-reduce sums the gradients. None of it was measured here.

    N, T, E      GPUs; duration and energy of the step on one of them
    S, S_b       bytes of all gradients, and of those in bucket b
    β, η         bandwidth of the link in one direction, and the share of it that NCCL reaches
    α            latency of a hop
    c_b          = 2(N-1)·(α + S_b / (N·η·β)),  a ring: 2(N-1) hops of S_b/N bytes each
    r_b          when the last gradient of bucket b is ready, after the start of the backward pass
    e_b          = max(r_b, e_{b-1}) + c_b,  when its sum is known: one bucket after another
    x            = max(0, e_last - backward pass),  what does not hide behind the backward pass
    h            = Σ c_b - x,  what does
    κ            by how much longer kernels take beside an all-reduce
    σ, d_N       spread of the speed of equal GPUs; expected largest of N standard normals
    T_N          = T + x + κ·h + σ·d_N·T
    P_w, w       power of a GPU that waits; energy of a byte on the link and in both memories
    E_N          = N·(E + P_w·(T_N - T) + w·V),  V = 2(N-1)/N·S bytes that each GPU sends

Buckets are filled in the order of the backward pass (Li et al., PyTorch Distributed, VLDB 2020).
``Ring`` lists the figures that are assumed, with their sources and uncertainties.

Estimates of one GPU become those of several:

    E_i, N_i      energy of step i on one GPU, and its GPUs
    a_i, s_i      energy that the all-reduce adds, and its standard deviation
    E'_i          = N_i·E_i + a_i
    cov(E'_i, E'_j) = N_i·N_j·cov(E_i, E_j) + s_i·s_j

All GPUs are of one type, so errors of their energies are common; and so are the assumptions of all
steps about the all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from joulecast.estimators.additive.observations import find_idle_power
from joulecast.estimators.additive.roofline import find_power_priors
from joulecast.estimators.fitted_profile import (
    Estimates,
    add_sources,
    explain_memory,
    match_device_sheet,
)
from joulecast.gp.lognormal import interval_log_sd, lognormal_interval
from joulecast.operators import count_gradients, layer_work
from joulecast.operators.kind import WEIGHT_BYTES
from joulecast.records import (
    DataParallel,
    Estimate,
    LayerEstimate,
    Network,
    Profile,
    Setup,
    weakest_provenance,
)
from joulecast.system.errors import InputError, arg
from joulecast.system.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_power,
    format_share,
)

FIRST_BUCKET_BYTES = 2**20
"""Size at which DistributedDataParallel starts to send its first bucket."""
BUCKET_BYTES = 25 * 2**20
"""Size of all others, unless a user sets ``bucket_cap_mb``."""
SHARED_LINK_BYTES_PER_S = 70e9
"""Slower links are taken for PCIe, which GPUs share with the processor and with each other."""


class BackwardPart(NamedTuple):
    """A part of the backward pass, and the gradients of weights that are ready after it."""

    duration_s: float
    gradient_bytes: float


@dataclass(frozen=True)
class Ring:
    """A step on several GPUs, and figures that nobody measured on the machine in question.

    - η: NCCL's bus bandwidth over the link's. H100 0.82 with 2 to 8 GPUs, A100 0.67; over PCIe 0.44
      to 0.63, and less than 0.1 where GPUs cannot reach each other directly.
    - α: an all-reduce of a few bytes takes about 40 µs on 8 GPUs, which is 14 hops.
    - κ: overlapped kernels were slowed by 18.9 % on average (Lee et al., arXiv:2507.03114).
    - σ: 8 GPUs of one machine lose 1 to 5 % even where the all-reduce takes less than 1 %.
    - w: 3 accesses of HBM at 3.9 pJ/bit (O'Connor et al., MICRO 2017) and a link at about 10.

    ``benchmarks/devices/data_parallel.md`` compares all of it with published measurements.
    """

    gpus: int  # N
    link_bytes_per_s: float  # β
    step_s: float  # T
    backward: Sequence[BackwardPart]  # of the last batch before the update, as it runs
    waiting_w: float  # P_w
    efficiency: float  # η
    hop_s: float = 3e-6  # α
    contention_share: float = 0.19  # κ
    speed_sd_share: float = 0.02  # σ
    byte_j: float = 0.18e-9  # w
    backward_share: float = 1.0  # the backward pass over its estimated duration


class AllReduceCost(NamedTuple):
    """What several GPUs add to a step of one."""

    gradient_bytes: float  # S
    buckets: int
    all_reduce_s: float  # Σ c_b
    exposed_s: float  # x
    added_s: float  # T_N - T
    added_j: float  # E_N - N·E, of all GPUs together


def make_ring(
    gpus: int,
    link_bytes_per_s: float,
    step_s: float,
    backward: Sequence[BackwardPart],
    waiting_w: float,
) -> Ring:
    """Return a step on GPUs that are linked by NVLink or PCIe, with the efficiency of that link."""
    efficiency = 0.35 if link_bytes_per_s < SHARED_LINK_BYTES_PER_S else 0.75
    return Ring(gpus, link_bytes_per_s, step_s, backward, waiting_w, efficiency)


def model_all_reduce(ring: Ring) -> AllReduceCost:
    """Return what summing gradients adds to a step on each of several GPUs."""
    gpus, rate = ring.gpus, ring.efficiency * ring.link_bytes_per_s
    all_reduce_s = end_s = sent_bytes = 0.0
    buckets = 0
    for ready_s, size_bytes in _fill_buckets(ring.backward):
        bucket_s = 2 * (gpus - 1) * (ring.hop_s + size_bytes / gpus / rate)
        end_s = max(ready_s * ring.backward_share, end_s) + bucket_s
        all_reduce_s += bucket_s
        sent_bytes += 2 * (gpus - 1) / gpus * size_bytes
        buckets += 1
    backward_s = ring.backward_share * sum(part.duration_s for part in ring.backward)
    exposed_s = min(max(0.0, end_s - backward_s), all_reduce_s)
    slower_s = ring.contention_share * (all_reduce_s - exposed_s)
    lag_s = ring.speed_sd_share * expected_maximum(gpus) * ring.step_s
    added_s = exposed_s + slower_s + lag_s
    added_j = gpus * (ring.waiting_w * added_s + ring.byte_j * sent_bytes)
    gradient_bytes = sum(part.gradient_bytes for part in ring.backward)
    return AllReduceCost(gradient_bytes, buckets, all_reduce_s, exposed_s, added_s, added_j)


def find_spread(ring: Ring) -> tuple[float, float]:
    """Return standard deviations of ``added_s`` and ``added_j``, one assumption at a time."""
    log_sds = {
        "efficiency": 0.8 if ring.link_bytes_per_s < SHARED_LINK_BYTES_PER_S else 0.15,
        "hop_s": 0.7, "contention_share": 0.6, "speed_sd_share": 0.6, "byte_j": 0.5,
        "waiting_w": 0.4, "backward_share": 0.2,
    }  # fmt: skip
    variance_s = variance_j = 0.0
    for name, log_sd in log_sds.items():
        low, high = (
            model_all_reduce(replace(ring, **{name: getattr(ring, name) * math.exp(change)}))
            for change in (-log_sd, log_sd)
        )
        variance_s += ((high.added_s - low.added_s) / 2) ** 2
        variance_j += ((high.added_j - low.added_j) / 2) ** 2
    return math.sqrt(variance_s), math.sqrt(variance_j)


def expected_maximum(count: int) -> float:
    """Return the expected largest of standard normals, by Blom's approximation; 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _fill_buckets(backward: Sequence[BackwardPart]) -> Iterator[tuple[float, float]]:
    """Yield when each bucket is ready, and its bytes; a weight is never split."""
    now_s = filled_bytes = 0.0
    most_bytes = FIRST_BUCKET_BYTES
    for part in backward:
        now_s += part.duration_s
        filled_bytes += part.gradient_bytes
        if filled_bytes >= most_bytes:
            yield now_s, filled_bytes
            filled_bytes, most_bytes = 0.0, BUCKET_BYTES
    if filled_bytes:
        yield now_s, filled_bytes


# Runtimes that have nothing like DistributedDataParallel.
_ALONE = ("mnn", "onnx")


@dataclass(frozen=True)
class GpuGroup:
    """Equal GPUs of one machine."""

    gpus: int
    link_bytes_per_s: float  # in one direction
    waiting_w: float | None = None  # of one that waits, if it is known


def find_gpu_group(
    profile: Profile, setup: Setup, gpus: int, link_bytes_per_s: float | None = None
) -> GpuGroup | None:
    """Return GPUs like that of a profile, connected as the catalogue says; None for one."""
    if gpus == 1:
        return None
    name = profile.device.name
    if profile.covers.startswith("cpu") or profile.runtime.startswith(_ALONE):
        raise InputError(
            f"{arg('gpus', gpus)} needs a GPU that PyTorch trains on, and {name} with "
            f"{profile.runtime} is not one: give another device"
        )
    if setup.phase == "inference":
        raise InputError(
            f"{arg('gpus', gpus)} is for training: GPUs that run inference share nothing, so each "
            f"takes the energy and time of one; leave {arg('gpus')} and {arg('parallel')} out"
        )
    sheet = profile.data_sheet or match_device_sheet(profile.device)
    link = link_bytes_per_s or (sheet and sheet.link_bytes_per_s)
    if not link:
        raise InputError(
            f"the bandwidth between GPUs of {name} is not known: give {arg('link_gb_s')}, in GB/s "
            "and one direction (450 for NVLink of an H100, 300 of an A100, 32 for PCIe 4.0)"
        )
    # A device waits as it does between two steps: idle, at active clocks.
    waiting_w = find_idle_power(profile.observations)
    if waiting_w is None and sheet is not None:
        waiting_w = find_power_priors(sheet).idle_w[0]
    return GpuGroup(gpus, link, waiting_w)


ALL_REDUCE = "all-reduce"
"""Name of the energy that all GPUs together take more than alone, and of its uncertainty."""
# Share of a step's mean power that a waiting GPU is assumed to draw where nothing else is known.
_WAITING_SHARE = 0.3


def replicate_steps(
    steps: Estimates,
    networks: Sequence[Network],
    setups: Sequence[Setup],
    groups: Sequence[GpuGroup | None],
) -> Estimates:
    """Return estimates of steps on several GPUs, with their joint covariance."""
    found = [replicate_step(*row) for row in zip(steps, networks, setups, groups, strict=True)]
    gpus = np.array([one.gpus for one, _ in found], float)
    sds_j = np.array([sd_j for _, sd_j in found])
    cov = steps.cov
    if cov is not None:
        cov = np.outer(gpus, gpus) * cov + np.outer(sds_j, sds_j)
    return Estimates(
        tuple(one for one, _ in found),
        gpus**2 * steps.variance + sds_j**2,
        cov,
        steps.first_occurrence if len(set(gpus)) == 1 else tuple(range(len(found))),
    )


def replicate_step(
    step: Estimate, network: Network, setup: Setup, group: GpuGroup | None
) -> tuple[Estimate, float]:
    """Return the estimate of a step on several GPUs, and the sd of the energy that they add.

    The estimate and the setup are those of one GPU; without others they stay the same.
    """
    if group is None or group.gpus == 1:
        return step, 0.0
    waiting_w = group.waiting_w
    if waiting_w is None:
        waiting_w = _WAITING_SHARE * step.energy_j / step.duration_s
    gpus, link = group.gpus, group.link_bytes_per_s
    ring = make_ring(gpus, link, step.duration_s, _list_backward(step, network, setup), waiting_w)
    cost, (sd_s, sd_j) = model_all_reduce(ring), find_spread(ring)
    part = DataParallel(
        gpus, setup.samples_per_step * gpus, int(cost.gradient_bytes), cost.buckets, link,
        ring.efficiency, cost.all_reduce_s, cost.exposed_s, cost.added_s, cost.added_j, waiting_w,
        step.provenance,
    )  # fmt: skip
    energy_j, duration_s = gpus * step.energy_j + part.added_j, step.duration_s + part.added_s
    step_sd_j = gpus * step.energy_j * interval_log_sd(step.energy_j, step.interval_j, step.level)
    ends_s = step.duration_interval_s
    if ends_s is not None:
        step_sd_s = step.duration_s * interval_log_sd(step.duration_s, ends_s, step.level)
        ends_s = lognormal_interval(duration_s, step_sd_s**2 + sd_s**2, step.level)
    added = LayerEstimate(ALL_REDUCE, "all_reduce", part.added_j, seen=False)
    sources = add_sources(step.uncertainty_sources, step_sd_j**2, {ALL_REDUCE: sd_j**2})
    combined = replace(
        step,
        energy_j=energy_j,
        interval_j=lognormal_interval(energy_j, step_sd_j**2 + sd_j**2, step.level),
        duration_s=duration_s,
        duration_interval_s=ends_s,
        peak_memory_bytes=step.peak_memory_bytes + part.gradient_bytes,
        layers=(*(replace(one, energy_j=gpus * one.energy_j) for one in step.layers), added),
        blocks=tuple(replace(one, energy_j=gpus * one.energy_j) for one in step.blocks),
        unseen_share=step.unseen_share * gpus * step.energy_j / energy_j,
        provenance=weakest_provenance([step.provenance, part.provenance]),
        device_energy_j=step.device_energy_j and gpus * step.device_energy_j + part.added_j,
        host_share=step.host_share and step.host_share * gpus * step.energy_j / energy_j,
        uncertainty_sources=sources,
        is_measured=False,
        data_parallel=part,
    )
    notes = [note for note in step.notes if note not in explain_memory(step)]
    notes += [*explain_memory(combined), *_list_notes(part, step.covers)]
    return replace(combined, notes=tuple(notes)), sd_j


def _list_backward(step: Estimate, network: Network, setup: Setup) -> list[BackwardPart]:
    """Return the backward pass of the last batch of a step, its layers in reverse order.

    A layer's share of the time is that of its energy; backward has the share of its work.
    """
    batches = max(1, setup.accumulate)
    weights = [found.energy_j for found in step.layers]
    if len(weights) != len(network.layers):
        # Kernels, or a whole network.
        weights = [layer_work(layer, setup).total.size_bytes for layer in network.layers]
    whole = sum(weights) or 1.0
    parts = []
    for layer, weight in zip(reversed(network.layers), reversed(weights), strict=True):
        layer_s = step.duration_s * weight / whole / batches
        # Without an update, gradients are added up and not reduced.
        gradients = count_gradients(layer, setup) if setup.accumulate else 0
        # By FLOPs, or by bytes if it has none.
        work = layer_work(layer, setup)
        name = "flops" if work.total.flops else "size_bytes"
        share = getattr(work.backward, name) / (getattr(work.total, name) or 1)
        parts.append(BackwardPart(layer_s * share, float(gradients * WEIGHT_BYTES)))
    return parts


def _list_notes(part: DataParallel, covers: str) -> list[str]:
    notes = [
        f"Modelled, not measured: a ring all-reduce of {format_bytes(part.gradient_bytes)} of fp32 "
        f"gradients in {part.buckets} buckets takes {format_duration(part.all_reduce_s)} at "
        f"{format_share(part.link_efficiency_share)} of {part.link_bytes_per_s / 1e9:g} GB/s, of "
        f"which {format_duration(part.exposed_s)} do not overlap with the backward pass; with "
        f"slower kernels meanwhile and waiting for the slowest GPU, at "
        f"{format_power(part.waiting_w)} each, it adds {format_duration(part.added_s)} and "
        f"{format_energy(part.added_j)} to a step."
    ]
    if "cpu" in covers or covers.startswith("board"):
        notes.append(
            f"The meter behind the profile covers {covers}: what the GPUs of one machine share is "
            f"counted {part.gpus} times."
        )
    return notes
