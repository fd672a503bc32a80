"""Open sessions of ONNX Runtime: of whole models, of kernels alone, and of models in 8 bits.

Between convolutions and pooling, ONNX Runtime keeps images in blocks of channels (NCHWc), and in 8
bits as integers with the channels last. A kernel alone is converted before and after, which inside
a network it is not, and which takes longer than a depthwise convolution itself. Conversions at the
edges of a graph are therefore removed: its inputs and outputs are in the inner format.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    shape_inference,
)
from onnxruntime import quantization
from onnxruntime.quantization import QuantType

from joulecast.onnx_nets.ort_graph import Array, OnnxGraph
from joulecast.operators.setup_checks import count_threads
from joulecast.records import Setup

PROVIDER = "CPUExecutionProvider"
# The level of messages that are logged: errors, not warnings.
_ERRORS = 3
# It would compute copies of a layer without weights once for all.
_MERGES_COPIES = "CommonSubexpressionElimination"

# For sessions that its tools open: they warn of graphs that they made themselves.
onnxruntime.set_default_logger_severity(_ERRORS)


def open_session(
    model: bytes | str,
    setup: Setup,
    optimised: Path | None = None,
    *,
    is_optimised: bool = False,
    keeps_copies: bool = False,
) -> Any:
    """Return a session.

    Args:
        model: A model, or the path of its file.
        setup: Threads to run it with.
        optimised: A file to write the graph to that is run.
        is_optimised: The model is a graph that ONNX Runtime optimised: it is run as it is.
        keeps_copies: Equal nodes are all run.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_threads(setup)
    options.inter_op_num_threads = 1
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if is_optimised else levels.ORT_ENABLE_ALL
    )
    options.log_severity_level = _ERRORS
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    disabled = [_MERGES_COPIES] if keeps_copies else None
    return onnxruntime.InferenceSession(
        model, options, providers=[PROVIDER], disabled_optimizers=disabled
    )


# With this many channels, blocks of 8 fit and blocks of 16 do not.
_CHANNELS = 24
# Activations are quantised to unsigned bytes.
_INTEGERS = TensorProto.UINT8
_TO_CHANNELS_LAST, _TO_CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def open_without_conversions(model: ModelProto, setup: Setup) -> Any:
    """Return a session of a model, without conversions of its inputs and outputs."""
    optimised, session = _optimise(model, setup)
    if not drop_conversions(optimised.graph, find_block_size()):
        return session
    return open_session(optimised.SerializeToString(), setup, is_optimised=True)


def drop_conversions(graph: GraphProto, block: int) -> int:
    """Remove the nodes that convert a graph's inputs or outputs; return how many there were.

    Args:
        graph: A graph as ONNX Runtime optimised it.
        block: Channels of a block.
    """
    before = len(graph.node)
    inputs = {value.name: value for value in graph.input}
    first = []
    for node in graph.node:
        value = inputs.get(node.input[0]) if node.input else None
        converted = None if value is None else _convert_input(node, value, block)
        if converted is None:
            first.append(node)
        else:
            inputs[converted.name] = converted
    outputs = {value.name: value for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(first):
        value = outputs.get(node.output[0])
        converted = None if value is None else _convert_output(node, value, block)
        if converted is None or _is_read(node.output[0], kept):
            kept.insert(0, node)
        else:
            del outputs[node.output[0]]
            outputs[converted.name] = converted
    _replace(graph.node, kept)
    used = {name for node in kept for name in node.input}
    _replace(graph.input, [value for name, value in inputs.items() if name in used])
    _replace(graph.output, [*outputs.values()])
    return before - len(kept)


@lru_cache(maxsize=1)
def find_block_size() -> int:
    """Return how many channels a block has on this processor: 8, or 16 with AVX-512."""
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, _CHANNELS, 8, 8))
    out = graph.add("Conv", x, np.ones((_CHANNELS, _CHANNELS, 3, 3), dtype="float32"))
    optimised, _ = _optimise(graph.make_model([out]), Setup(threads=1))
    sizes = [tensor.dims[0] for tensor in optimised.graph.initializer if len(tensor.dims) == 4]
    return 8 if sizes == [_CHANNELS] else 16


def _convert_input(node: NodeProto, value: ValueInfoProto, block: int) -> ValueInfoProto | None:
    """Return the input that takes the place of a converted one; None if it is not converted."""
    name, shape = node.output[0], _list_sizes(value)
    if node.op_type == "ReorderInput":
        return _describe(name, TensorProto.FLOAT, _pad_channels(shape, block))
    if node.op_type == "QuantizeLinear":
        return _describe(name, _INTEGERS, shape)
    if _is_transpose(node, value, _TO_CHANNELS_LAST):
        return _describe(name, _INTEGERS, [shape[axis] for axis in _TO_CHANNELS_LAST])
    return None


def _convert_output(node: NodeProto, value: ValueInfoProto, block: int) -> ValueInfoProto | None:
    """Return the output that takes the place of a converted one; None if it is not converted."""
    name, shape = node.input[0], _list_sizes(value)
    if node.op_type == "ReorderOutput":
        return _describe(name, TensorProto.FLOAT, _pad_channels(shape, block))
    if node.op_type == "DequantizeLinear":
        return _describe(name, _INTEGERS, shape)
    if _is_transpose(node, value, _TO_CHANNELS_FIRST):
        return _describe(name, _INTEGERS, [shape[axis] for axis in _TO_CHANNELS_LAST])
    return None


