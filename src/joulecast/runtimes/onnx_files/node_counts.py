"""Count FLOPs and bytes of ONNX calls from their shapes, without the formulas of ``kinds``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphValue
from joulecast.runtimes.onnx_files.shape_rules import MICROSOFT, RECURRENT

ITEM_BYTES = 4
"""All elements count as four bytes, as in the counts of modules."""

# Inputs that are weights, where others are statistics, scales or zero points.
_WEIGHT_PLACES = {
    "BatchNormalization": (1, 2), "QLinearConv": (3, 8), "QLinearMatMul": (3,),
    "MatMulInteger": (1,), "ConvInteger": (1,), f"{MICROSOFT}QGemm": (3, 6),
    f"{MICROSOFT}DynamicQuantizeLSTM": (1, 2, 3), f"{MICROSOFT}DynamicQuantizeMatMul": (1, 4),
    f"{MICROSOFT}MatMulIntegerToFloat": (1, 6), f"{MICROSOFT}MatMulNBits": (1, 5),
}  # fmt: skip
# Results of these describe the same memory.
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Split")


def list_weights(call: GraphCall) -> list[GraphValue]:
    """Return the weights that a call reads."""
    if call.op.startswith(f"{MICROSOFT}QLinear"):
        return []
    places = _WEIGHT_PLACES.get(call.op, tuple(range(len(call.inputs))))
    given = (call.get(place) for place in places)
    return [one for one in given if one is not None and one.is_weight and not one.is_scale]


def count_flops(call: GraphCall) -> float:
    """Return the FLOPs of the forward pass of a call: two per multiply-add of contractions."""
    rule = _FLOPS.get(call.op)
    is_sized = all(one is None or one.shape is not None for one in (*call.inputs, *call.outputs))
    return rule(call) if rule is not None and is_sized else 0.0


def count_bytes(call: GraphCall, share: float = 1.0) -> float:
    """Return the bytes that a call reads and writes in the forward pass.

    Args:
        call: The call.
        share: Which share of the samples to count, of those that the graph was read with.
    """
    if call.op in _VIEWS:
        return 0.0
    if call.op == "Gather":
        # Of a table, only the rows that are asked for are read; indices have eight bytes.
        rows = call.outputs[0].elements
        return ITEM_BYTES * share * (2.0 * rows + 2.0 * call.read(1).elements)
    tensors = [value for value in (*call.inputs, *call.outputs) if value is not None]
    return ITEM_BYTES * sum(
        value.elements * (1.0 if value.is_constant else share) for value in tensors
    )


def count_calls(calls: Sequence[GraphCall], share: float = 1.0) -> tuple[float, float]:
    """Return FLOPs and bytes of the forward passes of calls, for a share of the samples."""
    return share * sum(map(count_flops, calls)), sum(count_bytes(one, share) for one in calls)


def _multiply(place: int) -> Callable[[GraphCall], float]:
    def rule(call: GraphCall) -> float:
        left, right = call.read(0), call.read(place)
        if not left.dims or not right.dims:
            return 0.0
        # Every element of the result sums over the last axis of the left matrix.
        inner = left.dims[-2] if call.attribute("transA", 0) else left.dims[-1]
        return 2.0 * call.outputs[0].elements * inner

    return rule


def _convolve(place: int) -> Callable[[GraphCall], float]:
    def rule(call: GraphCall) -> float:
        return 2.0 * call.outputs[0].elements * math.prod(call.shape(place)[1:])

    return rule


def _convolve_transposed(call: GraphCall) -> float:
    return 2.0 * call.read(0).elements * math.prod(call.shape(1)[1:])


def _recur(call: GraphCall) -> float:
    first, second, _ = call.shape(0)
    return 2.0 * first * second * (call.read(1).elements + call.read(2).elements)


def _attend(call: GraphCall) -> float:
    """Return the FLOPs of queries times keys, and of the result times values."""
    if len(call.inputs) < 3 or call.get(1) is None:
        return 0.0
    query, key = call.shape(0), call.shape(1)
    scored = math.prod(query) * key[-2]
    return 2.0 * scored + 2.0 * call.outputs[0].elements * key[-2]


def _attend_spelled(call: GraphCall) -> float:
    keys = call.shape(1)[-1]
    return 2.0 * keys * (call.read(0).elements + call.outputs[0].elements)


def _contract(call: GraphCall) -> float:
    left = call.attribute("equation", "").replace(" ", "").partition("->")[0]
    sizes: dict[str, int] = {}
    for place, term in enumerate(left.split(",")):
        sizes.update(zip(term, call.shape(place), strict=False))
    return 2.0 * math.prod(sizes.values()) if len(call.inputs) == 2 else 0.0


_FLOPS: dict[str, Callable[[GraphCall], float]] = {
    **dict.fromkeys(("Conv", "ConvInteger"), _convolve(1)),
    "QLinearConv": _convolve(3),
    "ConvTranspose": _convolve_transposed,
    **dict.fromkeys(
        (
            "Gemm", "MatMul", "MatMulInteger", "joulecast::linear", f"{MICROSOFT}FusedMatMul",
            f"{MICROSOFT}DynamicQuantizeMatMul",
            f"{MICROSOFT}MatMulIntegerToFloat", f"{MICROSOFT}MatMulNBits",
        ),
        _multiply(1),
    ),
    **dict.fromkeys(("QLinearMatMul", f"{MICROSOFT}QGemm"), _multiply(3)),
    **dict.fromkeys(RECURRENT, _recur),
    **dict.fromkeys(("Attention", f"{MICROSOFT}MultiHeadAttention"), _attend),
    "joulecast::sdpa": _attend_spelled,
    "joulecast::packed_attention": lambda call: (
        4.0 * call.outputs[0].elements * call.outputs[0].dims[-2]
    ),
    "Einsum": _contract,
}  # fmt: skip
