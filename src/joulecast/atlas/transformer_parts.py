"""Parts that transformers of all kinds share: attention, feed-forward layers, positions.

The layers are those that reading finds in modules of the transformers library and in plain torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.atlas.draft import NetworkDraft, Tail, make_dropout, make_function
from joulecast.atlas.draw import SizeDraw
from joulecast.kinds import Shape, make_layer, make_op
from joulecast.records import Op

COPY, GELU, MUL = make_function("copy"), make_function("gelu"), make_function("mul")
RELU, SILU, TANH = make_function("relu"), make_function("silu"), make_function("tanh")
CACHE = make_function("concat along 2")
"""Keys and values pass through a cache, by default also in training."""

NEW_GELU = make_function("newgeluactivation", passes=8)
QUICK_GELU = make_function("quickgeluactivation", passes=3)
LAYER_NORM = make_op("layer_norm")


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of multi-head attention.

    Attributes:
        kv_heads: Heads of keys and values; fewer than ``heads`` if several share them.
    """

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    is_causal: bool = False

    @property
    def width(self) -> int:
        """Features of all heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of the keys."""
        return self.kv_heads * self.head_dim

    def by_heads(self, heads: int) -> Shape:
        """Return the shape of queries, keys or values, one matrix for each head."""
        return (heads, self.tokens, self.head_dim)


def draw_attention_sizes(
    draw: SizeDraw, most_heads: int = 64, most_tokens: int = 8192
) -> AttentionSizes:
    """Return sizes of causal attention from that of a toy to that of a large language model."""
    head_dim = draw.choose((16, 32, 64, 64, 64, 80, 96, 128, 128, 128, 256))
    heads = draw.size(2, max(2, min(most_heads, 8192 // head_dim)))
    heads = heads - heads % 4 if heads > 4 else heads
    shares = [share for share in (1, 1, 2, 4, 8) if heads % share == 0]
    tokens = draw.size(32, most_tokens, draw.choose((1, 32, 32, 64)))
    return AttentionSizes(tokens, heads, heads // draw.choose(shares), head_dim, True)


def draw_depth(draw: SizeDraw) -> int:
    """Return a number of equal blocks: they are one piece, so more of them would show nothing."""
    return draw.choose((2, 2, 3, 4))


def draw_vocabulary(draw: SizeDraw) -> int:
    """Return the size of a vocabulary: characters to many languages."""
    return draw.size(draw.choose((64, 1000, 1000, 25_000)), 152_000, draw.choose((1, 1, 64)))


def add_sdpa(
    draft: NetworkDraft, s: AttentionSizes, sources: int | tuple[int, ...], tail: Tail = (),
    kv_tokens: int = 0,
) -> int:  # fmt: skip
    """Add scaled dot-product attention on a packed input or on queries, keys and values."""
    layer = make_layer(
        "sdpa",
        tail,
        heads=s.heads,
        kv_heads=s.kv_heads,
        head_dim=s.head_dim,
        tokens=s.tokens,
        kv_tokens=kv_tokens or s.tokens,
        causal=int(s.is_causal),
    )
    return draft.add(layer, sources)


def add_packed_projection(draft: NetworkDraft, s: AttentionSizes, source: int, **rest: Any) -> int:
    """Add one projection to queries, keys and values, and split it into them."""
    width = s.width + 2 * s.kv_width
    draft.linear(width, source, **rest)
    packed = (s.tokens, width)
    return draft.move("gradient_copy", shape=packed, out=(s.tokens, s.width))


def add_attention(
    draft: NetworkDraft, s: AttentionSizes, source: int, bias: int = 1, tails: tuple[Tail, ...] = ()
) -> int:
    """Add separate projections of queries, keys and values, and attention on them.

    Args:
        draft: The network.
        s: Sizes of the attention.
        source: What is projected.
        bias: Whether the projections have a bias.
        tails: What follows queries, keys, values and attention.
    """
    query, key, value, after = tails or ((), (), (), (COPY,))
    widths = (s.width, s.kv_width, s.kv_width)
    projected = tuple(
        draft.linear(width, source, tail, bias=bias)
        for width, tail in zip(widths, (query, key, value), strict=True)
    )
    return add_sdpa(draft, s, projected, after)


def add_rotary(
    draft: NetworkDraft,
    s: AttentionSizes,
    source: int,
    heads: int,
    rest: int | None = None,
    tail: Tail = (),
) -> int:
    """Add a rotation of queries or keys by position.

    Args:
        draft: The network.
        s: Sizes of the attention.
        source: The layer that projects them.
        heads: Their number of heads.
        rest: Features of a head that are not rotated, appended again; None appends nothing.
        tail: What follows.
    """
    full = s.by_heads(heads)
    shape = (*full[:2], s.head_dim - (rest or 0))
    # Sines and cosines are in full precision.
    table: dict[str, Any] = {"constant": shape[1] * shape[2]}
    scaled = draft.function("mul", source, shape=shape, **table)
    half = (*shape[:2], max(1, shape[2] // 2))
    first, second = (draft.move("slice", source, shape=shape, out=half) for _ in range(2))
    swapped = draft.function("neg", second, shape=half)
    turn = make_op("elementwise", fn="mul", **table)
    turned = draft.function("concat along 3", (swapped, first), (turn,), shape=shape)
    if rest is None:
        return draft.function("add", (scaled, turned), tail, shape=shape)
    joined = draft.function("add", (scaled, turned), shape=shape)
    return draft.function("concat along 3", (joined, source), tail, shape=full, transposed=(1,))


def add_mlp(
    draft: NetworkDraft,
    source: int,
    hidden: int,
    activation: Op,
    tails: tuple[Tail, Tail] = ((), ()),
    bias: int = 1,
) -> int:
    """Add two linear layers with an activation between them."""
    width = draft.shape(source)[-1]
    draft.linear(hidden, source, (activation, *tails[0]), bias=bias)
    return draft.linear(width, tail=tails[1], bias=bias)


def add_gated_mlp(
    draft: NetworkDraft, source: int, hidden: int, activation: Op, is_fused: bool = False
) -> int:
    """Add a feed-forward layer whose hidden features are gated by others."""
    shape = draft.shape(source)
    inner = (*shape[:-1], hidden)
    if is_fused:
        both = draft.linear(2 * hidden, source, bias=0)
        gate = draft.function(activation.sizes["fn"], both, shape=inner)
        product = draft.function("mul", (both, gate), shape=inner)
    else:
        gate = draft.linear(hidden, source, (activation,), bias=0)
        product = draft.function("mul", (gate, draft.linear(hidden, source, bias=0)))
    return draft.linear(shape[-1], product, bias=0)


def draw_dropout(draw: SizeDraw) -> Tail:
    """Return dropout for a tail, or nothing."""
    return (make_dropout(),) if draw.happens(0.5) else ()


def draw_hidden(draw: SizeDraw, width: int, is_gated: bool = False) -> int:
    """Return the hidden width of a feed-forward layer."""
    ratio = draw.choose((8 / 3, 8 / 3, 3.5, 4.0)) if is_gated else draw.choose((4, 4, 4, 2, 3))
    multiple = draw.choose((8, 64, 256)) if width >= 256 else 8
    return max(multiple, multiple * round(ratio * width / multiple))
