"""Read memory-bound operators from traced calls: norms, pooling, views, activations."""

from __future__ import annotations

import math
from typing import Any

from joulecast.kinds import make_op
from joulecast.records import Op
from joulecast.runtimes.torch.event_arguments import (
    bind_arguments,
    expand_size,
    first_tensor,
    function_name,
    input_sample_shape,
    sample_shape,
)
from joulecast.runtimes.torch.index_readers import has_index_tensors, read_index
from joulecast.runtimes.torch.trace_events import Event


def read_batch_norm(event: Event, batch: int) -> Op:
    """Read ``F.batch_norm``."""
    given = bind_arguments(event, "input", "running_mean", "running_var", "weight", "bias")
    shape = input_sample_shape(event, batch)
    return make_op("batch_norm", affine=_is_affine(given), shape=shape)


def read_layer_norm(event: Event, batch: int) -> Op:
    """Read ``F.layer_norm``."""
    given = bind_arguments(event, "input", "normalized_shape", "weight", "bias")
    return make_op(
        "layer_norm",
        dims=len(given["normalized_shape"]),
        affine=_is_affine(given),
        bias=int(given.get("bias") is not None),
        shape=input_sample_shape(event, batch),
    )


def read_group_norm(event: Event, batch: int) -> Op:
    """Read ``F.group_norm``."""
    given = bind_arguments(event, "input", "num_groups", "weight", "bias")
    shape = input_sample_shape(event, batch)
    return make_op("group_norm", groups=given["num_groups"], affine=_is_affine(given), shape=shape)


def read_instance_norm(event: Event, batch: int) -> Op:
    """Read ``F.instance_norm`` as a group norm with one channel per group."""
    given = bind_arguments(event, "input", "running_mean", "running_var", "weight", "bias")
    channels = given["input"].shape[1]
    shape = input_sample_shape(event, batch)
    return make_op("group_norm", groups=channels, affine=_is_affine(given), shape=shape)


def read_rms_norm(event: Event, batch: int) -> Op:
    """Read the fused ``F.rms_norm``."""
    affine = int(bool(event.param_names))
    return make_op("rms_norm", affine=affine, shape=input_sample_shape(event, batch))


def read_decomposed_rms_norm(event: Event, batch: int) -> Op:
    """Read a library's RMSNorm module, which runs several elementwise operators."""
    affine = int(bool(event.param_names))
    return make_op("rms_norm", affine=affine, spelled=1, shape=input_sample_shape(event, batch))


def _is_affine(given: dict[str, Any]) -> int:
    return int(given.get("weight") is not None)


def read_pool(event: Event, batch: int) -> Op:
    """Read a pooling function: max or average, fixed or adaptive, over one to three axes."""
    fn, _, rest = event.name.partition("_pool")
    dims = int(rest[0])
    shape = input_sample_shape(event, batch)
    if fn.startswith("adaptive"):
        return make_op("pool", fn=fn, kernel=tuple(event.outputs[0].shape[2:]), shape=shape)
    # Max pooling has a dilation before its ceil_mode, average pooling has none.
    dilation = ("dilation",) if fn == "max" else ()
    names = ("input", "kernel_size", "stride", "padding", *dilation, "ceil_mode")
    given = bind_arguments(event, *names)
    stride = given.get("stride")
    kernel = expand_size(given["kernel_size"], dims)
    return make_op(
        "pool",
        fn=fn,
        kernel=kernel,
        stride=kernel if stride in (None, []) else expand_size(stride, dims),
        padding=expand_size(given.get("padding", 0), dims),
        ceil=int(bool(given.get("ceil_mode", False))),
        shape=shape,
    )


def read_dropout(event: Event, batch: int) -> Op | None:
    """Read ``F.dropout``; return None where it does nothing."""
    given = bind_arguments(event, "input", "p", "training")
    if not given.get("training", True) or not given.get("p", 0.5):
        return None
    p = float(given.get("p", 0.5))
    return make_op("dropout", p=p, shape=input_sample_shape(event, batch))


