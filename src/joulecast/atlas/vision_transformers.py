"""Architectures of vision models without convolutions inside: transformers and mixers."""

from __future__ import annotations

import math
from typing import Any

from joulecast.atlas.draft import DATA, NetworkDraft, Tail, make_dropout, make_function
from joulecast.atlas.draw import SizeDraw
from joulecast.atlas.transformer_parts import (
    COPY,
    GELU,
    LAYER_NORM,
    QUICK_GELU,
    AttentionSizes,
    add_attention,
    add_mlp,
    add_packed_projection,
    add_sdpa,
    draw_depth,
    draw_dropout,
    draw_hidden,
)
from joulecast.kinds import make_op
from joulecast.records import Network

PAD, ROLL = make_function("pad"), make_function("roll")
_CLASSES = (10, 100, 1000, 1000, 21_841)


def draw_vit(draw: SizeDraw) -> Network:
    """Return a transformer on patches like ViT, DeiT or CLIP's image tower."""
    patch = draw.choose((8, 14, 16, 16, 32))
    side = draw.size(4, 32)
    head_dim = draw.choose((32, 64, 64, 64, 80))
    heads = draw.size(2, 24)
    s = AttentionSizes(side * side + 1, heads, heads, head_dim)
    style = draw.choose(("separate", "separate", "packed", "clip"))
    hidden = draw_hidden(draw, s.width)
    drop = draw_dropout(draw) if style == "packed" else ()
    activation = QUICK_GELU if style == "clip" else GELU
    learns_scales = draw.happens(0.3)
    draft = NetworkDraft((3, side * patch, side * patch))

    def scale(source: int) -> int:
        return draft.function("mul", source, params=s.width) if learns_scales else source

    draft.conv(s.width, patch, DATA, stride=patch, bias=int(style != "clip"))
    shape = (s.tokens, s.width)
    sizes: dict[str, Any] = {"shape": shape, "params": s.width}
    tokens = draft.function("concat", trains=False, transposed=(0,), **sizes)
    if style == "clip":
        places = draft.embedding(s.tokens, s.width, (), lead=(max(1, s.tokens // 16),))
        draft.function("add", (tokens, places), (LAYER_NORM,), shape=shape)
    else:
        draft.function("add", shape=shape, params=s.tokens * s.width)
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            norm = draft.norm("layer_norm")
            if style == "packed":
                add_sdpa(draft, s, add_packed_projection(draft, s, norm))
            else:
                add_attention(draft, s, norm, tails=((), (), (), ()))
            out = scale(draft.linear(s.width, tail=drop))
            middle = draft.function("add", (out, start))
            mlp = add_mlp(draft, draft.norm("layer_norm"), hidden, activation, ((), drop))
            draft.function("add", (scale(mlp), middle))
    if style == "clip":
        draft.norm("layer_norm", shape=(s.width,))
    else:
        draft.norm("layer_norm")
        draft.linear(draw.choose(_CLASSES), shape=(s.width,))
    return draft.finish("vit")


def draw_swin(draw: SizeDraw) -> Network:
    """Return a transformer on windows like Swin, with shifted windows and merged patches."""
    window, head_dim = draw.choose((4, 7, 8, 12)), draw.choose((16, 32, 32))
    stages, heads = draw.choose((2, 3, 4)), draw.size(2, 8)
    side = window * 2 ** (stages - 1) * draw.choose((1, 1, 2))
    drops = (make_function("swindroppath", passes=2),)
    draft = NetworkDraft((3, 4 * side, 4 * side))
    draft.conv(heads * head_dim, 4, DATA, (LAYER_NORM,), stride=4)
    tokens = (side * side, heads * head_dim)
    for stage in range(stages):
        all_heads = heads * (side // window) ** 2
        s = AttentionSizes(window * window, all_heads, all_heads, head_dim)
        for number in range(2 * draw.size(1, 2)):
            shift = (ROLL,) if number % 2 else ()
            with draft.block():
                _add_window_block(draft, tokens, s, shift, drops if draw.happens(0.5) else ())
        if stage < stages - 1:
            side, heads = side // 2, 2 * heads
            merged = (side, side, 2 * tokens[1])
            draft.function("concat along 3", (draft.last,) * 4, (LAYER_NORM,), shape=merged)
            tokens = (side * side, heads * head_dim)
            reduced = draft.linear(tokens[1], bias=0, shape=(tokens[0], 2 * tokens[1]))
            image = (tokens[1], side, side)
            draft.function("copy", reduced, shape=image, channels_last=True)
    draft.norm("layer_norm", shape=tokens)
    draft.linear(draw.choose(_CLASSES), shape=(tokens[1],))
    return draft.finish("swin")


def _add_window_block(
    draft: NetworkDraft, tokens: tuple[int, int], s: AttentionSizes, shift: Tail, drops: Tail
) -> None:
    """Add attention inside windows and an MLP.

    Args:
        draft: The network.
        tokens: Shape of a sample: all tokens of the image, and their width.
        s: Sizes of attention; the heads are those of all windows.
        shift: What follows the norm and the projection if windows are shifted.
        drops: What else follows the projection.
    """
    start, width = draft.last, tokens[1]
    windows = (tokens[0] // s.tokens, s.tokens, width)
    norm = draft.norm("layer_norm", tail=(PAD, *shift, COPY), shape=tokens)
    projected = [draft.linear(width, norm, shape=windows) for _ in range(3)]
    heads = width // s.head_dim
    places = (2 * math.isqrt(s.tokens) - 1) ** 2
    table = {"shape": (places * heads,), "params": places * heads, "fn": "index"}
    out = (s.tokens * s.tokens, heads)
    bias = draft.move("index", (), (COPY,), axes=(0,), across=1, out=out, **table)
    add_sdpa(draft, s, (*projected, bias), (COPY,))
    projection = draft.linear(width, tail=(COPY, *shift, *drops), shape=windows)
    middle = draft.function("add", (start, projection), shape=tokens)
    mlp = add_mlp(draft, draft.norm("layer_norm"), 4 * width, GELU)
    draft.function("add", (mlp, middle))


def draw_segformer(draw: SizeDraw) -> Network:
    """Return a hierarchical transformer like SegFormer, whose keys come from reduced images."""
    stages, head_dim, width = draw.choose((2, 3, 4)), draw.choose((16, 32, 64)), draw.size(1, 2)
    side, decoder = 4 * 2**stages * draw.size(1, 4), draw.width(64, 768)
    path: Tail = (make_function("segformerdroppath", passes=2),) if draw.happens(0.5) else ()
    draft = NetworkDraft((3, 4 * side, 4 * side))
    found = []
    for stage in range(stages):
        heads = width * 2**stage
        kernel, stride = (3, 2) if stage else (7, 4)
        shape = (heads * head_dim // 2, 2 * side, 2 * side) if stage else draft.input.shape
        draft.conv(heads * head_dim, kernel, None if stage else DATA, (LAYER_NORM,), stride=stride,
                   padding=kernel // 2, shape=shape)  # fmt: skip
        s = AttentionSizes(side * side, heads, heads, head_dim)
        for _ in range(draw.choose((1, 2))):
            with draft.block():
                _add_reduced_attention(draft, s, side, 2 ** (stages - 1 - stage), path)
        found.append((draft.norm("layer_norm", tail=(COPY,)), s.width, side))
        side //= 2
    image = (decoder, found[0][2], found[0][2])
    scaled = []
    for source, channels, own in found:
        tokens = make_op("permute", order=(1, 0)), make_op("view", out=(decoder, own, own))
        grow = make_op("elementwise", fn="interpolate bilinear", out=image)
        shape = (own * own, channels)
        scaled.append(draft.linear(decoder, source, (*tokens, grow), shape=shape))
    joined = (stages * decoder, *image[1:])
    draft.function("concat", scaled, shape=joined, channels_last=True)
    tail = (make_op("batch_norm"), make_function("relu"), make_dropout())
    draft.conv(decoder, 1, None, tail, bias=0, channels_last=True)
    draft.conv(draw.choose((2, 19, 150)), 1, channels_last=True)
    return draft.finish("segformer")


def _add_reduced_attention(
    draft: NetworkDraft, s: AttentionSizes, side: int, ratio: int, path: Tail
) -> None:
    """Add attention with keys of an image that a convolution reduces, and a convolutional MLP."""
    tokens, start = (s.tokens, s.width), draft.last
    norm = draft.norm("layer_norm", shape=tokens)
    query, keys, kv_tokens = draft.linear(s.width, norm), norm, s.tokens
    if ratio > 1:
        keys = draft.conv(s.width, ratio, norm, (LAYER_NORM,), stride=ratio,
                          shape=(s.width, side, side), channels_last=True)  # fmt: skip
        kv_tokens = (side // ratio) ** 2
    shape = (kv_tokens, s.width)
    pair = [draft.linear(s.width, keys, shape=shape) for _ in range(2)]
    add_sdpa(draft, s, (query, *pair), kv_tokens=kv_tokens)
    middle = draft.function("add", (draft.linear(s.width, tail=path), start), shape=tokens)
    draft.linear(4 * s.width, draft.norm("layer_norm"))
    wide = 4 * s.width
    draft.conv(wide, 3, None, (GELU,), padding=1, groups=wide, shape=(wide, side, side),
               channels_last=True)  # fmt: skip
    draft.linear(s.width, tail=path, shape=(s.tokens, wide), transposed=(0,))
    draft.function("add", (draft.last, middle))


def draw_mixer(draw: SizeDraw) -> Network:
    """Return an MLP-Mixer: linear layers over tokens, which are transposed, and over channels."""
    patch, side, width = draw.choose((8, 16, 32)), draw.size(4, 28), draw.width(64, 1280)
    tokens = side * side
    token_hidden, hidden = draw.width(64, 2048), draw_hidden(draw, width)
    draft = NetworkDraft((3, side * patch, side * patch))
    draft.conv(width, patch, DATA, stride=patch)
    shape = (tokens, width)
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            draft.norm("layer_norm", shape=shape, transposed=(0,))
            draft.linear(token_hidden, tail=(GELU,), shape=(width, tokens), transposed=(0,))
            mixed = draft.linear(tokens)
            middle = draft.function("add", (start, mixed), shape=shape, transposed=(0, 1))
            norm = draft.norm("layer_norm", transposed=(0,))
            mlp = add_mlp(draft, norm, hidden, GELU)
            draft.function("add", (middle, mlp), transposed=(0,))
    draft.norm("layer_norm", transposed=(0,), tail=(make_op("elementwise", fn="mean", axes=(0,)),))
    draft.linear(draw.choose(_CLASSES))
    return draft.finish("mixer")
