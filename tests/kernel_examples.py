"""Kernels with known costs, and what a simulated device shows of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from joulecast.estimators.base import Floats
from joulecast.onnx_nets.fusion import FUSION_TABLES, FusedKernel, list_kernels
from joulecast.operators import make_layer, make_op
from joulecast.records import Input, Network, Setup

SETUP = Setup(batch=1, phase="inference")
TABLE = FUSION_TABLES["onnxruntime"]


def make_conv(cin: int, cout: int, side: int, kernel: int = 3, tail: str = "relu") -> FusedKernel:
    """Return a convolution with an activation as one kernel."""
    tails = (make_op("elementwise", fn=tail),) if tail else ()
    sizes = {"cin": cin, "cout": cout, "space": (side, side), "kernel": kernel}
    layer = make_layer("conv2d", tails, padding=kernel // 2, **sizes)
    (found,) = list_kernels(Network((layer,), Input((cin, side, side))), SETUP, TABLE)
    return found


def make_linear(cin: int, cout: int) -> FusedKernel:
    """Return a linear layer as a kernel."""
    layer = make_layer("linear", cin=cin, cout=cout)
    (found,) = list_kernels(Network((layer,), Input((cin,))), SETUP, TABLE)
    return found


def draw_convs(count: int, seed: int = 0) -> list[FusedKernel]:
    """Return convolutions of random sizes."""
    draw = random.Random(seed)
    return [
        make_conv(
            draw.randint(4, 128), draw.randint(4, 128), draw.randint(4, 56), draw.choice((1, 3, 5))
        )
        for _ in range(count)
    ]


def find_durations(kernels: Sequence[FusedKernel]) -> Floats:
    """Return a smooth law: rates that depend on the channels, and the start of a kernel."""
    rates = [1e9 * (1.0 - np.exp(-one.features["C_out"] / 60.0)) for one in kernels]
    work = zip(kernels, rates, strict=True)
    return np.array([one.flops / rate + one.size_bytes / 5e9 + 2e-6 for one, rate in work])
