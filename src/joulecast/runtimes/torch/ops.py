"""From a function that a net called to a row of ``kinds``: one small reader per function.

Takes an Event of a trace and the batch size, gives the operator as it stands alone (with ``shape``
where its kind has no sizes of its own), or None for a view that no row describes. Functions that no
reader knows are told apart by what they ran: matrix products with a weight are ``linear``, without
one ``matmul``, everything else is ``elementwise``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from joulecast.kinds import make_op
from joulecast.records import Op
from joulecast.runtimes.torch.tracer import Event

Shape = tuple[int, ...]
Reader = Callable[[Event, int], Op | None]

PACKED_SDPA = "packed_sdpa"
_RMS_NAMES = ("rmsnorm", "t5layernorm")


def name_leaf_module(module: nn.Module) -> str:
    """The name under which a whole module is read as one operator; empty for most."""
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if hasattr(module, "joulecast_sdpa"):
        return PACKED_SDPA
    if isinstance(module, nn.RMSNorm):
        return ""
    weights = list(module.parameters(recurse=False))
    named_so = any(name in type(module).__name__.lower() for name in _RMS_NAMES)
    return "rms_norm_module" if named_so and len(weights) <= 1 else ""


def sample_shape(shape: Any, batch: int) -> Shape:
    """Shape of one sample, wherever the batch stands; a flat size where it does not divide."""
    sizes = tuple(int(size) for size in shape)
    if sizes and sizes[0] == batch:
        return sizes[1:]
    if sizes and sizes[0] % batch == 0 and sizes[0]:
        return (sizes[0] // batch, *sizes[1:])
    if len(sizes) > 1 and sizes[1] == batch:
        return (sizes[0], *sizes[2:])
    return (-(-math.prod(sizes) // batch),)


def read_op(event: Event, batch: int) -> Op | None:
    """The operator that an event stands for."""
    reader = _READERS.get(function_name(event))
    if reader is not None:
        return reader(event, batch)
    if event.products:
        return _read_product(event, batch)
    if not event.forward.launches:
        return _read_view(event, batch)
    return _read_elementwise(event, batch)


def function_name(event: Event) -> str:
    """The plain name of a function: ``__iadd__``, ``add_`` and ``add`` are all ``add``."""
    name = event.name
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name != "index" and name[0] in "ri" and name[1:] in _OPERATORS:
            name = name[1:]
    return _SYNONYMS.get(name.rstrip("_"), name.rstrip("_"))


_OPERATORS = {"add", "mul", "sub", "truediv", "matmul", "pow"}
_SYNONYMS = {
    "truediv": "div",
    "cat": "concat",
    "concatenate": "concat",
    "contiguous": "copy",
    "clone": "copy",
}


def _bind(event: Event, *names: str) -> dict[str, Any]:
    return {**dict(zip(names, event.args, strict=False)), **event.kwargs}


def _first_input(event: Event) -> torch.Tensor:
    for value in (*event.args, *event.kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0]
    return event.results[0]


def _spread(value: Any, dims: int) -> Shape:
    if isinstance(value, int):
        return (value,) * dims
    sizes = tuple(int(size) for size in value)
    return sizes * dims if len(sizes) == 1 else sizes


def _read_conv(event: Event, batch: int) -> Op:
    transposed = "transpose" in event.name
    names = ["input", "weight", "bias", "stride", "padding"]
    names += ["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"]
    given = _bind(event, *names)
    x, weight = given["input"], given["weight"]
    dims = weight.dim() - 2
    dilation = _spread(given.get("dilation", 1), dims)
    groups = given.get("groups", 1)
    sizes = {
        "cin": weight.shape[0] if transposed else weight.shape[1] * groups,
        "cout": weight.shape[1] * groups if transposed else weight.shape[0],
        "space": tuple(x.shape[2:]),
        "kernel": tuple(weight.shape[2:]),
        "stride": _spread(given.get("stride", 1), dims),
        "padding": _read_padding(given.get("padding", 0), weight.shape[2:], dilation),
        "dilation": dilation,
        "groups": groups,
        "bias": int(given.get("bias") is not None),
    }
    if transposed:
        sizes["output_padding"] = _spread(given.get("output_padding", 0), dims)
    return make_op(function_name(event), **sizes)


def _read_padding(padding: Any, kernel: Any, dilation: Shape) -> Shape:
    if padding == "valid":
        return (0,) * len(dilation)
    if padding == "same":
        return tuple(d * (int(k) - 1) // 2 for k, d in zip(kernel, dilation, strict=False))
    return _spread(padding, len(dilation))


def _read_linear(event: Event, batch: int) -> Op:
    given = _bind(event, "input", "weight", "bias")
    cout, cin = given["weight"].shape
    lead = sample_shape(given["input"].shape, batch)[:-1]
    return make_op("linear", cin=cin, cout=cout, lead=lead, bias=int(given.get("bias") is not None))


def _read_embedding(event: Event, batch: int) -> Op:
    given = _bind(event, "input", "weight")
    vocabulary, width = given["weight"].shape
    lead = sample_shape(given["input"].shape, batch)
    return make_op("embedding", vocabulary=vocabulary, width=width, lead=lead)


_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def _read_recurrent(event: Event, batch: int) -> Op:
    x, second, *rest = event.args
    kind = event.name.split("_")[0]
    packed = isinstance(second, torch.Tensor) and not second.is_floating_point()
    if packed:  # a packed sequence: all tokens of all samples in one row
        _, weights, bias, depth, _, _, bidirectional = rest[:7]
        steps = -(-x.shape[0] // batch)
    else:
        weights, bias, depth, _, _, bidirectional, *first = rest
        steps = x.shape[1] if first and first[0] else x.shape[0]
    return make_op(
        kind,
        cin=x.shape[-1],
        hidden=weights[0].shape[0] // _GATES[kind],
        tokens=steps,
        depth=depth,
        bidirectional=int(bidirectional),
        bias=int(bias),
    )


def _read_cell(event: Event, batch: int) -> Op:
    x, _, weight, *_ = event.args
    kind = event.name.split("_")[0]
    return make_op(kind, cin=x.shape[-1], hidden=weight.shape[0] // _GATES[kind], tokens=1)


def _read_attention(event: Event, batch: int) -> Op:
    module = event.module
    assert isinstance(module, nn.MultiheadAttention)
    given = _bind(event, "query", "key", "value")
    queries, keys = given["query"], given["key"]
    axis = 1 if module.batch_first else 0
    return make_op(
        "attention",
        width=module.embed_dim,
        heads=module.num_heads,
        tokens=queries.shape[axis],
        kv_tokens=keys.shape[axis],
        bias=int(module.in_proj_bias is not None),
    )


def _read_sdpa(event: Event, batch: int) -> Op:
    given = _bind(event, "query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    queries, keys = given["query"], given["key"]
    return make_op(
        "sdpa",
        heads=queries.shape[-3] if queries.dim() > 3 else 1,
        kv_heads=keys.shape[-3] if keys.dim() > 3 else 1,
        head_dim=queries.shape[-1],
        tokens=queries.shape[-2],
        kv_tokens=keys.shape[-2],
        causal=int(bool(given.get("is_causal"))),
    )


def _read_packed_sdpa(event: Event, batch: int) -> Op:
    assert event.module is not None
    op: Op = event.module.joulecast_sdpa  # type: ignore[assignment]
    return op


def _read_product(event: Event, batch: int) -> Op:
    """A function that multiplies matrices: with a weight it is a linear, else a matmul."""
    count, m, k, n = event.products[0]
    # Several products in one function are counted as more rows of the first.
    rows = sum(c * a * b * d for c, a, b, d in event.products) / (k * n)
    if event.params:
        lead = max(1, round(rows / batch))
        bias = int(len(event.params) > 1 or event.name == "addmm")
        return make_op("linear", cin=k, cout=n, lead=(lead,) if lead > 1 else (), bias=bias)
    if count % batch == 0:
        return make_op("matmul", count=max(1, round(rows / (m * batch))), m=m, k=k, n=n)
    return make_op("matmul", count=1, m=max(1, round(rows / batch)), k=k, n=n)


def _own_shape(event: Event, batch: int) -> dict[str, Any]:
    return {"shape": sample_shape(_first_input(event).shape, batch)}


def _affine(given: dict[str, Any]) -> int:
    return int(given.get("weight") is not None)


def _read_batch_norm(event: Event, batch: int) -> Op:
    given = _bind(event, "input", "running_mean", "running_var", "weight", "bias")
    return make_op("batch_norm", affine=_affine(given), **_own_shape(event, batch))


def _read_layer_norm(event: Event, batch: int) -> Op:
    given = _bind(event, "input", "normalized_shape", "weight", "bias")
    return make_op(
        "layer_norm",
        dims=len(given["normalized_shape"]),
        affine=_affine(given),
        bias=int(given.get("bias") is not None),
        **_own_shape(event, batch),
    )


def _read_group_norm(event: Event, batch: int) -> Op:
    given = _bind(event, "input", "num_groups", "weight", "bias")
    groups = given["num_groups"]
    return make_op("group_norm", groups=groups, affine=_affine(given), **_own_shape(event, batch))


def _read_instance_norm(event: Event, batch: int) -> Op:
    given = _bind(event, "input", "running_mean", "running_var", "weight", "bias")
    channels = given["input"].shape[1]
    return make_op("group_norm", groups=channels, affine=_affine(given), **_own_shape(event, batch))


def _read_rms_norm(event: Event, batch: int) -> Op:
    return make_op("rms_norm", affine=int(bool(event.params)), **_own_shape(event, batch))


def _read_spelled_norm(event: Event, batch: int) -> Op:
    """A library's own module: it spells out what the framework fuses."""
    affine = int(bool(event.params))
    return make_op("rms_norm", affine=affine, spelled=1, **_own_shape(event, batch))


