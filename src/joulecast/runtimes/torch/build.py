"""From a Network to an ``nn.Module`` that computes it.

Each layer becomes one small module of ordinary framework modules, each group of layers a Block,
and the whole a BuiltNet that hands every layer what it reads. Reading a built net gives the Network
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.errors import InputError, NetError
from joulecast.kinds import find_kind, input_shape, output_shape
from joulecast.records import Layer, Network, Op
from joulecast.runtimes.torch.memory_format import convert_weights_to_channels_last
from joulecast.runtimes.torch.modules import (
    DECOMPOSED_ACTIVATIONS,
    FunctionModule,
    ConcatPlaceholder,
    PackedSdpa,
    Recurrent,
    SelfAttention,
    MatrixProduct,
    DecomposedRMSNorm,
    ElementwisePlaceholder,
    take_one_element,
    fit_channels,
    fit_channels_last,
    fit_shape,
)

Shape = tuple[int, ...]
Fit = Callable[[torch.Tensor], torch.Tensor]

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
    "copy": torch.clone,
    "add": lambda x: x + 1.0,
    "mul": lambda x: x * 0.5,
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
}
_JOINS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "concat": lambda *inputs: torch.cat(inputs, dim=1),
}
BUILDABLE_FUNCTIONS = {
    *((name, 1) for name in _FUNCTIONS),
    ("mean", 1),
    ("add", 2),
    ("mul", 2),
    ("concat", 1),
}


def can_rebuild(op: Op) -> bool:
    """Whether an operator can be built so that it reads back the same."""
    if op.kind != "elementwise":
        return True
    spelled = op.sizes["fn"] in DECOMPOSED_ACTIVATIONS
    plain = not op.sizes["params"] and "out" not in op.sizes
    if not plain or spelled or op.sizes["passes"] > 1:
        return plain and spelled and op.sizes["inputs"] == 1
    known = (op.sizes["fn"], op.sizes["inputs"]) in BUILDABLE_FUNCTIONS
    return known and bool(op.sizes["axes"]) == (op.sizes["fn"] == "mean")


def build_seeded(network: Network, seed: int) -> nn.Module:
    """The same module with the same first weights for the same seed; others' draws stay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_net(network)


def build_net(network: Network) -> nn.Module:
    """The module that a Network describes, with fresh weights.

    Raises:
        NetError: The network is empty, or was read from a net that cannot be rebuilt.
    """
    if not network.layers:
        raise NetError("an empty network cannot be built: it has no layers")
    if not network.buildable:
        raise NetError(
            f"{network.name or 'this network'} was read from a net that cannot be rebuilt from "
            "its layers; give the net itself (file.py:make_net)"
        )
    try:
        net = BuiltNet(network)
    except (InputError, RuntimeError, ValueError) as error:
        raise NetError(f"{network.name or 'the network'} cannot be built: {error}") from error
    for layer, module in zip(network.layers, net.layer_modules(), strict=False):
        module.requires_grad_(layer.trains)
    return net


class BuiltLayer(nn.Module):
    """One layer: a join of what it reads, its operator, its tail.

    Args:
        layer: What it is.
        fed: Shapes of what it reads, where they may not be those that it takes.
    """

    def __init__(self, layer: Layer, fed: Sequence[Shape] = ()) -> None:
        super().__init__()
        shape = input_shape(layer)
        self.fits = _list_fits(layer, fed)
        self.channels = _find_channels(layer, fed)
        self.join = None if _joins_itself(layer) else _JOINS.get(layer.join)
        self.op = _build_op(layer, shape)
        if layer.channels_last_weights:
            convert_weights_to_channels_last(self.op)
        shape = find_kind(layer.kind).out_shape(layer.sizes, shape)
        tail = []
        for op in layer.tail:
            tail.append(_build_op(op, shape))
            shape = find_kind(op.kind).out_shape(op.sizes, shape)
        self.tail = nn.ModuleList(tail)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.fits:
            inputs = tuple(fit(x) if fit else x for fit, x in zip(self.fits, inputs, strict=False))
        if self.channels:
            inputs = fit_channels(inputs, self.channels)
        x = self.op(self.join(*inputs)) if self.join else self.op(*inputs)
        for op in self.tail:
            x = op(x)
        return x


@dataclass(frozen=True)
class Place:
    """Where a layer stands: which results it reads, and which nobody reads after it.

    Result 0 is the network's input, result i + 1 that of layer i.
    """

    reads: tuple[int, ...]
    drops: tuple[int, ...]


