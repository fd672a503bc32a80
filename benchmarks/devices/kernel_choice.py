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

from joulecast.estimators.additive.pieces import Piece, count_pieces, split_pieces
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


def count_row(row: KernelRow | AnyStep) -> Mapping[Piece, float]:
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
