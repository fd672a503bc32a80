"""Map a traced function call to an operator: one reader per function.

A reader takes an Event and the batch size and returns a stand-alone operator (with a ``shape``
where its kind has no sizes that determine it), or None for a view that no kind describes. Functions
without a reader are classified by what they run: matrix products with a weight are ``linear``,
without one ``matmul``, and all others ``elementwise``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from joulecast.operators import Shape, make_op
from joulecast.records import Op
from joulecast.torch_nets.modules import PackedSdpa
from joulecast.torch_nets.tracer import Event, sample_shape

OpReader = Callable[[Event, int], Op | None]

PACKED_SDPA = "packed_sdpa"
_RMS_NORM_CLASSES = ("rmsnorm", "t5layernorm")
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def read_op(event: Event, batch: int) -> Op | None:
    """Return the operator that an event runs; None for a view that no kind describes."""
    reader = OP_READERS.get(event.function_name)
    if reader is not None:
        return reader(event, batch)
    if event.matmuls:
        return _read_matmul(event, batch)
    return (_read_elementwise if event.forward.launches else _read_view)(event, batch)


def name_leaf_module(module: nn.Module) -> str:
    """Return the name under which a module is traced as one call; empty for most modules."""
    for cls, name in LEAF_MODULES.items():
        if isinstance(module, cls):
            return name
    if isinstance(module, nn.RMSNorm):
        return ""
    weights = list(module.parameters(recurse=False))
    is_rms_norm = any(name in type(module).__name__.lower() for name in _RMS_NORM_CLASSES)
    return "rms_norm_module" if is_rms_norm and len(weights) <= 1 else ""


def find_shared_operand(event: Event) -> torch.Tensor | None:
    """Return the matrix that all samples are multiplied by, if a layer computed it.

    In-batch similarities multiply every sample by the features of all: the matrix is a weight that
    is not updated.
    """
    if event.param_names or event.function_name not in ("matmul", "mm") or len(event.args) < 2:
        return None
    left, right = event.args[:2]
    is_product = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    return right if is_product and left.dim() >= 2 and right.dim() == 2 else None


def read_costly_view(event: Event, batch: int) -> Op:
    """Read a view whose gradient is not a view: that of a part is padded with zeros."""
    shape, out = event.input_shape(batch) or (1,), _out_shape(event, batch)
    if len(event.outputs) == 1 and math.prod(out) < math.prod(shape):
        return make_op("slice", out=out, shape=shape)
    return make_op("gradient_copy", out=out, shape=shape)


# ---------------------------------------------------------------------------------------------
# Convolutions, products, recurrent layers and attention


def _read_conv(event: Event, batch: int) -> Op:
    """Read a convolution or a transposed convolution.

    The images of a sample, such as frames, count as one tall image: their convolution is one call
    with the same work, up to the padding between them.
    """
    is_transposed = "transpose" in event.name
    names = ["input", "weight", "bias", "stride", "padding"]
    names += ["output_padding", "groups", "dilation"] if is_transposed else ["dilation", "groups"]
    given = event.bind(*names)
    x, weight = given["input"], given["weight"]
    kernel, dims = tuple(weight.shape[2:]), weight.dim() - 2
    dilation = _expand_size(given.get("dilation", 1), dims)
    padding = given.get("padding", 0)
    if padding == "same":
        padding = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    groups = given.get("groups", 1)
    images = x.shape[0] // batch if x.shape[0] % batch == 0 else 1
    sizes = {
        "cin": weight.shape[0] if is_transposed else weight.shape[1] * groups,
        "cout": weight.shape[1] * groups if is_transposed else weight.shape[0],
        "space": (x.shape[2] * images, *x.shape[3:]),
        "kernel": kernel,
        "stride": _expand_size(given.get("stride", 1), dims),
        "padding": _expand_size(0 if padding == "valid" else padding, dims),
        "dilation": dilation,
        "groups": groups,
        "bias": int(given.get("bias") is not None),
    }
    if is_transposed:
        sizes["output_padding"] = _expand_size(given.get("output_padding", 0), dims)
    return make_op(event.function_name, **sizes)


def _read_linear(event: Event, batch: int) -> Op:
    """Read ``F.linear``; and ``F.bilinear`` as a linear layer on all products of two features."""
    inputs = ("input1", "input2") if event.name == "bilinear" else ("input",)
    given = event.bind(*inputs, "weight", "bias")
    x, (cout, *widths) = given[inputs[0]], given["weight"].shape
    lead = sample_shape(x.shape, batch)[:-1]
    if x.dim() > 1 and not lead and x.shape[0] != batch:
        # Rows that are not a multiple of the batch, such as positions or the tokens of one expert,
        # are spread over the samples.
        rows = max(1, round(x.numel() / x.shape[-1] / batch))
        lead = (rows,) if rows > 1 else ()
    bias = int(given.get("bias") is not None)
    return make_op("linear", cin=math.prod(widths), cout=cout, lead=lead, bias=bias)


def _read_grouped_linear(event: Event, batch: int) -> Op:
    """Read ``F.grouped_mm`` of rows with a weight for each expert; any other as a product."""
    x, weight = event.args[:2]
    if (x.dim(), weight.dim()) != (2, 3):
        return _read_matmul(event, batch)
    experts, cin, cout = weight.shape
    rows = max(1, round(x.shape[0] / batch))
    half = int(weight.dtype in (torch.bfloat16, torch.float16))
    return make_op("grouped_linear", cin=cin, cout=cout, lead=(rows,), experts=experts, half=half)


def _read_matmul(event: Event, batch: int) -> Op:
    """Read any function that runs matrix products: with a weight as linear, else as matmul."""
    count, m, k, n = event.matmuls[0]
    if event.weight_elements == count * m * k != count * k * n:  # the weight is on the left
        m, n = n, m
    # Several products in one function count as more rows of the first.
    rows = sum(c * a * b * d for c, a, b, d in event.matmuls) / (k * n)
    if event.param_names or find_shared_operand(event) is not None:
        lead = max(1, round(rows / batch))
        experts, rest = divmod(event.weight_elements, k * n)
        if experts > 1 and not rest and count % experts == 0:
            # Experts, or members of an ensemble, multiply rows by a weight each; autocast computes
            # that in half precision.
            sizes = {"cin": k, "cout": n, "lead": (lead,), "experts": experts}
            return make_op("grouped_linear", **sizes, half=1)
        bias = int(len(event.param_names) > 1 or event.name == "addmm")
        return make_op("linear", cin=k, cout=n, lead=(lead,) if lead > 1 else (), bias=bias)
    if count % batch == 0:
        return make_op("matmul", count=max(1, round(rows / (m * batch))), m=m, k=k, n=n)
    return make_op("matmul", count=1, m=max(1, round(rows / batch)), k=k, n=n)


def _read_embedding(event: Event, batch: int) -> Op:
    given = event.bind("input", "weight")
    vocabulary, width = given["weight"].shape
    lead = sample_shape(given["input"].shape, batch)
    return make_op("embedding", vocabulary=vocabulary, width=width, lead=lead)


def _read_embedding_bag(event: Event, batch: int) -> Op:
    """Read ``F.embedding_bag`` of bags of equal length, or of one list with offsets."""
    given = event.bind("input", "weight", "offsets")
    tokens, table = given["input"], given["weight"]
    if tokens.is_floating_point():  # the old order of arguments
        tokens, table = table, tokens
    vocabulary, width = table.shape
    lead = (max(1, round(tokens.numel() / batch)),)
    bags = max(1, round(event.outputs[0].shape[0] / batch))
    return make_op("embedding_bag", vocabulary=vocabulary, width=width, lead=lead, bags=bags)


def _read_recurrent(event: Event, batch: int) -> Op:
    """Read an LSTM, a GRU or an RNN on a padded or a packed sequence, or on one token."""
    x, second, *rest = event.args
    kind = event.name.split("_")[0]
    if event.name.endswith("_cell"):
        weight = rest[0]
        return make_op(kind, cin=x.shape[-1], hidden=weight.shape[0] // _GATES[kind], tokens=1)
    is_packed = isinstance(second, torch.Tensor) and not second.is_floating_point()
    if is_packed:  # the tokens of all samples on one axis
        _, weights, bias, depth, _, _, bidirectional = rest[:7]
        tokens = -(-x.shape[0] // batch)
    else:
        weights, bias, depth, _, _, bidirectional, *batch_first = rest
        tokens = x.shape[1] if batch_first and batch_first[0] else x.shape[0]
    return make_op(
        kind,
        cin=x.shape[-1],
        hidden=weights[0].shape[0] // _GATES[kind],
        tokens=tokens,
        depth=depth,
        bidirectional=int(bidirectional),
        bias=int(bias),
    )


def _read_attention(event: Event, batch: int) -> Op:
    """Read ``nn.MultiheadAttention``, traced as one call."""
    module = event.leaf_module
    assert isinstance(module, nn.MultiheadAttention)
    given = event.bind("query", "key", "value")
    query, key = given["query"], given["key"]
    axis = 1 if module.batch_first else 0
    return make_op(
        "attention",
        **_count_windows(query.shape[1 - axis] if query.dim() > 2 else 1, batch),
        width=module.embed_dim,
        heads=module.num_heads,
        tokens=query.shape[axis],
        kv_tokens=key.shape[axis],
        bias=int(module.in_proj_bias is not None),
    )


def _read_sdpa(event: Event, batch: int) -> Op:
    """Read ``F.scaled_dot_product_attention``."""
    given = event.bind("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    query, key = given["query"], given["key"]
    sequences = math.prod(query.shape[:-3]) if query.dim() > 3 else query.shape[0]
    return make_op(
        "sdpa",
        **_count_windows(sequences, batch),
        heads=query.shape[-3] if query.dim() > 3 else 1,
        kv_heads=key.shape[-3] if key.dim() > 3 else 1,
        head_dim=query.shape[-1],
        tokens=query.shape[-2],
        kv_tokens=key.shape[-2],
        causal=int(bool(given.get("is_causal"))),
    )


def _count_windows(sequences: int, batch: int) -> dict[str, int]:
    """Return how many sequences of a sample attend only to themselves, if there are several."""
    windows = sequences // batch if sequences % batch == 0 else 1
    return {"windows": windows} if windows > 1 else {}


def _read_packed_sdpa(event: Event, batch: int) -> Op:
    assert isinstance(event.leaf_module, PackedSdpa)
    return event.leaf_module.op


# ---------------------------------------------------------------------------------------------
# Norms, pooling, views and elementwise functions

_NORM_ARGUMENTS = {
    **dict.fromkeys(("batch_norm", "instance_norm"), ("running_mean", "running_var")),
    "layer_norm": ("normalized_shape",),
    "group_norm": ("num_groups",),
}


def _read_norm(event: Event, batch: int) -> Op:
    """Read a norm; an instance norm is a group norm with one channel per group."""
    kind = event.function_name
    given = event.bind("input", *_NORM_ARGUMENTS[kind], "weight", "bias")
    shape, affine = event.input_shape(batch), int(given.get("weight") is not None)
    if kind == "layer_norm":
        dims, bias = len(given["normalized_shape"]), int(given.get("bias") is not None)
        return make_op(kind, dims=dims, affine=affine, bias=bias, shape=shape)
    if kind == "batch_norm":
        return make_op(kind, affine=affine, shape=shape)
    groups = given["input"].shape[1] if kind == "instance_norm" else given["num_groups"]
    return make_op("group_norm", groups=groups, affine=affine, shape=shape)


def _read_rms_norm(event: Event, batch: int) -> Op:
    """Read the fused ``F.rms_norm``, or a library's module that spells it out elementwise."""
    sizes = {"affine": int(bool(event.param_names)), "shape": event.input_shape(batch)}
    return make_op("rms_norm", **sizes, **({"spelled": 1} if event.leaf_module else {}))


