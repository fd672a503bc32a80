"""Collect what several GPUs were measured to do, as the shared model is fitted to it.

NeuSight's kernels; its steps of GPUs that have none ─┐
published steps of image models and of BERT ──────────┴─▶ durations of MeasuredDevices
layers of the shipped H200 profile ───────────────────▶ powers of a MeasuredDevice

Durations of the H200 are not shared. Most of its layers are small for it, and it is slow at them
for its peaks: with 900 of them in the fit, ResNets on other cards were predicted to take up to 2.5
times as long as they do, and the H200 itself has a profile of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import sqrt

import numpy as np
from kernel_choice import AnyStep, choose_kernels, count_row
from neusight_data import KernelRow
from published_steps import PublishedStep

from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.decompose import DecomposedObservation, decompose_observations
from joulecast.estimators.additive.shared_fit import MeasuredDevice
from joulecast.files import read_profile
from joulecast.store.profiles import SHIPPED

H200 = "nvidia-h200"
H200_LAYERS = 900
"""Layers of the H200 that powers are fitted to: a third of all gives the same errors."""
PUBLISHED_STEPS = 24
"""Steps of each published table and device that enter: networks have many different layers."""
# The mean of the fastest five of 25 runs.
_KERNEL_SD_SHARE = 0.01
# NeuSight's steps were timed with memory allocations, published ones with kernels that cuDNN had
# chosen by trial.
_STEP_SD_SHARE = 0.08


def collect_devices(kernels: Iterable[KernelRow], steps: Iterable[AnyStep]) -> list[MeasuredDevice]:
    """Return the GPUs of the tables, with their durations.

    Args:
        kernels: Kernels of the GPUs to use.
        steps: Steps of the GPUs to use; NeuSight's only of GPUs without kernels, since they contain
            allocations of memory.
    """
    rows: dict[str, list[KernelRow | AnyStep]] = defaultdict(list)
    for kernel in choose_kernels(kernels):
        rows[kernel.device].append(kernel)
    has_kernels = set(rows)
    for step in thin_steps(steps):
        if isinstance(step, PublishedStep) or step.device not in has_kernels:
            rows[step.device].append(step)
    return [
        MeasuredDevice(find_data_sheet(name), [observe_row(row) for row in own])
        for name, own in sorted(rows.items())
    ]


def collect_metered(layers: int = H200_LAYERS) -> list[MeasuredDevice]:
    """Return the devices whose energies were measured: the H200, with some of its layers."""
    return [MeasuredDevice(find_data_sheet(H200), choose_layers(layers))]


def thin_steps(steps: Iterable[AnyStep]) -> list[AnyStep]:
    """Return the steps, at most so many published ones of each table and device, evenly spaced."""
    groups: dict[tuple[str, str], list[AnyStep]] = defaultdict(list)
    for step in steps:
        source = step.source if isinstance(step, PublishedStep) else ""
        groups[source, step.device].append(step)
    chosen = []
    for (source, _), own in groups.items():
        every = -(-len(own) // PUBLISHED_STEPS) if source else 1
        chosen += own[::every]
    return chosen


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
