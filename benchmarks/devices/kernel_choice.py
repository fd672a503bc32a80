"""Choose the kernels that a law is fitted to: those that are like operators of transformers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from neusight_data import PRODUCT_OPS, KernelRow, StepRow, list_networks
from published_steps import PublishedStep
from scipy.spatial import cKDTree
from step_products import list_step_work

from joulecast.estimators.additive.layers import SetupLayer, count_layers, split_layers
from joulecast.records import Setup

AnyStep = StepRow | PublishedStep
"""A step of a network in one of the tables."""
PRODUCTS, VECTORS = 100, 15
"""Kernels of each function and device that the law is fitted to: a Gaussian process of 31,000 rows
would take days, and neighbours say the same."""
_BATCHES = (1, 2, 4, 8, 16)


def choose_kernels(
    kernels: Iterable[KernelRow], products: int = PRODUCTS, vectors: int = VECTORS
) -> list[KernelRow]:
    """Return kernels of each device and function that are like operators of transformers.

    Of those that are nearest to some operator, so many are taken at random. Those that are farthest
    from each other would be the extremes, where GPUs differ most: with them steps of a left-out
    V100 were off by 21 to 34 %, with random ones by 18 to 29 %.
    """
    groups: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.device, kernel.op].append(kernel)
    chosen = []
    for (_, op), group in groups.items():
        near = _find_nearest(group, list_operator_sizes(op))
        chosen += _draw(near, products if group[0].is_product else vectors)
    return chosen


def list_operator_sizes(op: str) -> list[tuple[int, ...]]:
    """Return the sizes that networks of this benchmark run a kernel at, in usual batches."""
    return sorted(_find_operator_sizes()[op if op in PRODUCT_OPS else "vector"])


def count_row(row: KernelRow | AnyStep) -> Mapping[SetupLayer, float]:
    """Return the pieces of a row with how often it runs each."""
    if isinstance(row, KernelRow):
        return {row.piece: 1.0}
    return count_layers(split_layers(row.network, row.setup))


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


def _draw(rows: Sequence[KernelRow], count: int) -> list[KernelRow]:
    """Return so many rows at random, in their order."""
    numbers = np.random.default_rng(0).permutation(len(rows))[:count]
    return [rows[number] for number in np.sort(numbers)]
