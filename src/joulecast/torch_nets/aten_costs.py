"""Count FLOPs, bytes and launches of one ATen operator as PyTorch dispatches it.

This count is independent of ``operators``: it knows nothing of layers, only what runs and the
shapes of its tensors. Rules for FLOPs are found by the operator's name, so that an operator which
this version of PyTorch does not have costs nothing here; where torch's own registry is right, it is
used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from joulecast.operators import Work
from joulecast.torch_nets.inputs import list_tensors

FlopRule = Callable[[tuple[Any, ...], Any], float]
"""A function from an operator's arguments and its result to FLOPs."""

# Operators that allocate memory, return another view of it or copy a number: no kernel runs.
_FREE = {
    "_local_scalar_dense",
    *("alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty"),
    *("new_empty_strided", "resize_", "_unsafe_view", "set_", "as_strided"),
}
# Operators that read only the elements that they return.
_SELECTS = {
    *("embedding", "index_select", "gather", "index", "_unsafe_index", "take"),
    *("_embedding_bag", "_embedding_bag_forward_only"),
}
# Operators in place that change only the elements of their source.
_SCATTERS = {
    *("index_put_", "_index_put_impl_", "index_add_", "index_copy_"),
    *("scatter_", "scatter_add_", "scatter_reduce_"),
}
# Operators after which the host waits for a GPU, for a number or the size of their result, and how
# many kernels more than one they launch there (H200: ``nonzero`` three, ``unique`` twelve).
_WAITS = {
    **dict.fromkeys(("_local_scalar_dense", "bincount", "_linalg_check_errors"), 0),
    **dict.fromkeys(("nonzero", "equal", "allclose"), 2),
    **dict.fromkeys(("masked_select", "repeat_interleave"), 3),
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive"), 11),
}
_MASK_LAUNCHES = 3
# Operators that first look for the elements that are true in each mask among their indices.
_TAKES_MASKS = {
    *("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"),
    "_unsafe_index_put",
}
# Matrix products, with the position of their first factor.
_FIRST_FACTORS = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::_grouped_mm"), 0),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), 1),
    "transformers::grouped_mm_fallback": 0,
}
# Operators named like products, decompositions or transforms, in any namespace.
_PRODUCT_NAME = re.compile(
    r"(?<![a-z])(mm|bmm|\w*addmm|addbmm|baddbmm|mv|addmv|vdot|dot|matmul|\w*vecdot|einsum|tensordot|"
    r"linear|bilinear|trilinear|\w*conv(olution)?(_?\d?d|_tbc)?|attention|rnn|lstm|gru|linalg|"
    r"cholesky|qr|geqrf|orgqr|ormqr|svd|lu|solve|inverse|eig\w*|c2c|r2c|c2r|cdist|pdist|gemm)(?![a-z])"
)
# They only look like one.
_NOT_PRODUCT_NAME = re.compile(
    r"upsample|vector_norm|powsum|linalg_cross|diagonal|check_errors|cell|reorder|pack\b|prepack|"
    r"flatten_weight|convert|slice_inverse|unpack|vander|plan_cache|cudnn_is|_coo|_csr|compute_linear"
)
# Namespaces of operators that compute: others trace, profile or communicate.
_COMPUTING = ("aten", "prims")
_SILENT = ("profiler", "prim", "c10d", "_c10d_functional", "debugprims", "inductor")
# Operators that return fewer elements than this cost next to nothing, whatever they compute.
_FEW_ELEMENTS = 1024


