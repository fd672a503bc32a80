"""Open sessions of ONNX Runtime: of whole models, of kernels alone, and of models in 8 bits.

Between convolutions and pooling, ONNX Runtime keeps images in blocks of channels (NCHWc), and in 8
bits as integers with the channels last. A kernel alone is converted before and after, which inside
a network it is not, and which takes longer than a depthwise convolution itself. Conversions at the
edges of a graph are therefore removed: its inputs and outputs are in the inner format.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
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
    level: str = "ENABLE_ALL",
    keeps_copies: bool = False,
) -> Any:
    """Return a session of a model, or of the path of its file.

    The graph that is run is written to ``optimised``; with ``keeps_copies``, equal nodes all run.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_threads(setup)
    options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = _ERRORS
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    disabled = [_MERGES_COPIES] if keeps_copies else None
    return onnxruntime.InferenceSession(
        model, options, providers=[PROVIDER], disabled_optimizers=disabled
    )


def optimise(model: ModelProto, setup: Setup, **options: Any) -> tuple[ModelProto, Any]:
    """Return the graph that ONNX Runtime makes of a model, and the session that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        session = open_session(model.SerializeToString(), setup, path, **options)
        return onnx.load(path), session


# -- kernels alone -----------------------------------------------------------------------------

# With this many channels, blocks of 8 fit and blocks of 16 do not.
_CHANNELS = 24
# Activations are quantised to unsigned bytes.
_INTEGERS = TensorProto.UINT8
_TO_CHANNELS_LAST, _TO_CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def open_without_conversions(model: ModelProto, setup: Setup) -> Any:
    """Return a session of a model, without conversions of its inputs and outputs."""
    optimised, session = optimise(model, setup, keeps_copies=True)
    if not _drop_conversions(optimised.graph, find_block_size()):
        return session
    return open_session(optimised.SerializeToString(), setup, level="DISABLE_ALL")


@lru_cache(maxsize=1)
def find_block_size() -> int:
    """Return how many channels a block has on this processor: 8, or 16 with AVX-512."""
    graph = OnnxGraph(1)
    x = graph.add_input("x", (1, _CHANNELS, 8, 8))
    out = x.apply("Conv", np.ones((_CHANNELS, _CHANNELS, 3, 3), dtype="float32"))
    optimised, _ = optimise(graph.make_model([out]), Setup(threads=1))
    sizes = [tensor.dims[0] for tensor in optimised.graph.initializer if len(tensor.dims) == 4]
    return 8 if sizes == [_CHANNELS] else 16


def _drop_conversions(graph: GraphProto, block: int) -> int:
    """Remove the nodes that convert an optimised graph's inputs or outputs; return how many."""
    before = len(graph.node)
    inputs = {value.name: value for value in graph.input}
    first = []
    for node in graph.node:
        value = inputs.get(node.input[0]) if node.input else None
        converted = value and _convert(node, value, block, is_input=True)
        if converted:
            inputs[converted.name] = converted
        else:
            first.append(node)
    outputs = {value.name: value for value in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(first):
        value = outputs.get(node.output[0])
        converted = value and _convert(node, value, block, is_input=False)
        if converted and not any(node.output[0] in one.input for one in kept):
            del outputs[node.output[0]]
            outputs[converted.name] = converted
        else:
            kept.insert(0, node)
    used = {name for node in kept for name in node.input}
    wanted = [value for name, value in inputs.items() if name in used]
    found = ((graph.node, kept), (graph.input, wanted), (graph.output, [*outputs.values()]))
    for field, values in found:
        del field[:]
        field.extend(values)
    return before - len(kept)


def _convert(
    node: NodeProto, value: ValueInfoProto, block: int, *, is_input: bool
) -> ValueInfoProto | None:
    """Return what takes the place of a converted input or output; None if it is not converted."""
    shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
    kind, name = _INTEGERS, node.output[0] if is_input else node.input[0]
    orders = [list(one.ints) for one in node.attribute if one.name == "perm"]
    order = _TO_CHANNELS_LAST if is_input else _TO_CHANNELS_FIRST
    if node.op_type == ("ReorderInput" if is_input else "ReorderOutput"):
        kind, shape[1] = TensorProto.FLOAT, -(-shape[1] // block) * block
    elif node.op_type == "Transpose" and value.type.tensor_type.elem_type == _INTEGERS:
        if orders != [order]:
            return None
        shape = [shape[axis] for axis in _TO_CHANNELS_LAST]
    elif node.op_type != ("QuantizeLinear" if is_input else "DequantizeLinear"):
        return None
    return helper.make_tensor_value_info(name, kind, shape)


# -- 8 bits ------------------------------------------------------------------------------------

_CONVOLUTIONS = ["Conv"]
_INTEGER_OPS = ("QLinear", "QGemm", "ConvInteger", "MatMulInteger", "DynamicQuantize")
# A kernel that only converts floats to integers.
_CONVERSION = "DynamicQuantizeLinear"


def quantise_model(model: ModelProto, inputs: Mapping[str, Array], precision: str) -> ModelProto:
    """Return a model in fp32 as one that computes in 8 bits.

    In ``int8``, scales of activations are fixed before it runs, calibrated on ``inputs``; in
    ``int8_dynamic`` each run computes them.
    """
    from onnxruntime.quantization.registry import CommonOpsRegistry, IntegerOpsRegistry

    # Norms become part of convolutions; otherwise they stay in fp32 between quantised ones.
    folded, _ = optimise(model, Setup(threads=1), level="ENABLE_BASIC")
    with tempfile.TemporaryDirectory() as name, _hide_advice():
        plain, first, out = (Path(name) / f"{one}.onnx" for one in ("plain", "first", "int8"))
        onnx.save(onnx.shape_inference.infer_shapes(folded), plain)
        if precision == "int8":
            batches = iter([dict(inputs)])
            # Ranges are reduced: sums of two full products overflow on processors without VNNI.
            quantization.quantize_static(
                plain, out, SimpleNamespace(get_next=lambda: next(batches, None)),
                quant_format=quantization.QuantFormat.QDQ, per_channel=True, reduce_range=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
        else:
            # In ConvInteger, signed weights take three times as long as unsigned ones; in products
            # they take less than half as long.
            others = sorted({*CommonOpsRegistry, *IntegerOpsRegistry} - {*_CONVOLUTIONS})
            dynamic = quantization.quantize_dynamic
            dynamic(plain, first, _CONVOLUTIONS, weight_type=QuantType.QUInt8)
            dynamic(first, out, others, weight_type=QuantType.QInt8, reduce_range=True)
        return onnx.load(out)


def is_quantised(model: ModelProto) -> bool:
    """Return whether a model computes in 8 bits already."""
    names = (*_INTEGER_OPS, "DequantizeLinear")
    return any(node.op_type.startswith(names) for node in model.graph.node)


def list_integer_kernels(optimised: ModelProto) -> list[str]:
    """Return the kernels of a graph that compute with integers, as ONNX Runtime optimised it."""
    kernels = [node.op_type for node in optimised.graph.node]
    return [one for one in kernels if one.startswith(_INTEGER_OPS) and one != _CONVERSION]


@contextmanager
def _hide_advice() -> Iterator[None]:
    """Drop what ONNX Runtime's quantiser logs: advice to prepare the model, which is done."""

    def is_own(record: logging.LogRecord) -> bool:
        return "onnxruntime" not in record.pathname

    logger = logging.getLogger()
    logger.addFilter(is_own)
    try:
        yield
    finally:
        logger.removeFilter(is_own)