def read_flatten(event: Event, batch: int) -> Op | None:
    """Read ``flatten`` of all axes but the batch; any other is an ordinary view."""
    out = event.outputs[0]
    if len(sample_shape(out.shape, batch)) == 1 and out.shape[0] == batch:
        return make_op("flatten", shape=input_sample_shape(event, batch))
    return read_view(event, batch)


def read_view(event: Event, batch: int) -> Op | None:
    """Read a view that keeps the batch axis; return None for any other."""
    x, out = first_tensor(event), event.outputs[0]
    if len(event.outputs) != 1 or out.shape[:1] != x.shape[:1] or x.shape[:1] != (batch,):
        return None
    if event.name in ("view", "reshape", "unflatten", "squeeze", "unsqueeze"):
        is_flat = out.dim() == 2 and x.dim() > 2
        kind = "flatten" if is_flat else "view"
        sizes = {} if is_flat else {"out": tuple(out.shape[1:])}
        return make_op(kind, **sizes, shape=input_sample_shape(event, batch))
    return None


def read_permute(event: Event, batch: int) -> Op | None:
    """Read ``permute`` and ``transpose`` that keep the batch axis first; None for any other."""
    x = first_tensor(event)
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
    return make_op("permute", order=sample_order, shape=input_sample_shape(event, batch))


def read_getitem(event: Event, batch: int) -> Op | None:
    """Read ``x[:, -1]`` as the last token; other indexing is a copy, or a view without a kind."""
    index = event.args[1]
    everything = slice(None, None, None)
    if isinstance(index, tuple) and len(index) >= 2 and index[0] == everything:
        is_last = isinstance(index[1], int) and index[1] == -1
        if is_last and all(item == everything for item in index[2:]):
            return make_op("last", shape=input_sample_shape(event, batch))
    if not event.forward.launches:
        return None
    return read_index(event, batch) if has_index_tensors(index) else read_elementwise(event, batch)


def read_mean(event: Event, batch: int) -> Op:
    """Read ``mean`` over axes of a sample; over others it is elementwise with a smaller output."""
    x, out = first_tensor(event), event.outputs[0]
    given = bind_arguments(event, "input", "dim", "keepdim")
    axes = given.get("dim")
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    sample_axes = tuple(sorted(axis % x.dim() - 1 for axis in axes))
    shape = input_sample_shape(event, batch)
    fn = function_name(event)
    if not axes or min(sample_axes) < 0 or given.get("keepdim") or x.shape[0] != batch:
        return make_op("elementwise", fn=fn, out=sample_shape(out.shape, batch), shape=shape)
    return make_op("elementwise", fn=fn, axes=sample_axes, shape=shape)


def read_elementwise(event: Event, batch: int) -> Op:
    """Read any function that passes over elements: an activation, a sum, a product, a copy."""
    fn = function_name(event)
    out = sample_shape(event.outputs[0].shape, batch)
    sizes: dict[str, Any] = {"fn": _NAMES[fn](event) if fn in _NAMES else fn}
    shape = input_sample_shape(event, batch)
    if fn in ("add", "mul", "sub", "div", "where", "concat"):
        shape = out
    if math.prod(out) != math.prod(shape):
        sizes["out"] = out
    if event.is_fused:
        sizes["passes"] = max(1, event.forward.launches)
    return make_op("elementwise", shape=shape, **sizes)


def _name_interpolation(event: Event) -> str:
    """Name the mode: gradients of linear modes take many times as long as those of the nearest."""
    given = bind_arguments(event, "input", "size", "scale_factor", "mode")
    return f"interpolate {given.get('mode', 'nearest')}"


def _name_concat(event: Event) -> str:
    """Name the axis unless it is the channel axis, the only one that can be rebuilt."""
    given = bind_arguments(event, "tensors", "dim")
    axis = given.get("dim", 0) % event.outputs[0].dim()
    return "concat" if axis == 1 else f"concat along {axis}"


_NAMES = {"concat": _name_concat, "interpolate": _name_interpolation}
"""Functions whose arguments decide what runs."""
