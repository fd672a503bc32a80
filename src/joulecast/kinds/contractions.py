"""Define kinds that multiply: convolutions, linear layers and products of two inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds.kind import REQUIRED, Kind, gives_half
from joulecast.kinds.work import NO_WORK, Shape, Work, WorkContext
from joulecast.kinds.work_rules import copy_input, make_contraction_rules
from joulecast.records import Sizes

CONVOLUTION_AXES = ("space", "kernel", "stride", "padding", "dilation", "output_padding")
"""Sizes of a convolution with one number for each spatial axis."""


def define_convolution(dims: int, transposed: bool = False) -> Kind:
    """Return the row of a convolution over one, two or three axes, or of its transpose."""

    @lru_cache(maxsize=1024)  # forward, backward and the next layer need it one after the other
    def out_shape(s: Sizes, shape: Shape) -> Shape:
        space = _convolved_space(s, shape[1:], transposed)
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

    def flops(weight: int, in_shape: Shape, out_shape: Shape) -> float:
        return 2.0 * math.prod(in_shape) * float(out_shape[-1])

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

    forward, backward = make_contraction_rules(flops, out_shape, params)
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
    to half precision itself (``half``).
    """
    linear = define_linear()

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        return (s["experts"] * s["cin"] * s["cout"],)

    def flops(weight: int, in_shape: Shape, out_shape: Shape) -> float:
        return 2.0 * math.prod(in_shape) * float(out_shape[-1])

    forward, backward = make_contraction_rules(flops, linear.out_shape, params)
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


def _spread_over_axes(dims: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return sizes in which one integer for all spatial axes is repeated for each of them."""
    integers = {name: sizes[name] for name in CONVOLUTION_AXES if isinstance(sizes.get(name), int)}
    return {**sizes, **{name: (size,) * dims for name, size in integers.items()}}


def _convolved_space(s: Sizes, space: Shape, transposed: bool) -> list[int]:
    """Return the spatial sizes of a convolution's output."""
    extras = s["output_padding"] if transposed else (0,) * len(space)
    axes = zip(space, s["kernel"], s["stride"], s["padding"], s["dilation"], extras, strict=False)
    found = []
    for size, kernel, stride, padding, dilation, extra in axes:
        reach = dilation * (kernel - 1)
        if transposed:
            found.append((size - 1) * stride - 2 * padding + reach + extra + 1)
        else:
            found.append((size + 2 * padding - reach - 1) // stride + 1)
    return found
