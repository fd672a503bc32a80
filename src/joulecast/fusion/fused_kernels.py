"""List the kernels that a runtime runs for a network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from joulecast.fusion.fusion_tables import FusionTable
from joulecast.fusion.kernel_features import describe_kernel
from joulecast.fusion.kernel_grouping import OpGroup, group_ops
from joulecast.fusion.kernel_network import make_kernel_network
from joulecast.fusion.op_graph import OpNode, list_op_nodes
from joulecast.fusion.op_names import VIEWS
from joulecast.kinds import find_kind, is_half_precision, layer_work
from joulecast.records import Network, Setup, Sizes
from joulecast.variants import BLOCK, Part, match_phase


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
