"""Add the nodes of operators to an ONNX graph: one builder per kind.

Nodes are those that PyTorch's exporter writes, so that ONNX Runtime fuses them as it fuses an
exported file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from joulecast.errors import NetError
from joulecast.kinds import find_kind
from joulecast.records import Op
from joulecast.runtimes.onnx.function_builders import build_function
from joulecast.runtimes.onnx.graph import Array, OnnxGraph, Shape, Value, WeightSource
from joulecast.runtimes.onnx.index_builders import (
    build_gradient_copy,
    build_grouped_linear,
    build_index,
    build_scatter,
    build_slice,
    build_sort,
)
from joulecast.runtimes.onnx.sequence_builders import (
    build_attention,
    build_embedding,
    build_embedding_bag,
    build_recurrent,
    build_sdpa,
)

OpBuilder = Callable[[OnnxGraph, Op, Sequence[Value], WeightSource], Value]

_EPSILON = 1e-5
# Those of PyTorch's modules: fused, and spelled out in elementary operators.
_RMS_EPSILONS = (1.1920929e-07, 1e-6)


def build_op(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    """Add the nodes of an operator with its weights, and return its result.

    Raises:
        NetError: ONNX has no such operator.
    """
    return OP_BUILDERS[op.kind](graph, op, inputs, weights)


def _build_conv(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    s, x = op.sizes, inputs[0]
    is_transposed = "transpose" in op.kind
    ends = (
        (s["cin"], s["cout"] // s["groups"])
        if is_transposed
        else (s["cout"], s["cin"] // s["groups"])
    )
    names = [x, graph.add_weight(weights("weight", (*ends, *s["kernel"]), None))]
    if s["bias"]:
        names.append(graph.add_weight(weights("bias", (s["cout"],), None)))
    attributes = {
        "kernel_shape": list(s["kernel"]),
        "strides": list(s["stride"]),
        "pads": [*s["padding"], *s["padding"]],
        "dilations": list(s["dilation"]),
        "group": s["groups"],
    }
    if is_transposed:
        attributes["output_padding"] = list(s["output_padding"])
    shape = (graph.batch, *find_kind(op.kind).out_shape(s, x.sample))
    return graph.add("ConvTranspose" if is_transposed else "Conv", names, shape, **attributes)


def _build_linear(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    (x,), cin, cout = inputs, op.sizes["cin"], op.sizes["cout"]
    weight = weights("weight", (cout, cin), None)
    bias = weights("bias", (cout,), None) if op.sizes["bias"] else None
    if len(x.shape) == 2 and bias is not None:
        names = [x, graph.add_weight(weight), graph.add_weight(bias)]
        return graph.add("Gemm", names, (x.shape[0], cout), transB=1)
    out = graph.add("MatMul", [x, graph.add_weight(weight.T)], (*x.shape[:-1], cout))
    return out if bias is None else graph.add("Add", [graph.add_weight(bias), out], out.shape)


def _build_matmul(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    second_shape = find_kind(op.kind).second_shape
    assert second_shape is not None
    left = inputs[0]
    right = inputs[1] if len(inputs) > 1 else graph.fit(left, second_shape(op.sizes))
    return graph.add("MatMul", [left, right], (*left.shape[:-1], right.shape[-1]))


def _build_pool(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    s, x = op.sizes, inputs[0]
    out = find_kind(op.kind).out_shape(s, x.sample)
    shape, is_max = (graph.batch, *out), s["fn"].endswith("max")
    if s["fn"].startswith("adaptive"):
        if set(out[1:]) == {1}:
            return graph.add("GlobalMaxPool" if is_max else "GlobalAveragePool", [x], shape)
        if set(x.sample[1:]) == {1}:
            return graph.add("Expand", [x, graph.add_integers(shape)], shape)
        pairs = [*zip(x.sample[1:], out[1:], strict=True)]
        if any(size % steps for size, steps in pairs):
            raise NetError(
                f"ONNX has no adaptive pooling from {x.sample[1:]} to {out[1:]}: give an input "
                "whose size is a multiple of the output's"
            )
        kernel = stride = [size // steps for size, steps in pairs]
        padding, ceil = [0] * len(kernel), 0
    else:
        kernel, stride, padding = ([*s[name]] for name in ("kernel", "stride", "padding"))
        ceil = s["ceil"]
    attributes = {"kernel_shape": kernel, "strides": stride, "pads": padding * 2, "ceil_mode": ceil}
    if is_max:
        return graph.add("MaxPool", [x], shape, **attributes)
    return graph.add("AveragePool", [x], shape, count_include_pad=1, **attributes)


def _build_batch_norm(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    (x,), channels = inputs, (inputs[0].shape[1],)
    starts = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    arrays = [
        weights(name, channels, start)
        if op.sizes["affine"] or name.startswith("running")
        else _fill(channels, start)
        for name, start in starts.items()
    ]
    names = [x, *map(graph.add_weight, arrays)]
    return graph.add("BatchNormalization", names, x.shape, epsilon=_EPSILON)


def _build_layer_norm(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    x, dims = inputs[0], op.sizes["dims"]
    features = x.shape[len(x.shape) - dims :]
    has_bias = op.sizes["affine"] and op.sizes["bias"]
    scale = weights("weight", features, 1.0) if op.sizes["affine"] else _fill(features, 1.0)
    names = [x, graph.add_weight(scale)]
    if has_bias:
        names.append(graph.add_weight(weights("bias", features, 0.0)))
    return graph.add("LayerNormalization", names, x.shape, axis=-dims, epsilon=_EPSILON)


def _build_group_norm(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    x, groups = inputs[0], op.sizes["groups"]
    # As exporters write it: groups are the channels of an instance norm.
    rows = graph.reshape(x, (x.shape[0], groups, math.prod(x.sample) // groups))
    ends = [graph.add_weight(_fill((groups,), start)) for start in (1.0, 0.0)]
    out = graph.add("InstanceNormalization", [rows, *ends], rows.shape, epsilon=_EPSILON)
    out = graph.reshape(out, x.shape)
    if not op.sizes["affine"]:
        return out
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    scale, bias = (
        graph.add_weight(weights(name, (x.shape[1],), start).reshape(shape))
        for name, start in (("weight", 1.0), ("bias", 0.0))
    )
    out = graph.add("Mul", [out, scale], x.shape)
    return graph.add("Add", [out, bias], x.shape)


def _build_rms_norm(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    x = inputs[0]
    # The spelling that ONNX Runtime fuses to one kernel.
    epsilon = _RMS_EPSILONS[op.sizes.get("spelled", 0)]
    row = (*x.shape[:-1], 1)
    square = graph.add("Pow", [x, graph.add_numbers(2.0)], x.shape)
    mean = graph.add("ReduceMean", [square, graph.add_integers([-1])], row, keepdims=1)
    shifted = graph.add("Add", [mean, graph.add_numbers(epsilon)], row)
    root = graph.add("Sqrt", [shifted], row)
    out = graph.add("Div", [x, root], x.shape)
    if not op.sizes["affine"]:
        return out
    scale = graph.add_weight(weights("weight", x.shape[-1:], 1.0))
    return graph.add("Mul", [out, scale], x.shape)


def _build_view(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    (x,) = inputs
    out = find_kind(op.kind).out_shape(op.sizes, x.sample)
    if math.prod(out) != math.prod(x.sample):
        raise NetError(f"a tensor of shape {x.sample} cannot be viewed as {out}")
    return graph.reshape(x, (x.shape[0], *out))


def _build_permute(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    return graph.transpose(inputs[0], [0, *(axis + 1 for axis in op.sizes["order"])])


def _build_last(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    (x,) = inputs
    last = graph.add_integers(x.shape[1] - 1)
    return graph.add("Gather", [x, last], (x.shape[0], *x.shape[2:]), axis=1)


def _build_nothing(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    return inputs[0]


def _fill(shape: Shape, value: float) -> Array:
    return np.full(shape, value, dtype="float32")


OP_BUILDERS: dict[str, OpBuilder] = {
    **{f"conv{dims}d": _build_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _build_conv for dims in (1, 2, 3)},
    "linear": _build_linear,
    "grouped_linear": build_grouped_linear,
    "embedding": build_embedding,
    "embedding_bag": build_embedding_bag,
    "lstm": build_recurrent,
    "gru": build_recurrent,
    "rnn": build_recurrent,
    "attention": build_attention,
    "sdpa": build_sdpa,
    "matmul": _build_matmul,
    "batch_norm": _build_batch_norm,
    "layer_norm": _build_layer_norm,
    "group_norm": _build_group_norm,
    "rms_norm": _build_rms_norm,
    "elementwise": build_function,
    "pool": _build_pool,
    "dropout": _build_nothing,
    "index": build_index,
    "scatter": build_scatter,
    "sort": build_sort,
    "slice": build_slice,
    "gradient_copy": build_gradient_copy,
    "flatten": _build_view,
    "view": _build_view,
    "permute": _build_permute,
    "last": _build_last,
}