def _read_pool(event: Event, batch: int) -> Op:
    """Read a pooling function: max or average, fixed or adaptive, over one to three axes."""
    fn, _, rest = event.name.partition("_pool")
    dims = int(rest[0])
    shape = event.input_shape(batch)
    if fn.startswith("adaptive"):
        return make_op("pool", fn=fn, kernel=tuple(event.outputs[0].shape[2:]), shape=shape)
    # Max pooling has a dilation before its ceil_mode, average pooling has none.
    dilation = ("dilation",) if fn == "max" else ()
    given = event.bind("input", "kernel_size", "stride", "padding", *dilation, "ceil_mode")
    stride = given.get("stride")
    kernel = _expand_size(given["kernel_size"], dims)
    return make_op(
        "pool",
        fn=fn,
        kernel=kernel,
        stride=kernel if stride in (None, []) else _expand_size(stride, dims),
        padding=_expand_size(given.get("padding", 0), dims),
        ceil=int(bool(given.get("ceil_mode", False))),
        shape=shape,
    )


def _read_dropout(event: Event, batch: int) -> Op | None:
    """Read ``F.dropout``; return None where it does nothing."""
    given = event.bind("input", "p", "training")
    p = float(given.get("p", 0.5))
    if not given.get("training", True) or not p:
        return None
    return make_op("dropout", p=p, shape=event.input_shape(batch))


