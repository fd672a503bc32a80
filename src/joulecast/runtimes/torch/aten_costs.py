"""Count FLOPs, bytes and launches of one ATen operator as PyTorch dispatches it.

This count is independent of ``kinds``: it knows nothing of layers, only the operators that run and
the shapes of their tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from joulecast.kinds import Work
from joulecast.runtimes.torch.aten_flops import count_op_flops, is_product_name

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


# Operators that read only the elements that they return.
_SELECTS = {
    "embedding",
    "index_select",
    "gather",
    "index",
    "_unsafe_index",
    "take",
    "_embedding_bag",
    "_embedding_bag_forward_only",
}
# Operators in place that change only the elements of their source.
_SCATTERS = {
    "index_put_",
    "_index_put_impl_",
    "index_add_",
    "index_copy_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
}
# Namespaces of operators that compute: others trace, profile or communicate.
_COMPUTING = ("aten", "prims")
_SILENT = ("profiler", "prim", "c10d", "_c10d_functional", "debugprims", "inductor")
# Operators that return fewer elements than this cost next to nothing, whatever they compute.
_FEW_ELEMENTS = 1024


def count_op_cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Work:
    """Return the FLOPs, bytes and launches of one dispatched operator; zero for views."""
    if func.namespace in _SILENT or _is_free(func):
        return Work()
    flops = count_op_flops(func, args, kwargs, out) or 0.0
    return Work(flops, _count_bytes(func, args, kwargs, out), 1)


def lacks_cost_rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> bool:
    """Return whether an operator may compute more than is counted for it.

    Bytes are counted for every operator. FLOPs are missing for products without a rule, and
    unknown for operators that another library registered.
    """
    if func.namespace in _SILENT or _is_free(func):
        return False
    is_known = func.namespace in _COMPUTING
    if is_known and not is_product_name(_op_name(func)):
        return False
    sizes = [tensor.numel() for tensor in _iterate_tensors((out, args))]
    if max(sizes, default=0) < _FEW_ELEMENTS:
        return False
    return count_op_flops(func, args, kwargs, out) is None


def matmul_sizes(func: Any, args: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """Return ``count, m, k, n`` of a matrix product; all zero for any other operator."""
    packet = func.overloadpacket
    if packet in (aten.mm, aten.bmm):
        left, right = args[0].shape, args[1].shape
    elif packet in (aten.addmm, aten.baddbmm):
        left, right = args[1].shape, args[2].shape
    elif packet is aten.mv:
        left, right = args[0].shape, (args[1].shape[0], 1)
    elif _op_name(func) == "_grouped_mm" or func._schema.name in _GROUPED:
        return _grouped_sizes(args[0].shape, args[1].shape)
    else:
        return 0, 0, 0, 0
    count = left[0] if len(left) == 3 else 1
    return count, left[-2], left[-1], right[-1]


_GROUPED = {"transformers::grouped_mm_fallback"}


def _grouped_sizes(left: torch.Size, right: torch.Size) -> tuple[int, int, int, int]:
    """Return one product with as many rows or columns as all groups have together."""
    if len(left) == len(right) == 3:
        return left[0], left[1], left[2], right[2]
    return 1, left[-2], left[-1], right[-1]


def _op_name(func: Any) -> str:
    name: str = func._schema.name
    return name.split("::")[-1]


def _is_free(func: Any) -> bool:
    if _op_name(func) in _FREE:
        return True
    returns = func._schema.returns
    return bool(returns) and all(
        result.alias_info is not None and not result.alias_info.is_write for result in returns
    )


def _count_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    name = _op_name(func)
    inputs = (*args, *kwargs.values())
    if name in _SELECTS:
        written = sum(map(_tensor_bytes, _iterate_tensors(_first(out))))
        rows = list(_iterate_tensors(inputs))[1:2] if name.startswith("_embedding_bag") else []
        if name in ("embedding", "index_select", "gather"):
            return 2.0 * written
        return float(written + max(written, _count_rows(args, rows)) + _index_bytes(inputs[1:]))
    if name in _SCATTERS:
        # Each element of the source is read, and one of the target is read and written.
        source = [t for t in list(_iterate_tensors(inputs))[1:] if t.is_floating_point()]
        return float(3 * sum(map(_tensor_bytes, source)) + _index_bytes(inputs[1:]))
    written = sum(map(_tensor_bytes, _iterate_tensors(out)))
    return float(written + sum(map(_tensor_bytes, _iterate_tensors(inputs))))


def _count_rows(args: tuple[Any, ...], indices: list[torch.Tensor]) -> int:
    """Return the bytes of the rows of a table that these indices select."""
    table = args[0]
    row_bytes = table.element_size() * (table.shape[-1] if table.dim() else 1)
    return sum(index.numel() for index in indices) * row_bytes


def _index_bytes(values: Any) -> int:
    return sum(
        _tensor_bytes(t)
        for t in _iterate_tensors(values)
        if not (t.is_floating_point() or t.is_complex())
    )


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, (list, tuple)) else out


def _iterate_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_tensors(item)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
