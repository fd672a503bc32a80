"""What one framework operator costs, counted where the framework dispatches it.

This is the independent witness of ``kinds``: it never looks at layers, only at the operators that
really run and the shapes of their tensors. FLOPs come from torch's own registry; the entries that
are wrong or missing there (grouped convolutions backward, CPU attention, CPU recurrences) are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from joulecast.kinds import Work

aten = torch.ops.aten

# Operators that hand out memory or another view of it: nothing runs.
_FREE = {
    "alias",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "_unsafe_view",
    "set_",
    "as_strided",
}


def count_op_cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Work:
    """FLOPs, bytes and launches of one dispatched operator; nothing for views."""
    if func.namespace not in ("aten", "prims") or _is_free(func):
        return Work()
    flops = _count_flops(func, args, kwargs, out)
    return Work(flops, _count_bytes(func, args, kwargs, out), 1)


def matmul_sizes(func: Any, args: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """``count, m, k, n`` of a matrix product; all zero for any other operator."""
    packet = func.overloadpacket
    if packet in (aten.mm, aten.bmm):
        left, right = args[0].shape, args[1].shape
    elif packet in (aten.addmm, aten.baddbmm):
        left, right = args[1].shape, args[2].shape
    elif packet is aten.mv:
        left, right = args[0].shape, (args[1].shape[0], 1)
    else:
        return 0, 0, 0, 0
    count = left[0] if len(left) == 3 else 1
    return count, left[-2], left[-1], right[-1]


def _is_free(func: Any) -> bool:
    name = func._schema.name.split("::")[-1]
    if name in _FREE:
        return True
    returns = func._schema.returns
    return bool(returns) and all(
        result.alias_info is not None and not result.alias_info.is_write for result in returns
    )


def _count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    packet = func.overloadpacket
    if packet in _OWN_FLOPS:
        return float(_OWN_FLOPS[packet](args, out))
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0.0


def _count_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    written = sum(_tensor_bytes(value) for value in _tensors(out))
    if func.overloadpacket in (aten.embedding, aten.index_select, aten.gather):
        return 2.0 * written  # reads only the rows that it gives
    values = (*args, *kwargs.values())
    return float(written + sum(_tensor_bytes(value) for value in _tensors(values)))


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _convolution_backward(args: tuple[Any, ...], out: Any) -> float:
    gradient, inside, weight, *_ = args
    transposed, groups, wanted = args[7], args[9], args[10]
    swept = inside.shape[2:] if transposed else gradient.shape[2:]
    forward = 2.0 * inside.shape[0] * math.prod(weight.shape) * math.prod(swept)
    del groups  # the weight's shape already holds cin / groups
    return forward * (bool(wanted[0]) + bool(wanted[1]))


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> float:
    batch, heads, tokens, width = queries.shape
    return 2.0 * batch * heads * tokens * keys.shape[-2] * (width + values.shape[-1])


def _recur(args: tuple[Any, ...]) -> float:
    inside, into, across = args[0], args[1], args[2]
    return 2.0 * inside.shape[0] * inside.shape[1] * (into.numel() + across.numel())


_OWN_FLOPS: dict[Any, Callable[[tuple[Any, ...], Any], float]] = {
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: lambda args, out: _attend(*args[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda args, out: (
        2.5 * _attend(*args[1:4])
    ),
    aten.mkldnn_rnn_layer: lambda args, out: _recur(args),
    aten.mkldnn_rnn_layer_backward: lambda args, out: 2.0 * _recur(args),
}
