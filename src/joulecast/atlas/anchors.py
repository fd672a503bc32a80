"""Make the trials that show the peaks of a device: its rates and what an empty launch costs.

One large matrix product per precision, one large copy and one layer that is too small to matter.
Sizes follow from what is assumed about the device, so that a step takes about ten milliseconds.
Products of other shapes, of as many FLOPs, show how far the peak depends on the shape; layers of
ordinary sizes, what each kind reaches of it; eager steps, how fast the host issues kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.atlas.device_scale import DeviceScale
from joulecast.families import make_family
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
# Rows and widths of further products over those of the square one, which have as many FLOPs.
_OTHER_SHAPES = ((4.0, 0.5), (0.25, 2.0))
# Products of attention: so many at once, of this width.
_HEADS, _HEAD_WIDTH = 16, 64
_TINY_WIDTH = 16
# Layers of ordinary sizes in image models and in language models, and their batch. Libraries run
# other kernels where channels are no multiple of eight.
_LAYER_BATCH = 64
_IMAGE, _SMALL_IMAGE, _TOKENS, _WIDTH = 56, 14, 128, 768
_PRODUCT_LAYERS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("conv2d", {"cin": 64, "cout": 64, "space": _IMAGE, "kernel": 3, "padding": 1, "bias": 0}),
    (
        "conv2d",
        {"cin": 256, "cout": 256, "space": _SMALL_IMAGE, "kernel": 3, "padding": 1, "bias": 0},
    ),
    ("conv2d", {"cin": 61, "cout": 61, "space": _IMAGE, "kernel": 3, "padding": 1, "bias": 0}),
    (
        "conv2d",
        {
            "cin": 64,
            "cout": 64,
            "space": _IMAGE,
            "kernel": 3,
            "padding": 1,
            "bias": 0,
            "groups": 64,
        },
    ),
    ("linear", {"lead": (_TOKENS,), "cin": _WIDTH - 1, "cout": _WIDTH - 1, "bias": 0}),
    (
        "sdpa",
        {"tokens": _TOKENS, "kv_tokens": _TOKENS, "heads": 12, "kv_heads": 12, "head_dim": 64},
    ),
    ("lstm", {"cin": 256, "hidden": 256, "tokens": _TOKENS, "depth": 1}),
)
# Those that multiply nothing run alike in fp32 and in TF32.
_OTHER_LAYERS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("batch_norm", {"shape": (64, _IMAGE, _IMAGE)}),
    ("pool", {"fn": "max", "shape": (64, _IMAGE, _IMAGE), "kernel": (2, 2), "stride": (2, 2)}),
    ("layer_norm", {"shape": (_TOKENS, _WIDTH), "dims": 1}),
    ("elementwise", {"fn": "gelu", "shape": (_TOKENS, 4 * _WIDTH)}),
    ("dropout", {"shape": (_TOKENS, _WIDTH), "p": 0.1}),
    ("embedding", {"lead": (_TOKENS,), "vocabulary": 32000, "width": _WIDTH}),
)
# Networks whose kernels are so short in such batches that the host decides how long a step takes:
# one with few calls and one with many.
_HOST_NETWORKS, _HOST_BATCH = ("lenet5", "resnet18"), 2


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
    widths = [_find_width(scale, one.precision) for one in products]
    trials = [
        _make_product(one, mode, width, width) for one, width in zip(products, widths, strict=True)
    ]
    trials += [_make_copy(scale, setup, mode), _make_tiny(setup, mode)]
    return tuple(_limit_copies(trial, scale.most_copies) for trial in trials)


def make_shape_trials(
    scale: DeviceScale, modes: tuple[str, ...] = ("eager",), phase: str = "train"
) -> tuple[Trial, ...]:
    """Return further products in each precision: tall, wide, and many small ones at once.

    Args:
        scale: What is assumed about the device.
        modes: Modes of the runtime.
        phase: ``train`` or ``inference``.
    """
    mode, trials = "graph" if "graph" in modes else "eager", []
    for precision in scale.flops_per_s:
        setup = Setup(phase=phase, precision=precision)
        width = _find_width(scale, precision)
        for rows, widths in _OTHER_SHAPES:
            trials.append(_make_product(setup, mode, int(rows * width), int(widths * width)))
        trials.append(_make_batched_product(setup, mode, width))
    return tuple(_limit_copies(trial, scale.most_copies) for trial in trials)


def make_layer_trials(
    scale: DeviceScale, modes: tuple[str, ...] = ("eager",), phase: str = "train"
) -> tuple[Trial, ...]:
    """Return layers of ordinary sizes in each precision, one of every frequent kind.

    Args:
        scale: What is assumed about the device.
        modes: Modes of the runtime.
        phase: ``train`` or ``inference``.
    """
    mode, trials = "graph" if "graph" in modes else "eager", []
    for precision in scale.flops_per_s:
        setup = Setup(_LAYER_BATCH, phase=phase, precision=precision)
        layers = _PRODUCT_LAYERS + (() if precision == "tf32" else _OTHER_LAYERS)
        for kind, sizes in layers:
            part = Part("hidden", (make_layer(kind, **sizes),))
            trials.append(make_isolated_trial(part, setup, mode))
    return tuple(_limit_copies(trial, scale.most_copies) for trial in trials)


def make_host_trials(modes: tuple[str, ...] = ("eager",)) -> tuple[Trial, ...]:
    """Return eager training steps that show the host; none where layers are timed with it anyway.

    Args:
        modes: Modes of the runtime.
    """
    if "graph" not in modes:
        return ()
    return tuple(Trial(make_family(name), Setup(_HOST_BATCH)) for name in _HOST_NETWORKS)


def _limit_copies(trial: Trial, most: int) -> Trial:
    copies = min(trial.execution.copies, most)
    return replace(trial, execution=replace(trial.execution, copies=copies))


def _find_width(scale: DeviceScale, precision: str) -> int:
    """Return the width of the square matrices whose product takes about the target's time."""
    wanted = (scale.flops_per_s[precision] * TARGET_S / _PRODUCT_FLOPS) ** (1 / 3)
    most = (scale.memory_bytes * _MEMORY_SHARE / (_MATRICES * 4)) ** 0.5
    width = int(min(wanted, most, _LARGEST)) // _TILE * _TILE
    return max(_SMALLEST, width)