def _read_flatten(event: Event, batch: int) -> Op | None:
    """Read ``flatten`` of all axes but the batch; any other is an ordinary view."""
    out = event.outputs[0]
    if len(sample_shape(out.shape, batch)) == 1 and out.shape[0] == batch:
        return make_op("flatten", shape=event.input_shape(batch))
    return _read_view(event, batch)


def _read_view(event: Event, batch: int) -> Op | None:
    """Read a view that keeps the batch axis; return None for any other."""
    x, out = event.first_tensor, event.outputs[0]
    if len(event.outputs) != 1 or out.shape[:1] != x.shape[:1] or x.shape[:1] != (batch,):
        return None
    if event.name not in ("view", "reshape", "unflatten", "squeeze", "unsqueeze"):
        return None
    shape = event.input_shape(batch)
    if out.dim() == 2 and x.dim() > 2:
        return make_op("flatten", shape=shape)
    return make_op("view", out=tuple(out.shape[1:]), shape=shape)


def _read_permute(event: Event, batch: int) -> Op | None:
    """Read ``permute`` and ``transpose`` that keep the batch axis first; None for any other."""
    x = event.first_tensor
    rest = event.args[1:]
    if event.name == "permute":
        order = list(rest[0]) if rest and isinstance(rest[0], (list, tuple)) else list(rest)
    elif len(rest) == 2:
        order = list(range(x.dim()))
        first, second = (axis % x.dim() for axis in rest)
        order[first], order[second] = second, first
    else:
        return None
    order = [axis % x.dim() for axis in order]
    if order[0] != 0 or x.shape[0] != batch:
        return None
    sample_order = tuple(axis - 1 for axis in order[1:])
    return make_op("permute", order=sample_order, shape=event.input_shape(batch))


