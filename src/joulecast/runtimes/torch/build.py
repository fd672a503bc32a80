"""Build an ``nn.Module`` from a Network.

Each layer becomes a BuiltLayer, each group of layers a Block, and the whole a BuiltNet that passes
results between them. Reading a built network returns the same Network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from joulecast.errors import InputError, NetError
from joulecast.kinds import (
    APPENDS,
    CheckpointSegment,
    count_operand,
    find_kind,
    input_shape,
    list_checkpoint_segments,
    output_shape,
)
from joulecast.records import Layer, Network, Op
from joulecast.runtimes.buildable import can_build_op
from joulecast.runtimes.input_fits import Shape, concat_channels_to_fit, is_op_join
from joulecast.runtimes.torch.inputs import (
    choose_adapters,
    convert_weights_to_channels_last,
    fit_channels,
    is_channels_last,
    view_transposed,
)
from joulecast.runtimes.torch.modules import (
    DECOMPOSED_ACTIVATIONS,
    BagOfEmbeddings,
    CacheAppend,
    ConcatPlaceholder,
    DecomposedRMSNorm,
    ElementwisePlaceholder,
    FunctionModule,
    GroupedLinear,
    IndexedElements,
    MatrixProduct,
    OperandModule,
    PackedSdpa,
    RecurrentOutput,
    ScatteredElements,
    SelfAttention,
    SortedElements,
    find_function,
    slice_twice,
    view_and_copy_gradient,
)
from joulecast.runtimes.wiring import LayerWiring, plan_wiring


def build_net(network: Network) -> nn.Module:
    """Return the module that a Network describes, with fresh weights.

    Raises:
        NetError: The network is empty, or was read from a module that cannot be rebuilt.
    """
    if not network.layers:
        raise NetError("an empty network cannot be built: it has no layers")
    if not network.buildable:
        raise NetError(
            f"{network.name or 'this network'} was read from a module or file that cannot be "
            "rebuilt from its layers: give the module itself (file.py:make_net), or run an ONNX "
            "file with --on onnx:cpu"
        )
    try:
        net = BuiltNet(network)
    except (InputError, RuntimeError, ValueError) as error:
        raise NetError(f"{network.name or 'the network'} cannot be built: {error}") from error
    for layer, module in zip(network.layers, net.layer_modules(), strict=True):
        module.requires_grad_(layer.trains)
    return net


def build_seeded(network: Network, seed: int) -> nn.Module:
    """Return the module with weights drawn from ``seed``; the global generator is not advanced."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_net(network)


