"""List the kernels that a runtime runs for a network, and describe each.

A kernel is also a network, so that it can be built and measured alone. Its features are those of
DeepEn2023 for the kernels of that dataset, and similar ones for others:

HW          side of the image; the root of the number of positions where it is not square
C_in, C_out channels in and out
KS, S       kernel size and stride, geometric means over the axes
FLOPs       two per multiply-add, of the whole batch
params      number of weights
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from joulecast.onnx_nets.fusion_tables import FusionTable, OpGroup, group_ops
from joulecast.onnx_nets.op_graph import DATA, VIEWS, OpNode, list_op_nodes
from joulecast.operators import Shape, find_kind, is_half_precision, layer_work, output_shape
from joulecast.operators.building import plan_input_fits, plan_wiring
from joulecast.records import Input, Layer, Network, Op, Setup, Sizes
from joulecast.variants import BLOCK, Part, match_phase
from joulecast.variants.blocks import single_input_shape


@dataclass(frozen=True)
class FusedKernel:
    """Operators that run as one kernel.

    Two kernels are equal if they do the same work: names and positions take no part in it.

    Attributes:
        kind: Names of its operators, such as ``conv+bn+relu``.
        network: The kernel as a network, to build and measure it alone.
        batch: Samples in a batch.
        features: What its cost depends on, by name.
        flops: Floating-point operations of contractions, two per multiply-add.
        size_bytes: Bytes read plus bytes written; results that stay inside the kernel are not.
        params: Weights that it has, those of folded norms included; 0 for shared weights.
        count: How often one step runs it.
        layers: Positions of the layers in the network that it does work of, and the share of its
            own work that each has.
    """

    kind: str
    network: Network
    batch: int
    features: Sizes
    flops: float = field(compare=False)
    size_bytes: float = field(compare=False)
    params: int = field(compare=False)
    count: int = field(default=1, compare=False)
    layers: tuple[tuple[int, float], ...] = field(default=(), compare=False)


def list_kernels(network: Network, setup: Setup, table: FusionTable) -> tuple[FusedKernel, ...]:
    """Return the kernels of a network in the order in which they run.

    Args:
        network: The network.
        setup: How it is run. In training, a kernel includes its gradients and its update, and
            nothing is assumed to be fused in them.
        table: The fusion table of the runtime.
    """
    nodes = list_op_nodes(network)
    groups = group_ops(nodes, table, setup.phase == "train")
    return tuple(_make_kernel(nodes, group, setup, table) for group in groups)


def merge_kernels(kernels: Iterable[FusedKernel]) -> tuple[FusedKernel, ...]:
    """Return distinct kernels in order of appearance, each with the count of all equal ones."""
    counts: dict[FusedKernel, int] = {}
    for kernel in kernels:
        counts[kernel] = counts.get(kernel, 0) + kernel.count
    return tuple(replace(kernel, count=count) for kernel, count in counts.items())


def _make_kernel(
    nodes: Sequence[OpNode], group: OpGroup, setup: Setup, table: FusionTable
) -> FusedKernel:
    network = make_kernel_network(nodes, group.members)
    block = match_phase(Part(BLOCK, network.layers), setup)
    network = replace(network, layers=block.layers)
    works = [layer_work(layer, setup) for layer in network.layers]
    flops = sum(work.total.flops for work in works)
    params = sum(work.params for work in works)
    if setup.phase == "train":
        size_bytes = sum(work.total.size_bytes for work in works)
    else:
        size_bytes = _count_fused_bytes(nodes, group.members, setup)
    layer = nodes[group.members[0]].layer
    features = describe_kernel(nodes, group.members, flops, params, setup.batch)
    return FusedKernel(
        group.kind,
        network,
        setup.batch,
        Sizes(features),
        flops,
        size_bytes,
        0 if layer.tied else params,
        layer.calls,
        _share_layers(nodes, group.members, setup),
    )


def _count_fused_bytes(nodes: Sequence[OpNode], members: Sequence[int], setup: Setup) -> float:
    """Return the bytes that a kernel moves in inference.

    Each operator moves what it would move alone, without results that only the kernel reads.
    """
    inside, item_bytes = set(members), find_item_bytes(setup)
    total = 0.0
    for number in members:
        node = nodes[number]
        moved = _count_op_bytes(node, setup)
        if len(members) > 1:
            # Passes of an operator that is spelled out become one.
            moved /= float(node.op.sizes.get("passes", 1))
            internal = sum(math.prod(nodes[one].out_shape) for one in node.sources if one in inside)
            if number != members[-1]:
                internal += math.prod(node.out_shape)
            moved -= setup.batch * item_bytes * internal
        total += max(0.0, moved)
    return total


def find_item_bytes(setup: Setup) -> int:
    """Return the bytes of an element of an activation."""
    if setup.precision == "int8":
        return 1
    return 2 if is_half_precision(setup) else 4


def _count_op_bytes(node: OpNode, setup: Setup) -> float:
    """Return the bytes that an operator moves alone in inference."""
    if node.name in VIEWS:
        # Counted as free, but a runtime that has a kernel for it copies the result.
        return 2.0 * setup.batch * find_item_bytes(setup) * math.prod(node.out_shape)
    if find_kind(node.op.kind).is_view:
        return 0.0
    layer = make_kernel_network((replace(node, sources=(-1,) * len(node.sources)),), (0,)).layers[0]
    return layer_work(replace(layer, transposed=()), setup).forward.size_bytes


def _share_layers(
    nodes: Sequence[OpNode], members: Sequence[int], setup: Setup
) -> tuple[tuple[int, float], ...]:
    """Return how a kernel's cost is divided among its layers: by the bytes that each moves."""
    moved: dict[int, float] = {}
    for number in members:
        node = nodes[number]
        own = _count_op_bytes(node, setup) if len(members) > 1 else 1.0
        moved[node.layer_index] = moved.get(node.layer_index, 0.0) + own
    total = sum(moved.values())
    return tuple((at, own / total if total else 1.0 / len(moved)) for at, own in moved.items())


