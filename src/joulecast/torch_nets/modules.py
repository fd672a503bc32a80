"""Build a ``torch.nn`` module for one operator: one builder per kind.

Operators of layers that cannot be rebuilt, because they move elements by index or pass over them by
a function that is not listed here, get a placeholder: it moves as many elements by the same
kernels, but not the same ones. Indices are drawn in the first call and kept, as a module's own are
computed before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.operators import APPENDS, Shape, count_operand, find_kind
from joulecast.operators.building import can_build_op, find_operand_shape
from joulecast.records import Op, Sizes
from joulecast.system.errors import NetError
from joulecast.torch_nets.inputs import fit_channels, fit_shape, is_channels_last

OpBuilder = Callable[[Op, Shape], nn.Module]
SampleFunction = Callable[[torch.Tensor, Shape], torch.Tensor]
"""A function of a batch and of the shape of an output sample."""

# Grouped products refuse rows that are not a multiple of this.
_ALIGNED_BYTES = 16
_IMAGE_BATCH_AXES = 4


def build_op(op: Op, shape: Shape) -> nn.Module:
    """Return a module for an operator on samples of this shape, with fresh weights."""
    return OP_BUILDERS[op.kind](op, shape)


def _build_conv(op: Op, shape: Shape) -> nn.Module:
    names = ["stride", "padding", "dilation", "groups"]
    names += ["output_padding"] if "transpose" in op.kind else []
    options = {name: op.sizes[name] for name in names}
    way = "ConvTranspose" if "transpose" in op.kind else "Conv"
    cls: Callable[..., nn.Module] = getattr(nn, f"{way}{len(op.sizes['kernel'])}d")
    widths = op.sizes["cin"], op.sizes["cout"], op.sizes["kernel"]
    return cls(*widths, bias=bool(op.sizes["bias"]), **options)


def _build_recurrent(op: Op, shape: Shape) -> nn.Module:
    cls: Callable[..., nn.Module] = getattr(nn, op.kind.upper())
    inner = cls(
        op.sizes["cin"],
        op.sizes["hidden"],
        num_layers=op.sizes["depth"],
        bias=bool(op.sizes["bias"]),
        bidirectional=bool(op.sizes["bidirectional"]),
        batch_first=True,
    )
    # Without the final states.
    return AdaptedModule(inner, lambda module, x: module(x)[0])


def _build_attention(op: Op, shape: Shape) -> nn.Module:
    width, heads, bias = op.sizes["width"], op.sizes["heads"], bool(op.sizes["bias"])
    inner = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def attend(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        # Sequences that attend only to themselves are samples.
        rows = x.flatten(0, 1) if x.dim() > 3 else x
        out: torch.Tensor = module(rows, rows, rows, need_weights=False)[0]
        return out.view(x.shape) if x.dim() > 3 else out

    return AdaptedModule(inner, attend)


def _build_embedding_bag(op: Op, shape: Shape) -> nn.Module:
    bags = op.sizes["bags"]
    inner = nn.EmbeddingBag(op.sizes["vocabulary"], op.sizes["width"], mode="sum")

    def add_up(module: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        if bags == 1:
            out: torch.Tensor = module(tokens)
            return out
        per_bag = max(1, tokens.shape[1] // bags)
        rows = module(tokens[:, : per_bag * bags].reshape(-1, per_bag))
        return fit_shape(rows.reshape(tokens.shape[0], -1), (bags, rows.shape[-1]))

    return AdaptedModule(inner, add_up)


def _build_batch_norm(op: Op, shape: Shape) -> nn.Module:
    cls: Callable[..., nn.Module] = getattr(nn, f"BatchNorm{max(1, len(shape) - 1)}d")
    return cls(shape[0], affine=bool(op.sizes["affine"]))


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
    # adaptive_avg over two axes is AdaptiveAvgPool2d.
    sizes, way = op.sizes, op.sizes["fn"].title().replace("_", "")
    cls: Callable[..., nn.Module] = getattr(nn, f"{way}Pool{len(sizes['kernel'])}d")
    if way.startswith("Adaptive"):
        return cls(sizes["kernel"])
    window = sizes["kernel"], sizes["stride"], sizes["padding"]
    return cls(*window, ceil_mode=bool(sizes["ceil"]))


def _build_elementwise(op: Op, shape: Shape) -> nn.Module:
    fn = op.sizes["fn"]
    out_shape = find_kind(op.kind).out_shape(op.sizes, shape)
    if fn.startswith("concat along"):
        return FunctionModule(partial(concat_elements, out_shape))
    if fn in APPENDS:
        return CacheAppend(shape, out_shape, fn == "append strided")
    if count_operand(op.sizes) and op.sizes["inputs"] == 1:
        is_learned = bool(op.sizes["params"])
        return OperandModule(fn, count_operand(op.sizes), shape, is_learned)
    if not can_build_op(op):
        function = find_function(fn, shape, out_shape)
        if function is not None:
            return FunctionModule(function)
        return FunctionModule(partial(pass_over, op.sizes["passes"], out_shape))
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
    return FunctionModule(partial(multiply, second_shape(op.sizes)))


def _build_view(op: Op, shape: Shape) -> nn.Module:
    out = op.sizes["out"]
    if math.prod(out) != math.prod(shape):
        raise NetError(f"a tensor of shape {shape} cannot be viewed as {tuple(out)}")
    return FunctionModule(lambda x: x.reshape(x.shape[0], *out))


def _build_permute(op: Op, shape: Shape) -> nn.Module:
    order = [axis + 1 for axis in op.sizes["order"]]
    return FunctionModule(lambda x: x.permute(0, *order))


# ---------------------------------------------------------------------------------------------
# Functions that can be rebuilt


def _copy(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor; channels that a permutation interleaved are copied in their new order."""
    is_shuffled = x.dim() > _IMAGE_BATCH_AXES and not is_channels_last(x)
    return x.clone(memory_format=torch.contiguous_format) if is_shuffled else x.clone()


