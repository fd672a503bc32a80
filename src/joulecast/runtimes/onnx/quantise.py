"""Convert a model to 8 bits: with scales from calibration, or computed as activations come."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import ModelProto, shape_inference
from onnxruntime import quantization
from onnxruntime.quantization import QuantType

from joulecast.runtimes.onnx.graph import Array

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
