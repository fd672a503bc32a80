"""Predict NeuSight's steps from the same GPU's own kernels: how far is the sum from the step?

    python benchmarks/devices/own_kernels.py --data FOLDER

Every operator takes what kernels of similar sizes took on the same GPU, relative to a roofline.
Nothing is left out, so this is no estimate of an unseen GPU. It bounds what can be reached.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from neusight_data import TRAINING, KernelRow, StepRow, read_kernels, read_steps
from scipy.spatial import cKDTree
from step_products import Product, list_step_work

from joulecast.catalogue import find_data_sheet
from joulecast.errors import InputError
from joulecast.estimators.additive.layers import SetupLayer
from joulecast.records import DataSheet

_NEIGHBOURS = 6
_LAUNCH_S = 3e-6
# Kernels of vector functions stand for others that move as much; the first one that was measured.
_SIMILAR = ("mulu", "addu", "add")
_SAME = {"layer_norm": "ln", "softmax": "softmax", "gelu": "gelu", "relu": "relu", "tanh": "tanh"}


def main() -> None:
    """Print the error of each step and the mean of each GPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of NeuSight's tables")
    folder = parser.parse_args().data
    try:
        kernels, steps = read_kernels(folder), read_steps(folder)
    except InputError as error:
        sys.exit(str(error))
    errors = defaultdict(list)
    for row, forward_s, backward_s in sum_kernels(kernels, steps):
        off = (forward_s + backward_s) / row.duration_s - 1.0
        errors[row.device, row.mode].append(off)
        print(f"{row.device:24} {row.model:11} {row.mode:5} batch {row.batch}: {off:+.1%}", end="")
        if row.mode == TRAINING:
            print(f", forward {forward_s / row.forward_s - 1.0:+.0%}", end="")
            print(f", backward {backward_s / row.backward_s - 1.0:+.0%}", end="")
        print()
    for (device, mode), own in sorted(errors.items()):
        print(f"{device}, {mode}: MAPE {np.mean(np.abs(own)):.1%}, mean {np.mean(own):+.1%}")


def sum_kernels(
    kernels: Sequence[KernelRow], steps: Iterable[StepRow]
) -> Iterable[tuple[StepRow, float, float]]:
    """Yield each step of a GPU with kernels, with its forward and backward durations in seconds."""
    by_device: dict[str, dict[str, list[KernelRow]]] = defaultdict(lambda: defaultdict(list))
    for kernel in kernels:
        by_device[kernel.device][kernel.op].append(kernel)
    tables = {name: KernelTable(find_data_sheet(name), own) for name, own in by_device.items()}
    for step in steps:
        if step.device in tables:
            yield step, *tables[step.device].sum_step(step)


class KernelTable:
    """Kernels of one GPU, looked up by their sizes."""

    def __init__(self, sheet: DataSheet, kernels: dict[str, list[KernelRow]]) -> None:
        self.sheet = sheet
        self._trees = {}
        for op, rows in kernels.items():
            sizes = np.log(np.array([row.sizes for row in rows], float))
            roofs_s = [self._bound(row.piece.flops, row.piece.size_bytes) for row in rows]
            ratios = np.log([row.duration_s for row in rows]) - np.log(roofs_s)
            self._trees[op] = cKDTree(sizes), ratios

    def sum_step(self, step: StepRow) -> tuple[float, float]:
        """Return the durations of forward and backward in seconds."""
        total_s = [0.0, 0.0]
        for work in list_step_work(step.network, step.setup):
            for product in work.products:
                total_s[product.is_backward] += work.count * self._time_product(product)
            if not work.products:
                factor = self._find_factor(*self._find_vector(work.piece))
                for side, (size_bytes, launches) in enumerate((work.forward, work.backward)):
                    moved_s = size_bytes / self.sheet.bytes_per_s * factor
                    total_s[side] += work.count * (moved_s + launches * _LAUNCH_S)
            added_s = work.added_bytes / self.sheet.bytes_per_s
            total_s[1] += work.count * added_s
        return total_s[0], total_s[1]

    def _time_product(self, product: Product) -> float:
        b, m, n, k = product.sizes
        bound_s = self._bound(2.0 * b * m * n * k, 4.0 * b * (m * n + n * k + m * k))
        return bound_s * self._find_factor(product.op, product.sizes)

    def _bound(self, flops: float, size_bytes: float) -> float:
        compute_s = flops / self.sheet.flops_per_s["fp32"]
        return max(compute_s, size_bytes / self.sheet.bytes_per_s) + _LAUNCH_S

    def _find_factor(self, op: str, sizes: tuple[float, ...]) -> float:
        tree, ratios = self._trees[op]
        distances, numbers = tree.query(np.log(sizes), k=min(_NEIGHBOURS, len(ratios)))
        weights = 1.0 / (np.atleast_1d(distances) + 0.05) ** 2
        return float(np.exp(np.average(ratios[np.atleast_1d(numbers)], weights=weights)))

    def _find_vector(self, piece: SetupLayer) -> tuple[str, tuple[float, ...]]:
        names = (_SAME.get(piece.kind, ""), *_SIMILAR)
        op = next(name for name in names if name in self._trees)
        return op, (float(np.exp(piece.point[0])), float(np.exp(piece.point[1])))


if __name__ == "__main__":
    main()