def _read_getitem(event: Event, batch: int) -> Op | None:
    """Read ``x[:, -1]`` as the last token; other indexing is a copy, or a view without a kind."""
    index = event.args[1]
    items = index if isinstance(index, tuple) else (index,)
    everything = slice(None, None, None)
    if len(items) >= 2 and isinstance(items[0], slice) and items[0] == everything:
        is_last = isinstance(items[1], int) and items[1] == -1
        if is_last and all(item == everything for item in items[2:]):
            return make_op("last", shape=event.input_shape(batch))
    if not event.forward.launches:
        return None
    copies_elements = any(isinstance(item, (torch.Tensor, list)) for item in items)
    return (_read_index if copies_elements else _read_elementwise)(event, batch)


def _read_mean(event: Event, batch: int) -> Op:
    """Read ``mean`` over axes of a sample; over others it is elementwise with a smaller output."""
    x, out = event.first_tensor, event.outputs[0]
    given = event.bind("input", "dim", "keepdim")
    axes = given.get("dim")
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    sample_axes = tuple(sorted(axis % x.dim() - 1 for axis in axes))
    sizes: dict[str, Any] = {"axes": sample_axes}
    if not axes or min(sample_axes) < 0 or given.get("keepdim") or x.shape[0] != batch:
        sizes = {"out": sample_shape(out.shape, batch)}
    return make_op("elementwise", fn="mean", **sizes, shape=event.input_shape(batch))


