"""Make the trials that show the peaks of a device: its rates and what an empty launch costs.

One large matrix product per precision, one large copy and one layer that is too small to matter.
Sizes follow from what is assumed about the device, so that a step takes about ten milliseconds.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.atlas.device_scale import DeviceScale
from joulecast.kinds import make_layer
from joulecast.records import Setup, Trial
from joulecast.variants import Part, make_isolated_trial

TARGET_S = 0.01
# A training step multiplies three times, and trials have at least two copies.
_PRODUCT_FLOPS = 2 * 3 * 2
# Forward reads and writes, backward reads twice and writes; fp32, two copies.
_COPY_BYTES = 5 * 4 * 2
_TILE, _SMALLEST, _LARGEST = 128, 256, 8192
# Each anchor may take this share of the memory; a product holds about this many matrices in fp32.
_MEMORY_SHARE = 0.25
_MATRICES = 16
_COPY_BATCH = 64
_TINY_WIDTH = 16


def make_anchor_trials(
    scale: DeviceScale, modes: tuple[str, ...] = ("eager",), phase: str = "train"
) -> tuple[Trial, ...]:
    """Return the anchors of a device, one for each rate.

    Args:
        scale: What is assumed about the device.
        modes: Modes of the runtime; graphs are preferred, since they hide the host.
        phase: ``train``, or ``inference`` for runtimes that do not train.
    """
    mode, setup = "graph" if "graph" in modes else "eager", Setup(phase=phase)
    products = [replace(setup, precision=precision) for precision in scale.flops_per_s]
    trials = [_make_product(scale, one, mode) for one in products]
    trials += [_make_copy(scale, setup, mode), _make_tiny(setup, mode)]
    return tuple(_limit_copies(trial, scale.most_copies) for trial in trials)


def _limit_copies(trial: Trial, most: int) -> Trial:
    copies = min(trial.execution.copies, most)
    return replace(trial, execution=replace(trial.execution, copies=copies))


def _make_product(scale: DeviceScale, setup: Setup, mode: str) -> Trial:
    """Return the product of two square matrices, as a linear layer."""
    wanted = (scale.flops_per_s[setup.precision] * TARGET_S / _PRODUCT_FLOPS) ** (1 / 3)
    most = (scale.memory_bytes * _MEMORY_SHARE / (_MATRICES * 4)) ** 0.5
    width = int(min(wanted, most, _LARGEST)) // _TILE * _TILE
    width = max(_SMALLEST, width)
    part = Part("hidden", (make_layer("linear", cin=width, cout=width, bias=0),))
    return make_isolated_trial(part, replace(setup, batch=width), mode)


def _make_copy(scale: DeviceScale, setup: Setup, mode: str) -> Trial:
    wanted = scale.bytes_per_s * TARGET_S / _COPY_BYTES
    most = scale.memory_bytes * _MEMORY_SHARE / _COPY_BYTES
    elements = max(1, int(min(wanted, most)) // _COPY_BATCH)
    part = Part("hidden", (make_layer("elementwise", fn="copy", shape=(elements,)),))
    return make_isolated_trial(part, replace(setup, batch=_COPY_BATCH), mode)


def _make_tiny(setup: Setup, mode: str) -> Trial:
    part = Part("hidden", (make_layer("linear", cin=_TINY_WIDTH, cout=_TINY_WIDTH),))
    return make_isolated_trial(part, replace(setup, batch=1), mode)
