"""ONNX models for tests, built node by node or exported from modules."""

import math
import warnings
from pathlib import Path

from onnx import TensorProto, helper


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), name=name, **attributes)


def chain(text):
    """Return nodes without attributes, written as ``Add x w -> a; Relu a -> y``."""
    pairs = [one.split(" -> ") for one in text.split(";")]
    parts = [(*left.split(maxsplit=1), output) for left, output in pairs]
    return [node(op, inputs, output) for op, inputs, output in parts]


def weight(name, *shape, type=TensorProto.FLOAT):
    """Return a weight of zeros."""
    bits = {TensorProto.FLOAT: 4, TensorProto.INT8: 1, TensorProto.UINT8: 1, TensorProto.FLOAT16: 2}
    return helper.make_tensor(name, type, shape, bytes(bits[type] * math.prod(shape)), raw=True)


def integers(name, *numbers):
    return helper.make_tensor(name, TensorProto.INT64, (len(numbers),), numbers)


def numbers(name, *values, shape=()):
    return helper.make_tensor(name, TensorProto.FLOAT, shape, values)


def external(name, location, *shape, **entries):
    """Return a weight whose elements are in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return tensor


def make_model(nodes, weights=(), shape=("batch", 3, 8, 8), output="y", opset=20, more_inputs=()):
    """Return a model with one input ``x``; ``more_inputs`` are pairs of name and shape."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    for name, other in more_inputs:
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, other))
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(weights))
    domains = {one.domain for one in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(one, 1) for one in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def make_conv_net(**options):
    """Return a model of a convolution, an activation and a linear layer."""
    nodes = [
        node("Conv", "x w b", "c", name="/conv/Conv", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f v d", "y", name="/head/Gemm", transB=1),
    ]
    weights = [weight("w", 4, 3, 3, 3), weight("b", 4), weight("v", 10, 4), weight("d", 10)]
    return make_model(nodes, weights, **options)


def save(model, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def export(module, x, path: Path, **options) -> Path:
    """Export a module with PyTorch's exporter that needs no further package, with random weights.

    Equal weights would be stored once, and look tied.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point():
            value.data.uniform_(0.1, 1.0, generator=generator)
    options = {"dynamic_axes": {"x": {0: "batch"}}, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), dynamo=False, input_names=["x"], **options)
    return path