JOINS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda *inputs: reduce(torch.add, inputs),
    "mul": lambda *inputs: reduce(torch.mul, inputs),
    "concat": lambda *inputs: torch.cat(inputs, dim=1),
}
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("sigmoid", "tanh", "neg")},
    **{
        name: getattr(F, name)
        for name in (
            *("relu", "relu6", "gelu", "silu", "leaky_relu", "elu", "selu", "hardswish"),
            *("hardsigmoid", "softplus", "mish", "hardtanh"),
        )
    },
    "cumsum": lambda x: torch.cumsum(x, dim=-1),
    "copy": _copy,
    "add": lambda x: x + 1.0,
    "mul": lambda x: x * 0.5,
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
}

# ---------------------------------------------------------------------------------------------
# Functions that cannot be rebuilt, each as networks call it. One may run kernels of its own in the
# backward pass: the gradient of a maximum compares, that of a bilinear interpolation adds
# atomically and can take fifty times as long as a copy.


class OperandModule(nn.Module):
    """Arithmetic with a tensor that no layer computes: a learned scale, a table of rotations.

    Args:
        fn: ``add``, ``sub``, ``mul`` or ``div``.
        size: Elements of the operand.
        shape: Shape of a sample.
        is_learned: Whether it is a parameter.
    """

    def __init__(self, fn: str, size: int, shape: Shape, is_learned: bool) -> None:
        super().__init__()
        self.function: Callable[..., torch.Tensor] = getattr(torch, fn)
        operand = torch.ones(find_operand_shape(size, shape))
        if is_learned:
            self.operand = nn.Parameter(operand)
        else:
            self.register_buffer("operand", operand, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.operand)


