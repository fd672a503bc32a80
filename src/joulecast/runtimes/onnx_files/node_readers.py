"""Map the call of an ONNX operator to an operator of ``kinds``: one reader per operator.

A reader takes a call and the batch size and returns a stand-alone operator, or None for a view that
no kind describes. Operators without a reader are named in a network's totals, and count as one pass
over what they read and return.
"""

from __future__ import annotations

from collections.abc import Callable

from joulecast.records import Op
from joulecast.runtimes.onnx_files import contraction_nodes, elementwise_nodes
from joulecast.runtimes.onnx_files.call_patterns import FUSED
from joulecast.runtimes.onnx_files.elementwise_nodes import FUNCTIONS
from joulecast.runtimes.onnx_files.fused_operators import PACKED_ATTENTION
from joulecast.runtimes.onnx_files.graph_values import GraphCall
from joulecast.runtimes.onnx_files.shape_rules import MICROSOFT, RECURRENT

NodeReader = Callable[[GraphCall, int], Op | None]

SLICING = ("Slice", "Split")
"""Views of some elements, whose gradients are padded with zeros or concatenated."""


def read_call(call: GraphCall, batch: int) -> Op | None:
    """Return the operator that a call runs; None for a view that no kind describes."""
    return NODE_READERS[call.op](call, batch)


def has_reader(op: str) -> bool:
    """Return whether the cost of an operator is known."""
    return op in NODE_READERS


def _read_gather(call: GraphCall, batch: int) -> Op | None:
    is_table = call.read(0).is_constant and call.attribute("axis", 0) == 0
    if is_table and len(call.shape(0)) > 1:
        return contraction_nodes.read_embedding(call, batch)
    return elementwise_nodes.read_selection(call, batch)


def _read_nothing(call: GraphCall, batch: int) -> None:
    return None


NODE_READERS: dict[str, NodeReader] = {
    **dict.fromkeys(FUNCTIONS, elementwise_nodes.read_elementwise),
    **{
        f"{FUSED}{name}": elementwise_nodes.read_elementwise
        for name in (
            "gelu",
            "silu",
            "hardswish",
            "hardsigmoid",
            "mish",
            "quickgeluactivation",
            "copy",
        )
    },
    **dict.fromkeys(
        ("Conv", "ConvInteger", "QLinearConv"),
        contraction_nodes.read_conv,
    ),
    "ConvTranspose": contraction_nodes.read_conv_transpose,
    **dict.fromkeys(("Gemm", f"{MICROSOFT}QGemm"), contraction_nodes.read_gemm),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), contraction_nodes.read_matmul),
    f"{MICROSOFT}FusedMatMul": contraction_nodes.read_fused_matmul,
    **dict.fromkeys(
        (f"{MICROSOFT}DynamicQuantizeMatMul", f"{MICROSOFT}MatMulIntegerToFloat"),
        contraction_nodes.read_quantised_matmul,
    ),
    f"{FUSED}linear": contraction_nodes.read_linear,
    "Einsum": contraction_nodes.read_einsum,
    **dict.fromkeys(RECURRENT, contraction_nodes.read_recurrent),
    f"{FUSED}sdpa": contraction_nodes.read_sdpa,
    PACKED_ATTENTION: contraction_nodes.read_packed_attention,
    f"{MICROSOFT}MatMulNBits": contraction_nodes.read_packed_matmul,
    **dict.fromkeys(
        ("Attention", f"{MICROSOFT}MultiHeadAttention"), contraction_nodes.read_attention
    ),
    "Gather": _read_gather,
    **dict.fromkeys(("GatherElements", "GatherND"), elementwise_nodes.read_gather_elements),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), elementwise_nodes.read_scatter),
    "TopK": elementwise_nodes.read_top,
    "BatchNormalization": elementwise_nodes.read_batch_norm,
    **dict.fromkeys(
        ("LayerNormalization", f"{FUSED}layer_norm"), elementwise_nodes.read_layer_norm
    ),
    **dict.fromkeys(
        ("GroupNormalization", "InstanceNormalization", f"{FUSED}group_norm"),
        elementwise_nodes.read_group_norm,
    ),
    **dict.fromkeys(
        (
            "RMSNormalization",
            "SimplifiedLayerNormalization",
            f"{MICROSOFT}SimplifiedLayerNormalization",
        ),
        elementwise_nodes.read_rms_norm,
    ),
    f"{FUSED}rms_norm": elementwise_nodes.read_spelled_rms_norm,
    **dict.fromkeys(
        ("MaxPool", "AveragePool", f"{MICROSOFT}QLinearAveragePool"), elementwise_nodes.read_pool
    ),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool", f"{MICROSOFT}QLinearGlobalAveragePool"),
        elementwise_nodes.read_global_pool,
    ),
    "ReduceMean": elementwise_nodes.read_mean,
    "Clip": elementwise_nodes.read_clip,
    "Concat": elementwise_nodes.read_concat,
    **dict.fromkeys(("Resize", "Upsample"), elementwise_nodes.read_resize),
    "Dropout": elementwise_nodes.read_dropout,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), elementwise_nodes.read_view),
    "Transpose": elementwise_nodes.read_permute,
    **dict.fromkeys((*SLICING, "Identity", "Expand"), _read_nothing),
}
