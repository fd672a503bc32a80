"""Count FLOPs, bytes and launches of one ATen operator as PyTorch dispatches it.

This count is independent of ``kinds``: it knows nothing of layers, only the operators that run and
the shapes of their tensors. FLOPs come from torch's registry, except for entries that are wrong or
missing there (backward of grouped convolutions, attention and recurrent layers on the CPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from joulecast.kinds import Work

aten = torch.ops.aten

# Operators that allocate memory or return another view of it: no kernel runs.
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
    """Return the FLOPs, bytes and launches of one dispatched operator; zero for views."""
    if func.namespace not in ("aten", "prims") or _is_free(func):
        return Work()
    flops = _count_flops(func, args, kwargs, out)
    return Work(flops, _count_bytes(func, args, kwargs, out), 1)


def matmul_sizes(func: Any, args: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """Return ``count, m, k, n`` of a matrix product; all zero for any other operator."""
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
    if packet in _CORRECTED_FLOPS:
        return float(_CORRECTED_FLOPS[packet](args))
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0.0


def _count_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    written = sum(_tensor_bytes(tensor) for tensor in _iterate_tensors(out))
    if func.overloadpacket in (aten.embedding, aten.index_select, aten.gather):
        return 2.0 * written  # reads only the rows that it returns
    inputs = (*args, *kwargs.values())
    return float(written + sum(_tensor_bytes(tensor) for tensor in _iterate_tensors(inputs)))


def _iterate_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_tensors(item)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _convolution_backward_flops(args: tuple[Any, ...]) -> float:
    grad_output, x, weight, *_ = args
    transposed, output_mask = args[7], args[10]
    positions = x.shape[2:] if transposed else grad_output.shape[2:]
    # The weight's shape already contains cin / groups.
    forward = 2.0 * x.shape[0] * math.prod(weight.shape) * math.prod(positions)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    batch, heads, tokens, width = query.shape
    return 2.0 * batch * heads * tokens * key.shape[-2] * (width + value.shape[-1])


def _recurrent_flops(args: tuple[Any, ...]) -> float:
    x, input_weight, hidden_weight = args[0], args[1], args[2]
    return 2.0 * x.shape[0] * x.shape[1] * (input_weight.numel() + hidden_weight.numel())


_CORRECTED_FLOPS: dict[Any, Callable[[tuple[Any, ...]], float]] = {
    aten.convolution_backward: _convolution_backward_flops,
    aten._scaled_dot_product_flash_attention_for_cpu: lambda args: _attention_flops(*args[:3]),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda args: (
        2.5 * _attention_flops(*args[1:4])
    ),
    aten.mkldnn_rnn_layer: _recurrent_flops,
    aten.mkldnn_rnn_layer_backward: lambda args: 2.0 * _recurrent_flops(args),
}