def _read_elementwise(event: Event, batch: int) -> Op:
    """Read any function that passes over elements: an activation, a sum, a product, a copy."""
    fn = name = event.function_name
    out = sample_shape(event.outputs[0].shape, batch)
    if fn == "interpolate":
        # Gradients of linear modes take many times as long as those of the nearest.
        given = event.bind("input", "size", "scale_factor", "mode")
        name = f"interpolate {given.get('mode', 'nearest')}"
    elif fn == "concat":
        # The channel axis is the only one that can be rebuilt.
        axis = event.bind("tensors", "dim").get("dim", 0) % event.outputs[0].dim()
        name = "concat" if axis == 1 else f"concat along {axis}"
    shape = event.input_shape(batch)
    if fn in ("add", "mul", "sub", "div", "where", "concat"):
        shape = out
    sizes: dict[str, Any] = {"out": out} if math.prod(out) != math.prod(shape) else {}
    if event.is_fused:
        sizes["passes"] = max(1, event.forward.launches)
    return make_op("elementwise", fn=name, shape=shape, **sizes)


# ---------------------------------------------------------------------------------------------
# Elements moved by index


def _read_index(event: Event, batch: int) -> Op:
    """Read ``x[indices]`` with index tensors or masks, and ``index_select``."""
    x = event.first_tensor
    axes = _find_indexed_axes(event, x)
    shape = event.input_shape(batch)
    sizes: dict[str, Any] = {"fn": "index", "out": _out_shape(event, batch), "shape": shape}
    if axes and min(axes) > 0 and x.shape[:1] == (batch,):
        return make_op("index", axes=tuple(axis - 1 for axis in axes), **sizes)
    # Indices run over the first axis, which holds the samples or tokens of all samples.
    return make_op("index", axes=(0,), across=1, **sizes)


