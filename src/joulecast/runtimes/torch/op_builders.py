"""Build a ``torch.nn`` module for one operator: one builder per kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.errors import NetError
from joulecast.kinds import APPENDS, count_operand, find_kind
from joulecast.records import Op
from joulecast.runtimes.buildable import can_build_op
from joulecast.runtimes.input_fits import Shape
from joulecast.runtimes.torch.elementwise_modules import OperandModule, find_function
from joulecast.runtimes.torch.index_modules import (
    BagOfEmbeddings,
    GroupedLinear,
    IndexedElements,
    ScatteredElements,
    SortedElements,
    slice_twice,
    view_and_copy_gradient,
)
from joulecast.runtimes.torch.memory_format import is_channels_last
from joulecast.runtimes.torch.modules import (
    DECOMPOSED_ACTIVATIONS,
    CacheAppend,
    ConcatPlaceholder,
    DecomposedRMSNorm,
    ElementwisePlaceholder,
    FunctionModule,
    MatrixProduct,
    PackedSdpa,
    RecurrentOutput,
    SelfAttention,
)

OpBuilder = Callable[[Op, Shape], nn.Module]

_IMAGE_BATCH_AXES = 4

JOINS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda *inputs: reduce(torch.add, inputs),
    "mul": lambda *inputs: reduce(torch.mul, inputs),
    "concat": lambda *inputs: torch.cat(inputs, dim=1),
}


def _copy(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor; channels that a permutation interleaved are copied in their new order."""
    is_shuffled = x.dim() > _IMAGE_BATCH_AXES and not is_channels_last(x)
    return x.clone(memory_format=torch.contiguous_format) if is_shuffled else x.clone()


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus,
    "mish": F.mish,
    "hardtanh": F.hardtanh,
    "neg": torch.neg,
    "cumsum": lambda x: torch.cumsum(x, dim=-1),
    "copy": _copy,
    "add": lambda x: x + 1.0,
    "mul": lambda x: x * 0.5,
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
}


def build_op(op: Op, shape: Shape) -> nn.Module:
    """Return a module for an operator on samples of this shape, with fresh weights."""
    return OP_BUILDERS[op.kind](op, shape)


def _build_conv(op: Op, shape: Shape) -> nn.Module:
    sizes = op.sizes
    names = ("stride", "padding", "dilation", "groups")
    options = {name: sizes[name] for name in names}
    dims = len(sizes["kernel"])
    if "transpose" in op.kind:
        cls: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        options["output_padding"] = sizes["output_padding"]
    else:
        cls = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    module: nn.Module = cls(
        sizes["cin"], sizes["cout"], sizes["kernel"], bias=bool(sizes["bias"]), **options
    )
    return module


def _make_recurrent_builder(cls: Any) -> OpBuilder:
    def build(op: Op, shape: Shape) -> nn.Module:
        sizes = op.sizes
        inner = cls(
            sizes["cin"],
            sizes["hidden"],
            num_layers=sizes["depth"],
            bias=bool(sizes["bias"]),
            bidirectional=bool(sizes["bidirectional"]),
            batch_first=True,
        )
        return RecurrentOutput(inner)

    return build


def _build_batch_norm(op: Op, shape: Shape) -> nn.Module:
    classes: Any = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    module: nn.Module = classes[len(shape) - 1](shape[0], affine=bool(op.sizes["affine"]))
    return module


def _build_rms_norm(op: Op, shape: Shape) -> nn.Module:
    affine = bool(op.sizes["affine"])
    if op.sizes.get("spelled", 0):
        return DecomposedRMSNorm(shape[-1], affine)
    return nn.RMSNorm(shape[-1], elementwise_affine=affine)


def _build_layer_norm(op: Op, shape: Shape) -> nn.Module:
    normalized_shape = shape[len(shape) - op.sizes["dims"] :]
    affine, bias = bool(op.sizes["affine"]), bool(op.sizes["bias"])
    return nn.LayerNorm(normalized_shape, elementwise_affine=affine, bias=bias)


def _build_pool(op: Op, shape: Shape) -> nn.Module:
    sizes = op.sizes
    axis = len(sizes["kernel"]) - 1
    classes: Any = _POOL_CLASSES[sizes["fn"]]
    if sizes["fn"].startswith("adaptive"):
        adaptive: nn.Module = classes[axis](sizes["kernel"])
        return adaptive
    pool: nn.Module = classes[axis](
        sizes["kernel"], sizes["stride"], sizes["padding"], ceil_mode=bool(sizes["ceil"])
    )
    return pool


