"""Architectures for speech, time series, recommendations and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.atlas.draft import (
    DATA,
    NetworkDraft,
    Tail,
    make_dropout,
    make_function,
    make_pool,
)
from joulecast.atlas.draw import SizeDraw
from joulecast.atlas.transformer_parts import (
    CACHE,
    COPY,
    GELU,
    LAYER_NORM,
    MUL,
    RELU,
    AttentionSizes,
    add_attention,
    add_mlp,
    add_sdpa,
    draw_depth,
    draw_dropout,
    draw_vocabulary,
)
from joulecast.kinds import make_layer, make_op
from joulecast.records import Network

NORM, LAST = make_op("batch_norm"), make_op("last")
_TO_TOKENS = make_op("permute", order=(1, 0))


def draw_speech_transformer(draw: SizeDraw) -> Network:
    """Return a transformer on spectrograms like Whisper, with or without its decoder."""
    frames, heads = draw.size(64, 3000, 2), draw.size(2, 20)
    s = AttentionSizes(frames // 2, heads, heads, draw.choose((32, 64, 64)))
    width, depth = s.width, draw_depth(draw)
    draft = NetworkDraft((draw.choose((40, 80, 128)), frames))
    draft.conv(width, 3, DATA, (GELU,), padding=1)
    frames_read = draft.conv(width, 3, None, (GELU,), stride=2, padding=1)
    places = draft.embedding(s.tokens, width, (), lead=(max(1, s.tokens // 16),), trains=False)
    draft.function("add", (frames_read, places), shape=(s.tokens, width), transposed=(0,))
    for _ in range(depth):
        _add_speech_block(draft, s, DATA)
    memory = draft.norm("layer_norm")
    vocabulary = draw_vocabulary(draw)
    if draw.happens(0.6):
        tokens = draw.size(16, 448)
        written = AttentionSizes(tokens, heads, heads, s.head_dim, True)
        words = draft.embedding(vocabulary, width, DATA, lead=(tokens,))
        table: dict[str, Any] = {"shape": (448, width), "params": 448 * width}
        places = draft.move("index", (), fn="index", axes=(0,), out=(tokens, width), **table)
        draft.function("add", (words, places))
        for _ in range(depth):
            _add_speech_block(draft, written, memory)
        draft.norm("layer_norm")
    draft.linear(vocabulary, bias=0)
    return draft.finish("speech transformer")


def _add_speech_block(draft: NetworkDraft, s: AttentionSizes, memory: int) -> None:
    """Add self-attention, attention to a memory unless that is ``DATA``, and an MLP.

    Reading takes the attention module for the repeated block: it occurs most often.
    """
    cache = (CACHE,) if s.is_causal else ()
    tails: tuple[Tail, ...] = ((MUL, COPY), (COPY, *cache), (COPY, *cache), (COPY,))
    start = draft.last
    # The encoder's tokens are a transposed image of frames.
    turned: dict[str, Any] = {} if s.is_causal else {"transposed": (0,)}
    norm = draft.norm("layer_norm", **turned)
    with draft.block():
        add_attention(draft, s, norm, tails=tails)
        draft.linear(s.width)
    middle = draft.function("add", (start, draft.last), **turned)
    if memory != DATA:
        read = draft.shape(memory)[0]
        norm = draft.norm("layer_norm")
        query = draft.linear(s.width, norm, tails[0])
        keys = [draft.linear(s.width, memory, tails[1]) for _ in range(2)]
        other = AttentionSizes(s.tokens, s.heads, s.kv_heads, s.head_dim)
        add_sdpa(draft, other, (query, *keys), (COPY,), kv_tokens=read)
        middle = draft.function("add", (middle, draft.linear(s.width)))
    mlp = add_mlp(draft, draft.norm("layer_norm", **turned), 4 * s.width, GELU)
    draft.function("add", (middle, mlp), **turned)


def draw_waveform_encoder(draw: SizeDraw) -> Network:
    """Return convolutions on a waveform and a transformer, like wav2vec 2.0."""
    channels, heads = draw.width(32, 512), draw.size(2, 16)
    samples = draw.size(4000, 160_000, 80)
    draft = NetworkDraft((samples,))
    draft.conv(channels, 10, DATA, (make_op("group_norm", groups=channels), GELU), stride=5, bias=0,
               shape=(1, samples))  # fmt: skip
    for kernel in (3, 3, 3, 3, 2):
        draft.conv(channels, kernel, None, (GELU,), stride=2, bias=0)
    draft.conv(channels, 2, None, (GELU, _TO_TOKENS, LAYER_NORM), stride=2, bias=0)
    s = AttentionSizes(draft.shape()[0], heads, heads, draw.choose((32, 64, 64)))
    features = draft.linear(s.width)
    groups = draw.choose((4, 8, 16))
    kernel = draw.choose((15, 31, 127))
    # Reading counts work on weights per sample of a batch of about 16.
    params = s.width * (s.width // groups) * kernel
    draft.function("_weight_norm", (), shape=(params // 16,), params=params)
    places = draft.conv(s.width, kernel, features, (GELU,), padding=kernel // 2, groups=groups,
                        shape=(s.width, s.tokens), transposed=(0,))  # fmt: skip
    draft.function(
        "add", (features, places), (LAYER_NORM, make_dropout()), shape=(s.tokens, s.width)
    )
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            add_attention(draft, s, start)
            out = draft.linear(s.width, tail=(make_dropout(),))
            middle = draft.function("add", (start, out), (LAYER_NORM,))
            drops = ((make_dropout(),), (make_dropout(),))
            mlp = add_mlp(draft, middle, 4 * s.width, GELU, drops)
            draft.function("add", (middle, mlp), (LAYER_NORM,))
    draft.dropout((s.tokens, s.width))
    draft.linear(draw.size(30, 1000))
    return draft.finish("waveform encoder")


def draw_conv1d(draw: SizeDraw) -> Network:
    """Return 1-D convolutions on sensors or sound, plain, separated or transposed at the end."""
    channels, length, width = draw.size(1, 80), draw.size(64, 16_000, 16), draw.width(16, 256)
    is_separated, is_decoder = draw.happens(0.3), draw.happens(0.2)
    draft = NetworkDraft((channels, length))
    stages = draw.choose((3, 4, 5))
    mean: Tail = (make_pool("adaptive_avg", 1, dims=1), make_op("flatten"))
    for stage in range(stages):
        cout, kernel = min(1024, width * 2**stage), draw.choose((3, 5, 7))
        if is_separated and stage:
            draft.conv(draft.shape()[0], kernel, None, (NORM, RELU), padding=kernel // 2,
                       groups=draft.shape()[0], bias=0)  # fmt: skip
            kernel = 1
        pool: Tail = (make_pool("max", 2, dims=1),) if draft.shape()[1] > 8 else ()
        end = mean if stage == stages - 1 and not is_decoder else ()
        draft.conv(cout, kernel, None, (NORM, RELU, *pool, *end), padding=kernel // 2)
    if is_decoder:
        for _ in range(3):
            draft.conv(draft.shape()[0] // 2, 4, None, (NORM, RELU), kind="conv_transpose1d",
                       stride=2, padding=1)  # fmt: skip
        draft.conv(channels, 3, padding=1)
    else:
        draft.linear(draw.size(2, 500))
    return draft.finish("conv1d", buildable=True)


def draw_recurrent(draw: SizeDraw) -> Network:
    """Return an LSTM, a GRU or an RNN on tokens or on frames, for every token or the last."""
    kind = draw.choose(("lstm", "lstm", "lstm", "gru", "gru", "rnn"))
    tokens, width = draw.size(8, 1024), draw.width(32, 1024)
    vocabulary = draw_vocabulary(draw) if draw.happens(0.6) else 0
    drop = draw_dropout(draw)
    if vocabulary:
        draft = NetworkDraft((tokens,), vocabulary)
        draft.embedding(vocabulary, width, tail=drop)
    else:
        draft = NetworkDraft((draw.size(8, 128), 2 * tokens))
        draft.conv(width, 5, DATA, (RELU, _TO_TOKENS), stride=2, padding=2)
    sizes = {"depth": draw.choose((1, 1, 2, 3)), "bidirectional": int(draw.happens(0.3))}
    modules = draw.choose((1, 1, 2, 3))
    end = drop if draw.happens(0.6) else (LAST,)
    for number in range(modules):
        read_tokens, cin = draft.shape()
        own = {"cin": cin, "hidden": draw.width(32, 2048), "tokens": read_tokens}
        layer = make_layer(kind, end if number == modules - 1 else drop, **own, **sizes)
        is_turned = not number and not vocabulary
        draft.add(replace(layer, transposed=(0,) if is_turned else ()))
    draft.linear(vocabulary or draw.size(2, 1000))
    return draft.finish("recurrent", buildable=True)


def draw_dlrm(draw: SizeDraw) -> Network:
    """Return embedding tables, two MLPs and products of all pairs of features, like DLRM."""
    tables, width = draw.size(4, 26), draw.choose((8, 16, 32, 64, 128))
    rows, hidden = draw.size(1000, 4_000_000), draw.width(64, 1024)
    draft = NetworkDraft((13,))
    draft.linear(hidden, DATA, (RELU,))
    dense = draft.linear(width, tail=(RELU,))
    found = [draft.embedding(draw.size(100, rows), width, DATA, lead=()) for _ in range(tables)]
    features, pairs = tables + 1, (tables + 1) * tables // 2
    draft.function("stack", (dense, *found), shape=(width,), out=(features, width))
    draft.add(make_layer("matmul", m=features, k=width, n=features))
    products = draft.move("index", fn="index", axes=(0, 1), out=(pairs,))
    draft.concat((dense, products))
    for _ in range(draw.choose((1, 2, 3))):
        draft.linear(hidden, tail=(RELU,))
    draft.linear(draw.choose((1, 2)))
    return draft.finish("dlrm")


def draw_mlp(draw: SizeDraw) -> Network:
    """Return linear layers with activations, maybe norms and dropout, maybe an autoencoder."""
    norm: Tail = draw.choose(((), (NORM,), (LAYER_NORM,)))
    activation = make_function(draw.choose(("relu", "relu", "relu", "gelu", "silu", "tanh")))
    features, is_autoencoder = draw.size(8, 16_384), draw.happens(0.3)
    draft = NetworkDraft((features,))
    for _ in range(draw.choose((2, 3, 4, 6))):
        draft.linear(draw.width(64, 16_384), None, (*norm, activation, *draw_dropout(draw)))
    draft.linear(features if is_autoencoder else draw.size(1, 10_000))
    return draft.finish("mlp", buildable=True)
