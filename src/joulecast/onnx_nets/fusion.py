"""Say which kernels a runtime runs for a network: inference runtimes fuse operators.

A network is layers: an operator and the operators that follow it. PyTorch in eager mode runs one
kernel for each; other runtimes fold a batch norm into its convolution, or compute an activation in
the kernel before it. A ``FusionTable`` holds the rules of a runtime, and ``list_kernels`` applies
them. Each ``FusedKernel`` can be built and measured alone. No framework is needed.
"""

from joulecast.onnx_nets.fused_kernels import FusedKernel, list_kernels, merge_kernels
from joulecast.onnx_nets.fusion_tables import FUSION_TABLES, FusionTable, find_fusion_table

__all__ = [
    "FUSION_TABLES",
    "FusedKernel",
    "FusionTable",
    "find_fusion_table",
    "list_kernels",
    "merge_kernels",
]
