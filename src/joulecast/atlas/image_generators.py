"""Architectures that return images, and those that read volumes: U-Nets, GANs, video."""

from __future__ import annotations

from typing import Any

from joulecast.atlas.convolutional import FLATTEN, NORM, RELU, SILU, draw_image_side
from joulecast.atlas.draft import DATA, NetworkDraft, Tail, make_function, make_pool
from joulecast.atlas.draw import SizeDraw
from joulecast.atlas.transformer_parts import AttentionSizes, add_packed_projection, add_sdpa
from joulecast.kinds import make_op
from joulecast.records import Network

LEAKY_RELU, TANH = make_function("leaky_relu"), make_function("tanh")


def draw_diffusion_unet(draw: SizeDraw) -> Network:
    """Return a U-Net of residual blocks with group norms and SiLU, as diffusion models use it."""
    width, groups = draw.size(32, 256, 32), draw.choose((8, 16, 32))
    levels, side = draw.choose((2, 3, 4)), draw_image_side(draw, 32, 256)
    has_attention = draw.happens(0.5)
    draft = NetworkDraft((draw.choose((3, 4)), side, side))
    draft.conv(width, 3, DATA, padding=1)
    skips = []
    for level in range(levels):
        _add_diffusion_block(draft, width * min(4, 2**level), groups)
        skips.append(draft.last)
        draft.conv(draft.shape()[0], 3, stride=2, padding=1)
    _add_diffusion_block(draft, draft.shape()[0], groups)
    if has_attention and draft.shape()[1] <= 32:
        _add_image_attention(draft, groups)
    for skip in reversed(skips):
        channels = draft.shape(skip)[0]
        if draw.happens(0.5):
            draft.conv(channels, 2, kind="conv_transpose2d", stride=2)
        else:
            shape = draft.shape()
            draft.function("interpolate nearest", out=(shape[0], *draft.shape(skip)[1:]))
            draft.conv(channels, 3, padding=1, shape=(shape[0], *draft.shape(skip)[1:]))
        draft.concat((draft.last, skip))
        _add_diffusion_block(draft, channels, groups)
    draft.norm("group_norm", groups=groups, tail=(SILU,))
    draft.conv(draft.input.shape[0], 3, padding=1)
    return draft.finish("diffusion unet")


def _add_diffusion_block(draft: NetworkDraft, cout: int, groups: int) -> None:
    with draft.block():
        start = draft.last
        draft.norm("group_norm", groups=groups, tail=(SILU,))
        draft.conv(cout, 3, None, (make_op("group_norm", groups=groups), SILU), padding=1)
        body = draft.conv(cout, 3, padding=1)
        if draft.shape(start)[0] != cout:
            start = draft.conv(cout, 1, start)
        draft.function("add", (start, body))


