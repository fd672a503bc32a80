"""Layers and blocks under a setup: what `additive` measures alone and sums over.

    Network ──split_layers──▶ layers, repeated blocks whole ──▶ operators ──split_passes──▶ passes

A block is the sum of the **operators** of its layers; so is a layer with a tail or a loss, and a
layer of one operator is its own. All of them are a ``SetupLayer``. Its **label** is its kind under
one regime (precision, phase, threads), which decides what shares residuals. A batch norm costs the
same behind a convolution as behind a linear layer: operators of a tail share what was measured of
them behind any other. On 2,859 durations of an H200 this reduced the median leave-one-out error
from 10.9 % to 9.1 %.

The **point** of an operator is what the residual of its duration depends on, all logarithms. All
kinds have the same numbers, as if each multiplied rows by a matrix: positions (rows), input
channels (depth) and output channels (columns), FLOPs and bytes over them, the alignment of its
products, and by how much padding increases its FLOPs. Strides and missing gradients show in FLOPs
and bytes. Two more tell apart what libraries run different kernels for: the window of a convolution
or the steps of a recurrent layer, and the extent of an image.

Two things tell what aligned channels gain, and are not shared between devices: the further FLOPs
of channels rounded up to tiles of up to 64, as matrix units run wide layers, and how aligned the
channels of convolutions are, up to 64. Without them, 810 convolutions of an H200 with channels in
multiples of 32 were estimated 13 % too long from all others (median error 21 %, 92 % within 95 %
intervals), with them 5 % too long (18 %, 96 %).

The **passes** of an operator in a training step are kernels that run one after another:

    y = x·W                 forward
    dx = dy·Wᵀ              backward, two products of other shapes
    dW = xᵀ·dy
    W -= …                  update: an elementwise kernel

Each is described as the operator of an inference, so that what is known of kernels that only ran
forward tells about training too. Of other operators, backward is one kernel with the bytes and
FLOPs that are left.

Of **compiled** layers, products, convolutions, attention, recurrent layers and embeddings remain
kernels of libraries, and images become channels last for them: they are the operators of eager
steps. TorchInductor fuses all others. A chain reads its inputs and writes its results once, and
casts happen on the way:

    norm                    eight tensors: statistics and result, forward and backward
    after a library kernel  five tensors, however many operators its formula has
    any other operator      its further inputs and their gradients, and a mask or a copy

Fused operators have kinds of their own, so that their residuals are learnt from compiled steps
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from joulecast.operators import (
    HOST_CALLS,
    Work,
    add_host_calls,
    channel_axis,
    count_host_calls,
    count_operand,
    find_kind,
    input_shape,
    is_half_precision,
    layer_work,
    loss_work,
    make_layer,
    output_shape,
    uses_autocast,
    works_in_half,
)
from joulecast.records import (
    FLOAT_PRECISIONS,
    Layer,
    Network,
    Setup,
    Sizes,
    name_layout,
    stable_hash,
)
from joulecast.records.network import order_branches
from joulecast.variants import (
    REPEATED,
    Block,
    PlacedBlock,
    make_isolated_network,
    match_phase,
    match_precision,
    split_blocks,
    split_network,
)

OVERHEAD_PREFIX = "overhead of "
OVERHEAD = "overhead"
"""Operator class of what an imported run pays once."""
# FLOPs that take as long as moving a byte, about: weighs parts of a step that have both.
FLOPS_PER_BYTE = 100.0
_UPDATE = "update"
# Bytes beyond those of forward and backward that are worth a pass.
_MIN_UPDATE_SHARE = 0.01
# Tensors that a sum or product of two inputs moves in a step, with different inputs and with the
# same tensor twice, as when it runs alone: that is read once, and its two gradients are added.
# Large ones alone take as long on an H200 as moving 4.1 and 10.9 at 4.3 TB/s.
_JOIN_MOVES = {"add": (6, 4), "mul": (9, 11)}
# The same in a forward pass.
_FORWARD_MOVES = (3, 2)


FUSED = "fused"
"""Operator class of operators that TorchInductor fuses."""
PADDED_WIDTH = 8
"""Multiple to which the widths of products are padded, so that rows are aligned."""
NORM_PASSES = 8
"""Tensors that a norm moves in a training step: statistics and result, both also backward."""

# Duration in a compiled step over that alone, by class: linear layers and convolutions alone
# contain casts and copies, which fuse too. Chosen on eight networks on an H200
# (benchmarks/real_runs).
_COMPILED_SHARES = {"convolution": 0.6, "grouped convolution": 0.6}
_COMPILED_SHARE = 0.79
# Slices and concatenations become part of the kernel that reads them.
_COPY_SHARE = 0.25


AXES = (
    "positions",
    "input channels",
    "output channels",
    "flops",
    "bytes",
    "alignment",
    "padding",
    "window",
    "extent",
)
LOSS_FUNCTION = "cross_entropy"
"""A loss that the module itself computes: the same operator as one that follows a network."""
# Channels that matrix units process at once, about: products of fewer cost as much.
TILE = 16
# The same of wide layers, and precisions that matrix units run.
LARGEST_TILE, MATRIX_PRECISIONS = 64, ("tf32", "bf16", "fp16")
# Share of the products that causal attention computes; the rest is masked.
_CAUSAL_SHARE = 0.5
# Matrix products run best with rows in multiples of this many numbers; distance of those that do
# not, per factor of two.
_ALIGNED_ROW = 8
_ALIGNMENT_SCALE = 0.4
_LEAST_CHANNELS = 1e-3


@dataclass(frozen=True)
class SetupLayer:
    """A layer, a block or a single operator under a setup, with all that the estimator needs.

    Attributes:
        key: Identity: equal layers have equal keys, on every machine.
        kind: Kinds of its layers, or a hash of a block's operators.
        regime: Precision, phase, threads and processor.
        operator_class: Its first layer's class of operators, or ``block``.
        structure: Hash of its operators without sizes, which decide how long the host issues it.
        padded_flops: FLOPs that run: with channels rounded up to tiles, without what is masked.
        launches: Kernels of forward and backward; the update of all weights takes very few.
        point: Its coordinates, one for each of AXES.
        tile_flops: Further FLOPs with channels rounded up to large tiles; none in fp32, which no
            matrix unit runs.
        alignment: How aligned the channels of a convolution are, as a coordinate.
        host_calls: Number of host calls, one for each type in HOST_CALLS.
        operators: Of a block, or a layer of several operators, these with how often it runs each.
        alone_bytes: Bytes that it moves alone, as it is measured: its inputs are one tensor then.
        is_compiled: A compiler fuses its operators; of these, none is compiled.
        origin: Of a single operator, its layer, its setup and whether its input is in half
            precision.
    """

    key: str
    kind: str = field(compare=False)
    regime: str = field(compare=False)
    phase: str = field(compare=False)
    precision: str = field(compare=False)
    operator_class: str = field(compare=False)
    structure: str = field(compare=False)
    flops: float = field(compare=False)
    padded_flops: float = field(compare=False)
    size_bytes: float = field(compare=False)
    launches: int = field(compare=False)
    point: tuple[float, ...] = field(compare=False)
    host_calls: tuple[float, ...] = field(compare=False)
    tile_flops: float = field(default=0.0, compare=False)
    alignment: float = field(default=0.0, compare=False)
    operators: Counts = field(default=(), compare=False)
    alone_bytes: float = field(default=0.0, compare=False)
    is_compiled: bool = field(default=False, compare=False)
    origin: tuple[Layer, Setup, bool] | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """Its kind and regime."""
        return f"{self.kind} {self.regime}" if self.regime else self.kind

    @property
    def rate_precision(self) -> str:
        """The precision whose peak rate bounds it; that of fp32 where none is known."""
        return self.precision if self.precision in FLOAT_PRECISIONS else "fp32"

    @property
    def is_block(self) -> bool:
        """Whether it is a repeated block rather than a layer."""
        return self.operator_class == REPEATED

    @property
    def own_operators(self) -> Counts:
        """Its operators; compiled ones count less, because they share work."""
        if not self.is_compiled:
            return self.operators or ((self, 1.0),)
        return tuple(
            (one, count * _COMPILED_SHARES.get(one.operator_class, _COMPILED_SHARE))
            for one, count in self.operators
        )

    @property
    def operators_alone(self) -> Counts:
        """Its operators as measured; in a block, inputs are different tensors even then."""
        if self.is_block:
            return self.own_operators
        return tuple((_run_alone(one), count) for one, count in self.own_operators)


Counts = tuple[tuple[SetupLayer, float], ...]
"""Operators, or passes, with how often each runs."""


@dataclass(frozen=True)
class PlacedLayer:
    """A layer or block at its place in a network.

    Attributes:
        count: How often a step runs it: its calls, less the updates it does not repeat. Weights are
            updated once, however often their layer is called and whatever layers share them.
    """

    layer: SetupLayer
    placed_block: PlacedBlock
    setup: Setup
    count: float


def split_layers(network: Network, setup: Setup) -> tuple[PlacedLayer, ...]:
    """Return the layers of a network's step that do any work, repeated blocks whole.

    Of several batches whose gradients are accumulated, the last one also updates the weights.
    """
    blocks = split_blocks(network)
    batches = setup.accumulate
    if batches < 2:
        return tuple(_place_layers(blocks, setup))
    last = _place_layers(blocks, replace(setup, accumulate=1))
    others = _place_layers(blocks, replace(setup, accumulate=0))
    return (*last, *(replace(one, count=one.count * (batches - 1)) for one in others))


def count_layers(layers: Iterable[PlacedLayer], times: float = 1.0) -> dict[SetupLayer, float]:
    """Return the distinct layers with how often a step runs each."""
    counts: dict[SetupLayer, float] = {}
    for one in layers:
        counts[one.layer] = counts.get(one.layer, 0.0) + one.count * times
    return counts


def group_alike(networks: Sequence[Sequence[PlacedLayer]]) -> list[list[int]]:
    """Return the numbers of networks in groups whose layers have the same labels.

    The same few observations matter for all networks of a group. Networks of many kinds together
    would leave each other too few: 29 had standard deviations up to twice as large as one by one.
    """
    groups: list[tuple[set[str], list[int]]] = []
    for number, placed in enumerate(networks):
        labels = {operator.label for one in placed for operator, _ in one.layer.own_operators}
        for known, numbers in groups:
            if labels <= known or known <= labels:
                known |= labels
                numbers.append(number)
                break
        else:
            groups.append((labels, [number]))
    return [numbers for _, numbers in groups]


def make_overhead(source: str) -> SetupLayer:
    """Return what every imported run of a source pays once: start-up and evaluation."""
    name = OVERHEAD_PREFIX + source
    calls, origin = (0.0,) * len(HOST_CALLS), (0.0,) * len(AXES)
    return SetupLayer(name, name, "", "", "", OVERHEAD, name, 0.0, 0.0, 0.0, 0, origin, calls)


@lru_cache(maxsize=65536)
def set_up_layer(block: Block, setup: Setup) -> SetupLayer:
    """Return a layer or block under a setup."""
    block = match_phase(match_precision(block, setup), setup)
    is_block, has_loss = block.role == REPEATED, block.role == "output"
    if is_block:
        block = replace(block, layers=order_branches(block.layers))
    first, works = block.layers[0], []
    kind = find_kind(first.kind)
    for layer in block.layers:
        counted = layer_work(layer, setup, block.half_input)
        # One update of all weights together launches next to nothing.
        launches = counted.forward.launches + counted.backward.launches
        own = replace(counted.total, launches=launches)
        if setup.phase == "train" and layer.input_grad:
            own = own + count_fork_work(layer, counted.forward)
        works.append(own)
    work = sum(works[1:], works[0])
    calls = add_host_calls(*(count_host_calls(layer, setup) for layer in block.layers))
    if has_loss:
        added = loss_work(output_shape(block.layers[-1]), setup)
        work = work + added
        calls = calls[0] + added.launches, *calls[1:]
    launches = work.launches
    operators = _split_block(block, setup) if is_block else _split_layer(block, setup)
    if setup.compiled:
        launches = round(sum(one.launches * count for one, count in operators))
        by_operator = (tuple(count * each for each in one.host_calls) for one, count in operators)
        calls = add_host_calls((0.0,) * len(HOST_CALLS), *by_operator)
    # The settings that change a layer; the loss only at the end of a network.
    settings: dict[str, object] = replace(setup, cuda_graphs=False).to_dict()
    loss = settings.pop("loss")
    if setup.phase == "inference":
        settings.pop("optimizer")
    if not any(layer_work(layer, setup).params for layer in block.layers):
        settings.pop("accumulate", None)
    if has_loss:
        settings["loss"] = "cross_entropy" if loss == "own" else loss
    # Operators without their sizes: kinds and functions, what they read, and layouts.
    signature: tuple[tuple[object, ...], ...] = tuple(
        (
            layer.kind,
            tuple(
                op.sizes.get("fn", op.kind) for op in layer.tail if not find_kind(op.kind).is_view
            ),
            layer.reads,
            layer.join,
            *name_layout(layer),
        )
        for layer in block.layers
    )
    how = (
        tuple((layer.trains, layer.input_grad) for layer in block.layers),
        block.role,
        is_half_precision(setup),
        setup.optimizer if setup.phase == "train" else "",
        setup.phase,
        *([FUSED] if setup.compiled else []),
    )
    operator_class = REPEATED if is_block else kind.operator_class
    if not is_block and _name_groups(first):
        # Grouped convolutions are bound by bytes.
        operator_class = f"grouped {operator_class}"
    padded_flops = sum(map(count_executed_flops, block.layers, works))
    precision, tile_flops = setup.precision, 0.0
    is_exact = bool(kind.aligned_widths) and kind.autocast(first.sizes) == "full"
    if not is_block and uses_autocast(setup) and is_exact:
        # Autocast leaves these products in full precision.
        precision = "fp32"
    if precision in MATRIX_PRECISIONS:
        most = (LARGEST_TILE,) * len(works)
        tile_flops = sum(map(count_executed_flops, block.layers, works, most)) - padded_flops
    moved_alone = share_moved_alone(first, setup.phase == "train" and first.input_grad)
    return SetupLayer(
        key=stable_hash(
            [[layer.to_dict() for layer in block.layers], has_loss, block.half_input, settings]
        ),
        kind=f"block:{stable_hash(signature)[:8]}" if is_block else _name_kind(block),
        regime=_name_regime(setup),
        phase=setup.phase,
        precision=precision,
        operator_class=operator_class,
        structure=_hash((signature, *how)),
        flops=work.flops,
        padded_flops=padded_flops,
        size_bytes=work.size_bytes,
        launches=launches,
        point=find_point(block, setup, work, padded_flops),
        tile_flops=tile_flops,
        alignment=_measure_alignment(block, is_padded=True, most=LARGEST_TILE),
        host_calls=calls,
        operators=operators,
        is_compiled=setup.compiled,
        origin=None if operators or is_block else (first, setup, block.half_input),
        alone_bytes=work.size_bytes * moved_alone,
    )


@lru_cache(maxsize=65536)
def split_passes(operator: SetupLayer) -> Counts:
    """Return the passes of an operator with how often it runs each; itself if it is one pass."""
    if operator.origin is None or operator.phase != "train":
        return ((operator, 1.0),)
    layer, setup, half_input = operator.origin
    # TF32 changes nothing but products.
    is_exact = setup.precision == "tf32" and not operator.flops
    precision = "fp32" if is_exact else setup.precision
    forward_setup = replace(setup, phase="inference", accumulate=1, precision=precision)
    forward = set_up_layer(Block("hidden", (layer,), half_input), forward_setup)
    products = list(_list_backward_products(layer, setup))
    if products:
        once = replace(forward_setup, batch=1)
        backward = [set_up_layer(Block("hidden", (one,), half_input), once) for one in products]
    else:
        moved_bytes = layer_work(layer, setup, half_input).backward.size_bytes
        backward = _make_backward(operator, forward, moved_bytes)
    kernels = [forward, *backward]
    # Weights change, gradients are added up, and autocast converts operands: what is left of the
    # operator's bytes is elementwise.
    left_bytes = operator.size_bytes - sum(one.size_bytes for one in kernels)
    if left_bytes >= _MIN_UPDATE_SHARE * operator.size_bytes:
        point = [0.0] * len(AXES)
        # As rows of one channel: 12 bytes each, 6 for every element of input and output.
        point[AXES.index("positions")] = math.log(max(left_bytes / 12.0, 1.0))
        point[AXES.index("bytes")] = math.log1p(6.0)
        point[AXES.index("alignment")] = operator.point[AXES.index("alignment")]
        update = replace(
            operator,
            key=f"{_UPDATE} {left_bytes:.0f}",
            kind=_UPDATE,
            regime="fp32 inference",
            phase="inference",
            precision="fp32",
            operator_class=find_kind("elementwise").operator_class,
            flops=0.0,
            padded_flops=0.0,
            tile_flops=0.0,
            size_bytes=left_bytes,
            alone_bytes=left_bytes,
            launches=0,
            point=tuple(point),
            origin=None,
        )
        kernels.append(update)
    return _add_up((one, 1.0) for one in kernels)


def _place_layers(blocks: Iterable[PlacedBlock], setup: Setup) -> Iterator[PlacedLayer]:
    for one in blocks:
        layer = set_up_layer(one.block, setup)
        if not (layer.flops or layer.size_bytes):
            continue
        count, repeats = float(one.calls), one.calls - 1 + any(each.tied for each in one.layers)
        if repeats:
            work = layer_work(one.block.layers[0], setup)
            cost = work.total.size_bytes + work.total.flops / FLOPS_PER_BYTE
            count -= repeats * work.update.size_bytes / max(cost, 1.0)
        yield PlacedLayer(layer, one, setup, count)


def _split_block(block: Block, setup: Setup) -> Counts:
    """Return the operators of a block, none of which is a loss."""
    found = []
    for placed in split_network(make_isolated_network(block)):
        for layer in placed.block.layers:
            own = set_up_layer(Block("hidden", (layer,), placed.block.half_input), setup)
            repeated = own.operators or ((own, 1.0),)
            found += [(one, placed.calls * repeats) for one, repeats in repeated]
    return _add_up(found)


def _split_layer(block: Block, setup: Setup) -> Counts:
    """Return the operators of layers and the loss; nothing of a single eager operator."""
    has_loss, first = block.role == "output", block.layers[0]
    has_tail = any(not find_kind(op.kind).is_view for op in first.tail)
    is_single = not has_tail and not find_kind(first.kind).operators(first.sizes)
    if is_single and len(block.layers) == 1 and not has_loss and not setup.compiled:
        return ()
    found, half = [], block.half_input
    for layer in block.layers:
        previous = None
        for operator, half_input in list_operators(layer, half):
            if setup.compiled:
                one = _make_compiled(operator, previous, half_input, setup)
            else:
                one = set_up_layer(Block("hidden", (operator,), half_input), setup)
            found.append((one, 1.0))
            half = works_in_half(operator, half_input)
            previous = operator
    if has_loss and setup.phase == "train":
        found.append((_make_loss(output_shape(block.layers[-1]), setup), 1.0))
    return _add_up(found)


def _add_up(operators: Iterable[tuple[SetupLayer, float]]) -> Counts:
    """Return the distinct operators that do any work, with how often each runs."""
    counts: dict[SetupLayer, float] = {}
    for one, count in operators:
        if one.flops or one.size_bytes:
            counts[one] = counts.get(one, 0.0) + count
    return tuple(counts.items())


@lru_cache(maxsize=65536)
def _make_compiled(
    operator: Layer, previous: Layer | None, half_input: bool, setup: Setup
) -> SetupLayer:
    """Return an operator of a compiled layer: as in an eager step if a library runs it."""
    eager = replace(setup, compiled=False)
    # Casts of activations are fused into the operators before and after.
    half_input = half_input or uses_autocast(setup)
    if is_library_operator(operator):
        return set_up_layer(Block("hidden", (run_as_library(operator),), half_input), eager)
    plain = replace(operator, channels_last=False)
    alone = set_up_layer(Block("hidden", (plain,), half_input), eager)
    moved_bytes = count_moved_bytes(operator, previous, eager)
    launches = alone.launches if starts_chain(previous) or moved_bytes == alone.size_bytes else 0
    block = Block("hidden", (operator,))
    return replace(
        alone,
        key=f"{alone.key} {FUSED} {moved_bytes:.0f}",
        kind=f"{FUSED} {alone.kind}",
        operator_class=FUSED,
        size_bytes=moved_bytes,
        launches=launches,
        point=find_point(block, eager, Work(0.0, moved_bytes, launches), 0.0),
        host_calls=(float(launches), *alone.host_calls[1:]),
        alone_bytes=moved_bytes,
        origin=None,
    )


@lru_cache(maxsize=4096)
def _make_loss(shape: tuple[int, ...], setup: Setup) -> SetupLayer:
    work = loss_work(shape, setup)
    kind = "cross_entropy loss" if setup.loss == "own" else f"{setup.loss} loss"
    channels = shape[-1] if shape else 1
    rows = setup.batch * math.prod(shape) / channels
    return SetupLayer(
        key=stable_hash([kind, list(shape), setup.batch, _name_regime(setup)]),
        kind=kind,
        regime=_name_regime(setup),
        phase=setup.phase,
        precision=setup.precision,
        operator_class="elementwise",
        structure=kind,
        flops=0.0,
        padded_flops=0.0,
        size_bytes=work.size_bytes,
        launches=work.launches,
        point=find_loss_point(rows, channels, work.size_bytes),
        host_calls=(float(work.launches), *(0.0,) * (len(HOST_CALLS) - 1)),
        alone_bytes=work.size_bytes,
    )


@lru_cache(maxsize=4096)
def _run_alone(operator: SetupLayer) -> SetupLayer:
    """Return an operator as it is measured, alone."""
    if operator.alone_bytes == operator.size_bytes:
        return operator
    return replace(operator, key=f"{operator.key} alone", size_bytes=operator.alone_bytes)


@lru_cache(maxsize=256)
def _name_regime(setup: Setup) -> str:
    """Return what of a setup decides which residuals are shared."""
    regime = setup.precision if setup.phase == "train" else f"{setup.precision} {setup.phase}"
    regime += f" {setup.threads} threads" if setup.threads else ""
    regime += f" on {setup.processor}" if setup.processor else ""
    return regime + (" benchmark" if setup.cudnn_benchmark else "")


def _name_kind(block: Block) -> str:
    """Return the kinds of layers: functions, groups and memory formats that run other kernels."""
    names = []
    for layer in block.layers:
        name = str(layer.sizes.get("fn", layer.kind))
        if name == LOSS_FUNCTION:
            name = f"{name} loss"
        elif count_operand(layer.sizes):
            # A tensor that no layer computes.
            name = f"{name} parameter" if layer.sizes["params"] else f"{name} constant"
        name += _name_groups(layer)
        # Channels-last input or weights run the same kernels.
        is_channels_last = layer.channels_last or layer.channels_last_weights
        name += " channels last" if is_channels_last else ""
        names.append(name + (" transposed" if layer.transposed else ""))
    return "+".join([*names, "loss"] if block.role == "output" else names)


def _name_groups(layer: Layer) -> str:
    """Return a name for grouped convolutions: libraries have kernels of their own for them."""
    groups = layer.sizes.get("groups", 1)
    if groups == 1 or not find_kind(layer.kind).is_convolution:
        return ""
    return " depthwise" if groups == layer.sizes["cin"] else " grouped"


# Layers of all sizes share a few structures.
_hash = lru_cache(maxsize=4096)(stable_hash)


def _list_backward_products(layer: Layer, setup: Setup) -> Iterator[Layer]:
    """Yield the matrix products of the backward pass, each for the whole batch."""
    kind = find_kind(layer.kind)
    needed = {"input": layer.input_grad, "weight": layer.trains}
    for whose, sizes in kind.gradient_products(layer.sizes, setup.batch):
        if needed[whose]:
            product = make_layer(layer.kind, **sizes)
            yield product if kind.second_shape is None else replace(product, reads=(1, 2))


def _make_backward(
    operator: SetupLayer, forward: SetupLayer, moved_bytes: float
) -> list[SetupLayer]:
    """Return the backward pass of an operator that is not a matrix product."""
    launches = operator.launches - forward.launches
    if launches <= 0 or not moved_bytes:
        return []
    flops = max(operator.flops - forward.flops, 0.0)
    point = list(forward.point)
    for axis, own, other in (
        ("flops", flops, forward.flops),
        ("bytes", moved_bytes, forward.size_bytes),
    ):
        at = AXES.index(axis)
        # Over the same elements as those of the forward pass.
        point[at] = math.log1p(math.expm1(point[at]) * own / other) if other else point[at]
    return [
        replace(
            forward,
            key=f"{forward.key} backward {moved_bytes:.0f} {flops:.0f}",
            kind=f"{forward.kind} backward",
            flops=flops,
            padded_flops=max(operator.padded_flops - forward.padded_flops, 0.0),
            tile_flops=max(operator.tile_flops - forward.tile_flops, 0.0),
            size_bytes=moved_bytes,
            alone_bytes=moved_bytes,
            launches=launches,
            point=tuple(point),
            origin=None,
        )
    ]


def list_operators(layer: Layer, half: bool) -> Iterator[tuple[Layer, bool]]:
    """Yield the operators of a layer, with whether their input is in half precision.

    A kind may run several one after the other; those of the tail follow.
    """
    bare, kind = replace(layer, tail=()), find_kind(layer.kind)
    plain = Layer(
        layer.kind, Sizes({}), trains=layer.trains, tied=layer.tied, recomputed=layer.recomputed
    )
    operators, inside = kind.operators(layer.sizes), half
    if not operators:
        yield bare, half
    for number, (name, sizes) in enumerate(operators):
        has_gradient = layer.input_grad or (number > 0 and layer.trains)
        operator = replace(plain, kind=name, sizes=Sizes(sizes), input_grad=has_gradient)
        yield operator, inside
        inside = works_in_half(operator, inside)
    shape, half = output_shape(bare), works_in_half(bare, half)
    has_weights = bool(kind.params(layer.sizes, input_shape(layer)))
    input_grad = layer.input_grad or (layer.trains and has_weights)
    is_channels_last = layer.channels_last or layer.channels_last_weights
    for op in layer.tail:
        operator = replace(
            plain,
            kind=op.kind,
            sizes=Sizes({**op.sizes, "shape": shape}),
            input_grad=input_grad,
            channels_last=is_channels_last and len(shape) > 2,
        )
        yield operator, half
        half = works_in_half(operator, half)
        kind = find_kind(op.kind)
        input_grad = input_grad or (layer.trains and bool(kind.params(op.sizes, shape)))
        shape = kind.out_shape(op.sizes, shape)


def count_fork_work(layer: Layer, forward: Work) -> Work:
    """Return the work of adding gradients where the branches fork that a sum joins.

    Nothing that the network calls does it, so no rule of a kind counts it.
    """
    count = len(layer.reads)
    if layer.join != "add" or not _is_join(layer) or layer.tail:
        return Work()
    return Work(0.0, forward.size_bytes * 3 * (count - 1) / (count + 1), count - 1)


def share_moved_alone(layer: Layer, has_gradient: bool) -> float:
    """Return the share of its bytes that a join moves when it runs alone, on one tensor twice."""
    if not _is_join(layer) or len(layer.reads) != 2 or layer.join not in _JOIN_MOVES:
        return 1.0
    apart, alone = _JOIN_MOVES[layer.join] if has_gradient else _FORWARD_MOVES
    return alone / apart


def _is_join(layer: Layer) -> bool:
    """Return whether the operator itself joins all inputs."""
    return bool(layer.sizes.get("inputs", 1) == len(layer.reads) > 1)


def is_library_operator(operator: Layer) -> bool:
    """Return whether a compiled step still calls a library for an operator."""
    return find_kind(operator.kind).operator_class != "elementwise"


def count_moved_bytes(operator: Layer, previous: Layer | None, setup: Setup) -> float:
    """Return the bytes that a fused operator moves, never more than it moves in an eager step."""
    counted_bytes = layer_work(operator, setup).total.size_bytes
    is_train = setup.phase == "train"
    element_bytes = 2 if is_half_precision(setup) else 4
    tensor_bytes = float(setup.batch * math.prod(input_shape(operator)) * element_bytes)
    kind, shape = find_kind(operator.kind), input_shape(operator)
    if output_shape(operator) != shape:
        # Pooling computes fewer elements from more.
        is_smaller = math.prod(output_shape(operator)) < math.prod(shape)
        is_reduced = is_smaller and not kind.selects_elements
        return counted_bytes if is_reduced else counted_bytes * _COPY_SHARE
    if not kind.is_function and kind.params(operator.sizes, shape):
        passes = NORM_PASSES if is_train else 3
    elif starts_chain(previous):
        passes = 5 if is_train else 2
    else:
        inputs = len(operator.reads)
        passes = 2 * inputs - 1 if is_train else inputs - 1
    return min(counted_bytes, passes * tensor_bytes)


def starts_chain(previous: Layer | None) -> bool:
    """Return whether an operator reads what a library wrote to memory."""
    return previous is not None and is_library_operator(previous)


def run_as_library(operator: Layer) -> Layer:
    """Return an operator as TorchInductor runs it: images channels last, products padded."""
    kind, sizes = find_kind(operator.kind), operator.sizes
    if kind.is_convolution and len(input_shape(operator)) == 3:
        return replace(operator, channels_last=True, channels_last_weights=True)
    if kind.operator_class != "matmul" or kind.is_function:
        return operator
    padded = {
        name: -(-sizes[name] // PADDED_WIDTH) * PADDED_WIDTH
        for name in kind.aligned_widths
        if sizes[name] > PADDED_WIDTH
    }
    return replace(operator, sizes=Sizes({**sizes, **padded}))


def find_point(block: Block, setup: Setup, work: Work, executed_flops: float) -> tuple[float, ...]:
    """Return the coordinates of a block under a setup, one for each of AXES."""
    first = block.layers[0]
    kind, sizes = find_kind(first.kind), first.sizes
    window = 0.0, 0.0
    # Positions, and input and output channels of each: rows, depth and columns.
    if kind.has_head_dim:
        # Each head of each sequence multiplies queries by keys of its own.
        rows = setup.batch * sizes.get("windows", 1) * sizes["heads"] * sizes["tokens"]
        extents = float(rows), float(sizes["head_dim"]), float(sizes["kv_tokens"])
    else:
        in_shape = input_shape(first)
        channels = max(1, in_shape[channel_axis(first)] if in_shape else 1)
        rows = setup.batch * math.prod(in_shape) / channels
        columns = setup.batch * math.prod(output_shape(block.layers[-1])) / rows
        extents = rows, float(channels), max(columns, _LEAST_CHANNELS)
        if kind.is_recurrent:
            # Tokens follow each other: one step multiplies the states of a batch.
            extents = float(setup.batch), float(channels), float(sizes["hidden"])
            cells = sizes["depth"] * (1 + sizes["bidirectional"])
            window = math.log(sizes["tokens"] * cells), 0.0
        elif kind.is_convolution:
            window = math.log(math.prod(sizes["kernel"])), math.log(math.prod(sizes["space"]))
    positions, in_channels, out_channels = extents
    if sizes.get("fn") == LOSS_FUNCTION:
        return find_loss_point(positions, in_channels, work.size_bytes)
    elements = positions * (in_channels + out_channels)
    products = positions * in_channels * out_channels
    return (
        math.log(positions),
        math.log(in_channels),
        math.log(out_channels),
        math.log(1.0 + work.flops / products),
        math.log(1.0 + work.size_bytes / elements),
        _measure_alignment(block, is_padded=False, most=_ALIGNED_ROW),
        math.log((executed_flops + 1.0) / (work.flops + 1.0)),
        *window,
    )


def _measure_alignment(block: Block, is_padded: bool, most: int) -> float:
    """Return how aligned the widths of products are: 0 if one is odd, most at multiples of most.

    Products whose rows do not fill 16 bytes take other kernels; some kinds pad rows themselves, and
    run other kernels where channels fill whole tiles.
    """
    widths = [
        int(layer.sizes[name])
        for layer, kind in ((layer, find_kind(layer.kind)) for layer in block.layers)
        if kind.pads_widths == is_padded
        for name in kind.aligned_widths
    ]
    return _ALIGNMENT_SCALE * math.log2(min((math.gcd(one, most) for one in widths), default=most))


def find_loss_point(positions: float, channels: float, size_bytes: float) -> tuple[float, ...]:
    """Return the coordinates of a loss."""
    size = math.log(1.0 + size_bytes / (2.0 * positions * channels))
    aligned = _ALIGNMENT_SCALE * math.log2(_ALIGNED_ROW)
    sizes = math.log(positions), math.log(channels), math.log(channels)
    return (*sizes, 0.0, size, aligned, 0.0, 0.0, 0.0)


def count_executed_flops(layer: Layer, work: Work, most: int = TILE) -> float:
    """Return the FLOPs that run: narrow layers leave tiles empty, causal attention skips half.

    Tiles have at most ``most`` channels, and are no wider than the layer, but never below TILE.
    """
    sizes, flops = layer.sizes, work.flops
    if sizes.get("groups", 1) > 1:
        return flops
    if sizes.get("causal"):
        flops *= _CAUSAL_SHARE
    for name in find_kind(layer.kind).aligned_widths:
        width = int(sizes[name])
        tile = min(max(TILE, 1 << width.bit_length() - 1), most)
        flops *= tile * math.ceil(width / tile) / width
    return flops
