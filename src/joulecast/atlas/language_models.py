"""Architectures of language models: decoders, encoders, encoder-decoders, mixtures, adapters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from joulecast.atlas.draft import DATA, NetworkDraft, make_dropout
from joulecast.atlas.draw import SizeDraw
from joulecast.atlas.transformer_parts import (
    CACHE,
    COPY,
    GELU,
    LAYER_NORM,
    MUL,
    NEW_GELU,
    RELU,
    SILU,
    TANH,
    AttentionSizes,
    add_attention,
    add_gated_mlp,
    add_mlp,
    add_packed_projection,
    add_rotary,
    add_sdpa,
    draw_attention_sizes,
    draw_depth,
    draw_dropout,
    draw_hidden,
    draw_vocabulary,
)
from joulecast.kinds import make_layer, make_op
from joulecast.records import Network, Op

# Experts that a token passes, and how their tokens are picked from all of a batch.
_CHOSEN = 2
_BY_TOKEN: dict[str, Any] = {"fn": "index", "axes": (0,), "across": 1}


def draw_gpt(draw: SizeDraw) -> Network:
    """Return a decoder like GPT-2 or OPT: layer norms, learned positions, a tied head."""
    s = draw_attention_sizes(draw)
    s = replace(s, kv_heads=s.heads)
    vocabulary, hidden = draw_vocabulary(draw), draw_hidden(draw, s.width)
    style = draw.choose(("plain", "plain", "gpt2", "gpt2", "opt"))
    drop = draw_dropout(draw) if style == "plain" else (make_dropout(),)
    activation = {"plain": GELU, "gpt2": NEW_GELU, "opt": RELU}[style]
    draft = NetworkDraft((s.tokens,), vocabulary)
    words = draft.embedding(vocabulary, s.width)
    places = draft.embedding(s.tokens, s.width, (), lead=(max(1, s.tokens // 16),))
    draft.function("add", (words, places), drop)
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            norm = draft.norm("layer_norm")
            _add_gpt_attention(draft, s, norm, style)
            draft.linear(s.width, tail=drop)
            middle = draft.function("add", (start, draft.last))
            draft.norm("layer_norm")
            draft.function(
                "add", (middle, add_mlp(draft, draft.last, hidden, activation, ((), drop)))
            )
    draft.norm("layer_norm")
    draft.linear(vocabulary, bias=0, tied=draw.happens(0.6))
    return draft.finish("gpt")


def _add_gpt_attention(draft: NetworkDraft, s: AttentionSizes, norm: int, style: str) -> None:
    if style == "opt":
        add_attention(draft, s, norm, tails=((MUL,), (CACHE,), (CACHE,), ()))
        return
    packed = add_packed_projection(draft, s, norm)
    if style == "plain":
        add_sdpa(draft, s, packed)
        return
    keys, values = (draft.function(CACHE.sizes["fn"], packed, shape=s.by_heads(s.heads))
                    for _ in range(2))  # fmt: skip
    add_sdpa(draft, s, (packed, keys, values), (COPY,))


def draw_neox(draw: SizeDraw) -> Network:
    """Return a decoder like GPT-NeoX: partly rotated heads, attention and MLP side by side."""
    s = draw_attention_sizes(draw, 48)
    s = replace(s, kv_heads=s.heads)
    vocabulary, hidden = draw_vocabulary(draw), draw_hidden(draw, s.width)
    rest = s.head_dim * 3 // 4
    draft = NetworkDraft((s.tokens,), vocabulary)
    draft.embedding(vocabulary, s.width)
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            packed = add_packed_projection(draft, s, draft.norm("layer_norm"))
            query = add_rotary(draft, s, packed, s.heads, rest)
            key = add_rotary(draft, s, packed, s.heads, rest, (CACHE,))
            value = draft.function("concat along 2", packed, shape=s.by_heads(s.heads))
            add_sdpa(draft, s, (query, key, value), (COPY,))
            attention = draft.linear(s.width)
            norm = draft.norm("layer_norm", start)
            both = draft.function("add", (add_mlp(draft, norm, hidden, GELU), attention))
            draft.function("add", (both, start))
    draft.norm("layer_norm")
    draft.linear(vocabulary, bias=0)
    return draft.finish("gpt-neox")


def draw_llama(draw: SizeDraw) -> Network:
    """Return a decoder like Llama, Mistral, Qwen, Gemma or Phi: RMS norms, rotation, gates."""
    return _draw_rotary_decoder(draw, "llama")


def draw_mixture(draw: SizeDraw) -> Network:
    """Return a mixture of experts like Mixtral: each token passes a few of several MLPs."""
    return _draw_rotary_decoder(draw, "mixture", draw.choose((4, 8, 8, 16)))


@dataclass(frozen=True)
class _RotaryStyle:
    """How libraries write decoders with rotated queries and keys.

    Attributes:
        is_packed: One linear layer for queries, keys and values, one for gates and features.
        norms_heads: Queries and keys are normalised.
        has_cache: Keys and values pass through a cache.
        spelled: Norms are written in elementary operators.
        activation: That of the gate.
    """

    is_packed: bool = False
    norms_heads: bool = False
    has_cache: bool = True
    spelled: int = 1
    activation: Op = SILU


_ROTARY_STYLES = (
    _RotaryStyle(),
    _RotaryStyle(),
    _RotaryStyle(has_cache=False),
    _RotaryStyle(norms_heads=True),
    _RotaryStyle(activation=GELU),
    _RotaryStyle(is_packed=True),
    _RotaryStyle(has_cache=False, spelled=0),
)


def _draw_rotary_decoder(draw: SizeDraw, name: str, experts: int = 0) -> Network:
    s, style = draw_attention_sizes(draw), draw.choose(_ROTARY_STYLES)
    vocabulary, hidden = draw_vocabulary(draw), draw_hidden(draw, s.width, is_gated=True)
    bias, is_grouped = int(draw.happens(0.25)), draw.happens(0.5)
    norm_sizes: dict[str, Any] = {"spelled": style.spelled}
    draft = NetworkDraft((s.tokens,), vocabulary)
    # Gemma scales its embeddings.
    draft.embedding(vocabulary, s.width, tail=(MUL,) if style.activation == GELU else ())
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            norm = draft.norm("rms_norm", **norm_sizes)
            _add_rotary_attention(draft, s, norm, style, bias)
            middle = draft.function("add", (start, draft.linear(s.width, bias=0)))
            norm = draft.norm("rms_norm", **norm_sizes)
            if experts:
                _add_experts(draft, norm, hidden, experts, is_grouped)
            else:
                add_gated_mlp(draft, norm, hidden, style.activation, style.is_packed)
            draft.function("add", (middle, draft.last))
    draft.norm("rms_norm", **norm_sizes)
    draft.linear(vocabulary, bias=0, tied=draw.happens(0.3))
    return draft.finish(name)


def _add_rotary_attention(
    draft: NetworkDraft, s: AttentionSizes, norm: int, style: _RotaryStyle, bias: int
) -> None:
    cache = (CACHE,) if style.has_cache else ()
    if style.is_packed:
        packed = add_packed_projection(draft, s, norm, bias=bias)
        query = add_rotary(draft, s, packed, s.heads, rest=0)
        key = add_rotary(draft, s, packed, s.kv_heads, rest=0, tail=cache)
        value = draft.function("concat along 2", packed, shape=s.by_heads(s.kv_heads))
        add_sdpa(draft, s, (query, key, value), (COPY,))
        return
    heads_norm = (make_op("rms_norm", spelled=style.spelled),) if style.norms_heads else ()
    query = draft.linear(s.width, norm, heads_norm, bias=bias)
    key = draft.linear(s.kv_width, norm, heads_norm, bias=bias)
    value = draft.linear(s.kv_width, norm, cache, bias=bias)
    query = add_rotary(draft, s, query, s.heads)
    key = add_rotary(draft, s, key, s.kv_heads, tail=cache)
    add_sdpa(draft, s, (query, key, value))


def _add_experts(
    draft: NetworkDraft, source: int, hidden: int, experts: int, is_grouped: bool
) -> int:
    """Add a router and the experts: one after the other, or all in grouped products."""
    tokens, width = draft.shape(source)
    scores = draft.linear(experts, source, (make_op("elementwise", fn="softmax"),), bias=0)
    top = draft.move("sort", scores, fn="topk", out=(tokens, _CHOSEN))
    total = draft.function("sum", top, out=(tokens, 1))
    weights = draft.function("div", (top, total), shape=(tokens, _CHOSEN))
    result = draft.function("zeros_like", source)
    if is_grouped:
        draft.move("sort", top, fn="argsort", shape=(tokens * _CHOSEN,), out=(tokens * _CHOSEN,))
    seen = tokens * _CHOSEN if is_grouped else max(1, tokens * _CHOSEN // experts)
    kind, own = ("grouped_linear", {"experts": experts}) if is_grouped else ("linear", {"bias": 0})
    for _ in range(1 if is_grouped else experts):
        picked = draft.move("index", source, out=(seen, width), **_BY_TOKEN)
        sizes: dict[str, Any] = {"lead": (seen,), **own}
        both = draft.add(make_layer(kind, cin=width, cout=2 * hidden, **sizes), picked)
        gate = draft.function("silu", both, shape=(seen, hidden))
        inner = draft.function("mul", (gate, both), shape=(seen, hidden))
        out = draft.add(make_layer(kind, cin=hidden, cout=width, **sizes), inner)
        weight = draft.move("index", weights, out=(seen, 1), **_BY_TOKEN)
        scaled = draft.function("mul", (out, weight), shape=(seen, width))
        added = make_layer("scatter", fn="index_add", shape=(tokens, width), source=(seen, width))
        result = draft.add(added, (result, scaled))
    return result


def draw_state_space(draw: SizeDraw) -> Network:
    """Return a state-space model like Mamba, whose scan runs token by token."""
    width, tokens, state = draw.width(64, 2048), draw.size(8, 24), draw.choose((8, 16))
    vocabulary, inner = draw_vocabulary(draw), 2 * width
    rank, full = max(1, width // 16), (inner, tokens, state)
    draft = NetworkDraft((tokens,), vocabulary)
    start = draft.embedding(vocabulary, width)
    for _ in range(2):
        both = draft.linear(2 * inner, draft.norm("rms_norm", start, spelled=1), bias=0)
        signal = draft.conv(inner, 4, both, (SILU,), padding=3, groups=inner, shape=(inner, tokens))
        mixed = draft.linear(rank + 2 * state, signal, bias=0, shape=(tokens, inner))
        draft.linear(inner, mixed, bias=0, shape=(tokens, rank))
        softplus = make_op("elementwise", fn="softplus")
        steps = draft.function("add", None, (softplus,), shape=(inner, tokens), params=inner)
        exp = make_op("elementwise", fn="exp")
        decay = draft.function("mul", (steps, mixed), (exp,), shape=full)
        change = draft.function("mul", (decay, signal), shape=full)
        hidden = draft.move("slice", change, out=(inner, state))
        for _ in range(tokens):
            kept = draft.move("slice", decay, out=(inner, state))
            kept = draft.function("mul", (kept, hidden))
            new = draft.move("slice", change, out=(inner, state))
            hidden = draft.function("add", (kept, new))
            column = draft.move("slice", mixed, shape=(tokens, state), out=(state,))
            draft.add(make_layer("matmul", m=inner, k=state, n=1), (hidden, column))
        draft.function("mul", (draft.last, both), shape=(tokens, inner))
        start = draft.function("add", (start, draft.linear(width, bias=0)), shape=(tokens, width))
    draft.norm("rms_norm", spelled=1)
    draft.linear(vocabulary, bias=0, tied=True)
    return draft.finish("state space")


def draw_bert(draw: SizeDraw) -> Network:
    """Return an encoder like BERT or RoBERTa with a head for words or for classes."""
    s = draw_attention_sizes(draw, 24, 2048)
    s = AttentionSizes(s.tokens, s.heads, s.heads, s.head_dim)
    vocabulary, hidden = draw_vocabulary(draw), draw_hidden(draw, s.width)
    drop = (make_dropout(),)
    draft = NetworkDraft((s.tokens,), vocabulary)
    words = draft.embedding(vocabulary, s.width)
    types = draft.embedding(2, s.width, ())
    typed = draft.function("add", (words, types))
    places = draft.embedding(s.tokens, s.width, (), lead=(max(1, s.tokens // 16),))
    draft.function("add", (typed, places), (LAYER_NORM, *drop))
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            add_attention(draft, s, start)
            middle = draft.function("add", (draft.linear(s.width, tail=drop), start), (LAYER_NORM,))
            mlp = add_mlp(draft, middle, hidden, GELU, ((), drop))
            draft.function("add", (mlp, middle), (LAYER_NORM,))
    if draw.happens(0.5):
        draft.linear(s.width, tail=(GELU, LAYER_NORM))
        draft.linear(vocabulary, tied=draw.happens(0.5))
    else:
        if draw.happens(0.5):
            draft.dropout((s.width,))
        draft.linear(s.width, shape=(s.width,), tail=(TANH, *drop))
        draft.linear(draw.size(2, 1000))
    return draft.finish("bert")


def draw_torch_encoder(draw: SizeDraw) -> Network:
    """Return a stack of ``nn.TransformerEncoderLayer`` on embedded tokens or on features."""
    s = draw_attention_sizes(draw, 16, 2048)
    hidden, drop, activation = (
        draw_hidden(draw, s.width),
        (make_dropout(),),
        draw.choose((RELU, GELU)),
    )
    vocabulary = draw_vocabulary(draw) if draw.happens(0.6) else 0
    draft = NetworkDraft((s.tokens,) if vocabulary else (s.tokens, draw.size(8, 512)), vocabulary)
    draft.embedding(vocabulary, s.width) if vocabulary else draft.linear(s.width, DATA)
    is_pre_norm = draw.happens(0.3)
    after = () if is_pre_norm else (LAYER_NORM,)
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            if is_pre_norm:
                draft.norm("layer_norm")
            attention = draft.attention(s.heads, drop)
            middle = draft.function("add", (start, attention), after)
            inner = draft.norm("layer_norm") if is_pre_norm else middle
            mlp = add_mlp(draft, inner, hidden, activation, (drop, drop))
            draft.function("add", (middle, mlp), after)
    if draw.happens(0.5):
        draft.function("mean", axes=(0,))
    draft.linear(draw.size(2, 10_000))
    return draft.finish("torch encoder", buildable=True)


def draw_t5(draw: SizeDraw) -> Network:
    """Return an encoder-decoder like T5: RMS norms, position biases, cross-attention."""
    s = draw_attention_sizes(draw, 32, 1024)
    s = AttentionSizes(s.tokens, s.heads, s.heads, s.head_dim)
    vocabulary, hidden, drop = draw_vocabulary(draw), draw_hidden(draw, s.width), (make_dropout(),)
    norm_sizes: dict[str, Any] = {"spelled": 1}
    draft = NetworkDraft((s.tokens,), vocabulary)
    draft.embedding(vocabulary, s.width, tail=drop)
    depth, memory = draw_depth(draw), DATA
    for is_decoder in (False, True):
        if is_decoder:
            memory = draft.norm("rms_norm", tail=drop, **norm_sizes)
            draft.embedding(vocabulary, s.width, DATA, tied=True, tail=drop)
        cache = (CACHE,) if is_decoder else ()
        start = draft.last
        places = draft.embedding(32, s.heads, (), lead=(s.tokens,))
        for _ in range(depth):
            with draft.block():
                norm = draft.norm("rms_norm", start, **norm_sizes)
                query, key, value = (draft.linear(s.width, norm, tail, bias=0)
                                     for tail in ((), cache, cache))  # fmt: skip
                shape = (s.heads * s.tokens * min(s.tokens, 64),)
                fn = "where" if is_decoder else "copy"
                bias = draft.function(fn, places, (COPY,) if is_decoder else (), shape=shape)
                add_sdpa(draft, s, (query, key, value, bias), (COPY,))
                out = draft.function("add", (start, draft.linear(s.width, tail=drop, bias=0)))
                if is_decoder:
                    query = draft.linear(s.width, draft.norm("rms_norm", **norm_sizes), bias=0)
                    keys = [draft.linear(s.width, memory, cache, bias=0) for _ in range(2)]
                    add_sdpa(draft, s, (query, *keys), (COPY,))
                    out = draft.function("add", (out, draft.linear(s.width, tail=drop, bias=0)))
                norm = draft.norm("rms_norm", **norm_sizes)
                mlp = add_mlp(draft, norm, hidden, RELU, (drop, drop), bias=0)
                start = draft.function("add", (out, mlp))
    draft.norm("rms_norm", tail=(*drop, MUL), **norm_sizes)
    draft.linear(vocabulary, bias=0, tied=True)
    return draft.finish("t5")


def draw_lora(draw: SizeDraw) -> Network:
    """Return a frozen decoder whose linear layers have trainable low-rank updates."""
    s = draw_attention_sizes(draw)
    vocabulary, hidden = draw_vocabulary(draw), draw_hidden(draw, s.width, is_gated=True)
    rank, is_gated = draw.choose((4, 8, 16, 32, 64)), draw.happens(0.6)
    kind = "rms_norm" if is_gated else "layer_norm"
    sizes: dict[str, Any] = {"spelled": 1} if is_gated else {}
    draft = NetworkDraft((s.tokens,), vocabulary)
    draft.is_frozen = True
    draft.embedding(vocabulary, s.width, trains=False)
    for _ in range(draw_depth(draw)):
        with draft.block():
            start = draft.last
            norm = draft.norm(kind, **sizes)
            query = _add_lora_linear(draft, norm, s.width, rank)
            key = draft.linear(s.kv_width, norm, bias=0)
            value = _add_lora_linear(draft, norm, s.kv_width, rank)
            if is_gated:
                query, key = (
                    add_rotary(draft, s, query, s.heads),
                    add_rotary(draft, s, key, s.kv_heads),
                )
            add_sdpa(draft, s, (query, key, value))
            middle = draft.function("add", (start, draft.linear(s.width, bias=0)))
            norm = draft.norm(kind, **sizes)
            mlp = (add_gated_mlp(draft, norm, hidden, SILU) if is_gated
                   else add_mlp(draft, norm, hidden, GELU))  # fmt: skip
            draft.function("add", (middle, mlp))
    draft.norm(kind, **sizes)
    draft.linear(vocabulary, bias=0)
    return draft.finish("lora")


def _add_lora_linear(draft: NetworkDraft, source: int, cout: int, rank: int) -> int:
    base = draft.linear(cout, source, bias=0)
    draft.is_frozen = False
    inner = draft.linear(rank, source, bias=0)
    update = draft.linear(cout, inner, (MUL,), bias=0)
    draft.is_frozen = True
    return draft.function("add", (base, update))