def _add_image_attention(draft: NetworkDraft, groups: int) -> None:
    """Add attention between all pixels."""
    start, (channels, *space) = draft.last, draft.shape()
    tokens, heads = space[0] * space[1], max(1, channels // 64)
    s = AttentionSizes(tokens, heads, heads, channels // heads)
    draft.norm("group_norm", groups=groups)
    packed = add_packed_projection(draft, s, draft.last, shape=(tokens, channels))
    add_sdpa(draft, s, packed, (make_function("copy"),))
    draft.linear(channels)
    draft.function("add", (draft.last, start), shape=(channels, *space))


def draw_segmentation_unet(draw: SizeDraw) -> Network:
    """Return a U-Net of plain convolutions with batch norms, pooling and upsampling."""
    width, levels = draw.width(16, 96), draw.choose((2, 3, 4))
    side, is_last = draw_image_side(draw, 32, 512), draw.happens(0.3)
    norm: Tail = (NORM,) if draw.happens(0.8) else (make_op("group_norm", groups=8),)
    is_transposed = draw.happens(0.5)
    layout: dict[str, Any] = {"channels_last": is_last, "channels_last_weights": is_last}

    def add_double(cout: int) -> None:
        with draft.block():
            draft.conv(cout, 3, None, (*norm, RELU), padding=1, bias=0, **layout)
            draft.conv(cout, 3, None, (*norm, RELU), padding=1, bias=0, **layout)

    draft = NetworkDraft((draw.choose((1, 3)), side, side))
    skips = []
    for level in range(levels):
        add_double(width * 2**level)
        skips.append(draft.last)
        draft.pool(make_pool("max", 2), channels_last=is_last)
    add_double(width * 2**levels)
    for skip in reversed(skips):
        channels, *space = draft.shape(skip)
        if is_transposed:
            draft.conv(channels, 2, kind="conv_transpose2d", stride=2, **layout)
        else:
            out = (draft.shape()[0], *space)
            draft.function("interpolate bilinear", out=out, channels_last=is_last)
        draft.concat((skip, draft.last), channels_last=is_last)
        add_double(channels)
    draft.conv(draw.choose((1, 2, 21, 150)), 1, **layout)
    return draft.finish("segmentation unet")


def draw_gan_generator(draw: SizeDraw) -> Network:
    """Return a DCGAN generator: transposed convolutions with batch norms."""
    width, stages = draw.width(16, 128), draw.choose((3, 4, 5))
    draft = NetworkDraft((draw.size(32, 256), 1, 1))
    draft.conv(width * 2 ** (stages - 1), 4, DATA, (NORM, RELU), kind="conv_transpose2d", bias=0)
    for stage in reversed(range(stages - 1)):
        draft.conv(width * 2**stage, 4, None, (NORM, RELU), kind="conv_transpose2d", stride=2,
                   padding=1, bias=0)  # fmt: skip
    draft.conv(3, 4, None, (TANH,), kind="conv_transpose2d", stride=2, padding=1)
    return draft.finish("gan generator", buildable=True)


def draw_gan_discriminator(draw: SizeDraw) -> Network:
    """Return a DCGAN discriminator: strided convolutions with leaky ReLUs."""
    width, stages = draw.width(16, 128), draw.choose((3, 4, 5))
    draft = NetworkDraft((3, 4 * 2**stages, 4 * 2**stages))
    draft.conv(width, 4, DATA, (LEAKY_RELU,), stride=2, padding=1, bias=0)
    for stage in range(1, stages):
        draft.conv(width * 2**stage, 4, None, (NORM, LEAKY_RELU), stride=2, padding=1, bias=0)
    draft.conv(1, 4, None, (FLATTEN,), bias=0)
    return draft.finish("gan discriminator", buildable=True)


def draw_video(draw: SizeDraw) -> Network:
    """Return a residual network on videos or medical volumes, maybe with separated axes."""
    frames, side, width = draw.size(4, 32, 4), draw.size(32, 160, 16), draw.width(16, 64)
    is_separated = draw.happens(0.4)
    draft = NetworkDraft((draw.choose((1, 3)), frames, side, side))
    draft.conv(width, (3, 7, 7), DATA, (NORM, RELU), stride=(1, 2, 2), padding=(1, 3, 3), bias=0)
    for stage in range(draw.choose((2, 3, 4))):
        for number in range(draw.size(1, 3)):
            stride = 2 if stage and not number and min(draft.shape()[1:]) > 1 else 1
            with draft.block():
                start, cout = draft.last, width * 2**stage
                for tail, step in (((NORM, RELU), stride), ((NORM,), 1)):
                    if is_separated:
                        draft.conv(cout, (1, 3, 3), None, (NORM, RELU), padding=(0, 1, 1), bias=0,
                                   stride=(1, step, step))  # fmt: skip
                        draft.conv(cout, (3, 1, 1), None, tail, padding=(1, 0, 0), bias=0,
                                   stride=(step, 1, 1))  # fmt: skip
                    else:
                        draft.conv(cout, 3, None, tail, stride=step, padding=1, bias=0)
                body = draft.last
                if draft.shape() != draft.shape(start):
                    start = draft.conv(cout, 1, start, (NORM,), stride=stride, bias=0)
                draft.function("add", (body, start), (RELU,))
    draft.pool(make_pool("adaptive_avg", 1, dims=3), tail=(FLATTEN,))
    draft.linear(draw.choose((10, 101, 400)))
    return draft.finish("video", buildable=True)


def draw_volume_unet(draw: SizeDraw) -> Network:
    """Return a U-Net on medical volumes: cubic convolutions at full resolution."""
    width, levels = draw.width(8, 48), draw.choose((2, 3, 4))
    side = draw.size(32, 160, 2**levels)
    norm = draw.choose((NORM, make_op("group_norm", groups=4)))
    end = (norm, draw.choose((RELU, LEAKY_RELU)))
    is_strided, is_transposed = draw.happens(0.5), draw.happens(0.6)

    def add_double(cout: int, stride: int = 1) -> None:
        with draft.block():
            draft.conv(cout, 3, None, end, padding=1, stride=stride)
            draft.conv(cout, 3, None, end, padding=1)

    draft = NetworkDraft((draw.choose((1, 4)), side, side, side))
    skips = []
    for level in range(levels):
        add_double(width * 2**level, 2 if is_strided and level else 1)
        skips.append(draft.last)
        if not is_strided:
            draft.pool(make_pool("max", 2, dims=3))
    add_double(width * 2**levels, 2 if is_strided else 1)
    for skip in reversed(skips):
        channels, *space = draft.shape(skip)
        if is_transposed:
            draft.conv(channels, 2, kind="conv_transpose3d", stride=2)
        else:
            draft.function("interpolate trilinear", out=(draft.shape()[0], *space))
        draft.concat((skip, draft.last))
        add_double(channels)
    draft.conv(draw.choose((2, 3, 14)), 1)
    return draft.finish("volume unet")