Features = dict[str, float]

_MOST_CONCATENATED = 4
_IMAGE_AXES = 3


def describe_kernel(
    nodes: Sequence[OpNode], members: Sequence[int], flops: float, params: int, batch: int
) -> Features:
    """Return the features of a kernel by their names, in a fixed order for each of its kinds."""
    main = _find_main(nodes, members)
    node = nodes[main]
    work = {"FLOPs": flops, "params": float(params), "batch": float(batch)}
    kind = find_kind(node.op.kind)
    if kind.is_convolution:
        return {**_describe_convolution(node), **work}
    if node.name == "concat":
        return {**_describe_concat(nodes, node), "batch": work["batch"]}
    describe = _DESCRIPTIONS.get(node.op.kind)
    if describe is not None:
        return {**describe(node.op.sizes, node.in_shape, node.out_shape), **work}
    features = _describe_image(node.in_shape)
    if math.prod(node.out_shape) != math.prod(node.in_shape):
        features["out"] = float(math.prod(node.out_shape))
    return {**features, "batch": work["batch"]}


def count_positions(shape: Shape) -> int:
    """Return the positions of a sample: pixels of an image, tokens of a sequence."""
    return math.prod(shape[1:] if len(shape) >= _IMAGE_AXES else shape[:-1])


def count_channels(shape: Shape) -> int:
    """Return the channels of a sample: the first axis of images, the last one of sequences."""
    if not shape:
        return 1
    return shape[0] if len(shape) >= _IMAGE_AXES else shape[-1]


def _find_main(nodes: Sequence[OpNode], members: Sequence[int]) -> int:
    """Return the operator that decides the cost: the first with weights, else the first."""
    for number in members:
        if find_kind(nodes[number].op.kind).operator_class != "elementwise":
            return number
    return members[0]


def _describe_convolution(node: OpNode) -> Features:
    sizes = node.op.sizes
    return {
        **_describe_image(node.in_shape),
        "C_out": float(sizes["cout"]),
        "KS": _geometric_mean(sizes["kernel"]),
        "S": _geometric_mean(sizes["stride"]),
        "groups": float(sizes["groups"]),
    }


