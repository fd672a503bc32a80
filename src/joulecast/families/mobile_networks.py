"""Define image classifiers for phones: MobileNet V1 and V2, ProxylessNAS and ShuffleNet V2.

Parameters named C are channels, K kernel sizes of depthwise convolutions.
"""

from __future__ import annotations

from joulecast.families.architectures import Layers, Params
from joulecast.families.classic_networks import IMAGE_CLASSES
from joulecast.families.family_draft import (
    DATA,
    FLATTEN,
    MEAN_POOL,
    NORM,
    RELU,
    RELU6,
    FamilyDraft,
    make_max_pool,
)
from joulecast.kinds import Shape, make_layer, make_op
from joulecast.records import Input, Op

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
_GROUPS = 2


def make_mobilenetv1(params: Params, sample: Input) -> Layers:
    """Return depthwise separable convolutions."""
    draft = FamilyDraft(sample)
    draft.conv("stem", params["c0"], 3, DATA, stride=2)
    stage = 1
    for number, stride in enumerate(_V1_STRIDES, start=1):
        stage += stride - 1
        with draft.block(f"block{number}"):
            draft.depthwise("depthwise", params[f"k{stage}"], stride, tail=(RELU,))
            draft.conv("pointwise", params[f"c{number}"])
    draft.pool("mean", MEAN_POOL, tail=(FLATTEN,))
    draft.linear("fc", IMAGE_CLASSES)
    return draft.layers, draft.groups


def make_mobilenetv2(params: Params, sample: Input) -> Layers:
    """Return inverted residual blocks: expand, depthwise convolution, project."""
    draft = FamilyDraft(sample)
    draft.conv("stem", params["c0"], 3, DATA, (NORM, RELU6), stride=2)
    for stage, (expansion, blocks, stride) in enumerate(_V2_STAGES, start=1):
        for number in range(blocks):
            with draft.block(f"stage{stage}.{number}"):
                sizes = params[f"c{stage}"], params[f"k{stage}"]
                _add_inverted(draft, *sizes, expansion, 1 if number else stride)
    _add_mobile_head(draft, params["c8"])
    return draft.layers, draft.groups


def make_proxylessnas(params: Params, sample: Input) -> Layers:
    """Return inverted residual blocks with kernel sizes that a search found for phones."""
    draft = FamilyDraft(sample)
    draft.conv("stem", params["c0"], 3, DATA, (NORM, RELU6), stride=2)
    block = 0
    for stage, (expansions, stride) in enumerate(_PROXYLESS_STAGES, start=1):
        for number, expansion in enumerate(expansions):
            block += 1
            with draft.block(f"stage{stage}.{number}"):
                sizes = params[f"c{stage}"], params[f"k{block}"]
                _add_inverted(draft, *sizes, expansion, 1 if number else stride)
    _add_mobile_head(draft, params["c8"])
    return draft.layers, draft.groups


def make_shufflenetv2(params: Params, sample: Input) -> Layers:
    """Return blocks that split their channels, convolve one half and shuffle both."""
    draft = FamilyDraft(sample)
    pool = make_max_pool(3, 2, 1)
    draft.conv("stem", params["c1"], 3, DATA, (NORM, RELU, pool), stride=2)
    for stage, blocks in enumerate(_SHUFFLE_BLOCKS, start=2):
        for number in range(blocks):
            with draft.block(f"stage{stage}.{number}"):
                _add_shuffled(draft, params[f"c{stage}"], params[f"k{stage}"], not number)
    draft.conv("head", params["c5"], tail=(NORM, RELU, MEAN_POOL, FLATTEN))
    draft.linear("fc", IMAGE_CLASSES)
    return draft.layers, draft.groups


def _add_inverted(draft: FamilyDraft, width: int, kernel: int, expansion: int, stride: int) -> None:
    start = draft.last
    channels = draft.shape()[0]
    if expansion > 1:
        draft.conv("expand", expansion * channels, tail=(NORM, RELU6))
    draft.depthwise("depthwise", kernel, stride, tail=(RELU6,))
    body = draft.conv("project", width, tail=(NORM,))
    if draft.shape(start) == draft.shape(body):
        draft.sum("add", (body, start))


def _add_mobile_head(draft: FamilyDraft, width: int) -> None:
    tail = (NORM, RELU6, MEAN_POOL, FLATTEN, make_op("dropout", p=0.2))
    draft.conv("head", width, tail=tail)
    draft.linear("fc", IMAGE_CLASSES)


def _add_shuffled(draft: FamilyDraft, width: int, kernel: int, is_first: bool) -> None:
    """Add a block; the first one of a stage halves the image and convolves both branches."""
    start, half = draft.last, width // _GROUPS
    if is_first:
        draft.depthwise("left.depthwise", kernel, 2, start)
        left = draft.conv("left.pointwise", half)
    else:
        channels, *space = draft.shape()
        out = (channels // _GROUPS, *space)
        # Both halves of the split are this layer: one is convolved, one is passed on.
        left = draft.add("split", make_layer("gradient_copy", out=out, shape=draft.shape()))
    draft.conv("right.reduce", half, 1, start if is_first else left)
    draft.depthwise("right.depthwise", kernel, 2 if is_first else 1)
    right = draft.conv("right.pointwise", half)
    shape = (width, *draft.shape()[1:])
    draft.concat("concat", (left, right), _shuffle_channels(shape))


def _shuffle_channels(shape: Shape) -> tuple[Op, ...]:
    """Return the operators that interleave the channels of two groups."""
    channels, *space = shape
    return (
        make_op("view", out=(_GROUPS, channels // _GROUPS, *space)),
        make_op("permute", order=(1, 0, *range(2, 2 + len(space)))),
        make_op("elementwise", fn="copy"),
        make_op("view", out=shape),
    )
