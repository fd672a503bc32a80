"""Turn estimates of one GPU into those of several that train together.

    E_i, N_i      energy of step i on one GPU, and its GPUs
    a_i, s_i      energy that the all-reduce adds, and its standard deviation
    E'_i          = N_i·E_i + a_i
    cov(E'_i, E'_j) = N_i·N_j·cov(E_i, E_j) + s_i·s_j

All GPUs are of one type, so errors of their energies are common; and so are the assumptions of all
steps about the all-reduce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulecast.estimators.data_parallel.all_reduce import (
    BackwardPart,
    find_spread,
    model_all_reduce,
    ring_assumptions,
)
from joulecast.estimators.data_parallel.gpu_group import GpuGroup
from joulecast.estimators.estimate_notes import explain_memory
from joulecast.estimators.estimates import Estimates
from joulecast.gp.lognormal import interval_log_sd, lognormal_interval
from joulecast.kinds import count_gradients, layer_work
from joulecast.kinds.kind import WEIGHT_BYTES, StepWork
from joulecast.records import (
    DataParallel,
    Estimate,
    Layer,
    LayerEstimate,
    Network,
    Setup,
    weakest_provenance,
)
from joulecast.units import format_bytes, format_duration, format_energy, format_power, format_share

ALL_REDUCE = "all-reduce"
"""Name of the energy that all GPUs together take more than alone, and of its uncertainty."""
# Share of a step's mean power that a waiting GPU is assumed to draw where nothing else is known.
_WAITING_SHARE = 0.3


def replicate_step(
    step: Estimate, network: Network, setup: Setup, group: GpuGroup | None
) -> Estimate:
    """Return the estimate of a step on several GPUs; the same one for a single GPU.

    Args:
        step: Estimate of one GPU, with its layers.
        network: The network.
        setup: How each GPU trains it; ``batch`` is that of one GPU.
        group: The GPUs; None for one.
    """
    return _replicate(step, network, setup, group)[0]


def replicate_steps(
    steps: Estimates,
    networks: Sequence[Network],
    setups: Sequence[Setup],
    groups: Sequence[GpuGroup | None],
) -> Estimates:
    """Return estimates of steps on several GPUs, with their joint covariance."""
    rows = zip(steps, networks, setups, groups, strict=True)
    found = [_replicate(*row) for row in rows]
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


def _replicate(
    step: Estimate, network: Network, setup: Setup, group: GpuGroup | None
) -> tuple[Estimate, float]:
    """Return the estimate on several GPUs, and the standard deviation of the energy added."""
    if group is None or group.gpus == 1:
        return step, 0.0
    waiting_w = group.waiting_w
    if waiting_w is None:
        waiting_w = _WAITING_SHARE * step.energy_j / step.duration_s
    link = group.link_bytes_per_s
    assumed = ring_assumptions(link, waiting_w)
    ring = group.gpus, link, step.duration_s, _list_backward(step, network, setup), assumed
    cost, (sd_s, sd_j) = model_all_reduce(*ring), find_spread(*ring)
    part = DataParallel(
        group.gpus,
        setup.samples_per_step * group.gpus,
        int(cost.gradient_bytes),
        cost.buckets,
        link,
        assumed.efficiency,
        cost.all_reduce_s,
        cost.exposed_s,
        cost.added_s,
        cost.added_j,
        waiting_w,
        step.provenance,
    )
    return _combine(step, part, sd_s, sd_j), sd_j


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
        backward_s = layer_s * _find_backward_share(layer, setup)
        parts.append(BackwardPart(backward_s, float(gradients * WEIGHT_BYTES)))
    return parts


def _find_backward_share(layer: Layer, setup: Setup) -> float:
    """Return the backward pass's share of a layer's FLOPs, or of its bytes if it has none."""
    work: StepWork = layer_work(layer, setup)
    if work.total.flops:
        return work.backward.flops / work.total.flops
    return work.backward.size_bytes / work.total.size_bytes if work.total.size_bytes else 0.0


def _combine(step: Estimate, part: DataParallel, sd_s: float, sd_j: float) -> Estimate:
    gpus = part.gpus
    energy_j, duration_s = gpus * step.energy_j + part.added_j, step.duration_s + part.added_s
    step_sd_j = gpus * step.energy_j * interval_log_sd(step.energy_j, step.interval_j, step.level)
    variance = step_sd_j**2 + sd_j**2
    ends_s = step.duration_interval_s
    if ends_s is not None:
        step_sd_s = step.duration_s * interval_log_sd(step.duration_s, ends_s, step.level)
        ends_s = lognormal_interval(duration_s, step_sd_s**2 + sd_s**2, step.level)
    added = LayerEstimate(ALL_REDUCE, "all_reduce", part.added_j, seen=False)
    combined = replace(
        step,
        energy_j=energy_j,
        interval_j=lognormal_interval(energy_j, variance, step.level),
        duration_s=duration_s,
        duration_interval_s=ends_s,
        peak_memory_bytes=step.peak_memory_bytes + part.gradient_bytes,
        layers=(*(replace(one, energy_j=gpus * one.energy_j) for one in step.layers), added),
        blocks=tuple(replace(one, energy_j=gpus * one.energy_j) for one in step.blocks),
        unseen_share=step.unseen_share * gpus * step.energy_j / energy_j,
        provenance=weakest_provenance([step.provenance, part.provenance]),
        device_energy_j=step.device_energy_j and gpus * step.device_energy_j + part.added_j,
        host_share=step.host_share and step.host_share * gpus * step.energy_j / energy_j,
        uncertainty_sources=_add_source(step.uncertainty_sources, step_sd_j**2, sd_j**2),
        data_parallel=part,
    )
    notes = [note for note in step.notes if note not in explain_memory(step)]
    return replace(combined, notes=(*notes, *explain_memory(combined), *_list_notes(combined)))


def _add_source(
    sources: Mapping[str, float], step_variance: float, added_variance: float
) -> dict[str, float]:
    total = step_variance + added_variance or 1.0
    shares = {name: share * step_variance / total for name, share in sources.items()}
    shares[ALL_REDUCE] = added_variance / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _list_notes(estimate: Estimate) -> list[str]:
    part = estimate.data_parallel
    assert part is not None
    efficiency = format_share(part.link_efficiency_share)
    notes = [
        f"Modelled, not measured: a ring all-reduce of {format_bytes(part.gradient_bytes)} of fp32 "
        f"gradients in {part.buckets} buckets takes {format_duration(part.all_reduce_s)} at "
        f"{efficiency} of {part.link_bytes_per_s / 1e9:g} GB/s, of which "
        f"{format_duration(part.exposed_s)} do not overlap with the backward pass; with slower "
        f"kernels meanwhile and waiting for the slowest GPU, at {format_power(part.waiting_w)} "
        f"each, it adds {format_duration(part.added_s)} and {format_energy(part.added_j)} to a "
        "step."
    ]
    if "cpu" in estimate.covers or estimate.covers.startswith("board"):
        notes.append(
            f"The meter behind the profile covers {estimate.covers}: what the GPUs of one machine "
            f"share is counted {part.gpus} times."
        )
    return notes
