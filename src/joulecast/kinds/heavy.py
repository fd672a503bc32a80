"""Rows that multiply: convolutions, linears, recurrences, attention, products; and embeddings."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from joulecast.errors import InputError
from joulecast.kinds.rules import contraction
from joulecast.kinds.work import (
    NO_WORK,
    REQUIRED,
    WEIGHT_BYTES,
    Context,
    Kind,
    Shape,
    Work,
    WorkRule,
)
from joulecast.records import Sizes


def make_conv(dims: int, transposed: bool) -> Kind:
    """Convolutions in one, two or three axes, and their transposes."""

    def in_shape(s: Sizes) -> Shape:
        return (s["cin"], *s["space"])

    @lru_cache(maxsize=1024)  # Forward, backward and whoever stands behind ask one after the other.
    def out_shape(s: Sizes, shape: Shape) -> Shape:
        extras = s["output_padding"] if transposed else (0,) * dims
        axes = zip(
            shape[1:], s["kernel"], s["stride"], s["padding"], s["dilation"], extras, strict=False
        )
        space = []
        for size, kernel, stride, padding, dilation, extra in axes:
            reach = dilation * (kernel - 1)
            if transposed:
                space.append((size - 1) * stride - 2 * padding + reach + extra + 1)
            else:
                space.append((size + 2 * padding - reach - 1) // stride + 1)
        if min(space) < 1:
            raise InputError(
                f"a kernel of {s['kernel']} does not fit on {tuple(shape[1:])}: give a larger input"
            )
        return (s["cout"], *space)

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        weight = s["cin"] * s["cout"] // s["groups"] * math.prod(s["kernel"])
        return (weight, s["cout"]) if s["bias"] else (weight,)

    def flops(weight: int, inside: Shape, outside: Shape) -> float:
        return 2.0 * weight * math.prod((inside if transposed else outside)[1:])

    forward, backward = contraction(flops, out_shape, params)
    sizes = {
        "cin": REQUIRED,
        "cout": REQUIRED,
        "space": REQUIRED,
        "kernel": REQUIRED,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "bias": 1,
    }
    if transposed:
        sizes["output_padding"] = 0
    return Kind(sizes, in_shape, out_shape, forward, backward, ("cin", "cout"), params)


def make_linear() -> Kind:
    """A linear on the last axis, whatever stands before it."""

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        return (*shape[:-1], s["cout"])

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        weight = s["cin"] * s["cout"]
        return (weight, s["cout"]) if s["bias"] else (weight,)

    def flops(weight: int, inside: Shape, outside: Shape) -> float:
        return 2.0 * math.prod(inside) * float(outside[-1])

    forward, backward = contraction(flops, out_shape, params)
    sizes = {"cin": REQUIRED, "cout": REQUIRED, "lead": (), "bias": 1}
    return Kind(
        sizes,
        lambda s: (*s["lead"], s["cin"]),
        out_shape,
        forward,
        backward,
        ("cin", "cout"),
        params,
    )


def make_embedding() -> Kind:
    """A table of which a token picks a row."""

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        tokens = c.batch * math.prod(shape)
        return Work(0.0, tokens * (8 + 2 * s["width"] * WEIGHT_BYTES), 1, tokens * 8.0)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        tokens = c.batch * math.prod(shape)
        table = s["vocabulary"] * s["width"] * WEIGHT_BYTES
        moved = tokens * (8 + s["width"] * WEIGHT_BYTES) + table
        return Work(0.0, moved, 2) if c.trains else NO_WORK

    return Kind(
        {"vocabulary": REQUIRED, "width": REQUIRED, "lead": REQUIRED},
        lambda s: tuple(s["lead"]),
        lambda s, shape: (*shape, s["width"]),
        forward,
        backward,
        ("width",),
        lambda s, shape: (s["vocabulary"] * s["width"],),
    )


def make_recurrent(gates: int) -> Kind:
    """LSTM (4 gates), GRU (3) and plain RNN (1)."""

    def cells(s: Sizes) -> list[tuple[int, int]]:
        sides = 1 + s["bidirectional"]
        widths = [s["cin"]] + [s["hidden"] * sides] * (s["depth"] - 1)
        return [(width, s["hidden"]) for width in widths for _ in range(sides)]

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        tensors: list[int] = []
        for width, hidden in cells(s):
            tensors += [gates * hidden * width, gates * hidden * hidden]
            tensors += [gates * hidden, gates * hidden] if s["bias"] else []
        return tuple(tensors)

    def flops(s: Sizes) -> float:
        return float(sum(2 * s["tokens"] * gates * h * (w + h) for w, h in cells(s)))

    def moved(s: Sizes, c: Context) -> float:
        """Bytes of one pass: every token's input and gates, the recurrent weights each time."""
        activations = sum(c.batch * s["tokens"] * (w + (2 * gates + 3) * h) for w, h in cells(s))
        weights = sum(gates * h * (w + h) for w, h in cells(s))
        return float(activations + weights) * c.item_bytes

    def launches(s: Sizes) -> int:
        return len(cells(s)) * (1 + 2 * int(s["tokens"]))

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        kept = sum(c.batch * s["tokens"] * (w + (gates + 2) * h) for w, h in cells(s))
        return Work(c.batch * flops(s), moved(s, c), launches(s), float(kept) * c.item_bytes)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        # Libraries compute the gradient of the input whether it is asked for or not.
        if not (c.trains or c.input_grad):
            return NO_WORK
        weights = flops(s) if c.trains else 0.0
        return Work(c.batch * (flops(s) + weights), 2 * moved(s, c), 2 * launches(s))

    sizes = {
        "cin": REQUIRED,
        "hidden": REQUIRED,
        "tokens": REQUIRED,
        "depth": 1,
        "bidirectional": 0,
        "bias": 1,
    }
    return Kind(
        sizes,
        lambda s: (s["tokens"], s["cin"]),
        lambda s, shape: (s["tokens"], s["hidden"] * (1 + s["bidirectional"])),
        forward,
        backward,
        ("cin", "hidden"),
        params,
    )