_POOL_CLASSES = {
    "avg": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    "adaptive_avg": (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    "adaptive_max": (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
}


def _build_elementwise(op: Op, shape: Shape) -> nn.Module:
    fn = op.sizes["fn"]
    out_shape = find_kind(op.kind).out_shape(op.sizes, shape)
    if fn.startswith("concat along"):
        return ConcatPlaceholder(out_shape)
    if fn in APPENDS:
        return CacheAppend(shape, out_shape, fn == "append strided")
    if count_operand(op.sizes) and op.sizes["inputs"] == 1:
        is_learned = bool(op.sizes["params"])
        return OperandModule(fn, count_operand(op.sizes), shape, is_learned)
    if not can_build_op(op):
        function = find_function(fn, shape, out_shape)
        if function is not None:
            return FunctionModule(function)
        return ElementwisePlaceholder(op.sizes["passes"], out_shape)
    if fn in DECOMPOSED_ACTIVATIONS:
        return DECOMPOSED_ACTIVATIONS[fn]()
    if fn == "mean":
        axes = [axis + 1 for axis in op.sizes["axes"]]
        return FunctionModule(lambda x: x.mean(axes))
    if fn in JOINS and (op.sizes["inputs"] > 1 or fn not in _FUNCTIONS):
        return FunctionModule(JOINS[fn])
    return FunctionModule(_FUNCTIONS[fn])


def _build_matmul(op: Op, shape: Shape) -> nn.Module:
    second_shape = find_kind(op.kind).second_shape
    assert second_shape is not None
    return MatrixProduct(second_shape(op.sizes))


def _build_view(op: Op, shape: Shape) -> nn.Module:
    out = op.sizes["out"]
    if math.prod(out) != math.prod(shape):
        raise NetError(f"a tensor of shape {shape} cannot be viewed as {tuple(out)}")
    return FunctionModule(lambda x: x.reshape(x.shape[0], *out))


def _build_permute(op: Op, shape: Shape) -> nn.Module:
    order = [axis + 1 for axis in op.sizes["order"]]
    return FunctionModule(lambda x: x.permute(0, *order))


OP_BUILDERS: dict[str, OpBuilder] = {
    **{f"conv{dims}d": _build_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _build_conv for dims in (1, 2, 3)},
    "linear": lambda op, shape: nn.Linear(
        op.sizes["cin"], op.sizes["cout"], bias=bool(op.sizes["bias"])
    ),
    "embedding": lambda op, shape: nn.Embedding(op.sizes["vocabulary"], op.sizes["width"]),
    "embedding_bag": lambda op, shape: BagOfEmbeddings(
        op.sizes["vocabulary"], op.sizes["width"], op.sizes["bags"]
    ),
    "grouped_linear": lambda op, shape: GroupedLinear(
        op.sizes["experts"], op.sizes["cin"], op.sizes["cout"], bool(op.sizes["half"])
    ),
    "index": lambda op, shape: IndexedElements(op.sizes, shape),
    "scatter": lambda op, shape: ScatteredElements(op.sizes, shape),
    "sort": lambda op, shape: SortedElements(op.sizes["fn"], op.sizes["out"]),
    "slice": lambda op, shape: FunctionModule(partial(slice_twice, op.sizes["out"])),
    "gradient_copy": lambda op, shape: FunctionModule(
        partial(view_and_copy_gradient, op.sizes["out"])
    ),
    "lstm": _make_recurrent_builder(nn.LSTM),
    "gru": _make_recurrent_builder(nn.GRU),
    "rnn": _make_recurrent_builder(nn.RNN),
    "attention": lambda op, shape: SelfAttention(
        op.sizes["width"], op.sizes["heads"], bool(op.sizes["bias"])
    ),
    "sdpa": lambda op, shape: PackedSdpa(op),
    "matmul": _build_matmul,
    "batch_norm": _build_batch_norm,
    "layer_norm": _build_layer_norm,
    "group_norm": lambda op, shape: nn.GroupNorm(
        op.sizes["groups"], shape[0], affine=bool(op.sizes["affine"])
    ),
    "rms_norm": _build_rms_norm,
    "elementwise": _build_elementwise,
    "pool": _build_pool,
    "dropout": lambda op, shape: nn.Dropout(op.sizes["p"]),
    "flatten": lambda op, shape: nn.Flatten(),
    "view": _build_view,
    "permute": _build_permute,
    "last": lambda op, shape: FunctionModule(lambda x: x[:, -1]),
}