def count_op_cost(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> tuple[Work, bool]:
    """Return FLOPs, bytes and launches of a dispatched operator, and whether FLOPs may be missing.

    Views cost nothing. Bytes are counted for every operator. FLOPs are missing for products without
    a rule, and unknown for operators that another library registered.
    """
    if func.namespace in _SILENT or _is_free(func):
        return Work(), False
    flops = count_op_flops(func, args, kwargs, out)
    work = Work(flops or 0.0, _count_bytes(func, args, kwargs, out), 1)
    is_known = func.namespace in _COMPUTING and not is_product_name(_op_name(func))
    if is_known or flops is not None:
        return work, False
    sizes = [tensor.numel() for tensor in list_tensors((out, args))]
    return work, max(sizes, default=0) >= _FEW_ELEMENTS


def count_op_waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return how often the host waits for a GPU in a dispatched operator, and its further launches.

    Launches are further ones if ``count_op_cost`` does not count them.
    """
    name = _op_name(func)
    if name in _WAITS:
        return int(kwargs.get("output_size") is None), _WAITS[name]
    # A number is filled in where a mask is true, without looking for the places.
    if name not in _TAKES_MASKS or ("put" in name and args[2].dim() == 0):
        return 0, 0
    masks = sum(t.dtype in (torch.bool, torch.uint8) for t in list_tensors(args[1]))
    return masks, masks * _MASK_LAUNCHES


def matmul_sizes(func: Any, args: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """Return ``count, m, k, n`` of a matrix product; all zero for any other operator.

    A grouped product has as many rows or columns as all groups have together.
    """
    first = _FIRST_FACTORS.get(func._schema.name)
    if first is None:
        return 0, 0, 0, 0
    left, right = args[first].shape, args[first + 1].shape
    count = left[0] if len(left) == len(right) == 3 else 1
    return count, left[-2], left[-1], right[-1] if len(right) > 1 else 1


def count_op_flops(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> float | None:
    """Return the FLOPs of a dispatched operator; None if there is no rule for it."""
    # ``addmm_`` counts like ``addmm``; other namespaces than ATen's are part of the name.
    rule = _RULES.get(func._schema.name.removeprefix("aten::").rstrip("_"))
    if rule is not None:
        return float(rule(args, out))
    if func.overloadpacket in flop_registry:
        return float(flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
    return None


def is_product_name(name: str) -> bool:
    """Return whether an operator of this name multiplies matrices, as far as a name can tell."""
    return bool(_PRODUCT_NAME.search(name)) and not _NOT_PRODUCT_NAME.search(name)


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
        written = sum(map(_tensor_bytes, list_tensors(_first(out))))
        if name in ("embedding", "index_select", "gather"):
            return 2.0 * written
        read = written
        if name.startswith("_embedding_bag"):
            table, indices = list_tensors(inputs)[:2]
            row_bytes = table.element_size() * (table.shape[-1] if table.dim() else 1)
            read = max(written, indices.numel() * row_bytes)
        return float(written + read + _index_bytes(inputs[1:]))
    if name in _SCATTERS:
        # Each element of the source is read, and one of the target is read and written.
        source = [t for t in list_tensors(inputs)[1:] if t.is_floating_point()]
        return float(3 * sum(map(_tensor_bytes, source)) + _index_bytes(inputs[1:]))
    written = sum(map(_tensor_bytes, list_tensors(out)))
    return float(written + sum(map(_tensor_bytes, list_tensors(inputs))))


def _index_bytes(values: Any) -> int:
    return sum(
        _tensor_bytes(t)
        for t in list_tensors(values)
        if not (t.is_floating_point() or t.is_complex())
    )


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, (list, tuple)) else out


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# ---------------------------------------------------------------------------------------------
# FLOPs of products


def count_product(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the FLOPs of a matrix product, of vectors and of batches of matrices too."""
    columns = right.shape[-1] if right.dim() > 1 else 1
    rows = left.numel()
    if right.dim() > 2:  # a batch of right-hand sides may be broadcast over the left ones
        rows *= max(1, math.prod(right.shape[:-2]) // max(1, math.prod(left.shape[:-2])))
    return 2.0 * rows * columns


def count_grouped_product(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the FLOPs of products of groups of rows, each with its own matrix.

    Every row or column belongs to one group, whatever the offsets between groups are: experts of
    a mixture multiply only the tokens that they see.
    """
    if left.dim() == 3 and right.dim() == 2:
        return 2.0 * left.shape[1] * left.shape[2] * right.shape[1]
    if left.dim() == 3:
        return count_product(left, right)
    return 2.0 * left.shape[0] * left.shape[1] * right.shape[-1]


def _multiply(first: int) -> FlopRule:
    return lambda args, out: count_product(args[first], args[first + 1])


def _multiply_sparse(first: int) -> FlopRule:
    def count(args: tuple[Any, ...], out: Any) -> float:
        left, right = args[first], args[first + 1]
        elements = left.numel() if left.layout is torch.strided else left._nnz()
        return 2.0 * elements * right.shape[-1]

    return count


def _multiply_by_weight(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of ``linear``, whose weight has one row for each output."""
    return 2.0 * args[0].numel() * (args[1].shape[0] if args[1].dim() > 1 else 1)


def _trilinear(args: tuple[Any, ...], out: Any) -> float:
    tensors, expanded = args[:3], args[3:6]
    sizes: dict[int, int] = {}
    for tensor, missing in zip(tensors, expanded, strict=True):
        axes = [axis for axis in range(tensor.dim() + len(missing)) if axis not in missing]
        for axis, size in zip(axes, tensor.shape, strict=True):
            sizes[axis] = max(sizes.get(axis, 1), size)
    return 2.0 * math.prod(sizes.values())


# ---------------------------------------------------------------------------------------------
# Convolutions, attention and recurrent layers


def _convolution_backward(args: tuple[Any, ...], out: Any) -> float:
    grad_output, x, weight, *_ = args
    transposed, output_mask = args[7], args[10]
    positions = x.shape[2:] if transposed else grad_output.shape[2:]
    # The weight's shape already contains cin / groups.
    forward = 2.0 * x.shape[0] * math.prod(weight.shape) * math.prod(positions)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> float:
    return (
        2.0 * query.numel() // query.shape[-1] * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    )


def _recurrent(args: tuple[Any, ...], out: Any) -> float:
    x, input_weight, hidden_weight = args[0], args[1], args[2]
    return 2.0 * x.shape[0] * x.shape[1] * (input_weight.numel() + hidden_weight.numel())


def _fused_recurrent(args: tuple[Any, ...], out: Any) -> float:
    tokens = args[0].numel() // args[0].shape[-1]
    return 2.0 * tokens * sum(weight.numel() for weight in args[1] if weight.dim() > 1)


# ---------------------------------------------------------------------------------------------
# Decompositions of matrices, and Fourier transforms (Golub & Van Loan, Matrix Computations)


def _decompose(per_cube: float) -> FlopRule:
    """Return the rule of a decomposition: so many FLOPs times rows, columns and the smaller."""

    def count(args: tuple[Any, ...], out: Any) -> float:
        *batch, rows, columns = args[0].shape
        return per_cube * math.prod(batch) * rows * columns * min(rows, columns)

    return count


def _solve(matrix: int, right: int, per_cube: float, per_column: float) -> FlopRule:
    """Return the rule of a linear system: a decomposition, then substitutions for each column."""

    def count(args: tuple[Any, ...], out: Any) -> float:
        size = args[matrix].shape[-1]
        systems = math.prod(args[matrix].shape[:-2])
        return per_cube * systems * size**3 + per_column * size * args[right].numel()

    return count


def _transform(args: tuple[Any, ...], out: Any) -> float:
    larger = max(args[0], _first(out), key=lambda tensor: tensor.numel())
    length = math.prod(larger.shape[axis] for axis in args[1])
    return 5.0 * larger.numel() * math.log2(max(2, length))


_RULES_OF_NAMES: tuple[tuple[str, FlopRule], ...] = (
    ("mm bmm mv dot vdot matmul _int_mm linalg_matmul inner", _multiply(0)),
    ("_scaled_mm _scaled_mm_v2", _multiply(0)),
    ("addmm baddbmm addbmm addmv _addmm_activation", _multiply(1)),
    ("_sparse_mm hspmm _sparse_sparse_matmul", _multiply_sparse(0)),
    ("_sparse_addmm sspaddmm", _multiply_sparse(1)),
    ("sparse_sampled_addmm", lambda args, out: 2.0 * args[0]._nnz() * args[1].shape[-1]),
    ("linear mkldnn_linear _mixed_dtypes_linear _weight_int8pack_mm", _multiply_by_weight),
    (
        "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 transformers::grouped_mm_fallback",
        lambda args, out: count_grouped_product(args[0], args[1]),
    ),
    ("_foreach_mm", lambda args, out: sum(map(count_product, args[0], args[1]))),
    ("linalg_vecdot", lambda args, out: 2.0 * args[0].numel()),
    ("_trilinear", _trilinear),
    ("_cdist_forward _pdist_forward", lambda args, out: 2.0 * out.numel() * args[0].shape[-1]),
    ("_cdist_backward", lambda args, out: 2.0 * args[0].numel() * args[1].shape[-1]),
    (
        "mkldnn_convolution miopen_convolution miopen_depthwise_convolution cudnn_convolution_relu "
        "cudnn_convolution_add_relu _conv_depthwise2d conv_depthwise3d slow_conv3d_forward "
        "slow_conv_dilated2d slow_conv_dilated3d _nnpack_spatial_convolution",
        lambda args, out: 2.0 * _first(out).numel() * math.prod(args[1].shape[1:]),
    ),
    ("conv_tbc", lambda args, out: 2.0 * _first(out).numel() * math.prod(args[1].shape[:2])),
    ("conv_tbc_backward", lambda args, out: 4 * args[0].numel() * math.prod(args[2].shape[:2])),
    ("convolution_backward", _convolution_backward),
    (
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math "
        "_scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_attention_math_for_mps",
        lambda args, out: _attention(*args[:3]),
    ),
    (
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward",
        # A fused backward pass has five products where the forward pass has two.
        lambda args, out: 2.5 * _attention(*args[1:4]),
    ),
    ("mkldnn_rnn_layer", _recurrent),
    ("mkldnn_rnn_layer_backward", lambda args, out: 2.0 * _recurrent(args, out)),
    ("_cudnn_rnn miopen_rnn", _fused_recurrent),
    (
        "_cudnn_rnn_backward miopen_rnn_backward",
        lambda args, out: 2.0 * _fused_recurrent(args, out),
    ),
    ("linalg_cholesky_ex cholesky linalg_ldl_factor_ex", _decompose(1 / 3)),
    (
        "linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet _lu_with_info",
        _decompose(2 / 3),
    ),
    ("linalg_inv_ex inverse cholesky_inverse", _decompose(2.0)),
    ("linalg_qr geqrf linalg_householder_product orgqr linalg_lstsq", _decompose(2.0)),
    ("ormqr", lambda args, out: 4.0 * args[0].numel() * args[2].shape[-1]),
    ("_linalg_eigh _linalg_eigvals", _decompose(9.0)),
    ("_linalg_svd", _decompose(12.0)),
    ("linalg_matrix_exp", _decompose(16.0)),
    ("linalg_eig", _decompose(25.0)),
    ("_linalg_solve_ex", _solve(0, 1, 2 / 3, 2.0)),
    ("linalg_solve_triangular", _solve(0, 1, 0.0, 1.0)),
    ("triangular_solve", _solve(1, 0, 0.0, 1.0)),
    ("cholesky_solve _cholesky_solve_helper lu_solve", _solve(1, 0, 0.0, 2.0)),
    ("linalg_lu_solve linalg_ldl_solve", _solve(0, 2, 0.0, 2.0)),
    ("_fft_c2c", _transform),
    # Real input or output halves the work.
    ("_fft_r2c _fft_c2r", lambda args, out: _transform(args, out) / 2),
)
_RULES = {name: rule for names, rule in _RULES_OF_NAMES for name in names.split()}