def _read_pool(event: Event, batch: int) -> Op:
    """max_pool2d, avg_pool1d, adaptive_avg_pool2d ...: the name says most of it."""
    dims = int(event.name.split("_pool")[1][0])
    fn = event.name.split("_pool")[0]
    shape = _own_shape(event, batch)
    if fn.startswith("adaptive"):
        given = _bind(event, "input", "output_size")
        out = tuple(event.results[0].shape[2:])
        return make_op("pool", fn=fn, kernel=out, **shape)
    given = _bind(event, "input", "kernel_size", "stride", "padding")
    stride = given.get("stride")
    kernel = _spread(given["kernel_size"], dims)
    return make_op(
        "pool",
        fn=fn,
        kernel=kernel,
        stride=kernel if stride in (None, []) else _spread(stride, dims),
        padding=_spread(given.get("padding", 0), dims),
        ceil=int(bool(given.get("ceil_mode", False))),
        **shape,
    )


def _read_dropout(event: Event, batch: int) -> Op | None:
    given = _bind(event, "input", "p", "training")
    if not given.get("training", True) or not given.get("p", 0.5):
        return None
    return make_op("dropout", p=float(given.get("p", 0.5)), **_own_shape(event, batch))


def _read_flatten(event: Event, batch: int) -> Op | None:
    shape = sample_shape(event.results[0].shape, batch)
    if len(shape) == 1 and event.results[0].shape[0] == batch:
        return make_op("flatten", **_own_shape(event, batch))
    return _read_view(event, batch)