def _describe_concat(nodes: Sequence[OpNode], node: OpNode) -> Features:
    """Return the position count and the channels of up to four inputs; the rest count as one."""
    total = count_channels(node.in_shape)
    widths = [count_channels(nodes[one].out_shape) for one in node.sources if one != DATA]
    if len(widths) < len(node.sources):
        missing = len(node.sources) - len(widths)
        widths += [max(0, total - sum(widths)) // missing] * missing
    widths = sorted(widths, reverse=True)
    kept = [*widths[: _MOST_CONCATENATED - 1], sum(widths[_MOST_CONCATENATED - 1 :])]
    kept += [0] * (_MOST_CONCATENATED - len(kept))
    named = {f"C{number}": float(width) for number, width in enumerate(kept, start=1)}
    return {"HW": math.sqrt(count_positions(node.in_shape)), **named}


def _describe_image(shape: Shape) -> Features:
    return {"HW": math.sqrt(count_positions(shape)), "C_in": float(count_channels(shape))}


def _describe_pool(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
    kernel = sizes["kernel"]
    if sizes["fn"].startswith("adaptive"):
        kernel = tuple(-(-a // b) for a, b in zip(shape[1:], out_shape[1:], strict=True))
    return {
        **_describe_image(shape),
        "C_out": float(count_channels(out_shape)),
        "KS": _geometric_mean(kernel),
        "S": _geometric_mean(sizes["stride"] or kernel),
    }


def _describe_linear(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
    rows = float(math.prod(shape[:-1]))
    return {"rows": rows, "C_in": float(sizes["cin"]), "C_out": float(sizes["cout"])}


def _describe_attention(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
    names = ("heads", "kv_heads", "head_dim", "width", "tokens", "kv_tokens", "causal")
    return {name: float(sizes[name]) for name in names if name in sizes}


def _select(*names: str) -> Callable[[Sizes, Shape, Shape], Features]:
    """Return a function that takes these sizes as features, with the number of positions."""

    def describe(sizes: Sizes, shape: Shape, out_shape: Shape) -> Features:
        rows = {"rows": float(math.prod(sizes["lead"]))} if "lead" in sizes else {}
        return {**rows, **{name: float(sizes[name]) for name in names}}

    return describe


_DESCRIPTIONS: dict[str, Callable[[Sizes, Shape, Shape], Features]] = {
    "pool": _describe_pool,
    "linear": _describe_linear,
    "grouped_linear": _describe_linear,
    "attention": _describe_attention,
    "sdpa": _describe_attention,
    "matmul": _select("count", "m", "k", "n"),
    "embedding": _select("vocabulary", "width"),
    "embedding_bag": _select("vocabulary", "width"),
    **{kind: _select("cin", "hidden", "tokens", "depth") for kind in ("lstm", "gru", "rnn")},
}


def _geometric_mean(sizes: Sequence[int]) -> float:
    return float(math.prod(sizes) ** (1.0 / len(sizes)))


def make_kernel_network(nodes: Sequence[OpNode], members: Sequence[int]) -> Network:
    """Return the network of these operators; its input takes the place of all other results.

    It is marked as not buildable where those have different shapes, so that it would run other
    kernels too. Concatenated results have equal widths.
    """
    layers: list[Layer] = []
    places: dict[int, int] = {}
    for number in members:
        node = nodes[number]
        if layers and _joins_tail(layers[-1], node, places, len(layers) - 1):
            op = Op(node.op.kind, _drop_shape(node.op.sizes))
            layers[-1] = replace(layers[-1], tail=(*layers[-1].tail, op))
        else:
            layers.append(_make_layer(node, places, len(layers)))
        places[number] = len(layers) - 1
    first = layers[0]
    vocabulary = int(first.sizes.get("vocabulary", 0))
    network = Network(tuple(layers), Input(single_input_shape(first), vocabulary))
    return replace(network, buildable=not _needs_fits(network))


def _joins_tail(layer: Layer, node: OpNode, places: dict[int, int], last: int) -> bool:
    """Return whether an operator reads the last layer alone and may be in its tail."""
    reads_last = [places.get(source) for source in node.sources] == [last]
    # Reading loses some views: a result may have another shape than what reads it.
    is_same_shape = output_shape(layer) == node.in_shape
    return reads_last and is_same_shape and find_kind(node.op.kind).can_be_in_tail


def _needs_fits(network: Network) -> bool:
    """Return whether a runtime would have to fit results to layers, which runs other kernels."""
    shapes = [network.input.shape, *map(output_shape, network.layers)]
    return any(
        plan_input_fits(layer, [shapes[read] for read in wiring.reads])
        for layer, wiring in zip(network.layers, plan_wiring(network), strict=True)
    )


def _make_layer(node: OpNode, places: dict[int, int], index: int) -> Layer:
    """Return the layer that an operator begins, with the flags of its layer in the network."""
    own = node.layer
    sizes = node.op.sizes
    if not node.begins_layer:
        sizes = Sizes({**sizes, "shape": node.in_shape})
    elif own.join == "concat" and "shape" in sizes:
        pairs = zip(node.in_shape, single_input_shape(own), strict=True)
        equal = tuple(one if one == full else one * len(own.reads) for full, one in pairs)
        sizes = Sizes({**sizes, "shape": equal})
    sources = node.sources if node.begins_layer and own.join != "none" else node.sources[:1]
    reads = tuple(index - places[one] if one in places else index + 1 for one in sources)
    layer = Layer(
        node.op.kind, sizes, trains=own.trains, input_grad=own.input_grad, reads=reads,
        recomputed=own.recomputed, name=own.name,
    )  # fmt: skip
    if not node.begins_layer:
        return layer
    return replace(
        layer,
        join=own.join,
        channels_last=own.channels_last,
        channels_last_weights=own.channels_last_weights,
        transposed=own.transposed,
    )


def _drop_shape(sizes: Sizes) -> Sizes:
    """Return the sizes of an operator in a tail, whose shape follows from the one before."""
    return Sizes({name: size for name, size in sizes.items() if name != "shape"})