def _make_product(setup: Setup, mode: str, rows: int, width: int) -> Trial:
    """Return the product of a matrix with a square one, as a linear layer."""
    part = Part("hidden", (make_layer("linear", cin=width, cout=width, bias=0),))
    return make_isolated_trial(part, replace(setup, batch=rows), mode)


def _make_batched_product(setup: Setup, mode: str, width: int) -> Trial:
    """Return the products of queries and keys of attention over sequences of half the width."""
    size = width // 2
    batch = max(1, 4 * width // (_HEADS * _HEAD_WIDTH))
    layer = make_layer("matmul", count=_HEADS, m=size, k=_HEAD_WIDTH, n=size)
    part = Part("hidden", (replace(layer, reads=(1, 2)),))
    return make_isolated_trial(part, replace(setup, batch=batch), mode)


def _make_copy(scale: DeviceScale, setup: Setup, mode: str) -> Trial:
    wanted = scale.bytes_per_s * TARGET_S / _COPY_BYTES
    most = scale.memory_bytes * _MEMORY_SHARE / _COPY_BYTES
    elements = max(1, int(min(wanted, most)) // _COPY_BATCH)
    part = Part("hidden", (make_layer("elementwise", fn="copy", shape=(elements,)),))
    return make_isolated_trial(part, replace(setup, batch=_COPY_BATCH), mode)


def _make_tiny(setup: Setup, mode: str) -> Trial:
    part = Part("hidden", (make_layer("linear", cin=_TINY_WIDTH, cout=_TINY_WIDTH),))
    return make_isolated_trial(part, replace(setup, batch=1), mode)
