"""Define kinds that work on sequences of tokens: embeddings, recurrent layers and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.kinds.contractions import define_linear
from joulecast.kinds.kind import REQUIRED, Kind, gives_full, gives_half
from joulecast.kinds.work import NO_WORK, WEIGHT_BYTES, Shape, Work, WorkContext, WorkRule
from joulecast.records import Sizes

_RECURRENT_DEFAULTS = {"depth": 1, "bidirectional": 0, "bias": 1}


def define_embedding() -> Kind:
    """Return the row of an embedding: a table from which each token takes one row."""

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        tokens = c.batch * math.prod(shape)
        return Work(0.0, tokens * (8 + 2 * s["width"] * WEIGHT_BYTES), 1, tokens * 8.0)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
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
        lambda s, shape: (s["vocabulary"] * s["width"],),
        widths=("width",),
        channel_axis=-1,
        inner_width="width",
        outer_width="width",
        reads_tokens=True,
        autocast=gives_full,
    )


def define_embedding_bag() -> Kind:
    """Return the row of an embedding whose rows are summed or averaged: ``bags`` per sample."""
    embedding = define_embedding()

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        tokens = c.batch * math.prod(shape)
        row = s["width"] * WEIGHT_BYTES
        return Work(0.0, float(tokens * (8 + row) + c.batch * s["bags"] * row), 1, tokens * 8.0)

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        return (s["bags"], s["width"]) if s["bags"] > 1 else (s["width"],)

    sizes = {"vocabulary": REQUIRED, "width": REQUIRED, "lead": REQUIRED, "bags": 1}
    return replace(embedding, sizes=sizes, forward=forward, out_shape=out_shape)


def define_recurrent(gates: int) -> Kind:
    """Return the row of an LSTM (4 gates), a GRU (3) or a plain RNN (1)."""

    def cells(s: Sizes) -> list[tuple[int, int]]:
        directions = 1 + s["bidirectional"]
        widths = [s["cin"]] + [s["hidden"] * directions] * (s["depth"] - 1)
        return [(width, s["hidden"]) for width in widths for _ in range(directions)]

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        tensors: list[int] = []
        for width, hidden in cells(s):
            tensors += [gates * hidden * width, gates * hidden * hidden]
            tensors += [gates * hidden, gates * hidden] if s["bias"] else []
        return tuple(tensors)

    def flops(s: Sizes) -> float:
        return float(sum(2 * s["tokens"] * gates * h * (w + h) for w, h in cells(s)))

    def moved_bytes(s: Sizes, c: WorkContext) -> float:
        """Return the bytes of one pass: inputs and gates of all tokens, and the weights."""
        activations = sum(c.batch * s["tokens"] * (w + (2 * gates + 3) * h) for w, h in cells(s))
        weights = sum(gates * h * (w + h) for w, h in cells(s))
        return float(activations + weights) * c.item_bytes

    def launches(s: Sizes) -> int:
        return len(cells(s)) * (1 + 2 * int(s["tokens"]))

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        kept = sum(c.batch * s["tokens"] * (w + (gates + 2) * h) for w, h in cells(s))
        return Work(c.batch * flops(s), moved_bytes(s, c), launches(s), float(kept) * c.item_bytes)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        # Libraries compute the gradient of the input whether it is needed or not.
        if not (c.trains or c.input_grad):
            return NO_WORK
        weights = flops(s) if c.trains else 0.0
        return Work(c.batch * (flops(s) + weights), 2 * moved_bytes(s, c), 2 * launches(s))

    return Kind(
        {**dict.fromkeys(("cin", "hidden", "tokens"), REQUIRED), **_RECURRENT_DEFAULTS},
        lambda s: (s["tokens"], s["cin"]),
        lambda s, shape: (s["tokens"], s["hidden"] * (1 + s["bidirectional"])),
        forward,
        backward,
        params,
        widths=("cin", "hidden"),
        input_widths=("cin",),
        channel_axis=-1,
        inner_width="cin",
        outer_width="hidden",
        aligned_widths=("cin",),
        is_recurrent=True,
        autocast=gives_half,
    )


def define_sdpa() -> Kind:
    """Return the row of scaled dot-product attention on concatenated queries, keys and values.

    With ``windows``, a sample has so many sequences that attend only to themselves.
    """

    def moved_bytes(s: Sizes, c: WorkContext) -> float:
        queries = s["tokens"] * s["heads"] * s["head_dim"]
        keys = s["kv_tokens"] * s["kv_heads"] * s["head_dim"]
        sequences = c.batch * s.get("windows", 1)
        return float(sequences * (2 * queries + 2 * keys)) * c.item_bytes

    def flops(s: Sizes) -> float:
        products = 4 * s["heads"] * s["head_dim"] * s["tokens"] * s["kv_tokens"]
        return float(s.get("windows", 1) * products)

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        return Work(c.batch * flops(s), moved_bytes(s, c), 1, moved_bytes(s, c))

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        # A fused backward pass has five products where the forward pass has two.
        if not c.input_grad:
            return NO_WORK
        return Work(2.5 * c.batch * flops(s), 2.5 * moved_bytes(s, c), 2)

    def in_shape(s: Sizes) -> Shape:
        return (*_lead_shape(s), (s["heads"] + 2 * s["kv_heads"]) * s["head_dim"])

    sizes = {
        "heads": REQUIRED,
        "kv_heads": REQUIRED,
        "head_dim": REQUIRED,
        "tokens": REQUIRED,
        "kv_tokens": REQUIRED,
        "causal": 0,
        "windows": None,
    }
    return Kind(
        sizes,
        in_shape,
        lambda s, shape: (*_lead_shape(s), s["heads"] * s["head_dim"]),
        forward,
        backward,
        widths=("head_dim",),
        input_widths=("head_dim",),
        channel_axis=-1,
        inner_width="head_dim",
        outer_width="head_dim",
        aligned_widths=("head_dim",),
        packs_inputs=True,
        autocast=gives_half,
        is_function=True,
    )


def define_attention() -> Kind:
    """Return the row of multi-head attention: three projections, attention, one projection.

    With ``windows``, a sample has so many sequences that attend only to themselves.
    """
    linear = define_linear()
    sdpa = define_sdpa()

    def list_parts(s: Sizes) -> list[tuple[Kind, Sizes, Shape]]:
        width, bias = s["width"], s["bias"]
        out: list[tuple[Kind, Sizes, Shape]] = []
        for tokens in (s["tokens"], s["kv_tokens"], s["kv_tokens"], s["tokens"]):
            rows = tokens * s.get("windows", 1)
            sizes = Sizes({"cin": width, "cout": width, "lead": (rows,), "bias": bias})
            out.append((linear, sizes, (rows, width)))
        inner = Sizes(_attend_sizes(s))
        out.append((sdpa, inner, (*_lead_shape(s), 3 * width)))
        return out

    def sum_work(stage: str) -> WorkRule:
        def work(s: Sizes, shape: Shape, c: WorkContext) -> Work:
            inner = replace(c, input_grad=c.input_grad or c.trains)
            total = NO_WORK
            for i, (kind, sizes, op_shape) in enumerate(list_parts(s)):
                rule: WorkRule = getattr(kind, stage)
                total += rule(sizes, op_shape, c if i < 3 else inner)
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
        "windows": None,
    }
    return Kind(
        sizes,
        lambda s: (*_lead_shape(s), s["width"]),
        lambda s, shape: (*_lead_shape(s), s["width"]),
        sum_work("forward"),
        sum_work("backward"),
        params,
        widths=("width",),
        input_widths=("width",),
        width_divisor="heads",
        channel_axis=-1,
        inner_width="width",
        outer_width="width",
        product_calls=3,  # the input projections, attention, the output projection
        autocast=gives_half,
        operators=_list_attention_operators,
    )


def _list_attention_operators(s: Sizes) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the kernels of multi-head attention; projections of one input are one product."""
    tokens, kv_tokens = s["tokens"], s["kv_tokens"]

    def project(outputs: int, tokens: int) -> tuple[str, Mapping[str, Any]]:
        width, rows = s["width"], tokens * s.get("windows", 1)
        sizes = {"cin": width, "cout": outputs * width, "lead": (rows,), "bias": s.get("bias", 1)}
        return "linear", sizes

    is_self = tokens == kv_tokens
    inputs = (project(3, tokens),) if is_self else (project(1, tokens), project(2, kv_tokens))
    return (*inputs, ("sdpa", {**_attend_sizes(s), "causal": 0}), project(1, tokens))


def _attend_sizes(s: Sizes) -> dict[str, int]:
    """Return the sizes of the attention inside multi-head attention."""
    heads = s["heads"]
    sizes = {"heads": heads, "kv_heads": heads, "head_dim": s["width"] // heads}
    sizes.update(tokens=s["tokens"], kv_tokens=s["kv_tokens"])
    return {**sizes, "windows": s["windows"]} if "windows" in s else sizes


def _lead_shape(s: Sizes) -> Shape:
    """Return the axes of a sample of attention before its features."""
    return (s["windows"], s["tokens"]) if "windows" in s else (s["tokens"],)