def find_function(fn: str, shape: Shape, out: Shape) -> Callable[..., torch.Tensor] | None:
    """Return the function that is called so, if it turns samples of one shape into the other."""
    function = _SAMPLE_FUNCTIONS.get(fn)
    if function is None:
        return None
    sample = torch.empty((1, *shape), device="meta")
    try:
        found = function(sample, out)
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        return None
    # Further inputs, such as labels, are not differentiated.
    return (lambda x, *_: function(x, out)) if tuple(found.shape[1:]) == out else None


def _make_reduction(function: Callable[..., torch.Tensor]) -> SampleFunction:
    def reduce(x: torch.Tensor, out: Shape) -> torch.Tensor:
        shape = tuple(x.shape[1:])
        for axis in range(len(shape)):
            if out == shape[:axis] + shape[axis + 1 :]:
                return function(x, axis + 1)
            if out == (*shape[:axis], 1, *shape[axis + 1 :]):
                return function(x, axis + 1).unsqueeze(axis + 1)
        return function(x.flatten(1), 1).reshape(-1, *out)

    return reduce


def _interpolate(mode: str, x: torch.Tensor, out: Shape) -> torch.Tensor:
    return F.interpolate(x, size=out[1:], mode=mode)


def _apply(function: Callable[[torch.Tensor], torch.Tensor]) -> SampleFunction:
    return lambda x, out: function(x)


def _halve_axis(x: torch.Tensor, out: Shape) -> torch.Tensor:
    return F.glu(x, _find_changed_axis(x, out))


def _repeat(x: torch.Tensor, out: Shape) -> torch.Tensor:
    axis = _find_changed_axis(x, out)
    return x.repeat_interleave(out[axis - 1] // x.shape[axis], axis)


def _find_changed_axis(x: torch.Tensor, out: Shape) -> int:
    """Return the axis of a batch that has another size in the output."""
    axes = [i for i, size in enumerate(out, start=1) if i < x.dim() and size != x.shape[i]]
    if len(axes) != 1:
        raise ValueError(f"{tuple(x.shape[1:])} does not become {out} along one axis")
    return axes[0]


def _compute_loss(x: torch.Tensor, out: Shape) -> torch.Tensor:
    logits = x.flatten(0, -2)
    labels = torch.zeros(len(logits), dtype=torch.long, device=x.device)
    loss = F.cross_entropy(logits, labels)
    return loss.expand(len(x), *out)


def _roll(x: torch.Tensor) -> torch.Tensor:
    axes = tuple(range(1, x.dim()))[:2]
    return torch.roll(x, (1,) * len(axes), axes)


_SAMPLE_FUNCTIONS: dict[str, SampleFunction] = {
    **{
        name: _make_reduction(getattr(torch, name))
        for name in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "norm")
    },
    "max": _make_reduction(lambda x, axis: x.max(axis).values),
    "min": _make_reduction(lambda x, axis: x.min(axis).values),
    **{
        f"interpolate {mode}": partial(_interpolate, mode)
        for mode in ("nearest", "linear", "bilinear", "bicubic", "trilinear", "area")
    },
    **{
        name: _apply(getattr(torch, name))
        for name in ("exp", "log", "log1p", "sqrt", "rsqrt", "square", "abs", "sin", "cos", "erf")
    },
    "clamp": _apply(lambda x: x.clamp(-1.0, 1.0)),
    "pow": _apply(lambda x: x.pow(2)),
    "float": _apply(lambda x: x.float()),
    "logsigmoid": _apply(F.logsigmoid),
    "celu": _apply(F.celu),
    "normalize": _apply(lambda x: F.normalize(x, dim=-1)),
    "roll": _apply(_roll),
    "glu": _halve_axis,
    "repeat_interleave": _repeat,
    "cross_entropy": _compute_loss,
}


# ---------------------------------------------------------------------------------------------
# Modules that torch.nn does not have


