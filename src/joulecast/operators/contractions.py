"""Define kinds with weights or products: convolutions, linear layers, embeddings, recurrent layers
and attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from joulecast.operators.kind import (
    NO_WORK,
    REQUIRED,
    WEIGHT_BYTES,
    Kind,
    Shape,
    Work,
    WorkContext,
    WorkRule,
    copy_input,
    gives_full,
    gives_half,
    make_contraction_rules,
)
from joulecast.records import Sizes
from joulecast.system.errors import InputError

CONVOLUTION_AXES = ("space", "kernel", "stride", "padding", "dilation", "output_padding")
"""Sizes of a convolution with one number for each spatial axis."""


def define_convolution(dims: int, transposed: bool = False) -> Kind:
    """Return the row of a convolution over one, two or three axes, or of its transpose."""

    @lru_cache(maxsize=1024)  # forward, backward and the next layer need it one after the other
    def out_shape(s: Sizes, shape: Shape) -> Shape:
        extras = s["output_padding"] if transposed else (0,) * dims
        axes = s["kernel"], s["stride"], s["padding"], s["dilation"], extras
        space = []
        for size, kernel, stride, padding, dilation, extra in zip(shape[1:], *axes, strict=False):
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

    def flops(weight: int, in_shape: Shape, out_shape: Shape) -> float:
        return 2.0 * weight * math.prod((in_shape if transposed else out_shape)[1:])

    forward, backward = make_contraction_rules(flops, out_shape, params)
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
    return Kind(
        sizes,
        lambda s: (s["cin"], *s["space"]),
        out_shape,
        forward,
        backward,
        params,
        fill_sizes=partial(_spread_over_axes, dims),
        widths=("cin", "cout"),
        input_widths=("cin",),
        width_divisor="groups",
        channel_axis=0,
        spatial_dims=dims,
        inner_width="cin",
        outer_width="cout",
        aligned_widths=("cin", "cout"),
        pads_widths=True,
        autocast=gives_half,
        copy_transposed=copy_input,
    )


def define_linear() -> Kind:
    """Return the row of a linear layer on the last axis; ``lead`` are the axes before it."""

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        return (*shape[:-1], s["cout"])

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        weight = s["cin"] * s["cout"]
        return (weight, s["cout"]) if s["bias"] else (weight,)

    def copy_transposed(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        # The bias is not fused with the product of a copy: it takes one more pass.
        outputs = 2.0 * c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        bias = Work(0.0, outputs, 1) if s["bias"] else NO_WORK
        return copy_input(s, shape, c) + bias

    def gradient_products(s: Sizes, batch: int) -> tuple[tuple[str, dict[str, Any]], ...]:
        rows, cin, cout = batch * math.prod(s["lead"]), s["cin"], s["cout"]
        return (
            ("input", {"lead": (rows,), "cin": cout, "cout": cin, "bias": 0}),
            ("weight", {"lead": (cout,), "cin": rows, "cout": cin, "bias": 0}),
        )

    forward, backward = make_contraction_rules(_count_row_products, out_shape, params)
    return Kind(
        {"cin": REQUIRED, "cout": REQUIRED, "lead": (), "bias": 1},
        lambda s: (*s["lead"], s["cin"]),
        out_shape,
        forward,
        backward,
        params,
        widths=("cin", "cout"),
        input_widths=("cin",),
        channel_axis=-1,
        inner_width="cin",
        outer_width="cout",
        aligned_widths=("cin", "cout"),
        autocast=gives_half,
        gradient_products=gradient_products,
        copy_transposed=copy_transposed,
    )


def define_grouped_linear() -> Kind:
    """Return the row of the experts of a mixture: each row is multiplied by one expert's weight.

    ``lead`` counts the rows of all experts together: tokens times the experts that each is given.
    Autocast leaves grouped products in the precision of the weights, unless the module casts both
    to half precision itself (``half``), or multiplies a batch of matrices.
    """
    linear = define_linear()

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        return (s["experts"] * s["cin"] * s["cout"],)

    forward, backward = make_contraction_rules(_count_row_products, linear.out_shape, params)
    sizes = {"cin": REQUIRED, "cout": REQUIRED, "lead": REQUIRED, "experts": REQUIRED, "half": 0}
    return replace(
        linear,
        sizes=sizes,
        forward=forward,
        backward=backward,
        params=params,
        autocast=lambda s: "half" if s.get("half") else "full",
        # Rows of a gradient of weights differ by expert: no operator of this kind is like it.
        gradient_products=lambda s, batch: (),
        copy_transposed=copy_input,
    )


def define_matmul() -> Kind:
    """Return the row of a product of two inputs: ``count`` times (m, k) by (k, n) per sample."""

    def flops(s: Sizes) -> float:
        return float(2 * s["count"] * s["m"] * s["k"] * s["n"])

    def moved_bytes(s: Sizes, c: WorkContext) -> float:
        elements = s["m"] * s["k"] + s["k"] * s["n"] + s["m"] * s["n"]
        return float(c.batch * s["count"] * elements) * c.item_bytes

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        kept = c.batch * s["count"] * (s["m"] + s["n"]) * s["k"] * c.item_bytes
        return Work(c.batch * flops(s), moved_bytes(s, c), 1, float(kept))

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        if not c.input_grad:
            return NO_WORK
        return Work(2 * c.batch * flops(s), 2 * moved_bytes(s, c), 2)

    def gradient_products(s: Sizes, batch: int) -> tuple[tuple[str, dict[str, Any]], ...]:
        count, m, k, n = batch * s["count"], s["m"], s["k"], s["n"]
        return (
            ("input", {"count": count, "m": m, "k": n, "n": k}),
            ("input", {"count": count, "m": k, "k": m, "n": n}),
        )

    def lead(s: Sizes) -> Shape:
        return (s["count"],) if s["count"] > 1 else ()

    return Kind(
        {"count": 1, "m": REQUIRED, "k": REQUIRED, "n": REQUIRED},
        lambda s: (*lead(s), s["m"], s["k"]),
        lambda s, shape: (*lead(s), s["m"], s["n"]),
        forward,
        backward,
        widths=("m", "k", "n"),
        input_widths=("m", "k", "n"),
        channel_axis=-1,
        inner_width="k",
        outer_width="n",
        second_shape=lambda s: (*lead(s), s["k"], s["n"]),
        autocast=gives_half,
        is_function=True,
        gradient_products=gradient_products,
    )


def _count_row_products(weight: int, in_shape: Shape, out_shape: Shape) -> float:
    """Return the FLOPs of products of rows by matrices, whichever matrix each row meets."""
    return 2.0 * math.prod(in_shape) * float(out_shape[-1])


def _spread_over_axes(dims: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return sizes in which one integer for all spatial axes is repeated for each of them."""
    integers = {name: sizes[name] for name in CONVOLUTION_AXES if isinstance(sizes.get(name), int)}
    return {**sizes, **{name: (size,) * dims for name, size in integers.items()}}


# PyTorch sorts the tokens of an embedding's gradient if they are more than this, by 24 kernels on
# an H200 that take the host as long as some 12 others do.
_MOST_UNSORTED, _SORTING_LAUNCHES = 3072, 12


def define_embedding() -> Kind:
    """Return the row of an embedding: a table from which each token takes one row."""

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        tokens = c.batch * math.prod(shape)
        return Work(0.0, tokens * (8 + 2 * s["width"] * WEIGHT_BYTES), 1, tokens * 8.0)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        tokens = c.batch * math.prod(shape)
        table = s["vocabulary"] * s["width"] * WEIGHT_BYTES
        moved = tokens * (8 + s["width"] * WEIGHT_BYTES) + table
        launches = 2 if tokens <= _MOST_UNSORTED else _SORTING_LAUNCHES
        return Work(0.0, moved, launches) if c.trains else NO_WORK

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

    required = dict.fromkeys(("cin", "hidden", "tokens"), REQUIRED)
    return Kind(
        {**required, "depth": 1, "bidirectional": 0, "bias": 1},
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
