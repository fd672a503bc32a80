"""Architectures of convolutional classifiers."""

from __future__ import annotations

from joulecast.atlas.draft import (
    DATA,
    NetworkDraft,
    Tail,
    make_dropout,
    make_function,
    make_pool,
)
from joulecast.atlas.draw import SizeDraw
from joulecast.kinds import make_op
from joulecast.records import Network, Op

RELU, GELU, SILU = make_function("relu"), make_function("gelu"), make_function("silu")
HARD_SWISH, RELU6 = make_function("hardswish"), make_function("hardtanh")
NORM, FLATTEN, LAYER_NORM = make_op("batch_norm"), make_op("flatten"), make_op("layer_norm")
MEAN_POOL = make_pool("adaptive_avg", 1)
_TO_LAST, _TO_FIRST = make_op("permute", order=(1, 2, 0)), make_op("permute", order=(2, 0, 1))
_CLASSES = (10, 100, 1000, 1000)


def draw_image_side(draw: SizeDraw, multiple: int = 32, high: int = 512) -> int:
    """Return the side of a square image: CIFAR to large crops."""
    return draw.size(32, high, multiple)


def draw_resnet(draw: SizeDraw) -> Network:
    """Return a ResNet of basic or bottleneck blocks, maybe grouped, maybe channels last."""
    side, width = draw_image_side(draw), draw.width(16, 128)
    has_bottleneck, is_last = draw.happens(0.5), draw.happens(0.4)
    groups = draw.choose((1, 1, 1, 8, 32)) if has_bottleneck else 1
    width = -(-width // groups) * groups
    draft = NetworkDraft((3, side, side))
    layout = {"channels_last": is_last, "channels_last_weights": is_last}
    draft.conv(width, 7, DATA, (NORM, RELU, make_pool("max", 3, 2, 1)), stride=2, padding=3, bias=0,
               **layout)  # fmt: skip
    for stage in range(4):
        for number in range(draw.size(1, 6)):
            stride = 2 if stage and not number else 1
            with draft.block():
                _add_residual(
                    draft, width * 2**stage, stride, groups if has_bottleneck else 0, is_last
                )
    draft.pool(MEAN_POOL, tail=(FLATTEN,), channels_last=is_last)
    draft.linear(draw.choose(_CLASSES))
    return draft.finish("resnet", buildable=not is_last)


def draw_grouped_resnet(draw: SizeDraw) -> Network:
    """Return bottlenecks of grouped convolutions like ResNeXt and RegNet."""
    side, is_last = draw_image_side(draw), draw.happens(0.5)
    group_width = draw.choose((4, 8, 16, 24, 32, 56, 64))
    width = group_width * draw.size(2, max(2, 256 // group_width))
    # RegNet widens nothing inside a block, and has one group for every so many channels.
    is_regnet = draw.happens(0.5)
    layout = {"channels_last": is_last, "channels_last_weights": is_last}
    draft = NetworkDraft((3, side, side))
    draft.conv(32, 3, DATA, (NORM, RELU), stride=2, padding=1, bias=0, **layout)
    for stage in range(4):
        inner = width * 2**stage
        cout = inner if is_regnet else 2 * inner
        groups = inner // group_width if is_regnet else width // group_width
        for number in range(draw.size(1, 4)):
            stride = 1 if number else 2
            with draft.block():
                start = draft.last
                draft.conv(inner, 1, None, (NORM, RELU), bias=0, **layout)
                draft.conv(inner, 3, None, (NORM, RELU), stride=stride, padding=1, bias=0,
                           groups=groups, **layout)  # fmt: skip
                if is_regnet:
                    _add_squeeze_excite(draft, make_function("sigmoid"), RELU, is_last)
                body = draft.conv(cout, 1, None, (NORM,), bias=0, **layout)
                if draft.shape(start) != draft.shape(body):
                    start = draft.conv(cout, 1, start, (NORM,), stride=stride, bias=0, **layout)
                draft.function("add", (body, start), (RELU,), channels_last=is_last)
    draft.pool(MEAN_POOL, tail=(FLATTEN,), channels_last=is_last)
    draft.linear(draw.choose(_CLASSES))
    return draft.finish("grouped resnet")


def draw_small_image_resnet(draw: SizeDraw) -> Network:
    """Return a ResNet for small images, as on CIFAR: it starts at full resolution."""
    side, width = draw.choose((24, 28, 32, 32, 64, 96)), draw.width(16, 192)
    draft = NetworkDraft((draw.choose((1, 3, 3)), side, side))
    draft.conv(width, 3, DATA, (NORM, RELU), padding=1, bias=0)
    for stage in range(draw.choose((3, 4))):
        for number in range(draw.size(1, 5)):
            with draft.block():
                _add_residual(draft, width * 2**stage, 2 if stage and not number else 1, 0, False)
    draft.pool(MEAN_POOL, tail=(FLATTEN,))
    draft.linear(draw.choose((10, 10, 100, 200)))
    return draft.finish("small image resnet", buildable=True)


def _add_residual(draft: NetworkDraft, width: int, stride: int, groups: int, is_last: bool) -> None:
    """Add a residual block; ``groups`` 0 makes it a basic one, without a bottleneck."""
    start, layout = draft.last, {"channels_last": is_last, "channels_last_weights": is_last}
    cout = 4 * width if groups else width
    if groups:
        draft.conv(width, 1, None, (NORM, RELU), bias=0, **layout)
    draft.conv(width, 3, None, (NORM, RELU), stride=stride, padding=1, bias=0,
               groups=groups or 1, **layout)  # fmt: skip
    if groups:
        body = draft.conv(cout, 1, None, (NORM,), bias=0, **layout)
    else:
        body = draft.conv(cout, 3, None, (NORM,), padding=1, bias=0, **layout)
    if stride > 1 or draft.shape(start)[0] != cout:
        start = draft.conv(cout, 1, start, (NORM,), stride=stride, bias=0, **layout)
    draft.function("add", (body, start), (RELU,), channels_last=is_last)


def draw_vgg(draw: SizeDraw) -> Network:
    """Return plain convolutions with pooling and wide linear layers."""
    side, width = draw_image_side(draw, 32, 256), draw.width(16, 96)
    norm: Tail = (NORM,) if draw.happens(0.5) else ()
    draft = NetworkDraft((3, side, side))
    stages = draw.choose((3, 4, 5))
    for stage in range(stages):
        cout, is_end = min(512, width * 2**stage), stage == stages - 1
        for _ in range(draw.choose((0, 1, 2))):
            draft.conv(cout, 3, None, (*norm, RELU), padding=1)
        end: Tail = (make_pool("adaptive_avg", draw.choose((1, 4, 7))), FLATTEN) if is_end else ()
        draft.conv(cout, 3, None, (*norm, RELU, make_pool("max", 2), *end), padding=1)
    hidden, drop = draw.size(128, 4096, 64), make_dropout(0.5)
    draft.linear(hidden, tail=(RELU, drop))
    draft.linear(hidden, tail=(RELU, drop))
    draft.linear(draw.choose(_CLASSES))
    return draft.finish("vgg", buildable=True)


def draw_mobilenet(draw: SizeDraw) -> Network:
    """Return inverted residuals like MobileNetV2, MobileNetV3 or EfficientNet."""
    style = draw.choose(("v2", "v3", "efficientnet", "efficientnet"))
    activation = {"v2": RELU6, "v3": HARD_SWISH, "efficientnet": SILU}[style]
    side, width = draw_image_side(draw), draw.width(16, 48)
    is_last = draw.happens(0.3)
    pad: Tail = (make_function("pad"),) if style == "v2" and draw.happens(0.5) else ()
    gate = None if style == "v2" else make_function("hardsigmoid" if style == "v3" else "sigmoid")
    layout = {"channels_last": is_last, "channels_last_weights": is_last}
    draft = NetworkDraft((3, side, side))
    draft.conv(width, 3, DATA, (NORM, activation), stride=2, padding=1, bias=0, **layout)
    for stage in range(draw.choose((3, 4, 5))):
        expansion, kernel = draw.choose((3, 4, 6, 6)), draw.choose((3, 3, 5))
        for number in range(draw.size(1, 5)):
            stride = 2 if not number and draft.shape()[1] > 4 else 1
            cout = 8 * max(1, round(width * 1.6**stage / 8))
            with draft.block():
                start = draft.last
                wide = expansion * draft.shape()[0]
                draft.conv(wide, 1, None, (NORM, activation, *pad), bias=0, **layout)
                draft.conv(wide, kernel, None, (NORM, activation, *pad), groups=wide, stride=stride,
                           padding=kernel // 2, bias=0, **layout)  # fmt: skip
                if gate is not None:
                    _add_squeeze_excite(draft, gate, RELU if style == "v3" else SILU, is_last)
                draft.conv(cout, 1, None, (NORM,), bias=0, **layout)
                if draft.shape() == draft.shape(start):
                    draft.function("add", (start, draft.last), channels_last=is_last)
                elif pad:
                    draft.function("pad", channels_last=is_last)
    top = draw.width(320, 1536)
    draft.conv(top, 1, None, (NORM, activation, MEAN_POOL, make_dropout(0.2)), bias=0, **layout)
    draft.linear(draw.choose(_CLASSES), shape=(top,))
    return draft.finish("mobilenet")


def _add_squeeze_excite(draft: NetworkDraft, gate: Op, inner: Op, is_last: bool) -> None:
    body, layout = draft.last, {"channels_last": is_last, "channels_last_weights": is_last}
    channels = draft.shape()[0]
    draft.pool(MEAN_POOL, channels_last=is_last)
    draft.conv(max(8, channels // 4), 1, None, (inner,), **layout)
    draft.conv(channels, 1, None, (gate,), **layout)
    draft.function("mul", (body, draft.last), shape=draft.shape(body), channels_last=is_last)


def draw_convnext(draw: SizeDraw) -> Network:
    """Return a ConvNeXt: depthwise 7x7 convolutions and linear layers in channels-last format."""
    side, width = draw_image_side(draw), draw.width(32, 256)
    has_scale = draw.happens(0.7)
    draft = NetworkDraft((3, side, side))
    draft.conv(width, 4, DATA, (_TO_LAST, LAYER_NORM, _TO_FIRST), stride=4)
    for stage in range(4):
        if stage:
            channels, *space = draft.shape()
            draft.norm("layer_norm", tail=(_TO_FIRST,), shape=(*space, channels))
            draft.conv(2 * channels, 2, stride=2, channels_last=True)
        channels, *space = draft.shape()
        for _ in range(draw.size(1, 6)):
            with draft.block():
                start = draft.last
                draft.conv(channels, 7, None, (_TO_LAST, LAYER_NORM), padding=3, groups=channels,
                           channels_last=True)  # fmt: skip
                draft.linear(4 * channels, tail=(GELU,))
                draft.linear(channels, tail=() if has_scale else (_TO_FIRST,))
                if has_scale:
                    draft.function("mul", tail=(_TO_FIRST,), params=channels)
                draft.function("add", (start, draft.last), channels_last=True)
        if draft.shape()[1] < 4:
            break
    draft.function("mean", tail=(LAYER_NORM,), axes=(1, 2), channels_last=True)
    draft.linear(draw.choose(_CLASSES))
    return draft.finish("convnext")


def draw_densenet(draw: SizeDraw) -> Network:
    """Return a DenseNet: every layer appends its output to its input."""
    side, growth = draw_image_side(draw), draw.size(8, 48, 4)
    draft = NetworkDraft((3, side, side))
    draft.conv(2 * growth, 7, DATA, (NORM, RELU, make_pool("max", 3, 2, 1)), stride=2, padding=3,
               bias=0)  # fmt: skip
    stages = draw.choose((2, 3, 4))
    for stage in range(stages):
        for _ in range(draw.size(2, 8)):
            with draft.block():
                start = draft.last
                draft.norm("batch_norm", tail=(RELU,))
                draft.conv(4 * growth, 1, None, (NORM, RELU), bias=0)
                new = draft.conv(growth, 3, padding=1, bias=0)
                draft.concat((start, new))
        if stage < stages - 1 and draft.shape()[1] > 2:
            draft.norm("batch_norm", tail=(RELU,))
            draft.conv(draft.shape()[0] // 2, 1, None, (make_pool("avg", 2),), bias=0)
    draft.norm("batch_norm", tail=(RELU, MEAN_POOL, FLATTEN))
    draft.linear(draw.choose(_CLASSES))
    return draft.finish("densenet", buildable=True)