def _is_transpose(node: NodeProto, value: ValueInfoProto, order: list[int]) -> bool:
    """Return whether a node changes where the channels of integers are."""
    is_integer = value.type.tensor_type.elem_type == _INTEGERS
    orders = [list(one.ints) for one in node.attribute if one.name == "perm"]
    return node.op_type == "Transpose" and is_integer and orders == [order]


def _is_read(name: str, nodes: list[NodeProto]) -> bool:
    return any(name in node.input for node in nodes)


def _optimise(model: ModelProto, setup: Setup) -> tuple[ModelProto, Any]:
    """Return the graph that ONNX Runtime makes of a model, and the session that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        session = open_session(model.SerializeToString(), setup, path, keeps_copies=True)
        return onnx.load(path), session


def _list_sizes(value: ValueInfoProto) -> list[int]:
    return [size.dim_value for size in value.type.tensor_type.shape.dim]


def _describe(name: str, kind: int, shape: list[int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _pad_channels(shape: list[int], block: int) -> list[int]:
    batch, channels, *space = shape
    return [batch, -(-channels // block) * block, *space]


def _replace(field: Any, values: list[Any]) -> None:
    del field[:]
    field.extend(values)


_CONVOLUTIONS = ("Conv",)
_INTEGER_OPS = ("QLinear", "QGemm", "ConvInteger", "MatMulInteger", "DynamicQuantize")
# Kernels that only convert between integers and floats.
_CONVERSIONS = ("DynamicQuantizeLinear",)
_QUANTISED_OPS = (*_INTEGER_OPS, "DequantizeLinear")


def quantise_model(model: ModelProto, inputs: Mapping[str, Array], precision: str) -> ModelProto:
    """Return a model that computes in 8 bits.

    Args:
        model: A model in fp32.
        inputs: A batch of its inputs, on which static scales are calibrated.
        precision: ``int8``, with scales for weights and activations that are fixed before it runs,
            or ``int8_dynamic``, with scales of activations that each run computes.
    """
    with tempfile.TemporaryDirectory() as name, _hide_advice():
        folder = Path(name)
        plain, first, out = (folder / f"{one}.onnx" for one in ("plain", "first", "int8"))
        onnx.save(_fold_norms(model, folder / "folded.onnx"), plain)
        if precision == "int8":
            _quantise_static(plain, out, inputs)
        else:
            # In ConvInteger, signed weights take three times as long as unsigned ones; in products
            # they take less than half as long.
            others = [*_list_dynamic_ops(_CONVOLUTIONS)]
            _quantise_dynamic(plain, first, _CONVOLUTIONS, QuantType.QUInt8)
            _quantise_dynamic(first, out, others, QuantType.QInt8)
        return onnx.load(out)


def is_quantised(model: ModelProto) -> bool:
    """Return whether a model computes in 8 bits already."""
    return any(node.op_type.startswith(_QUANTISED_OPS) for node in model.graph.node)


def list_integer_kernels(optimised: Path) -> list[str]:
    """Return the kernels of a graph that compute with integers, as ONNX Runtime optimised it."""
    nodes = onnx.load(optimised, load_external_data=False).graph.node
    return [
        node.op_type
        for node in nodes
        if node.op_type.startswith(_INTEGER_OPS) and node.op_type not in _CONVERSIONS
    ]


def _fold_norms(model: ModelProto, path: Path) -> ModelProto:
    """Return a model whose batch norms are part of convolutions, with the shapes of all results.

    Otherwise norms stay in fp32 between quantised convolutions.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return shape_inference.infer_shapes(onnx.load(path))


def _quantise_static(source: Path, out: Path, inputs: Mapping[str, Array]) -> None:
    quantization.quantize_static(
        source,
        out,
        _Calibration(inputs),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        # Sums of two full products overflow on processors without VNNI.
        reduce_range=True,
    )


def _quantise_dynamic(
    source: Path, out: Path, op_types: Sequence[str], weight_type: QuantType
) -> None:
    quantization.quantize_dynamic(
        source,
        out,
        op_types_to_quantize=list(op_types),
        weight_type=weight_type,
        reduce_range=weight_type is QuantType.QInt8,
    )


def _list_dynamic_ops(without: Sequence[str]) -> list[str]:
    from onnxruntime.quantization.registry import CommonOpsRegistry, IntegerOpsRegistry

    return sorted({*CommonOpsRegistry, *IntegerOpsRegistry} - {*without})


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """One batch, then the end."""

    def __init__(self, inputs: Mapping[str, Array]) -> None:
        self._batches = iter([dict(inputs)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


@contextmanager
def _hide_advice() -> Iterator[None]:
    """Drop what ONNX Runtime's quantiser logs: advice to prepare the model, which is done."""
    logger, hide = logging.getLogger(), _OnnxRuntimeFilter()
    logger.addFilter(hide)
    try:
        yield
    finally:
        logger.removeFilter(hide)


class _OnnxRuntimeFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "onnxruntime" not in record.pathname
