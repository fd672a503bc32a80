"""Rows that pass over elements: norms, activations, sums, pooling, dropout, views."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds.rules import free, own_shape, pointwise, stays
from joulecast.kinds.work import NO_WORK, REQUIRED, Context, Kind, Shape, Work
from joulecast.records import Sizes


def make_norm(sizes: Mapping[str, Any], params: Callable[[Sizes, Shape], tuple[int, ...]]) -> Kind:
    """A norm of any sort: two passes forward, three backward."""
    forward, backward = pointwise(2, 3, 1)
    return Kind(sizes, own_shape, stays, forward, backward, ("channels",), params, tailable=True)


def make_rms_norm() -> Kind:
    """A norm by the root of mean squares: fused, or spelled out in elementary operators."""
    fused, spelled = pointwise(2, 3, 1), pointwise(9, 18, 3)

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        # Networks written before it was told apart have no such size.
        if not s.get("spelled", 0):
            return fused[0](s, shape, c)
        return replace(spelled[0](s, shape, c), launches=7)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        if not s.get("spelled", 0):
            return fused[1](s, shape, c)
        work = spelled[1](s, shape, c)
        return replace(work, launches=14) if work.launches else work

    def params(s: Sizes, shape: Shape) -> tuple[int, ...]:
        return (shape[-1],) if s["affine"] else ()

    sizes = {"affine": 1, "spelled": 0}
    return Kind(sizes, own_shape, stays, forward, backward, ("channels",), params, tailable=True)


def channel_params(s: Sizes, shape: Shape) -> tuple[int, ...]:
    """Weight and bias of each channel."""
    return (shape[0], shape[0]) if s["affine"] else ()


def layer_norm_params(s: Sizes, shape: Shape) -> tuple[int, ...]:
    """Weight and bias of each normalised element."""
    size = math.prod(shape[len(shape) - s["dims"] :])
    return ((size, size) if s["bias"] else (size,)) if s["affine"] else ()


def make_elementwise() -> Kind:
    """Activations, sums, products, reductions: whatever passes over its elements once."""

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        if s["axes"]:
            return tuple(size for i, size in enumerate(shape) if i not in s["axes"])
        return stays(s, shape)

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * s["inputs"]
        outside = c.batch * math.prod(out_shape(s, shape))
        size = float(inside + outside) * c.item_bytes
        kept = 0 if s["fn"] == "add" else outside * s["passes"]
        return Work(0.0, size * s["passes"], s["passes"], float(kept * c.item_bytes))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        if not c.input_grad:
            return NO_WORK
        inside = c.batch * math.prod(shape) * s["inputs"]
        outside = c.batch * math.prod(out_shape(s, shape))
        if s["fn"] == "add":
            return NO_WORK  # the gradient of a sum is handed on as it is
        return Work(0.0, float(2 * inside + outside) * c.item_bytes * s["passes"], s["passes"])

    sizes = {"fn": REQUIRED, "axes": (), "inputs": 1, "passes": 1, "params": 0, "out": None}
    return Kind(
        sizes,
        own_shape,
        out_shape,
        forward,
        backward,
        ("channels",),
        lambda s, shape: (s["params"],) if s["params"] else (),
        tailable=True,
    )


def make_pool() -> Kind:
    """Maximum and mean pooling, by windows or to a given size."""

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        if s["fn"].startswith("adaptive"):
            return (shape[0], *s["kernel"])
        space = []
        for i, size in enumerate(shape[1:]):
            reach = size + 2 * s["padding"][i] - s["kernel"][i]
            rounded = -(-reach // s["stride"][i]) if s["ceil"] else reach // s["stride"][i]
            # A window that would begin in the padding behind the input is left out.
            outside = s["ceil"] and rounded * s["stride"][i] >= size + s["padding"][i]
            space.append(rounded + (0 if outside else 1))
        if min(space) < 1:
            raise InputError(
                f"pooling of {s['kernel']} does not fit on {tuple(shape[1:])}: give a larger input"
            )
        return (shape[0], *space)

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        kept = 2 * outside if "max" in s["fn"] else 0  # where each maximum stood
        return Work(0.0, float(inside + outside), 1, float(kept))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        if not (c.input_grad or c.trains):
            return NO_WORK
        return Work(0.0, float((2 if "max" in s["fn"] else 1) * inside + 2 * outside), 1)

    return Kind(
        {"fn": REQUIRED, "kernel": REQUIRED, "stride": (), "padding": (), "ceil": 0},
        own_shape,
        out_shape,
        forward,
        backward,
        ("channels",),
        tailable=True,
    )


def make_view(out_shape: Callable[[Sizes, Shape], Shape], sizes: Mapping[str, Any]) -> Kind:
    """Another way to look at the same memory: nothing runs."""
    return Kind(sizes, own_shape, out_shape, free, free, tailable=True)


def make_dropout() -> Kind:
    """Dropout: a mask of one byte an element beside the data."""
    forward, backward = pointwise(2.25, 2.25, 0.25)
    return Kind({"p": REQUIRED}, own_shape, stays, forward, backward, ("channels",), tailable=True)