def make_sdpa() -> Kind:
    """Scaled dot-product attention on queries, keys and values that stand side by side."""

    def moved(s: Sizes, c: Context) -> float:
        queries = s["tokens"] * s["heads"] * s["head_dim"]
        keys = s["kv_tokens"] * s["kv_heads"] * s["head_dim"]
        return float(c.batch * (2 * queries + 2 * keys)) * c.item_bytes

    def flops(s: Sizes) -> float:
        return _attend_flops(s["heads"], s["head_dim"], s["tokens"], s["kv_tokens"])

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        return Work(c.batch * flops(s), moved(s, c), 1, moved(s, c))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        # A fused backward multiplies five times where forward multiplies twice.
        if not c.input_grad:
            return NO_WORK
        return Work(2.5 * c.batch * flops(s), 2.5 * moved(s, c), 2)

    def in_shape(s: Sizes) -> Shape:
        return (s["tokens"], (s["heads"] + 2 * s["kv_heads"]) * s["head_dim"])

    sizes = {
        "heads": REQUIRED,
        "kv_heads": REQUIRED,
        "head_dim": REQUIRED,
        "tokens": REQUIRED,
        "kv_tokens": REQUIRED,
        "causal": 0,
    }
    return Kind(
        sizes,
        in_shape,
        lambda s, shape: (s["tokens"], s["heads"] * s["head_dim"]),
        forward,
        backward,
        ("head_dim",),
    )


def make_attention() -> Kind:
    """A whole multi-head attention: three projections, attention, one projection."""
    linear = make_linear()
    sdpa = make_sdpa()

    def pieces(s: Sizes) -> list[tuple[Kind, Sizes, Shape]]:
        width, bias = s["width"], s["bias"]
        out: list[tuple[Kind, Sizes, Shape]] = []
        for tokens in (s["tokens"], s["kv_tokens"], s["kv_tokens"], s["tokens"]):
            sizes = Sizes({"cin": width, "cout": width, "lead": (tokens,), "bias": bias})
            out.append((linear, sizes, (tokens, width)))
        heads = s["heads"]
        inner = {"heads": heads, "kv_heads": heads, "head_dim": width // heads}
        inner.update(tokens=s["tokens"], kv_tokens=s["kv_tokens"])
        out.append((sdpa, Sizes(inner), (s["tokens"], 3 * width)))
        return out

    def add_up(stage: str) -> WorkRule:
        def work(s: Sizes, shape: Shape, c: Context) -> Work:
            inner = replace(c, input_grad=c.input_grad or c.trains)
            total = NO_WORK
            for i, (kind, sizes, piece_shape) in enumerate(pieces(s)):
                rule: WorkRule = getattr(kind, stage)
                total += rule(sizes, piece_shape, c if i < 3 else inner)
            return total

        return work

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        square = s["width"] * s["width"]
        biases = (3 * s["width"], s["width"]) if s["bias"] else ()
        return (3 * square, square, *biases)

    sizes = {
        "width": REQUIRED,
        "heads": REQUIRED,
        "tokens": REQUIRED,
        "kv_tokens": REQUIRED,
        "bias": 1,
    }
    return Kind(
        sizes,
        lambda s: (s["tokens"], s["width"]),
        lambda s, shape: (s["tokens"], s["width"]),
        add_up("forward"),
        add_up("backward"),
        ("width",),
        params,
    )


def make_matmul() -> Kind:
    """A product of two activations: ``count`` times (m, k) with (k, n) for each sample."""

    def flops(s: Sizes) -> float:
        return float(2 * s["count"] * s["m"] * s["k"] * s["n"])

    def moved(s: Sizes, c: Context) -> float:
        elements = s["m"] * s["k"] + s["k"] * s["n"] + s["m"] * s["n"]
        return float(c.batch * s["count"] * elements) * c.item_bytes

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        kept = c.batch * s["count"] * (s["m"] + s["n"]) * s["k"] * c.item_bytes
        return Work(c.batch * flops(s), moved(s, c), 1, float(kept))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        if not c.input_grad:
            return NO_WORK
        return Work(2 * c.batch * flops(s), 2 * moved(s, c), 2)

    def lead(s: Sizes) -> Shape:
        return (s["count"],) if s["count"] > 1 else ()

    return Kind(
        {"count": 1, "m": REQUIRED, "k": REQUIRED, "n": REQUIRED},
        lambda s: (*lead(s), s["m"], s["k"]),
        lambda s, shape: (*lead(s), s["m"], s["n"]),
        forward,
        backward,
        ("m", "k", "n"),
    )


def _attend_flops(heads: int, head_dim: int, tokens: int, kv_tokens: int) -> float:
    return 4.0 * heads * head_dim * tokens * kv_tokens
