"""Collect what several GPUs were measured to do, as the shared model is fitted to it.

NeuSight's kernels; its steps of GPUs that have none ─┐
published steps of image models on GeForce cards ─────┼─▶ MeasuredDevice, one for each GPU
layers of the shipped H200 profile ───────────────────┘
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import sqrt

import numpy as np
from kernel_choice import AnyStep, choose_kernels, count_row
from neusight_data import KernelRow

from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.decompose import DecomposedObservation, decompose_observations
from joulecast.estimators.additive.shared_fit import MeasuredDevice
from joulecast.files import read_profile
from joulecast.store.shipped import SHIPPED

H200 = "nvidia-h200"
H200_LAYERS = 900
"""Layers of the H200 that enter: a third of all gives the same errors as all of them."""
# The mean of the fastest five of 25 runs.
_KERNEL_SD_SHARE = 0.01
# NeuSight's steps were timed with memory allocations; image models ran with kernels that cuDNN had
# chosen by trial.
_STEP_SD_SHARE = 0.08


def collect_devices(
    kernels: Iterable[KernelRow], steps: Iterable[AnyStep], layers: int = H200_LAYERS
) -> list[MeasuredDevice]:
    """Return the GPUs of the tables and, with some of its layers, the H200.

    Args:
        kernels: Kernels of the GPUs to use.
        steps: Steps of the GPUs to use. NeuSight's contain allocations of memory, so kernels alone
            are used of a GPU that has any.
        layers: Number of layers of the H200; 0 leaves it out.
    """
    rows: dict[str, list[KernelRow | AnyStep]] = defaultdict(list)
    for kernel in choose_kernels(kernels):
        rows[kernel.device].append(kernel)
    has_kernels = set(rows)
    for step in steps:
        if step.device not in has_kernels:
            rows[step.device].append(step)
    found = [
        MeasuredDevice(find_data_sheet(name), [observe_row(row) for row in own])
        for name, own in sorted(rows.items())
    ]
    if layers:
        found.append(MeasuredDevice(find_data_sheet(H200), choose_layers(layers)))
    return found


def observe_row(row: KernelRow | AnyStep) -> DecomposedObservation:
    """Return a kernel or a step as an observation of the device alone."""
    is_kernel = isinstance(row, KernelRow)
    sd_share = _KERNEL_SD_SHARE if is_kernel else _STEP_SD_SHARE
    return DecomposedObservation(
        counts=count_row(row),
        mode="graph",
        energy_j=None,
        energy_relative_var=0.0,
        duration_s=row.duration_s,
        duration_relative_var=sd_share**2,
        issue_s=None,
        is_isolated=is_kernel,
        trial_key="",
        is_imported=True,
    )


def choose_layers(count: int) -> list[DecomposedObservation]:
    """Return layers of the shipped H200 profile, of every kind and precision some."""
    groups: dict[str, list[DecomposedObservation]] = defaultdict(list)
    for one in read_layers():
        groups[next(iter(one.counts)).label].append(one)
    generator = np.random.default_rng(0)
    roots = sum(sqrt(len(own)) for own in groups.values())
    chosen = []
    for _, own in sorted(groups.items()):
        wanted = min(len(own), max(2, round(count * sqrt(len(own)) / roots)))
        # Of each kind those with energy first, then at random.
        order = generator.permutation(len(own))
        ranked = sorted(order.tolist(), key=lambda at: own[at].energy_j is None)
        chosen += [own[at] for at in sorted(ranked[:wanted])]
    return chosen


@lru_cache(maxsize=1)
def read_layers() -> Sequence[DecomposedObservation]:
    """Return the isolated layers of the shipped H200 profile, without repeated blocks."""
    profile = read_profile(SHIPPED / f"{H200}.json")
    return [
        one
        for one in decompose_observations(profile.observations)
        if one.mode == "graph" and one.duration_s and one.is_isolated
        if not next(iter(one.counts)).is_block
    ]
