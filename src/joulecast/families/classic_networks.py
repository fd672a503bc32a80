"""Define image classifiers of 1,000 classes: AlexNet, SqueezeNet, GoogLeNet, DenseNet, ResNet.

They follow torchvision's versions. Parameters named C, S, E and I are channels, K kernel sizes.
"""

from __future__ import annotations

from joulecast.families.architectures import Layers, Params
from joulecast.families.family_draft import (
    DATA,
    FLATTEN,
    MEAN_POOL,
    NORM,
    RELU,
    FamilyDraft,
    make_max_pool,
)
from joulecast.kinds import make_op
from joulecast.records import Input

IMAGE_CLASSES = 1000

_DROPOUT = make_op("dropout", p=0.5)
_HALVE = make_op("pool", fn="avg", kernel=(2, 2))
# Channels of the four branches of each Inception block: 1x1; 1x1, then 3x3; 1x1, then 3x3 (5x5 in
# the paper); pooling, then 1x1.
_INCEPTIONS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
# Fire modules before each pooling of SqueezeNet 1.0.
_FIRES = (3, 4, 1)
_BOTTLENECK = 4


def make_alexnet(params: Params, sample: Input) -> Layers:
    """Return five convolutions and three linear layers, with dropout."""
    draft = FamilyDraft(sample)
    pool = make_max_pool(3, 2)
    to_square = make_op("pool", fn="adaptive_avg", kernel=(6, 6))
    first = params["k1"]
    # The original has a kernel of 11 and a padding of 2.
    draft.conv("conv1", params["c1"], first, DATA, (RELU, pool), stride=4,
               padding=max(0, first // 2 - 3))  # fmt: skip
    draft.conv("conv2", params["c2"], params["k2"], tail=(RELU, pool))
    draft.conv("conv3", params["c3"], params["k3"], tail=(RELU,))
    draft.conv("conv4", params["c4"], params["k4"], tail=(RELU,))
    tail = (RELU, pool, to_square, FLATTEN, _DROPOUT)
    draft.conv("conv5", params["c5"], params["k5"], tail=tail)
    draft.linear("fc1", params["f1"], (RELU, _DROPOUT))
    draft.linear("fc2", params["f2"], (RELU,))
    draft.linear("fc3", IMAGE_CLASSES)
    return draft.layers, draft.groups


def make_squeezenet(params: Params, sample: Input) -> Layers:
    """Return SqueezeNet 1.0: fire modules of a squeezing and two expanding convolutions."""
    draft = FamilyDraft(sample)
    pool = make_max_pool(3, 2, ceil=True)
    stem = params["k0"]
    # The original has a kernel of 7 and no padding.
    padding = max(0, stem // 2 - 3)
    draft.conv("stem", params["c0"], stem, DATA, (RELU, pool), stride=2, padding=padding)
    number = 0
    for stage, count in enumerate(_FIRES, start=1):
        for place in range(count):
            number += 1
            tail = () if place < count - 1 else (pool if stage < len(_FIRES) else _DROPOUT,)
            with draft.block(f"fire{number}"):
                squeezed = draft.conv("squeeze", params[f"s{number}"], tail=(RELU,))
                width = params[f"e{number}"]
                one = draft.conv("expand1", width, 1, squeezed, (RELU,))
                two = draft.conv("expand2", width, params[f"k{stage}"], squeezed, (RELU,))
                draft.concat("concat", (one, two), tail)
    draft.conv("classifier", IMAGE_CLASSES, tail=(RELU, MEAN_POOL, FLATTEN))
    return draft.layers, draft.groups


def make_googlenet(params: Params, sample: Input) -> Layers:
    """Return GoogLeNet with batch norms, without auxiliary classifiers.

    The channels of an Inception block are divided among its branches as in the original.
    """
    draft = FamilyDraft(sample)
    pool = make_max_pool(3, 2, ceil=True)
    draft.conv("conv1", params["c1"], params["k1"], DATA, (NORM, RELU, pool), stride=2)
    draft.conv("conv2", params["c2"])
    draft.conv("conv3", params["c3"], params["k2"], tail=(NORM, RELU, pool))
    for number in range(1, len(_INCEPTIONS) + 1):
        with draft.block(f"inception{number}"):
            _add_inception(draft, params, number)
        if number in (2, 7):
            size = 3 if number == 2 else 2
            draft.pool(f"pool{number}", make_max_pool(size, 2, ceil=True))
    draft.pool("mean", MEAN_POOL, tail=(FLATTEN,))
    draft.linear("fc", IMAGE_CLASSES)
    return draft.layers, draft.groups


def make_densenet(params: Params, sample: Input) -> Layers:
    """Return DenseNet-121: every layer appends its output to its input."""
    draft = FamilyDraft(sample)
    pool = make_max_pool(3, 2, 1)
    draft.conv("stem", params["c0"], params["k0"], DATA, (NORM, RELU, pool), stride=2)
    for stage in range(1, 5):
        growth = params[f"g{stage}"]
        for number in range(params[f"d{stage}"]):
            with draft.block(f"dense{stage}.{number}"):
                start = draft.last
                draft.norm("norm", (RELU,))
                draft.conv("conv1", _BOTTLENECK * growth)
                new = draft.conv("conv2", growth, params[f"k{stage}"], tail=(), bias=0)
                draft.concat("concat", (start, new))
        if stage < 4:
            draft.norm(f"transition{stage}.norm", (RELU,))
            channels = max(1, draft.shape()[0] // 2)
            draft.conv(f"transition{stage}.conv", channels, tail=(_HALVE,), bias=0)
    draft.norm("norm", (RELU, MEAN_POOL, FLATTEN))
    draft.linear("fc", IMAGE_CLASSES)
    return draft.layers, draft.groups


def make_image_resnet(params: Params, sample: Input) -> Layers:
    """Return ResNet-18 with the channels and kernel sizes of each stage."""
    draft = FamilyDraft(sample)
    pool = make_max_pool(3, 2, 1)
    draft.conv("stem", params["c0"], params["k0"], DATA, (NORM, RELU, pool), stride=2)
    for stage in range(1, 5):
        for number in range(2):
            with draft.block(f"stage{stage}.{number}"):
                stride = 2 if stage > 1 and not number else 1
                _add_basic_block(draft, params[f"c{stage}"], params[f"k{stage}"], stride)
    draft.pool("mean", MEAN_POOL, tail=(FLATTEN,))
    draft.linear("fc", IMAGE_CLASSES)
    return draft.layers, draft.groups


def _add_inception(draft: FamilyDraft, params: Params, number: int) -> None:
    original = _INCEPTIONS[number - 1]
    total = original[0] + original[2] + original[4] + original[5]
    scale = params[f"i{number}"] / total
    widths = [max(1, round(scale * width)) for width in original]
    start, size = draft.last, params["k3"]
    one = draft.conv("branch1", widths[0], 1, start)
    draft.conv("branch2.reduce", widths[1], 1, start)
    two = draft.conv("branch2", widths[2], size)
    draft.conv("branch3.reduce", widths[3], 1, start)
    three = draft.conv("branch3", widths[4], params["k4"])
    draft.pool("branch4.pool", make_max_pool(3, 1, 1, ceil=True), start)
    four = draft.conv("branch4", widths[5])
    draft.concat("concat", (one, two, three, four))


def _add_basic_block(draft: FamilyDraft, width: int, kernel: int, stride: int) -> None:
    start = draft.last
    draft.conv("conv1", width, kernel, stride=stride)
    body = draft.conv("conv2", width, kernel, tail=(NORM,))
    if draft.shape(start) != draft.shape(body):
        start = draft.conv("project", width, 1, start, (NORM,), stride=stride)
    draft.sum("add", (body, start), (RELU,))
