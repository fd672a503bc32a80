"""Read operators that pass over elements from ONNX calls: norms, pooling, activations, copies."""

from __future__ import annotations

import math
from typing import Any

from joulecast.errors import InputError
from joulecast.kinds import find_kind, make_op
from joulecast.records import Op
from joulecast.runtimes.onnx_files.batch_axes import has_batch, take_sample
from joulecast.runtimes.onnx_files.constant_folding import normalise_axis
from joulecast.runtimes.onnx_files.graph_values import GraphCall
from joulecast.runtimes.onnx_files.moving_shapes import list_permutation
from joulecast.runtimes.onnx_files.shape_rules import list_reduced_axes
from joulecast.runtimes.onnx_files.window_shapes import find_padding, list_spatial

FUNCTIONS = {
    "Relu": "relu", "LeakyRelu": "leaky_relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Elu": "elu",
    "Selu": "selu", "Celu": "celu", "HardSwish": "hardswish", "HardSigmoid": "hardsigmoid",
    "Softplus": "softplus", "Softsign": "softsign", "Softmax": "softmax",
    "LogSoftmax": "log_softmax", "Mish": "mish", "Gelu": "gelu", "Swish": "silu", "Erf": "erf",
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Abs": "abs",
    "Neg": "neg", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign", "Sin": "sin",
    "Cos": "cos", "Tan": "tan", "Not": "logical_not", "IsNaN": "isnan", "IsInf": "isinf",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Mod": "remainder",
    "Min": "minimum", "Max": "maximum", "Sum": "add", "Mean": "mean of inputs",
    "And": "logical_and", "Or": "logical_or", "Equal": "eq", "Less": "lt", "Greater": "gt",
    "LessOrEqual": "le", "GreaterOrEqual": "ge", "Where": "where", "PRelu": "prelu",
    "CumSum": "cumsum", "Trilu": "tril", "Cast": "to", "Expand": "expand", "Tile": "repeat",
    "Pad": "pad", "DepthToSpace": "pixel_shuffle", "SpaceToDepth": "pixel_unshuffle",
    "ThresholdedRelu": "threshold", "Shrink": "softshrink", "LRN": "local_response_norm",
    "LpNormalization": "normalize", "ArgMax": "argmax", "ArgMin": "argmin", "OneHot": "one_hot",
    "RotaryEmbedding": "rotary", "com.microsoft::RotaryEmbedding": "rotary",
    "com.microsoft::Gelu": "gelu", "com.microsoft::QuickGelu": "quickgeluactivation",
    "com.microsoft::QLinearAdd": "add", "com.microsoft::QLinearMul": "mul",
    "com.microsoft::QLinearSigmoid": "sigmoid", "com.microsoft::QLinearLeakyRelu": "leaky_relu",
    "com.microsoft::QLinearSoftmax": "softmax", "GridSample": "grid_sample",
    "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin", "ReduceProd": "prod",
    "ReduceL1": "norm", "ReduceL2": "norm", "ReduceLogSum": "logsumexp",
    "ReduceLogSumExp": "logsumexp", "ReduceSumSquare": "sum", "Hardmax": "argmax",
}  # fmt: skip
"""Names of functions as PyTorch has them, by ONNX operator."""

# Their results have the shape that all inputs are broadcast to.
_COMBINING = ("add", "sub", "mul", "div", "where", "concat", "minimum", "maximum", "pow")
_INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


def read_elementwise(call: GraphCall, batch: int) -> Op:
    """Read any function that passes over elements."""
    fn = call.op.removeprefix("joulecast::")
    return _make_elementwise(call, FUNCTIONS.get(call.op, fn), batch)


def read_unknown(call: GraphCall, batch: int) -> Op:
    """Read an operator that no rule describes as one pass over what it reads and returns."""
    return _make_elementwise(call, call.op, batch)


def read_concat(call: GraphCall, batch: int) -> Op:
    """Read ``Concat``, with its axis unless that holds the channels."""
    axis = normalise_axis(call.attribute("axis", 0), len(call.outputs[0].dims))
    return _make_elementwise(call, "concat" if axis == 1 else f"concat along {axis}", batch)


