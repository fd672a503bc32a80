"""Choose the anchors of a left-out GPU: six large products and a copy."""

from __future__ import annotations

import math
from collections.abc import Iterable

from neusight_data import KernelRow

ANCHOR_SIZES = (
    ("linear", (1, 4096, 4096, 4096)),
    ("linear", (1, 8192, 2048, 8192)),
    ("linear", (1, 8192, 8192, 2048)),
    ("linear", (1, 2048, 8192, 2048)),
    ("bmm", (128, 1024, 96, 1024)),
    ("bmm", (128, 1024, 1024, 96)),
    ("addu", (16384, 4096)),
)
"""Kernels that are wanted; the data have others on each GPU, and the nearest ones are taken."""


def choose_anchors(kernels: Iterable[KernelRow], device: str) -> list[KernelRow]:
    """Return the anchors of a device, distinct; none of a device without kernels."""
    left = [one for one in kernels if one.device == device]
    chosen = []
    for op, sizes in ANCHOR_SIZES:
        candidates = [one for one in left if one.op == op and one not in chosen]
        if candidates:
            chosen.append(min(candidates, key=lambda one: _distance(one.sizes, sizes)))
    return chosen


def _distance(left: tuple[int, ...], right: tuple[int, ...]) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(left, right, strict=True))
