"""Turn the layers of a network into a graph of single operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.fusion.op_names import name_op
from joulecast.kinds import Shape, find_kind, input_shape
from joulecast.records import Layer, Network, Op
from joulecast.variants import unfold_blocks

DATA = -1
"""The source of operators that read the network's input."""


@dataclass(frozen=True)
class OpNode:
    """An operator of a network.

    Attributes:
        op: Its kind and sizes.
        name: Its name in kernel datasets.
        layer: The layer that it belongs to.
        layer_index: Position of that layer, with blocks unfolded.
        begins_layer: It is the layer's first operator, not one of its tail.
        sources: Numbers of the operators whose results it reads; ``DATA`` for the network's input.
        in_shape: Shape of one input sample.
        out_shape: Shape of one output sample.
    """

    op: Op
    name: str
    layer: Layer
    layer_index: int
    begins_layer: bool
    sources: tuple[int, ...]
    in_shape: Shape
    out_shape: Shape


def list_op_nodes(network: Network) -> tuple[OpNode, ...]:
    """Return the operators of a network in call order."""
    nodes: list[OpNode] = []
    last_nodes: list[int] = []
    for index, layer in enumerate(unfold_blocks(network.layers)):
        sources = tuple(last_nodes[index - back] if back <= index else DATA for back in layer.reads)
        shape = input_shape(layer)
        for number, op in enumerate((Op(layer.kind, layer.sizes), *layer.tail)):
            out_shape = find_kind(op.kind).out_shape(op.sizes, shape)
            own_sources = (len(nodes) - 1,) if number else sources or (DATA,)
            name = name_op(op, shape)
            nodes.append(OpNode(op, name, layer, index, not number, own_sources, shape, out_shape))
            shape = out_shape
        last_nodes.append(len(nodes) - 1)
    return tuple(nodes)


def list_readers(nodes: Sequence[OpNode]) -> list[list[int]]:
    """Return which operators read the result of each."""
    readers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for source in dict.fromkeys(node.sources):
            if source != DATA:
                readers[source].append(number)
    return readers
