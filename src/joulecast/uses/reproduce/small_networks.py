"""Make the small networks that experiments train: stacked convolutions and fully connected layers.

The paper trains them on MNIST: images of one channel and 28 x 28 positions, ten classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from joulecast.kinds import make_layer, make_op
from joulecast.records import Input, Layer, Network, Setup
from joulecast.uses.reproduce.paper_settings import PaperSettings, make_paper_setup

IMAGE = (1, 28, 28)
CLASSES = 10
FLATTEN = make_op("flatten")
_RELU = make_op("elementwise", fn="relu")


def make_stack(count: int, channels: int) -> Network:
    """Return an input layer, equal convolutions, and a fully connected output layer."""
    convs = [_make_conv(IMAGE[0], channels)]
    convs += [_make_conv(channels, channels) for _ in range(count)]
    convs[0] = replace(convs[0], name="input", input_grad=False)
    for number in range(1, count + 1):
        convs[number] = replace(convs[number], name=f"hidden{number}")
    convs[-1] = replace(convs[-1], tail=(*convs[-1].tail, FLATTEN))
    output = make_layer("linear", cin=channels * math.prod(IMAGE[1:]), cout=CLASSES)
    layers = (*convs, replace(output, name="output"))
    return Network(layers, Input(IMAGE), name=f"input, {count} hidden, output")


def make_fully_connected(channels: int, space: tuple[int, int]) -> Network:
    """Return a network of one fully connected layer on images of some channels."""
    features = channels * math.prod(space)
    layer = make_layer("linear", cin=features, cout=CLASSES)
    layer = replace(layer, name="fc", input_grad=False)
    return Network((layer,), Input((features,)), name=f"fc on {channels} channels")


def choose_busy_setup(settings: PaperSettings, batch: int) -> Setup:
    """Return a setup that keeps the device busy: the paper's batch, or a larger one on a GPU."""
    return Setup(batch=batch, precision="tf32") if settings.is_gpu else make_paper_setup()


def _make_conv(cin: int, cout: int) -> Layer:
    sizes = {"cin": cin, "cout": cout, "space": IMAGE[1:], "kernel": 3, "padding": 1}
    return make_layer("conv2d", (_RELU,), **sizes)