def _find_indexed_axes(event: Event, x: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of ``x`` that have index tensors."""
    if event.function_name == "index_select":
        dim = event.bind("input", "dim", "index").get("dim", 0)
        return (dim % max(1, x.dim()),)
    index = event.args[1] if len(event.args) > 1 else ()
    items = index if isinstance(index, tuple) else (index,)
    axes: list[int] = []
    axis = 0
    for position, item in enumerate(items):
        if item is None:
            continue
        if item is Ellipsis:
            rest = [one for one in items[position + 1 :] if one is not None]
            axis = x.dim() - sum(map(_count_indexed, rest))
            continue
        if isinstance(item, (torch.Tensor, list)):
            axes += range(axis, axis + _count_indexed(item))
        axis += _count_indexed(item)
    return tuple(one for one in axes if one < x.dim())


def _count_indexed(item: Any) -> int:
    """Return how many axes an item of an index stands for: a mask has several."""
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return max(1, item.dim()) if is_mask else 1


def _read_gather(event: Event, batch: int) -> Op:
    """Read ``gather`` and ``take_along_dim``: an index for each element."""
    shape = event.input_shape(batch)
    return make_op("index", fn=event.function_name, out=_out_shape(event, batch), shape=shape)


def _read_sort(event: Event, batch: int) -> Op:
    shape = event.input_shape(batch) or (1,)
    return make_op("sort", fn=event.function_name, out=_out_shape(event, batch), shape=shape)


def _read_scatter(event: Event, batch: int) -> Op:
    """Read an assignment or addition of elements by index, in place or to a copy.

    Its source is the largest floating-point tensor besides the target; else the indices.
    """
    target = event.first_tensor
    others = [
        value
        for value in (*event.args[1:], *event.kwargs.values())
        if isinstance(value, torch.Tensor) and value is not target
    ]
    lists = (value for value in event.args[1:] if isinstance(value, (list, tuple)))
    indices = [item for items in lists for item in items if isinstance(item, torch.Tensor)]
    floating = [value for value in others if value.is_floating_point() and value.dim()]
    source = max(floating or [*others, *indices] or [target], key=torch.Tensor.numel)
    return make_op(
        "scatter",
        fn=event.function_name,
        source=sample_shape(source.shape, batch) or (1,),
        copies=0 if event.name.endswith("_") else 1,
        shape=sample_shape(target.shape, batch) or (1,),
    )


def _out_shape(event: Event, batch: int) -> Shape:
    return sample_shape(event.outputs[0].shape, batch) or (1,)


def _expand_size(value: Any, dims: int) -> Shape:
    """Return a size for each spatial axis, as ``stride=2`` means ``(2, 2)``."""
    if isinstance(value, int):
        return (value,) * dims
    sizes = tuple(int(size) for size in value)
    return sizes * dims if len(sizes) == 1 else sizes


LEAF_MODULES: dict[type[nn.Module], str] = {
    nn.MultiheadAttention: "attention",
    PackedSdpa: PACKED_SDPA,
}
"""Modules that are traced as one call, with the name of their reader in ``OP_READERS``."""

_READERS: dict[OpReader, tuple[str, ...]] = {
    _read_conv: tuple(f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3)),
    _read_linear: ("linear", "bilinear"),
    _read_grouped_linear: ("grouped_mm", "_grouped_mm", "grouped_mm_fallback"),
    _read_embedding: ("embedding",),
    _read_embedding_bag: ("embedding_bag",),
    _read_recurrent: tuple(
        f"{kind}{cell}"
        for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for cell in ("", "_cell")
    ),
    _read_attention: ("attention",),
    _read_sdpa: ("scaled_dot_product_attention",),
    _read_packed_sdpa: (PACKED_SDPA,),
    _read_norm: tuple(_NORM_ARGUMENTS),
    _read_rms_norm: ("rms_norm", "rms_norm_module"),
    _read_pool: tuple(
        f"{adaptive}{fn}_pool{dims}d"
        for adaptive in ("", "adaptive_")
        for fn in ("max", "avg")
        for dims in (1, 2, 3)
    ),
    _read_dropout: ("dropout", "dropout1d", "dropout2d", "dropout3d"),
    _read_flatten: ("flatten",),
    _read_permute: ("permute", "transpose"),
    _read_getitem: ("getitem",),
    _read_mean: ("mean",),
    _read_index: ("index_select",),
    _read_gather: ("gather", "take_along_dim", "take"),
    _read_scatter: (
        *("scatter", "scatter_add", "scatter_reduce"),
        *("index_add", "index_copy", "index_put"),
    ),
    _read_sort: ("sort", "argsort", "topk", "kthvalue"),
}

OP_READERS: dict[str, OpReader] = {
    name: reader for reader, names in _READERS.items() for name in names
}