class BuiltNet(nn.Module):
    """All layers in call order; a result is released after its last reader."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.plan = _plan_calls(network)
        self.starts: list[int] = []
        ends = dict(network.groups)
        layers = _build_layers(network, self.plan.wiring)
        index = 0
        while index < len(network.layers):
            self.starts.append(index)
            stop = ends.get(index, index + 1)
            if index in ends:
                self.parts.append(Block(layers[index:stop], self.plan, index))
            else:
                self.parts.append(layers[index])
            index = stop

    def layer_modules(self) -> list[nn.Module]:
        """Return the module of every layer, in order."""
        modules: list[nn.Module] = []
        for part in self.parts:
            modules += list(part.layers) if isinstance(part, Block) else [part]
        return modules

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results: list[Any] = [x]
        _run_parts(self.parts, self.starts, self.plan, results)
        last: torch.Tensor = results[-1]
        return last


class Block(nn.Module):
    """A repeated group of layers. Reading recognises it by its class name."""

    def __init__(self, layers: Sequence[BuiltLayer], plan: CallPlan, start: int) -> None:
        super().__init__()
        self.plan = plan
        self.starts = list(range(start, start + len(layers)))
        self.layers = nn.ModuleList(layers)

    def forward(self, results: list[Any]) -> None:
        _run_parts(self.layers, self.starts, self.plan, results)


class BuiltLayer(nn.Module):
    """One layer: a join of its inputs, its operator and its tail.

    Args:
        layer: The layer to build.
        shapes: Sample shapes of its inputs, which may differ from those that it expects.
    """

    def __init__(self, layer: Layer, shapes: Sequence[Shape] = ()) -> None:
        super().__init__()
        shape = input_shape(layer)
        self.adapters = choose_adapters(layer, shapes)
        self.concat_channels = concat_channels_to_fit(layer, shapes)
        self.join = None if is_op_join(layer) else JOINS.get(layer.join)
        self.transposed = layer.transposed
        self.op = build_op(layer, shape)
        if layer.channels_last_weights:
            convert_weights_to_channels_last(self.op)
        shape = find_kind(layer.kind).out_shape(layer.sizes, shape)
        tail = []
        for op in layer.tail:
            tail.append(build_op(op, shape))
            shape = find_kind(op.kind).out_shape(op.sizes, shape)
        self.tail = nn.ModuleList(tail)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.adapters:
            inputs = tuple(
                adapt(x) if adapt else x for adapt, x in zip(self.adapters, inputs, strict=True)
            )
        if self.concat_channels:
            inputs = fit_channels(inputs, self.concat_channels)
        if self.transposed:
            inputs = tuple(
                view_transposed(x) if i in self.transposed else x for i, x in enumerate(inputs)
            )
        x = self.op(self.join(*inputs)) if self.join else self.op(*inputs)
        for op in self.tail:
            x = op(x)
        return x


@dataclass(frozen=True)
class CallPlan:
    """How the layers of a network are called: what each reads, and which are checkpointed.

    Attributes:
        segments: Layers that are checkpointed together, by the number of the first.
    """

    wiring: Sequence[LayerWiring]
    segments: Mapping[int, SegmentWiring]


def _plan_calls(network: Network) -> CallPlan:
    wiring = plan_wiring(network)
    segments = [plan_segment(one, wiring) for one in list_checkpoint_segments(network)]
    return CallPlan(wiring, {one.segment.start: one for one in segments})


def _run_parts(parts: nn.ModuleList, starts: list[int], plan: CallPlan, results: list[Any]) -> None:
    """Call layers and blocks one after another; ``starts`` has the number of their first layer."""
    segments = plan.segments if parts.training and torch.is_grad_enabled() else {}
    for position, (start, part) in enumerate(zip(starts, parts, strict=True)):
        if len(results) > start + 1:
            # It ran in a segment with those before it.
            continue
        if isinstance(part, Block):
            part(results)
        elif start in segments:
            segment = segments[start]
            run_segment(segment, list(parts)[position : position + len(segment.layers)], results)
        else:
            _run_layer(plan.wiring[start], part, results)


def _run_layer(wiring: LayerWiring, layer: nn.Module, results: list[Any]) -> None:
    """Call one layer, store its result, and release results that no later layer reads."""
    result = layer(*[results[read] for read in wiring.reads])
    for released in wiring.last_reads:
        results[released] = None
    results.append(result)


def _build_layers(network: Network, wiring: Sequence[LayerWiring]) -> list[BuiltLayer]:
    shapes = [network.input.shape, *map(output_shape, network.layers)]
    return [
        BuiltLayer(layer, [shapes[read] for read in inputs.reads])
        for layer, inputs in zip(network.layers, wiring, strict=True)
    ]


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


@dataclass(frozen=True)
class SegmentWiring:
    """What the layers of a segment exchange with the rest of their network.

    Attributes:
        layers: What each layer reads.
        inputs: Results from outside that the segment reads.
        outputs: Results of the segment that are read outside of it.
    """

    segment: CheckpointSegment
    layers: tuple[LayerWiring, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def plan_segment(segment: CheckpointSegment, wiring: Sequence[LayerWiring]) -> SegmentWiring:
    """Return what a segment of a network with this wiring reads and gives."""
    inside = tuple(wiring[segment.start : segment.stop])
    inputs = {read for layer in inside for read in layer.reads if read <= segment.start}
    later = {read for layer in wiring[segment.stop :] for read in layer.reads}
    given = range(segment.start + 1, segment.stop + 1)
    outputs = [result for result in given if result in later or result == len(wiring)]
    return SegmentWiring(segment, inside, tuple(sorted(inputs)), tuple(outputs))


def run_segment(wiring: SegmentWiring, layers: Sequence[nn.Module], results: list[Any]) -> None:
    """Call the layers of a segment and store the results that others read.

    Nothing is kept of the layers inside; backward runs them forward again.
    """
    # Compiled functions must not change what lies outside of them.
    first = wiring.segment.start

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known = dict(zip(wiring.inputs, inputs, strict=True))
        for offset, (reads, layer) in enumerate(zip(wiring.layers, layers, strict=True)):
            known[first + offset + 1] = layer(*[known[read] for read in reads.reads])
        return tuple([known[output] for output in wiring.outputs])

    given = [results[read] for read in wiring.inputs]
    # Layers that are marked run again as a whole.
    stops = set_checkpoint_early_stop(False) if wiring.segment.repeats_last else nullcontext()
    with nullcontext() if torch.compiler.is_compiling() else stops:
        given_out = run_checkpointed(run, *given)
    outputs = dict(zip(wiring.outputs, given_out, strict=True))
    for layer in wiring.layers:
        for released in layer.last_reads:
            if released <= first:
                results[released] = None
    results += [outputs.get(first + offset + 1) for offset in range(len(layers))]


def run_checkpointed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of which only the inputs are kept for backward."""
    # Random states cannot be read while a CUDA graph is captured; dropout then draws other masks.
    keeps_random = torch.compiler.is_compiling() or not _is_capturing()
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=keeps_random, **kwargs
    )


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