class PackedSdpa(nn.Module):
    """Scaled dot-product attention whose query, key and value are concatenated on the last axis."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.op = Op(op.kind, op.sizes)
        self.heads, self.kv_heads = op.sizes["heads"], op.sizes["kv_heads"]
        self.head_dim = op.sizes["head_dim"]
        self.causal = bool(op.sizes["causal"])
        self.tokens = op.sizes["tokens"]
        self.kv_tokens = op.sizes["kv_tokens"]
        self.windows = op.sizes.get("windows", 1)
        self.cache: dict[str, torch.Tensor] = {}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.windows > 1:
            # A window attends only to itself: windows are samples.
            out = self._attend(tuple(self._split_windows(x) for x in inputs))
            return out.reshape(-1, self.windows, self.tokens, out.shape[-1])
        return self._attend(inputs)

    def _attend(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        query, key, value = self._split_inputs(inputs)
        is_grouped = self.heads != self.kv_heads
        # A fourth input is a bias of the scores, such as relative positions.
        bias = None
        if len(inputs) > 3:
            bias = fit_shape(inputs[3], (1, self.tokens, self.kv_tokens)).to(query.dtype)
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            is_causal=self.causal and bias is None,
            enable_gqa=is_grouped,
        )
        return out.transpose(1, 2).reshape(out.shape[0], self.tokens, -1)

    def drop_heads(self, count: int) -> None:
        """Remove heads; the layers before and after must lose the same channels."""
        sizes = dict(self.op.sizes)
        self.heads = sizes["heads"] = self.heads - count
        self.kv_heads = sizes["kv_heads"] = self.kv_heads - count
        self.op = Op(self.op.kind, Sizes(sizes))

    def _split_windows(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 4 and x.shape[1] == self.windows:
            return x.flatten(0, 1)
        widths = self.heads * self.head_dim
        return fit_shape(x, (self.windows, self.tokens, widths)).flatten(0, 1)

    def _split_inputs(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return query, key and value by heads, from one packed input or from several."""
        sizes = [heads * self.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)]
        if len(inputs) == 1 and inputs[0].shape[1:] == (self.tokens, sum(sizes)):
            inputs = inputs[0].split(sizes, dim=-1)
        last = len(inputs) - 1
        query, key, value = inputs[0], inputs[min(1, last)], inputs[min(2, last)]
        return (
            self._split_heads(query, self.tokens, self.heads, "query"),
            self._split_heads(key, self.kv_tokens, self.kv_heads, "key"),
            self._split_heads(value, self.kv_tokens, self.kv_heads, "value"),
        )

    def _split_heads(self, x: torch.Tensor, tokens: int, heads: int, name: str) -> torch.Tensor:
        if x.shape[1:] == (heads, tokens, self.head_dim):
            return x
        if x.shape[1:] != (tokens, heads * self.head_dim):
            if tokens > self.tokens and not torch.is_grad_enabled():
                return self._read_cache(name, x, (x.shape[0], heads, tokens, self.head_dim))
            # Another sequence, or a view was lost on reading: any elements will do.
            x = fit_shape(x, (tokens, heads * self.head_dim))
        return x.view(x.shape[0], tokens, heads, self.head_dim).transpose(1, 2)

    def _read_cache(self, name: str, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the keys or values of earlier tokens, which inference has computed before."""
        known = self.cache.get(name)
        if known is None or (known.shape, known.dtype) != (shape, x.dtype):
            self.cache[name] = known = torch.randn(shape, dtype=x.dtype, device=x.device)
        return known


class CacheAppend(nn.Module):
    """Appends one token to the cached keys or values of earlier ones, as a copy of all of them.

    Args:
        shape: Shape of a sample of the new token.
        out: Shape with all tokens; it differs from ``shape`` along the tokens.
        is_strided: Whether the new token is a part of a wider tensor.
    """

    def __init__(self, shape: Shape, out: Shape, is_strided: bool) -> None:
        super().__init__()
        self.axis = next((i for i, size in enumerate(shape) if size != out[i]), 0)
        tokens = out[self.axis] - shape[self.axis]
        self.cached_shape = (*out[: self.axis], tokens, *out[self.axis + 1 :])
        self.is_strided = is_strided
        self.cache: torch.Tensor | None = None
        self.wide: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache is None or self.cache.shape[0] != x.shape[0] or self.cache.dtype != x.dtype:
            self.cache = x.new_zeros((x.shape[0], *self.cached_shape))
            self.wide = x.new_zeros((x.shape[0], 3, *x.shape[1:]))
        assert self.wide is not None
        new = self.wide[:, 0] if self.is_strided else x
        return torch.cat([self.cache, new], dim=self.axis + 1)


class DecomposedRMSNorm(nn.Module):
    """RMSNorm in elementary operators, as model libraries write it."""

    def __init__(self, width: int, affine: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        out = wide.to(x.dtype)
        return out if self.weight is None else self.weight * out


class NewGELUActivation(nn.Module):
    """GELU with the tanh approximation in elementary operators; under autocast pow runs in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class QuickGELUActivation(nn.Module):
    """GELU with the sigmoid approximation in elementary operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


# Keys are the lower-case class names that reading gives them, here and in model libraries.
DECOMPOSED_ACTIVATIONS = {
    cls.__name__.lower(): cls for cls in (NewGELUActivation, QuickGELUActivation)
}


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class AdaptedModule(nn.Module):
    """A module that is called by a function, with itself as the first argument."""

    def __init__(self, inner: nn.Module, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self.inner, *inputs)


# ---------------------------------------------------------------------------------------------
# Modules that move elements by index or multiply them by experts, for layers measured alone


class GroupedLinear(nn.Module):
    """Experts of a mixture, each multiplying an equal share of the rows."""

    def __init__(self, experts: int, cin: int, cout: int, is_half: bool) -> None:
        super().__init__()
        self.is_half = is_half
        self.weight = nn.Parameter(torch.randn(experts, cout, cin) / math.sqrt(cin))
        self.offsets: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        # Autocast casts neither rows nor weights of a grouped product; some modules do.
        is_half = self.is_half and torch.is_autocast_enabled(x.device.type)
        dtype = torch.bfloat16 if is_half else self.weight.dtype
        weight = self.weight.to(dtype).transpose(1, 2)
        out = _multiply_groups(rows.to(dtype), weight, self._find_offsets(rows))
        return out.reshape(*x.shape[:-1], -1)

    def _find_offsets(self, rows: torch.Tensor) -> torch.Tensor:
        experts = self.weight.shape[0]
        if self.offsets is None or self.offsets.device != rows.device:
            ends = [rows.shape[0] * (one + 1) // experts for one in range(experts)]
            self.offsets = torch.tensor(ends, dtype=torch.int32, device=rows.device)
        return self.offsets


class IndexedElements(nn.Module):
    """Selection by index tensors along some axes, across samples, or for each element."""

    def __init__(self, sizes: Sizes, shape: Shape) -> None:
        super().__init__()
        self.axes, self.across, self.out = sizes["axes"], sizes["across"], tuple(sizes["out"])
        self.table: nn.Parameter | None = None
        if sizes["params"]:
            self.table = nn.Parameter(torch.randn(sizes["params"]))
        self.indices: tuple[torch.Tensor, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is not None:
            return self._select_rows(self.table, x.shape[0])
        if self.across and x.dim() > 1:
            rows = x.flatten(0, 1)
            wanted = x.shape[0] * self.out[0]
            (index,) = self._draw(x, [rows.shape[0]], wanted)
            return fit_shape(rows[index].reshape(x.shape[0], -1), self.out)
        if not self.axes or max(self.axes) + 1 >= x.dim():
            flat = x.flatten(1)
            (index,) = self._draw(x, [flat.shape[1]], x.shape[0] * math.prod(self.out))
            return flat.gather(1, index.reshape(x.shape[0], -1)).reshape(-1, *self.out)
        rest = math.prod(size for i, size in enumerate(x.shape[1:]) if i not in self.axes)
        wanted = max(1, math.prod(self.out) // rest)
        indices = self._draw(x, [x.shape[axis + 1] for axis in self.axes], wanted)
        selected: list[Any] = [slice(None)] * (max(self.axes) + 2)
        for axis, one in zip(self.axes, indices, strict=True):
            selected[axis + 1] = one
        return fit_shape(x[tuple(selected)], self.out)

    def _select_rows(self, table: torch.Tensor, batch: int) -> torch.Tensor:
        width = self.out[-1] if table.numel() % self.out[-1] == 0 else 1
        rows = table.reshape(-1, width)
        (index,) = self._draw(rows, [rows.shape[0]], batch * math.prod(self.out) // width)
        return rows[index].reshape(batch, *self.out)

    def _draw(self, x: torch.Tensor, limits: list[int], count: int) -> tuple[torch.Tensor, ...]:
        is_fitting = self.indices and self.indices[0].numel() == count
        if not is_fitting or self.indices[0].device != x.device:
            self.indices = tuple(
                torch.randint(0, limit, (count,), device=x.device) for limit in limits
            )
        return self.indices


class ScatteredElements(nn.Module):
    """Addition of rows to arbitrary places of a tensor."""

    def __init__(self, sizes: Sizes, shape: Shape) -> None:
        super().__init__()
        self.source, self.copies = tuple(sizes["source"]), sizes["copies"]
        self.index: torch.Tensor | None = None

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        x, source = inputs[0].flatten(1), fit_shape(inputs[-1], self.source).flatten(1)
        if self.index is None or self.index.shape != source.shape:
            self.index = torch.randint(0, x.shape[1], source.shape, device=x.device)
        target = x if self.copies else x * 1.0
        return target.scatter_add(1, self.index, source.to(x.dtype)).reshape(inputs[0].shape)


def sort_elements(fn: str, out: Shape, x: torch.Tensor) -> torch.Tensor:
    """Sort the last axis, or return its largest elements."""
    if fn == "topk" and out[-1] < x.shape[-1]:
        return fit_shape(x.topk(out[-1], dim=-1).values, out)
    return fit_shape(x.sort(dim=-1).values, out)


def pass_over(passes: int, out: Shape, *inputs: torch.Tensor) -> torch.Tensor:
    """Pass over elements as often as a function does that cannot be rebuilt.

    It reproduces memory traffic, not values: a hand-written activation costs what its passes cost.
    A network with such a function is not ``buildable``, but a variant can still contain its layer.
    """
    x = reduce(torch.add, inputs)
    for _ in range(passes - (len(inputs) > 1)):
        x = x * 0.5
    return x if tuple(x.shape[1:]) == out else fit_shape(x, out)


def concat_elements(out: Shape, *inputs: torch.Tensor) -> torch.Tensor:
    """Concatenate along an axis that cannot be rebuilt: the same elements, copied once."""
    if len(inputs) == 1:
        return fit_shape(inputs[0].clone(), out)
    flat = [x.flatten(1) for x in inputs]
    if sum(x.shape[1] for x in flat) > math.prod(out):
        # The module concatenated only slices of them.
        flat = [x[:, : max(1, math.prod(out) // len(flat))] for x in flat]
    return torch.cat(fit_channels(flat, math.prod(out)), dim=1).reshape(-1, *out)


def multiply(right_shape: Shape, *inputs: torch.Tensor) -> torch.Tensor:
    """Return the matrix product of two inputs, or of one input with itself."""
    right = inputs[1] if len(inputs) > 1 else fit_shape(inputs[0], right_shape)
    return torch.matmul(inputs[0], right)


def slice_twice(out: Shape, x: torch.Tensor) -> torch.Tensor:
    """Return the first elements of each sample in shape ``out``, and read one other slice.

    The gradients of both are padded with zeros and summed.
    """
    flat = x.flatten(1)
    first = fit_shape(flat, out)
    return first + flat[:, -1:].reshape(-1, *([1] * len(out)))


class SlicedWeights(nn.Module):
    """A stack of weights, from which two are taken for each sample."""

    def __init__(self, params: int, out: Shape) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(1, params)), out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return slice_twice(self.out, self.weight).expand(len(x), *self.out)


def _build_slice(op: Op, shape: Shape) -> nn.Module:
    if op.sizes.get("params"):
        return SlicedWeights(op.sizes["params"], op.sizes["out"])
    return FunctionModule(partial(slice_twice, op.sizes["out"]))


def view_and_copy_gradient(out: Shape, x: torch.Tensor) -> torch.Tensor:
    """Return each sample in shape ``out`` without a copy; its gradient is copied.

    Of a larger tensor these are the first elements, as if the others were parts like them. A
    smaller one is expanded.
    """
    found: torch.Tensor = _CopiedGradient.apply(x, tuple(out))
    return found


class _CopiedGradient(torch.autograd.Function):
    """A view. The parts of its gradient are concatenated, or an expanded axis is summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, out: Shape) -> torch.Tensor:
        ctx.shape = x.shape
        size, wanted = math.prod(x.shape[1:]), math.prod(out)
        flat = x.reshape(len(x), size)
        if wanted > size:
            return flat[:, 0].view(-1, *(1 for _ in out)).expand(-1, *out)
        return flat[:, :wanted].view(len(x), *out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        flat, size = grads[0].flatten(1), math.prod(ctx.shape[1:])
        times, rest = divmod(size, flat.shape[1])
        if not times:
            copies = flat.shape[1] // size
            whole = flat[:, : copies * size].view(len(flat), size, copies).sum(-1)
        elif times == 1 and not rest:
            whole = flat.clone()
        else:
            whole = torch.cat([flat] * times + ([flat[:, :rest]] if rest else []), dim=1)
        return whole.view(ctx.shape), None


def _multiply_groups(
    rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    is_aligned = all(size * rows.element_size() % _ALIGNED_BYTES == 0 for size in weight.shape[1:])
    if grouped_mm is not None and is_aligned:
        out: torch.Tensor = grouped_mm(rows, weight, offs=offsets)
        return out
    shares = rows.tensor_split(weight.shape[0])
    return torch.cat([share @ one for share, one in zip(shares, weight, strict=True)])


OP_BUILDERS: dict[str, OpBuilder] = {
    **{f"conv{dims}d": _build_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _build_conv for dims in (1, 2, 3)},
    "linear": lambda op, shape: nn.Linear(
        op.sizes["cin"], op.sizes["cout"], bias=bool(op.sizes["bias"])
    ),
    "embedding": lambda op, shape: nn.Embedding(op.sizes["vocabulary"], op.sizes["width"]),
    "embedding_bag": _build_embedding_bag,
    "grouped_linear": lambda op, shape: GroupedLinear(
        op.sizes["experts"], op.sizes["cin"], op.sizes["cout"], bool(op.sizes["half"])
    ),
    "index": lambda op, shape: IndexedElements(op.sizes, shape),
    "scatter": lambda op, shape: ScatteredElements(op.sizes, shape),
    "sort": lambda op, shape: FunctionModule(
        partial(sort_elements, op.sizes["fn"], tuple(op.sizes["out"]))
    ),
    "slice": _build_slice,
    "gradient_copy": lambda op, shape: FunctionModule(
        partial(view_and_copy_gradient, op.sizes["out"])
    ),
    **dict.fromkeys(("lstm", "gru", "rnn"), _build_recurrent),
    "attention": _build_attention,
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