def _read_view(event: Event, batch: int) -> Op | None:
    x, out = _first_input(event), event.results[0]
    if len(event.results) != 1 or out.shape[:1] != x.shape[:1] or x.shape[:1] != (batch,):
        return None
    if event.name in ("view", "reshape", "unflatten", "squeeze", "unsqueeze"):
        flat = out.dim() == 2 and x.dim() > 2
        kind = "flatten" if flat else "view"
        sizes = {} if flat else {"out": tuple(out.shape[1:])}
        return make_op(kind, **sizes, **_own_shape(event, batch))
    return None


def _read_order(event: Event, batch: int) -> Op | None:
    """permute and transpose, as long as the batch stays in front."""
    x = _first_input(event)
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
    inner = tuple(axis - 1 for axis in order[1:])
    return make_op("permute", order=inner, **_own_shape(event, batch))


def _read_item(event: Event, batch: int) -> Op | None:
    index = event.args[1]
    whole = slice(None, None, None)
    if isinstance(index, tuple) and len(index) >= 2 and index[0] == whole:
        last = isinstance(index[1], int) and index[1] == -1
        if last and all(item == whole for item in index[2:]):
            return make_op("last", **_own_shape(event, batch))
    return _read_elementwise(event, batch) if event.forward.launches else None


def _read_mean(event: Event, batch: int) -> Op:
    x, out = _first_input(event), event.results[0]
    given = _bind(event, "input", "dim", "keepdim")
    axes = given.get("dim")
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    inner = tuple(sorted(axis % x.dim() - 1 for axis in axes))
    shape = _own_shape(event, batch)
    fn = function_name(event)
    if not axes or min(inner) < 0 or given.get("keepdim") or x.shape[0] != batch:
        return make_op("elementwise", fn=fn, out=sample_shape(out.shape, batch), **shape)
    return make_op("elementwise", fn=fn, axes=inner, **shape)