def read_clip(call: GraphCall, batch: int) -> Op:
    """Read ``Clip``: ReLU6 and other activations are certain limits."""
    low, high = _read_limit(call, 1, "min"), _read_limit(call, 2, "max")
    names: dict[tuple[float | None, float | None], str] = {
        (0, 6): "relu6",
        (-1, 1): "hardtanh",
        (0, None): "relu",
    }
    return _make_elementwise(call, names.get((low, high), "clamp"), batch)


def read_resize(call: GraphCall, batch: int) -> Op:
    """Read ``Resize`` and ``Upsample``, with their mode."""
    axes = len(call.shape(0)) - 2
    mode = call.attribute("mode", "nearest")
    if mode == "linear":
        mode = _INTERPOLATIONS.get(axes, mode)
    return _make_elementwise(call, f"interpolate {'bicubic' if mode == 'cubic' else mode}", batch)


def read_batch_norm(call: GraphCall, batch: int) -> Op:
    """Read a batch norm."""
    return make_op("batch_norm", affine=1, shape=take_sample(call.read(0), batch))


def read_layer_norm(call: GraphCall, batch: int) -> Op:
    """Read a layer norm, spelled out or not."""
    rank = len(call.shape(0))
    dims = rank - normalise_axis(call.attribute("axis", -1), rank)
    bias = int(call.get(2) is not None)
    shape = take_sample(call.read(0), batch)
    return make_op("layer_norm", dims=dims, affine=1, bias=bias, shape=shape)


def read_group_norm(call: GraphCall, batch: int) -> Op:
    """Read a group norm; an instance norm has one channel in each group."""
    groups = call.attribute("num_groups", call.shape(0)[1])
    return make_op("group_norm", groups=groups, affine=1, shape=take_sample(call.read(0), batch))


def read_rms_norm(call: GraphCall, batch: int) -> Op:
    """Read an RMS norm that is one operator."""
    return make_op("rms_norm", affine=1, shape=take_sample(call.read(0), batch))


def read_spelled_rms_norm(call: GraphCall, batch: int) -> Op:
    """Read an RMS norm that the file spells out."""
    return make_op("rms_norm", affine=1, spelled=1, shape=take_sample(call.read(0), batch))


def read_pool(call: GraphCall, batch: int) -> Op:
    """Read pooling by windows; where padding is not the same on both sides, as elementwise."""
    shape, kernel = take_sample(call.read(0), batch), tuple(call.attribute("kernel_shape"))
    fn = "max" if call.op == "MaxPool" else "avg"
    before, after = find_padding(call, call.shape(0)[2:], kernel)
    strides = list_spatial(call, "strides", len(kernel))
    out = take_sample(call.outputs[0], batch)
    for padding in (before, after):
        for ceil in (int(call.attribute("ceil_mode", 0)), 1):
            op = make_op(
                "pool", fn=fn, kernel=kernel, stride=strides, padding=padding, ceil=ceil,
                shape=shape,
            )  # fmt: skip
            if max(padding, default=0) <= min(kernel) // 2 and _gives_shape(op, shape, out):
                return op
    return make_op("elementwise", fn=f"{fn}_pool", out=out, shape=shape)


def read_global_pool(call: GraphCall, batch: int) -> Op:
    """Read pooling over all positions."""
    shape = take_sample(call.read(0), batch)
    fn = "adaptive_max" if "Max" in call.op else "adaptive_avg"
    return make_op("pool", fn=fn, kernel=(1,) * (len(shape) - 1), shape=shape)


def read_mean(call: GraphCall, batch: int) -> Op:
    """Read ``ReduceMean``: over axes of a sample, or elementwise with a smaller output."""
    value = call.read(0)
    axes = list_reduced_axes(call)
    is_plain = has_batch(value, batch) and value.batch_axis not in axes and axes
    if not is_plain or call.attribute("keepdims", 1):
        return _make_elementwise(call, "mean", batch)
    inner = tuple(axis - int(axis > value.batch_axis) for axis in axes)
    return make_op("elementwise", fn="mean", axes=inner, shape=take_sample(value, batch))


def read_dropout(call: GraphCall, batch: int) -> Op:
    """Read a dropout that is on, as in a net that was exported for training."""
    ratio = call.numbers(1, "ratio") if call.get(1) else (call.attribute("ratio", 0.5),)
    p = float((ratio or (0.5,))[0])
    return make_op("dropout", p=round(p, 6), shape=take_sample(call.read(0), batch))


