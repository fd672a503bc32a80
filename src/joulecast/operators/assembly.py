"""Group the calls of a network into layers, for every reader of modules and files.

A layer is an operator with parameters and the operators that follow it: an operator without
weights, and a norm, joins the tail of the layer whose result only it reads. A new layer starts
where two operators read a result, where a repeated block ends, and where an operator reads two
results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulecast.operators import find_kind
from joulecast.operators.building import can_build
from joulecast.records import Input, Layer, Network, Op, Sizes
from joulecast.records.network import group_by_block, order_operands

Value = int | str
"""The id of a value that calls read and compute."""

_JOINS = ("add", "mul", "concat")


@dataclass(frozen=True)
class Call:
    """A function call, as its reader describes it.

    Attributes:
        inputs: The values that it reads, and whether they are floating-point numbers.
        results: The values that it returns.
        weights: Number of elements of each weight that it reads.
        block: Index of its block; -1 outside of blocks.
    """

    inputs: Sequence[tuple[Value, bool]]
    results: Sequence[Value]
    weights: Mapping[str, int]
    block: int


def append_op(layer: Layer, op: Op) -> Layer:
    """Return a layer with an operator at its end, whose shape follows from those before."""
    sizes = {name: size for name, size in op.sizes.items() if name != "shape"}
    return replace(layer, tail=(*layer.tail, Op(op.kind, Sizes(sizes))))


class LayerAssembler:
    """Makes layers of calls that a reader adds in order.

    Attributes:
        layers: The layers, which may still grow.
        calls: The call of the operator of each layer.
        newest: The newest result of each layer.
        layer_of_value: Index of the layer that computed a value; -1 for the network's inputs.
        readers: How many calls read a value.
        output: The value that the network returns.
        calls_between: How many calls belong to no layer.
    """

    def __init__(self, inputs: Iterable[Value], output: Value, readers: Counter[Value]) -> None:
        self.layers: list[Layer] = []
        self.calls: list[Call] = []
        self.newest: list[Value] = []
        self.layer_of_value: dict[Value, int] = dict.fromkeys(inputs, -1)
        self.readers = readers
        self.output = output
        self.buildable = len(self.layer_of_value) == 1
        self.calls_between = 0
        self._claimed: set[str] = set()

    def find_growing_layer(self, call: Call) -> int:
        """Return the layer of its block whose newest result this call alone reads, or -1."""
        values = self._list_known(call)
        index = self.layer_of_value[values[0]] if len(values) == 1 else -1
        if index < 0 or self.newest[index] != values[0] or self.readers[values[0]] != 1:
            return -1
        return index if self.calls[index].block == call.block else -1

    def skip_call(self, call: Call) -> None:
        """Let the results of a view belong to the layer that computed its input."""
        self.calls_between += 1
        values = self._list_known(call)
        if not values:
            return
        index = self.layer_of_value[values[0]]
        self.layer_of_value.update(dict.fromkeys(call.results, index))
        is_only = self.readers[values[0]] == 1 and len(call.results) == 1
        if index >= 0 and is_only and self.newest[index] == values[0]:
            self.newest[index] = call.results[0]

    def grow_layer(self, index: int, layer: Layer, call: Call) -> None:
        """Replace a layer by one that ends with a call."""
        self._claim(call)
        self.layers[index] = layer
        self.newest[index] = call.results[0]
        self.layer_of_value.update(dict.fromkeys(call.results, index))

    def start_layer(self, layer: Layer, call: Call, fn: str) -> None:
        """Add a layer, whose function may say how it joins its inputs."""
        kind = find_kind(layer.kind)
        sizes, join = dict(layer.sizes), "none"
        sources = [self.layer_of_value[value] for value in self.list_operands(layer, call)]
        if not kind.combines_inputs:
            sources = list(dict.fromkeys(sources))
        elif len(sources) > 1:
            join = fn if fn in _JOINS else "add"
            sizes["inputs"] = 1 if fn == "concat" else len(sources)
        params, is_tied = self._claim(call)
        if kind.counts_params and params:
            sizes["params"] = params
        reads = tuple(len(self.layers) - source for source in sources)
        is_tied = is_tied or layer.tied
        self.layer_of_value.update(dict.fromkeys(call.results, len(self.layers)))
        self.layers.append(replace(layer, sizes=Sizes(sizes), reads=reads, join=join, tied=is_tied))
        self.calls.append(call)
        self.newest.append(call.results[0])

    def list_operands(self, op: Op, call: Call) -> list[Value]:
        """Return the inputs that a layer reads; labels and masks beside numbers do not count."""
        known = self._list_known(call)
        is_float = dict(call.inputs)
        numbers = [value for value in known if is_float[value]]
        return numbers if numbers and find_kind(op.kind).combines_inputs else known

    def make_network(self, sample: Input, name: str) -> Network:
        """Return the network of all layers; without some views if it cannot be rebuilt."""
        layers = order_operands(self.layers)
        blocks = group_by_block(call.block for call in self.calls)
        network = Network(layers, sample, blocks, name=name)
        is_output_last = not self.newest or self.newest[-1] == self.output
        if self.buildable and is_output_last and can_build(network):
            return network
        shorter = tuple(self.drop_views(layers))
        self.calls_between += sum(len(layer.tail) for layer in layers)
        self.calls_between -= sum(len(layer.tail) for layer in shorter)
        return replace(network, layers=shorter, buildable=False)

    def drop_views(self, layers: Sequence[Layer]) -> Iterable[Layer]:
        """Return layers without the views in their tails that only reshape."""
        raise NotImplementedError

    def _list_known(self, call: Call) -> list[Value]:
        """Return the inputs that layers or the network's input gave."""
        return [value for value, _ in call.inputs if value in self.layer_of_value]

    def _claim(self, call: Call) -> tuple[int, bool]:
        """Return how many parameters it is the first to use, and whether it only shares others."""
        new = [name for name in call.weights if name not in self._claimed]
        self._claimed.update(new)
        return sum(call.weights[name] for name in new), bool(call.weights) and not new