def _read_elementwise(event: Event, batch: int) -> Op:
    """Whatever passes over elements: an activation, a sum, a product, a copy."""
    fn = function_name(event)
    out = sample_shape(event.results[0].shape, batch)
    sizes: dict[str, Any] = {"fn": _with_axis(event) if fn == "concat" else fn}
    inside = sample_shape(_first_input(event).shape, batch)
    if fn in ("add", "mul", "sub", "div", "where", "concat"):
        inside = out
    if math.prod(out) != math.prod(inside):
        sizes["out"] = out
    if event.folded:
        sizes["passes"] = max(1, event.forward.launches)
    return make_op("elementwise", shape=inside, **sizes)


def _with_axis(event: Event) -> str:
    """Joining channels of images is what can be rebuilt; along other axes it has another name."""
    given = _bind(event, "tensors", "dim")
    axis = given.get("dim", 0) % event.results[0].dim()
    return "concat" if axis == 1 else f"concat along {axis}"


_PASSES = {
    "relu",
    "relu6",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "softplus",
    "softmax",
    "log_softmax",
    "mish",
    "logsigmoid",
    "prelu",
    "add",
    "mul",
    "sub",
    "div",
    "concat",
}

_READERS: dict[str, Reader] = {
    **{f"conv{dims}d": _read_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _read_conv for dims in (1, 2, 3)},
    "linear": _read_linear,
    "embedding": _read_embedding,
    "lstm": _read_recurrent,
    "gru": _read_recurrent,
    "rnn_tanh": _read_recurrent,
    "rnn_relu": _read_recurrent,
    "rnn_tanh_cell": _read_cell,
    "rnn_relu_cell": _read_cell,
    "lstm_cell": _read_cell,
    "gru_cell": _read_cell,
    "attention": _read_attention,
    "scaled_dot_product_attention": _read_sdpa,
    PACKED_SDPA: _read_packed_sdpa,
    "batch_norm": _read_batch_norm,
    "layer_norm": _read_layer_norm,
    "group_norm": _read_group_norm,
    "instance_norm": _read_instance_norm,
    "rms_norm": _read_rms_norm,
    "rms_norm_module": _read_spelled_norm,
    **{
        f"{adaptive}{fn}_pool{dims}d": _read_pool
        for adaptive in ("", "adaptive_")
        for fn in ("max", "avg")
        for dims in (1, 2, 3)
    },
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), _read_dropout),
    "flatten": _read_flatten,
    "permute": _read_order,
    "transpose": _read_order,
    "getitem": _read_item,
    "mean": _read_mean,
    **dict.fromkeys(_PASSES, _read_elementwise),
}
