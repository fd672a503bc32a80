"""Define the layers of each family.

An architecture is a function that adds the layers of a member to a draft, given its parameters.
Those of image classifiers of 1,000 classes follow torchvision's versions. In the names of
parameters, C, S, E and I are channels, K kernel sizes and D numbers of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.families.draft import DATA, NetworkDraft, Tail, make_function, make_pool
from joulecast.operators import Shape, make_layer, make_op

Params = Mapping[str, int]
Architecture = Callable[[Params, NetworkDraft], None]

CLASSES = 10
HAR_CLASSES = 6
IMAGE_CLASSES = 1000
HEADS = 4
RELU, GELU = make_function("relu"), make_function("gelu")
# PyTorch runs ReLU6 as ``hardtanh``.
RELU6 = make_function("hardtanh")
NORM, FLATTEN = make_op("batch_norm"), make_op("flatten")
MEAN_POOL = make_pool("adaptive_avg", 1)

_DROPOUT = make_op("dropout", p=0.5)
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
# Strides of MobileNet V1's blocks; its kernel sizes are those of each image size.
_V1_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
# Expansion, blocks and first stride of each stage of MobileNet V2.
_V2_STAGES = ((1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2), (6, 3, 1), (6, 3, 2), (6, 1, 1))
# Expansions of the blocks and first stride of each stage of ProxylessNAS (Mobile).
_PROXYLESS_STAGES = (
    ((1,), 1),
    ((3, 3), 2),
    ((3, 3, 3, 3), 2),
    ((6, 3, 3, 3), 2),
    ((6, 3, 3, 3), 1),
    ((6, 6, 3, 3), 2),
    ((6,), 1),
)
_SHUFFLE_BLOCKS = (4, 8, 4)
_SHUFFLE_GROUPS = 2


# ---------------------------------------------------------------------------------------------
# Families of the AMPERE paper


def make_lenet5(params: Params, draft: NetworkDraft) -> None:
    """Add two convolutions with pooling and three linear layers."""
    pool = make_pool("max", 2)
    draft.conv(params["c1"], 5, DATA, (RELU, pool), "conv1", padding=2)
    draft.conv(params["c2"], 5, None, (RELU, pool, FLATTEN), "conv2")
    draft.linear(params["f1"], None, (RELU,), "fc1")
    draft.linear(params["f2"], None, (RELU,), "fc2")
    draft.linear(CLASSES, name="fc3")


def make_cnn5(params: Params, draft: NetworkDraft) -> None:
    """Add four convolutions with pooling and one linear layer."""
    for number in (1, 2, 3, 4):
        tail = (RELU, make_pool("max", 2)) + ((FLATTEN,) if number == 4 else ())
        draft.conv(params[f"c{number}"], 3, None, tail, f"conv{number}", padding=1)
    draft.linear(CLASSES, name="fc")


def make_har(params: Params, draft: NetworkDraft) -> None:
    """Add three 1-D convolutions with pooling and two linear layers."""
    for number in (1, 2, 3):
        tail = (RELU, make_pool("max", 2, dims=1)) + ((FLATTEN,) if number == 3 else ())
        draft.conv(params[f"c{number}"], 5, None, tail, f"conv{number}", padding=2)
    draft.linear(params["f1"], None, (RELU,), "fc1")
    draft.linear(HAR_CLASSES, name="fc2")


def make_lstm(params: Params, draft: NetworkDraft) -> None:
    """Add an embedding, an LSTM of the same width and a linear layer on its last state."""
    (tokens,), hidden = draft.input.shape, params["hidden"]
    draft.embedding(draft.input.vocabulary, hidden, name="embedding")
    sizes: dict[str, Any] = {"cin": hidden, "hidden": hidden, "tokens": tokens}
    lstm = make_layer("lstm", (make_op("last"),), depth=params["depth"], **sizes)
    draft.add(lstm, name="lstm")
    draft.linear(CLASSES, name="fc")


def make_transformer(params: Params, draft: NetworkDraft) -> None:
    """Add an embedding, encoder blocks, and a linear layer on the mean over all tokens."""
    (tokens,), width = draft.input.shape, params["width"]
    sizes: dict[str, Any] = {"tokens": tokens, "kv_tokens": tokens, "heads": HEADS}
    sdpa = make_layer("sdpa", kv_heads=HEADS, head_dim=width // HEADS, **sizes)
    draft.embedding(draft.input.vocabulary, width, name="embedding")
    for number in range(params["depth"]):
        with draft.block(f"block{number}"):
            start = draft.last
            draft.norm("layer_norm", name="norm1")
            draft.linear(3 * width, name="qkv")
            draft.add(sdpa, name="sdpa")
            out = draft.linear(width, name="out")
            middle = draft.function("add", (out, start), name="add1")
            draft.norm("layer_norm", name="norm2")
            draft.linear(4 * width, None, (GELU,), "fc1")
            out = draft.linear(width, name="fc2")
            draft.function("add", (out, middle), name="add2")
    draft.norm("layer_norm", None, (make_op("elementwise", fn="mean", axes=(0,)),), "norm")
    draft.linear(CLASSES, name="fc")


def make_resnet(has_bottleneck: bool) -> Architecture:
    """Return the architecture with basic or with bottleneck blocks, in four stages."""

    def make(params: Params, draft: NetworkDraft) -> None:
        stem = (NORM, RELU, make_pool("max", 3, 2, 1))
        _conv(draft, "stem", params["width"], 7, DATA, stem, stride=2)
        for stage in range(4):
            for number in range(params[f"d{stage + 1}"]):
                width, stride = params["width"] * 2**stage, 2 if stage and not number else 1
                with draft.block(f"stage{stage + 1}.{number}"):
                    _add_residual(draft, width, 3, stride, has_bottleneck)
        draft.pool(MEAN_POOL, None, (FLATTEN,), "pool")
        draft.linear(CLASSES, name="fc")

    return make


def _add_residual(
    draft: NetworkDraft, width: int, kernel: int, stride: int, has_bottleneck: bool = False
) -> None:
    """Add convolutions with norms and the residual sum, projected where the shape changes."""
    start, cout = draft.last, 4 * width if has_bottleneck else width
    if has_bottleneck:
        _conv(draft, "conv1", width)
        _conv(draft, "conv2", width, kernel, stride=stride)
        body = _conv(draft, "conv3", cout, tail=(NORM,))
    else:
        _conv(draft, "conv1", width, kernel, stride=stride)
        body = _conv(draft, "conv2", cout, kernel, tail=(NORM,))
    if draft.shape(start) != draft.shape(body):
        start = _conv(draft, "project", cout, 1, start, (NORM,), stride=stride)
    draft.function("add", (body, start), (RELU,), "add")


def _conv(
    draft: NetworkDraft,
    name: str,
    cout: int,
    kernel: int = 1,
    source: int | None = None,
    tail: Tail = (NORM, RELU),
    **sizes: Any,
) -> int:
    """Add a convolution that keeps the image size at stride 1; without a bias before a norm."""
    sizes = {"padding": kernel // 2, "bias": int(NORM not in tail[:1]), **sizes}
    return draft.conv(cout, kernel, source, tail, name, **sizes)


def _depthwise(
    draft: NetworkDraft,
    name: str,
    kernel: int,
    stride: int,
    source: int | None = None,
    tail: Tail = (),
) -> int:
    """Add a depthwise convolution with a norm and a tail."""
    channels = draft.shape(source)[0]
    tail = (NORM, *tail)
    return _conv(draft, name, channels, kernel, source, tail, groups=channels, stride=stride)


# ---------------------------------------------------------------------------------------------
# Image classifiers of DeepEn2023


def make_alexnet(params: Params, draft: NetworkDraft) -> None:
    """Add five convolutions and three linear layers, with dropout."""
    pool = make_pool("max", 3, 2)
    to_square = make_pool("adaptive_avg", 6)
    first = params["k1"]
    # The original has a kernel of 11 and a padding of 2.
    padding = max(0, first // 2 - 3)
    _conv(draft, "conv1", params["c1"], first, DATA, (RELU, pool), stride=4, padding=padding)
    _conv(draft, "conv2", params["c2"], params["k2"], tail=(RELU, pool))
    _conv(draft, "conv3", params["c3"], params["k3"], tail=(RELU,))
    _conv(draft, "conv4", params["c4"], params["k4"], tail=(RELU,))
    tail = (RELU, pool, to_square, FLATTEN, _DROPOUT)
    _conv(draft, "conv5", params["c5"], params["k5"], tail=tail)
    draft.linear(params["f1"], None, (RELU, _DROPOUT), name="fc1")
    draft.linear(params["f2"], None, (RELU,), name="fc2")
    draft.linear(IMAGE_CLASSES, name="fc3")


def make_squeezenet(params: Params, draft: NetworkDraft) -> None:
    """Add SqueezeNet 1.0: fire modules of a squeezing and two expanding convolutions."""
    pool = make_pool("max", 3, 2, ceil=1)
    stem = params["k0"]
    # The original has a kernel of 7 and no padding.
    padding = max(0, stem // 2 - 3)
    _conv(draft, "stem", params["c0"], stem, DATA, (RELU, pool), stride=2, padding=padding)
    number = 0
    for stage, count in enumerate(_FIRES, start=1):
        for place in range(count):
            number += 1
            tail = () if place < count - 1 else (pool if stage < len(_FIRES) else _DROPOUT,)
            with draft.block(f"fire{number}"):
                squeezed = _conv(draft, "squeeze", params[f"s{number}"], tail=(RELU,))
                width = params[f"e{number}"]
                one = _conv(draft, "expand1", width, 1, squeezed, (RELU,))
                two = _conv(draft, "expand2", width, params[f"k{stage}"], squeezed, (RELU,))
                draft.concat((one, two), tail, name="concat")
    _conv(draft, "classifier", IMAGE_CLASSES, tail=(RELU, MEAN_POOL, FLATTEN))


def make_googlenet(params: Params, draft: NetworkDraft) -> None:
    """Add GoogLeNet with batch norms, without auxiliary classifiers.

    The channels of an Inception block are divided among its branches as in the original.
    """
    pool = make_pool("max", 3, 2, ceil=1)
    _conv(draft, "conv1", params["c1"], params["k1"], DATA, (NORM, RELU, pool), stride=2)
    _conv(draft, "conv2", params["c2"])
    _conv(draft, "conv3", params["c3"], params["k2"], tail=(NORM, RELU, pool))
    for number in range(1, len(_INCEPTIONS) + 1):
        with draft.block(f"inception{number}"):
            _add_inception(draft, params, number)
        if number in (2, 7):
            size = 3 if number == 2 else 2
            draft.pool(make_pool("max", size, 2, ceil=1), name=f"pool{number}")
    draft.pool(MEAN_POOL, tail=(FLATTEN,), name="mean")
    draft.linear(IMAGE_CLASSES, name="fc")


def make_densenet(params: Params, draft: NetworkDraft) -> None:
    """Add DenseNet-121: every layer appends its output to its input."""
    pool = make_pool("max", 3, 2, 1)
    _conv(draft, "stem", params["c0"], params["k0"], DATA, (NORM, RELU, pool), stride=2)
    for stage in range(1, 5):
        growth = params[f"g{stage}"]
        for number in range(params[f"d{stage}"]):
            with draft.block(f"dense{stage}.{number}"):
                start = draft.last
                draft.norm("batch_norm", None, (RELU,), "norm")
                _conv(draft, "conv1", _BOTTLENECK * growth)
                new = _conv(draft, "conv2", growth, params[f"k{stage}"], tail=(), bias=0)
                draft.concat((start, new), name="concat")
        if stage < 4:
            draft.norm("batch_norm", None, (RELU,), f"transition{stage}.norm")
            channels = max(1, draft.shape()[0] // 2)
            _conv(draft, f"transition{stage}.conv", channels, tail=(make_pool("avg", 2),), bias=0)
    draft.norm("batch_norm", None, (RELU, MEAN_POOL, FLATTEN), "norm")
    draft.linear(IMAGE_CLASSES, name="fc")


def make_image_resnet(params: Params, draft: NetworkDraft) -> None:
    """Add ResNet-18 with the channels and kernel sizes of each stage."""
    pool = make_pool("max", 3, 2, 1)
    _conv(draft, "stem", params["c0"], params["k0"], DATA, (NORM, RELU, pool), stride=2)
    for stage in range(1, 5):
        for number in range(2):
            with draft.block(f"stage{stage}.{number}"):
                stride = 2 if stage > 1 and not number else 1
                _add_residual(draft, params[f"c{stage}"], params[f"k{stage}"], stride)
    draft.pool(MEAN_POOL, tail=(FLATTEN,), name="mean")
    draft.linear(IMAGE_CLASSES, name="fc")


def _add_inception(draft: NetworkDraft, params: Params, number: int) -> None:
    original = _INCEPTIONS[number - 1]
    total = original[0] + original[2] + original[4] + original[5]
    scale = params[f"i{number}"] / total
    widths = [max(1, round(scale * width)) for width in original]
    start, size = draft.last, params["k3"]
    one = _conv(draft, "branch1", widths[0], 1, start)
    _conv(draft, "branch2.reduce", widths[1], 1, start)
    two = _conv(draft, "branch2", widths[2], size)
    _conv(draft, "branch3.reduce", widths[3], 1, start)
    three = _conv(draft, "branch3", widths[4], params["k4"])
    draft.pool(make_pool("max", 3, 1, 1, ceil=1), start, name="branch4.pool")
    four = _conv(draft, "branch4", widths[5])
    draft.concat((one, two, three, four), name="concat")


def make_mobilenetv1(params: Params, draft: NetworkDraft) -> None:
    """Add depthwise separable convolutions."""
    _conv(draft, "stem", params["c0"], 3, DATA, stride=2)
    stage = 1
    for number, stride in enumerate(_V1_STRIDES, start=1):
        stage += stride - 1
        with draft.block(f"block{number}"):
            _depthwise(draft, "depthwise", params[f"k{stage}"], stride, tail=(RELU,))
            _conv(draft, "pointwise", params[f"c{number}"])
    draft.pool(MEAN_POOL, tail=(FLATTEN,), name="mean")
    draft.linear(IMAGE_CLASSES, name="fc")


def make_mobilenetv2(params: Params, draft: NetworkDraft) -> None:
    """Add inverted residual blocks: expand, depthwise convolution, project."""
    _conv(draft, "stem", params["c0"], 3, DATA, (NORM, RELU6), stride=2)
    for stage, (expansion, blocks, stride) in enumerate(_V2_STAGES, start=1):
        for number in range(blocks):
            with draft.block(f"stage{stage}.{number}"):
                sizes = params[f"c{stage}"], params[f"k{stage}"]
                _add_inverted(draft, *sizes, expansion, 1 if number else stride)
    _add_mobile_head(draft, params["c8"])


def make_proxylessnas(params: Params, draft: NetworkDraft) -> None:
    """Add inverted residual blocks with kernel sizes that a search found for phones."""
    _conv(draft, "stem", params["c0"], 3, DATA, (NORM, RELU6), stride=2)
    block = 0
    for stage, (expansions, stride) in enumerate(_PROXYLESS_STAGES, start=1):
        for number, expansion in enumerate(expansions):
            block += 1
            with draft.block(f"stage{stage}.{number}"):
                sizes = params[f"c{stage}"], params[f"k{block}"]
                _add_inverted(draft, *sizes, expansion, 1 if number else stride)
    _add_mobile_head(draft, params["c8"])


def make_shufflenetv2(params: Params, draft: NetworkDraft) -> None:
    """Add blocks that split their channels, convolve one half and shuffle both."""
    pool = make_pool("max", 3, 2, 1)
    _conv(draft, "stem", params["c1"], 3, DATA, (NORM, RELU, pool), stride=2)
    for stage, blocks in enumerate(_SHUFFLE_BLOCKS, start=2):
        for number in range(blocks):
            with draft.block(f"stage{stage}.{number}"):
                _add_shuffled(draft, params[f"c{stage}"], params[f"k{stage}"], not number)
    _conv(draft, "head", params["c5"], tail=(NORM, RELU, MEAN_POOL, FLATTEN))
    draft.linear(IMAGE_CLASSES, name="fc")


def _add_inverted(
    draft: NetworkDraft, width: int, kernel: int, expansion: int, stride: int
) -> None:
    start = draft.last
    channels = draft.shape()[0]
    if expansion > 1:
        _conv(draft, "expand", expansion * channels, tail=(NORM, RELU6))
    _depthwise(draft, "depthwise", kernel, stride, tail=(RELU6,))
    body = _conv(draft, "project", width, tail=(NORM,))
    if draft.shape(start) == draft.shape(body):
        draft.function("add", (body, start), name="add")


def _add_mobile_head(draft: NetworkDraft, width: int) -> None:
    tail = (NORM, RELU6, MEAN_POOL, FLATTEN, make_op("dropout", p=0.2))
    _conv(draft, "head", width, tail=tail)
    draft.linear(IMAGE_CLASSES, name="fc")


def _add_shuffled(draft: NetworkDraft, width: int, kernel: int, is_first: bool) -> None:
    """Add a block; the first one of a stage halves the image and convolves both branches."""
    start, half = draft.last, width // _SHUFFLE_GROUPS
    if is_first:
        _depthwise(draft, "left.depthwise", kernel, 2, start)
        left = _conv(draft, "left.pointwise", half)
    else:
        channels, *space = draft.shape()
        out = (channels // _SHUFFLE_GROUPS, *space)
        # Both halves of the split are this layer: one is convolved, one is passed on.
        left = draft.add(make_layer("gradient_copy", out=out, shape=draft.shape()), name="split")
    _conv(draft, "right.reduce", half, 1, start if is_first else left)
    _depthwise(draft, "right.depthwise", kernel, 2 if is_first else 1)
    right = _conv(draft, "right.pointwise", half)
    shape = (width, *draft.shape()[1:])
    draft.concat((left, right), _shuffle_channels(shape), name="concat")


def _shuffle_channels(shape: Shape) -> Tail:
    """Return the operators that interleave the channels of two groups."""
    channels, *space = shape
    return (
        make_op("view", out=(_SHUFFLE_GROUPS, channels // _SHUFFLE_GROUPS, *space)),
        make_op("permute", order=(1, 0, *range(2, 2 + len(space)))),
        make_op("elementwise", fn="copy"),
        make_op("view", out=shape),
    )
