"""Predict durations on a device that was never measured, by what others were measured at.

    others: data sheets, kernels, steps ─┐
    left out: data sheet (and anchors)  ─┴─▶ durations of its kernels and steps, with intervals

The law is Joulecast's own (``estimators/additive/shared_fit.py``); this module turns rows of
the data into its observations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from neusight_data import PRODUCT_OPS, KernelRow, StepRow, list_networks
from scipy.spatial import cKDTree
from step_products import list_step_work

from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.device_model import predict_durations
from joulecast.estimators.additive.pieces import Piece, count_pieces, split_pieces
from joulecast.estimators.additive.shared_fit import (
    MeasuredDevice,
    fit_shared_durations,
    make_sheet_encoder,
)
from joulecast.estimators.base import Floats
from joulecast.gp.logsums.posterior import FittedLogSums
from joulecast.records import DataSheet, Setup

PRODUCTS, VECTORS = 100, 15
"""Kernels of each function and device that the law is fitted to: a Gaussian process of 31,000 rows
would take days, and neighbours say the same."""
_BATCHES = (1, 2, 4, 8, 16)
# The mean of the fastest five of 25 runs.
_TIMING_VARIANCE = 0.01**2
# Steps were timed with allocations and dispatch: how far their sums may be off.
_STEP_VARIANCE = 0.04**2


@dataclass(frozen=True)
class PredictedDurations:
    """Log-normal predictions, one for each row."""

    log_means: Floats
    log_sds: Floats

    @property
    def medians_s(self) -> Floats:
        """Their medians."""
        return np.asarray(np.exp(self.log_means))

    def interval_s(self, z: float) -> tuple[Floats, Floats]:
        """Return the bounds of central intervals."""
        reach = z * self.log_sds
        return np.exp(self.log_means - reach), np.exp(self.log_means + reach)


@dataclass(frozen=True)
class DurationLaw:
    """The law fitted to other devices, and to anchors of the device if there are any."""

    sheet: DataSheet
    fitted: FittedLogSums

    def predict(self, rows: Sequence[KernelRow | StepRow]) -> PredictedDurations:
        """Return the durations of kernels or steps."""
        encoder = make_sheet_encoder(self.sheet)
        # Steps of training are sums over forward and backward passes (``additive/passes.py``).
        sums = encoder.sum_pieces([count_row(row) for row in rows])
        logs = predict_durations(encoder, self.fitted, sums).logs
        return PredictedDurations(logs.log_mean, np.sqrt(logs.log_variance))


def fit_law(
    device: str,
    kernels: Iterable[KernelRow],
    steps: Iterable[StepRow],
    anchors: Sequence[KernelRow] = (),
) -> DurationLaw:
    """Fit the law for a device to rows of others.

    Args:
        device: The device that is left out.
        kernels: Kernels of any devices; those of the device itself are not used.
        steps: Likewise steps.
        anchors: Kernels of the device that are used.
    """
    rows: dict[str, list[KernelRow | StepRow]] = defaultdict(list)
    for kernel in choose_kernels(one for one in kernels if one.device != device):
        rows[kernel.device].append(kernel)
    for step in steps:
        if step.device != device:
            rows[step.device].append(step)
    for kernel in anchors:
        rows[device].append(kernel)
    timed = [
        MeasuredDevice(find_data_sheet(name), [_observe(row) for row in own])
        for name, own in sorted(rows.items())
    ]
    return DurationLaw(find_data_sheet(device), fit_shared_durations(timed))


def choose_kernels(
    kernels: Iterable[KernelRow], products: int = PRODUCTS, vectors: int = VECTORS
) -> list[KernelRow]:
    """Return kernels of each device and function that are like operators of transformers.

    Of those that are nearest to some operator, so many are taken that are far from each other.
    """
    groups: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.device, kernel.op].append(kernel)
    chosen = []
    for (_, op), group in groups.items():
        near = _find_nearest(group, list_operator_sizes(op))
        chosen += _spread(near, products if group[0].is_product else vectors)
    return chosen


def list_operator_sizes(op: str) -> list[tuple[int, ...]]:
    """Return the sizes that networks of this benchmark run a kernel at, in usual batches."""
    return sorted(_find_operator_sizes()[op if op in PRODUCT_OPS else "vector"])


def count_row(row: KernelRow | StepRow) -> Mapping[Piece, float]:
    """Return the pieces of a row with how often it runs each."""
    if isinstance(row, KernelRow):
        return {row.piece: 1.0}
    return count_pieces(split_pieces(row.network, row.setup))


@lru_cache
def _find_operator_sizes() -> Mapping[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for network in list_networks():
        for setup in _list_setups():
            for work in list_step_work(network, setup):
                for product in work.products:
                    found[product.op].add(product.sizes)
                if not work.products:
                    rows, columns = (round(math.exp(one)) for one in work.piece.point[:2])
                    found["vector"].add((rows, columns))
    return found


def _list_setups() -> list[Setup]:
    training = [Setup(batch, phase="train", accumulate=0) for batch in _BATCHES]
    return [Setup(batch, phase="inference") for batch in _BATCHES] + training


def _find_nearest(rows: Sequence[KernelRow], sizes: Sequence[tuple[int, ...]]) -> list[KernelRow]:
    """Return the rows that are nearest to some of the sizes, in logarithms."""
    tree = cKDTree(np.log(np.array([row.sizes for row in rows], float)))
    numbers = tree.query(np.log(np.array(sizes, float)))[1]
    return [rows[number] for number in np.unique(numbers)]


def _spread(rows: Sequence[KernelRow], count: int) -> list[KernelRow]:
    """Return rows that are far apart: each next one is farthest from those before it."""
    if len(rows) <= count:
        return list(rows)
    sizes = np.log(np.array([row.sizes for row in rows], float))
    # Start from the largest: it is what steps spend most of their time on.
    chosen = [int(np.argmax(sizes.sum(axis=1)))]
    distances = np.full(len(rows), np.inf)
    while len(chosen) < count:
        distances = np.minimum(distances, ((sizes - sizes[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(np.argmax(distances)))
    return [rows[number] for number in chosen]


def _observe(row: KernelRow | StepRow) -> DecomposedObservation:
    is_kernel = isinstance(row, KernelRow)
    return DecomposedObservation(
        counts=count_row(row),
        mode="eager",
        energy_j=None,
        energy_relative_var=0.0,
        duration_s=row.duration_s,
        duration_relative_var=_TIMING_VARIANCE if is_kernel else _STEP_VARIANCE,
        issue_s=None,
        is_isolated=is_kernel,
        trial_key="",
    )