def plan_wiring(network: Network) -> list[Place]:
    """The place of every layer of a network."""
    reads = [
        # What reads weights only is given the input, as everything is given something.
        tuple(max(0, index + 1 - back) for back in layer.reads) or (0,)
        for index, layer in enumerate(network.layers)
    ]
    last_reader = {result: index for index, results in enumerate(reads) for result in results}
    return [
        Place(results, tuple(r for r in set(results) if last_reader[r] == index))
        for index, results in enumerate(reads)
    ]


class Block(nn.Module):
    """Layers that a net repeats together."""

    def __init__(self, layers: Sequence[BuiltLayer], places: Sequence[Place]) -> None:
        super().__init__()
        self.places = places
        self.layers = nn.ModuleList(layers)

    def forward(self, results: list[Any]) -> None:
        for place, layer in zip(self.places, self.layers, strict=False):
            run_layer(place, layer, results)


class BuiltNet(nn.Module):
    """All layers in call order; a result is dropped after its last reader."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.places = plan_wiring(network)
        self.starts: list[int] = []
        ends = dict(network.groups)
        layers = _build_layers(network, self.places)
        index = 0
        while index < len(network.layers):
            self.starts.append(index)
            stop = ends.get(index, index + 1)
            if index in ends:
                self.parts.append(Block(layers[index:stop], self.places[index:stop]))
            else:
                self.parts.append(layers[index])
            index = stop

    def layer_modules(self) -> list[nn.Module]:
        modules: list[nn.Module] = []
        for part in self.parts:
            modules += list(part.layers) if isinstance(part, Block) else [part]
        return modules

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results: list[Any] = [x]
        for start, part in zip(self.starts, self.parts, strict=False):
            if isinstance(part, Block):
                part(results)
            else:
                run_layer(self.places[start], part, results)
        last: torch.Tensor = results[-1]
        return last


def run_layer(place: Place, layer: nn.Module, results: list[Any]) -> None:
    """Run one layer on what it reads, keep its result, and let go of what nobody reads again."""
    result = layer(*[results[read] for read in place.reads])
    for dropped in place.drops:
        results[dropped] = None
    results.append(result)


def _build_layers(network: Network, places: Sequence[Place]) -> list[BuiltLayer]:
    shapes = [network.input.shape, *map(output_shape, network.layers)]
    return [
        BuiltLayer(layer, [shapes[read] for read in place.reads])
        for layer, place in zip(network.layers, places, strict=False)
    ]


def _list_fits(layer: Layer, fed: Sequence[Shape]) -> tuple[Fit | None, ...]:
    """What to do with each input of a layer so that it can be taken; nothing where all can.

    Reading a net loses views that no row describes. Its blocks are still run alone, so the same
    elements are looked at in the shape that the layer takes.
    """
    if layer.kind == "sdpa" or layer.join == "concat":
        return ()
    wanted = [input_shape(layer)] * len(fed)
    if layer.kind == "matmul" and len(fed) > 1:
        wanted[1] = _second_shape(layer, wanted[0])
    alone = len(fed) == 1 or layer.kind == "matmul"
    fits = tuple(
        _find_fit(layer, shape, want, alone) for shape, want in zip(fed, wanted, strict=False)
    )
    return fits if any(fits) else ()


def _find_channels(layer: Layer, fed: Sequence[Shape]) -> int:
    """How many channels a join of other widths has to come to; 0 where they add up by themselves.

    A layer that joins inputs of different widths is fed equal ones where it runs alone.
    """
    wanted = input_shape(layer)
    flat = str(layer.sizes.get("fn", "")).startswith("concat along")
    if layer.join != "concat" or flat or any(shape[1:] != wanted[1:] for shape in fed):
        return 0
    return 0 if sum(shape[0] for shape in fed) in (0, wanted[0]) else wanted[0]


def _find_fit(layer: Layer, shape: Shape, wanted: Shape, alone: bool) -> Fit | None:
    """What makes a shape the wanted one; beside others it may also be spread over it."""
    if shape == wanted or (not alone and _spreads(shape, wanted)):
        return None
    if alone or math.prod(shape) >= math.prod(wanted):
        fit = fit_channels_last if layer.channels_last else fit_shape
        return lambda x: fit(x, wanted)
    # Too few elements beside others: in the net it was spread, and one is as good as all.
    return lambda x: take_one_element(x, len(wanted))


def _spreads(shape: Shape, wanted: Shape) -> bool:
    """Whether a shape is broadcast to another one."""
    same = len(shape) == len(wanted)
    return same and all(one in (1, other) for one, other in zip(shape, wanted, strict=False))


def _joins_itself(layer: Layer) -> bool:
    fn = str(layer.sizes.get("fn", ""))
    return layer.kind == "elementwise" and (layer.join == fn or fn.startswith("concat along"))


def _build_op(op: Op, shape: Shape) -> nn.Module:
    kind = op.kind
    if kind.startswith("conv"):
        return _build_conv(op)
    return _BUILDERS[kind](op, shape)


def _build_conv(op: Op) -> nn.Module:
    s = op.sizes
    dims = kind_dims(op)
    names = ("kernel", "stride", "padding", "dilation", "groups")
    options = {name: s[name] for name in names}
    options["kernel_size"] = options.pop("kernel")
    if "transpose" in op.kind:
        maker: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        options["output_padding"] = s["output_padding"]
    else:
        maker = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    module: nn.Module = maker(s["cin"], s["cout"], bias=bool(s["bias"]), **options)
    return module


def kind_dims(op: Op) -> int:
    """Number of spatial axes of a convolution."""
    return len(op.sizes["kernel"])


def _build_recurrent(maker: Any) -> Callable[[Op, Shape], nn.Module]:
    def build(op: Op, shape: Shape) -> nn.Module:
        s = op.sizes
        inner = maker(
            s["cin"],
            s["hidden"],
            num_layers=s["depth"],
            bias=bool(s["bias"]),
            bidirectional=bool(s["bidirectional"]),
            batch_first=True,
        )
        return Recurrent(inner)

    return build


def _build_batch_norm(op: Op, shape: Shape) -> nn.Module:
    makers: Any = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    module: nn.Module = makers[len(shape) - 1](shape[0], affine=bool(op.sizes["affine"]))
    return module


def _build_rms_norm(op: Op, shape: Shape) -> nn.Module:
    affine = bool(op.sizes["affine"])
    if op.sizes.get("spelled", 0):
        return DecomposedRMSNorm(shape[-1], affine)
    return nn.RMSNorm(shape[-1], elementwise_affine=affine)


def _build_layer_norm(op: Op, shape: Shape) -> nn.Module:
    normed = shape[len(shape) - op.sizes["dims"] :]
    affine, bias = bool(op.sizes["affine"]), bool(op.sizes["bias"])
    return nn.LayerNorm(normed, elementwise_affine=affine, bias=bias)


def _build_pool(op: Op, shape: Shape) -> nn.Module:
    s = op.sizes
    dims = len(s["kernel"])
    fn = s["fn"].split("_")[-1]
    if s["fn"].startswith("adaptive"):
        makers: Any = {
            "avg": (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
            "max": (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
        }
        adaptive_module: nn.Module = makers[fn][dims - 1](s["kernel"])
        return adaptive_module
    plain: Any = {
        "avg": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    }
    module: nn.Module = plain[fn][dims - 1](
        s["kernel"], s["stride"], s["padding"], ceil_mode=bool(s["ceil"])
    )
    return module


def _build_elementwise(op: Op, shape: Shape) -> nn.Module:
    fn = op.sizes["fn"]
    if fn.startswith("concat along"):
        return ConcatPlaceholder(find_kind(op.kind).out_shape(op.sizes, shape))
    if not can_rebuild(op):
        return ElementwisePlaceholder(
            op.sizes["passes"], find_kind(op.kind).out_shape(op.sizes, shape)
        )
    if fn in DECOMPOSED_ACTIVATIONS:
        return DECOMPOSED_ACTIVATIONS[fn]()
    if fn == "mean":
        axes = [axis + 1 for axis in op.sizes["axes"]]
        return FunctionModule(lambda x: x.mean(axes))
    if fn in _JOINS and (op.sizes["inputs"] > 1 or fn not in _FUNCTIONS):
        return FunctionModule(_JOINS[fn])
    return FunctionModule(_FUNCTIONS[fn])


def _build_matmul(op: Op, shape: Shape) -> nn.Module:
    return MatrixProduct(_second_shape(op, shape))


def _second_shape(op: Op, shape: Shape) -> Shape:
    return (*shape[:-2], op.sizes["k"], op.sizes["n"])


def _build_view(op: Op, shape: Shape) -> nn.Module:
    out = op.sizes["out"]
    if math.prod(out) != math.prod(shape):
        raise NetError(f"{shape} cannot be viewed as {tuple(out)}")
    return FunctionModule(lambda x: x.reshape(x.shape[0], *out))


def _build_permute(op: Op, shape: Shape) -> nn.Module:
    order = [axis + 1 for axis in op.sizes["order"]]
    return FunctionModule(lambda x: x.permute(0, *order))


_BUILDERS: dict[str, Callable[[Op, Shape], nn.Module]] = {
    "linear": lambda op, shape: nn.Linear(
        op.sizes["cin"], op.sizes["cout"], bias=bool(op.sizes["bias"])
    ),
    "embedding": lambda op, shape: nn.Embedding(op.sizes["vocabulary"], op.sizes["width"]),
    "lstm": _build_recurrent(nn.LSTM),
    "gru": _build_recurrent(nn.GRU),
    "rnn": _build_recurrent(nn.RNN),
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
