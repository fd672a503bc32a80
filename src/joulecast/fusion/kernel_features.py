"""Describe a kernel by named features: DeepEn2023's for its kernels, similar ones for others.

HW          side of the image; the root of the number of positions where it is not square
C_in, C_out channels in and out
KS, S       kernel size and stride, geometric means over the axes
FLOPs       two per multiply-add, of the whole batch
params      number of weights
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from joulecast.fusion.op_graph import DATA, OpNode
from joulecast.kinds import Shape, find_kind
from joulecast.records import Sizes

Features = dict[str, float]

_MOST_CONCATENATED = 4
_IMAGE_AXES = 3


def describe_kernel(
    nodes: Sequence[OpNode], members: Sequence[int], flops: float, params: int, batch: int
) -> Features:
    """Return the features of a kernel by their names, in a fixed order for each of its kinds."""
    main = _find_main(nodes, members)
    node = nodes[main]
    work = {"FLOPs": flops, "params": float(params), "batch": float(batch)}
    kind = find_kind(node.op.kind)
    if kind.is_convolution:
        return {**_describe_convolution(node), **work}
    if node.name == "concat":
        return {**_describe_concat(nodes, node), "batch": work["batch"]}
    describe = _DESCRIPTIONS.get(node.op.kind)
    if describe is not None:
        return {**describe(node.op.sizes, node.in_shape, node.out_shape), **work}
    features = _describe_image(node.in_shape)
    if math.prod(node.out_shape) != math.prod(node.in_shape):
        features["out"] = float(math.prod(node.out_shape))
    return {**features, "batch": work["batch"]}


def count_positions(shape: Shape) -> int:
    """Return the positions of a sample: pixels of an image, tokens of a sequence."""
    return math.prod(shape[1:] if len(shape) >= _IMAGE_AXES else shape[:-1])


def count_channels(shape: Shape) -> int:
    """Return the channels of a sample: the first axis of images, the last one of sequences."""
    if not shape:
        return 1
    return shape[0] if len(shape) >= _IMAGE_AXES else shape[-1]


def _find_main(nodes: Sequence[OpNode], members: Sequence[int]) -> int:
    """Return the operator that decides the cost: the first with weights, else the first."""
    for number in members:
        if find_kind(nodes[number].op.kind).operator_class != "elementwise":
            return number
    return members[0]


def _describe_convolution(node: OpNode) -> Features:
    sizes = node.op.sizes
    return {
        **_describe_image(node.in_shape),
        "C_out": float(sizes["cout"]),
        "KS": _geometric_mean(sizes["kernel"]),
        "S": _geometric_mean(sizes["stride"]),
        "groups": float(sizes["groups"]),
    }


def _describe_concat(nodes: Sequence[OpNode], node: OpNode) -> Features:
    """Return the position count and the channels of up to four inputs; the rest count as one."""
    total = count_channels(node.in_shape)
    widths = [count_channels(nodes[one].out_shape) for one in node.sources if one != DATA]
    if len(widths) < len(node.sources):
        missing = len(node.sources) - len(widths)
        widths += [max(0, total - sum(widths)) // missing] * missing
    widths = sorted(widths, reverse=True)
    kept = [*widths[: _MOST_CONCATENATED - 1], sum(widths[_MOST_CONCATENATED - 1 :])]
    kept += [0] * (_MOST_CONCATENATED - len(kept))
    named = {f"C{number}": float(width) for number, width in enumerate(kept, start=1)}
    return {"HW": math.sqrt(count_positions(node.in_shape)), **named}


def _describe_image(shape: Shape) -> Features:
    return {"HW": math.sqrt(count_positions(shape)), "C_in": float(count_channels(shape))}


def _describe_pool(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
    kernel = sizes["kernel"]
    if sizes["fn"].startswith("adaptive"):
        kernel = tuple(-(-a // b) for a, b in zip(shape[1:], out_shape[1:], strict=True))
    return {
        **_describe_image(shape),
        "C_out": float(count_channels(out_shape)),
        "KS": _geometric_mean(kernel),
        "S": _geometric_mean(sizes["stride"] or kernel),
    }


def _describe_linear(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
    rows = float(math.prod(shape[:-1]))
    return {"rows": rows, "C_in": float(sizes["cin"]), "C_out": float(sizes["cout"])}


def _describe_attention(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
    names = ("heads", "kv_heads", "head_dim", "width", "tokens", "kv_tokens", "causal")
    return {name: float(sizes[name]) for name in names if name in sizes}


def _select(*names: str) -> Callable[[Sizes, Shape, Shape], Features]:
    """Return a function that takes these sizes as features, with the number of positions."""

    def describe(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
        rows = {"rows": float(math.prod(sizes["lead"]))} if "lead" in sizes else {}
        return {**rows, **{name: float(sizes[name]) for name in names}}

    return describe


_DESCRIPTIONS: dict[str, Callable[[Sizes, Shape, Shape], Features]] = {
    "pool": _describe_pool,
    "linear": _describe_linear,
    "grouped_linear": _describe_linear,
    "attention": _describe_attention,
    "sdpa": _describe_attention,
    "matmul": _select("count", "m", "k", "n"),
    "embedding": _select("vocabulary", "width"),
    "embedding_bag": _select("vocabulary", "width"),
    **{kind: _select("cin", "hidden", "tokens", "depth") for kind in ("lstm", "gru", "rnn")},
}


def _geometric_mean(sizes: Sequence[int]) -> float:
    return float(math.prod(sizes) ** (1.0 / len(sizes)))
