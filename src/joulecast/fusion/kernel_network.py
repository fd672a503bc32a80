"""Make the network that consists of one kernel, so that it can be built and measured alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.fusion.op_graph import OpNode
from joulecast.kinds import find_kind, output_shape
from joulecast.records import Input, Layer, Network, Op, Sizes
from joulecast.runtimes.input_fits import plan_input_fits
from joulecast.runtimes.wiring import plan_wiring
from joulecast.variants.blocks import single_input_shape


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