def read_view(call: GraphCall, batch: int) -> Op | None:
    """Read ``Reshape`` and the like of a sample; None where the axis of the samples changes."""
    value, out = call.read(0), call.outputs[0]
    if not (has_batch(value, batch) and has_batch(out, batch)):
        return None
    old, new = take_sample(value, batch), take_sample(out, batch)
    if len(new) == 1 and len(old) > 1:
        return make_op("flatten", shape=old)
    return make_op("view", out=new, shape=old)


def read_permute(call: GraphCall, batch: int) -> Op | None:
    """Read ``Transpose`` of the axes of a sample; None if it has no axis for the samples."""
    value = call.read(0)
    if not has_batch(value, batch):
        return None
    axis = value.batch_axis
    order = [one - int(one > axis) for one in list_permutation(call) if one != axis]
    return make_op("permute", order=tuple(order), shape=take_sample(value, batch))


def read_selection(call: GraphCall, batch: int) -> Op | None:
    """Read a ``Gather``: the last token, a view of one element, or elements by index."""
    value, indices = call.read(0), call.read(1)
    rank = len(value.dims)
    axis = normalise_axis(call.attribute("axis", 0), rank)
    shape = take_sample(value, batch)
    if indices.is_constant and indices.elements == 1:
        numbers = indices.numbers or (0,)
        is_last = numbers[0] in (-1, value.dims[axis] - 1) and not indices.dims
        first_axis = 1 if value.batch_axis == 0 else 0
        if is_last and has_batch(value, batch) and axis == first_axis:
            return make_op("last", shape=shape)
        return None
    inner = axis - int(value.batch_axis < axis) if has_batch(value, batch) else 0
    sizes: dict[str, Any] = {"fn": "index", "out": _find_out(call, batch), "shape": shape}
    if inner < 0 or axis == value.batch_axis:
        return make_op("index", axes=(0,), across=1, **sizes)
    return make_op("index", axes=(inner,), **sizes)


def read_gather_elements(call: GraphCall, batch: int) -> Op:
    """Read ``GatherElements`` and ``GatherND``: an index for each element."""
    shape = take_sample(call.read(0), batch)
    return make_op("index", fn="gather", out=_find_out(call, batch), shape=shape)


def read_scatter(call: GraphCall, batch: int) -> Op:
    """Read an assignment of elements by index."""
    target, source = call.read(0), call.read(2)
    return make_op(
        "scatter",
        fn="scatter",
        source=take_sample(source, batch) or (1,),
        copies=1,
        shape=take_sample(target, batch) or (1,),
    )


def read_top(call: GraphCall, batch: int) -> Op:
    """Read ``TopK``."""
    shape = take_sample(call.read(0), batch) or (1,)
    return make_op("sort", fn="topk", out=_find_out(call, batch), shape=shape)


def _make_elementwise(call: GraphCall, fn: str, batch: int) -> Op:
    out = take_sample(call.outputs[0], batch)
    inputs = [value for value in call.inputs if value is not None and not value.is_constant]
    shape = take_sample(inputs[0], batch) if inputs else out
    if fn.startswith(_COMBINING):
        shape = out
    sizes: dict[str, Any] = {"fn": fn, "shape": shape}
    if math.prod(out) != math.prod(shape):
        sizes["out"] = out
    if fn == "quickgeluactivation":
        sizes["passes"] = 3
    return make_op("elementwise", **sizes)


def _find_out(call: GraphCall, batch: int) -> tuple[int, ...]:
    return take_sample(call.outputs[0], batch) or (1,)


def _read_limit(call: GraphCall, index: int, name: str) -> float | None:
    value = call.get(index)
    if value is not None:
        return float(value.numbers[0]) if value.numbers else None
    found = call.attribute(name)
    # Old versions write the largest number where there is no limit.
    return None if found is None or abs(found) > 1e30 else float(found)


def _gives_shape(op: Op, shape: tuple[int, ...], out: tuple[int, ...]) -> bool:
    try:
        return find_kind(op.kind).out_shape(op.sizes, shape) == out
    except InputError:
        return False
