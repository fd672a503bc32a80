"""Assemble a Network from the calls of an ONNX graph, by the rules that hold for modules.

A layer is an operator with parameters and the operators that follow it: an operator without
weights, and a norm, joins the tail of the layer whose result only it reads. A new layer starts
where two operators read a result, where a repeated block ends, and where an operator reads two
results. Blocks are found from the names of modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from joulecast.onnx_nets.graph import GraphCall, ReadGraph
from joulecast.onnx_nets.operators import (
    count_flops,
    find_out_shape,
    has_reader,
    list_weights,
    read_call,
)
from joulecast.operators import Shape, find_kind, make_op
from joulecast.operators.building import can_build, with_size
from joulecast.records import Input, Layer, Network, Op, Sizes
from joulecast.records.network import group_by_block, order_operands

_JOINS = ("add", "mul", "concat")
# Functions whose other operand may be a tensor that no layer computes.
_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "where", "minimum", "maximum")
_LONGEST_NAME = 200
# Networks have tails of a few operators; more of them start a layer.
_LONGEST_TAIL = 100
# Layers of a recurrent stack have the same sizes but for their inputs.
_STACKED = ("hidden", "tokens", "bidirectional", "bias")


@dataclass
class _LayerDraft:
    """A layer that may still grow.

    Attributes:
        block: Index of its block; -1 outside of blocks.
        sources: Indices of the layers that it reads; -1 for the network's input.
        last_value: Name of its newest result.
        shape: Its sample shape, as the operators say; None if they do not fit together.
    """

    op: Op
    call: GraphCall
    block: int
    sources: tuple[int, ...]
    join: str
    last_value: str
    shape: Shape | None
    is_tied: bool
    tail: list[Op] = field(default_factory=list)


class LayerAssembler:
    """Makes a Network of the calls of a graph, with patterns replaced by single ones.

    ``costly`` are slicing operators that are layers, because their gradients move many bytes;
    ``calls_between`` counts the calls between layers.
    """

    def __init__(
        self, graph: ReadGraph, calls: Sequence[GraphCall], batch: int, costly: frozenset[str]
    ) -> None:
        self.graph, self.calls, self.batch, self.costly = graph, calls, batch, costly
        self.drafts: list[_LayerDraft] = []
        self.layer_of_value: dict[str, int] = dict.fromkeys(graph.inputs, -1)
        self.readers = Counter(name for call in calls for name in set(call.reads) if name)
        self.readers.update(graph.outputs)
        self.claimed: set[str] = set()
        self.buildable = len(graph.inputs) == 1
        self.calls_between = 0
        is_heavy = [count_flops(call) > 0 for call in calls]
        self.block_of_call = [-1] * len(calls)
        for block, (start, stop) in enumerate(
            find_path_blocks([*map(_find_path, calls)], is_heavy)
        ):
            self.block_of_call[start:stop] = [block] * (stop - start)

    def assemble(self, name: str) -> Network:
        """Return the network, under this name."""
        for place, call in enumerate(self.calls):
            self._add_call(place, call)
        if self.drafts and self.graph.outputs[:1] != [self.drafts[-1].last_value]:
            self.buildable = False
        layers = self._finish()
        first, vocabulary = self.graph.values[self.graph.inputs[0]], 0
        for draft in self.drafts if not first.is_float else ():
            if find_kind(draft.op.kind).reads_tokens and -1 in draft.sources:
                vocabulary = draft.op.sizes["vocabulary"]
                break
        blocks = group_by_block(draft.block for draft in self.drafts)
        network = Network(layers, Input(first.dims[1:], vocabulary), blocks, name=name)
        if self.buildable and can_build(network):
            return network
        shorter = tuple(map(_drop_views, layers))
        self.calls_between += sum(len(layer.tail) for layer in layers)
        self.calls_between -= sum(len(layer.tail) for layer in shorter)
        return replace(network, layers=shorter, buildable=False)

    # -- calls -----------------------------------------------------------------------------

    def _add_call(self, place: int, call: GraphCall) -> None:
        # Those that layers or the network's input gave.
        values = [*dict.fromkeys(one for one in call.reads if one in self.layer_of_value)]
        given = [value for _, value in call.named_inputs]
        if not call.outputs or any(one.shape is None for one in (call.outputs[0], *given)):
            self.buildable = False
            self._pass_through(call, values)
            return
        op = read_call(call, self.batch)
        self.buildable = self.buildable and has_reader(call.op)
        op = None if op is None else _add_constant(op, call)
        draft = self._find_sole_source(place, values)
        if op is None or (find_kind(op.kind).is_view and draft is None):
            changes = op is None or not _changes_nothing(op)
            self.buildable = self.buildable and not changes
            if changes and call.op in self.costly:
                shape = call.read(0).take_sample(self.batch) or (1,)
                out = call.outputs[0].take_sample(self.batch) or (1,)
                kind = "slice" if len(call.makes) == 1 else "gradient_copy"
                self._start_layer(place, make_op(kind, out=out, shape=shape), call)
            else:
                self._pass_through(call, values)
        elif draft is not None and self._append(op, call, draft):
            self._extend(draft, call)
        elif not self._deepen(op, call, values):
            self._start_layer(place, op, call)

    def _pass_through(self, call: GraphCall, values: Sequence[str]) -> None:
        """Let the results of a view belong to the layer that computed its input."""
        self.calls_between += 1
        if not values:
            return
        layer = self.layer_of_value[values[0]]
        self.layer_of_value.update(dict.fromkeys(call.makes, layer))
        is_only = self.readers[values[0]] == 1 and len(call.makes) == 1
        if layer >= 0 and is_only and self.drafts[layer].last_value == values[0]:
            self.drafts[layer].last_value = call.makes[0]

    def _find_sole_source(self, place: int, values: Sequence[str]) -> _LayerDraft | None:
        """Return the layer of the same block whose newest result only this call reads."""
        if len(values) != 1 or self.readers[values[0]] != 1:
            return None
        layer = self.layer_of_value[values[0]]
        draft = self.drafts[layer] if layer >= 0 else None
        if draft is None or draft.last_value != values[0]:
            return None
        return draft if draft.block == self.block_of_call[place] else None

    def _append(self, op: Op, call: GraphCall, draft: _LayerDraft) -> bool:
        """Add an operator to the tail of a layer, if it belongs there; return whether it does."""
        kind = find_kind(op.kind)
        has_own_weights = kind.counts_params and list_weights(call)
        if not kind.can_be_in_tail or has_own_weights or len(draft.tail) >= _LONGEST_TAIL:
            return False
        moves = kind.permutes_axes or kind.selects_elements
        # A view may only say what the operators before it say already.
        if kind.is_view and (
            _changes_nothing(op) if moves else draft.shape == find_out_shape(op, op.sizes["shape"])
        ):
            self.calls_between += 1
            return True
        # In a tail the shape follows from the operators before.
        sizes = {name: size for name, size in op.sizes.items() if name != "shape"}
        draft.tail.append(Op(op.kind, Sizes(sizes)))
        draft.shape = find_out_shape(op, draft.shape)
        return True

    def _extend(self, draft: _LayerDraft, call: GraphCall) -> None:
        """Let the results of a call be those of a layer."""
        self._claim(call)
        layer = self.layer_of_value[draft.call.makes[0]]
        draft.last_value = call.makes[0]
        self.layer_of_value.update(dict.fromkeys(call.makes, layer))

    def _deepen(self, op: Op, call: GraphCall, values: Sequence[str]) -> bool:
        """Add a recurrent layer to the one below it, as one stack; return whether it is one."""
        kind = find_kind(op.kind)
        if not kind.is_recurrent or not values or self.readers[values[0]] != 1:
            return False
        layer = self.layer_of_value[values[0]]
        if layer < 0 or self.drafts[layer].op.kind != op.kind:
            return False
        draft = self.drafts[layer]
        sizes = draft.op.sizes
        is_alike = all(sizes[name] == op.sizes[name] for name in _STACKED)
        fits = op.sizes["cin"] == sizes["hidden"] * (1 + sizes["bidirectional"])
        if not is_alike or not fits or not all(find_kind(one.kind).is_view for one in draft.tail):
            return False
        draft.op = with_size(draft.op, "depth", sizes["depth"] + 1)
        draft.tail.clear()
        draft.shape = find_out_shape(draft.op, kind.in_shape(draft.op.sizes))
        self._extend(draft, call)
        return True

    def _start_layer(self, place: int, op: Op, call: GraphCall) -> None:
        kind = find_kind(op.kind)
        pairs = [pair for pair in call.named_inputs if pair[0] in self.layer_of_value]
        # Labels and masks beside numbers do not count.
        numbers = [name for name, value in pairs if value.is_float]
        operands = numbers if numbers and kind.combines_inputs else [name for name, _ in pairs]
        sources = [self.layer_of_value[name] for name in operands]
        if not kind.combines_inputs:
            sources = list(dict.fromkeys(sources))
        join = "none"
        if kind.combines_inputs and len(sources) > 1:
            fn = str(op.sizes["fn"]).split(" ")[0]
            join = fn if fn in _JOINS else "add"
            op = with_size(op, "inputs", 1 if fn == "concat" else len(sources))
        params, is_tied = self._claim(call)
        if kind.counts_params and params:
            op = with_size(op, "params", params)
        shape = find_out_shape(op, kind.in_shape(op.sizes))
        self.layer_of_value.update(dict.fromkeys(call.makes, len(self.drafts)))
        block, value = self.block_of_call[place], call.makes[0]
        self.drafts.append(
            _LayerDraft(op, call, block, tuple(sources), join, value, shape, is_tied)
        )

    def _claim(self, call: GraphCall) -> tuple[int, bool]:
        """Return how many parameters it is the first to use, and whether it only shares others."""
        names = list_weights(call)
        new = [name for name in names if name not in self.claimed]
        self.claimed.update(new)
        return sum(self.graph.weights.get(name, 0) for name in new), bool(names) and not new

    def _finish(self) -> tuple[Layer, ...]:
        layers: list[Layer] = []
        # Whether the result of each layer depends on weights.
        depends: list[bool] = []
        for index, draft in enumerate(self.drafts):
            has_gradient = any(depends[one] for one in draft.sources if one >= 0)
            has_norm = any(op.sizes.get("affine", 0) for op in draft.tail)
            depends.append(has_gradient or has_norm or bool(list_weights(draft.call)))
            layer = Layer(
                draft.op.kind, draft.op.sizes, tail=tuple(draft.tail), input_grad=has_gradient,
                reads=tuple(index - source for source in draft.sources), join=draft.join,
                tied=draft.is_tied, name=_name_layer(draft),
            )  # fmt: skip
            layers.append(layer)
        return tuple(order_operands(layers))


def _add_constant(op: Op, call: GraphCall) -> Op:
    """Return an operator with the size of a tensor operand that no layer computes."""
    if not find_kind(op.kind).combines_inputs or op.sizes["fn"] not in _ARITHMETIC:
        return op
    others = [value for _, value in call.named_inputs if value.is_constant]
    size = max((one.elements for one in others if one.is_float and not one.weights), default=0)
    if size <= 1 or any(value.weights for value in others):
        return op
    return with_size(op, "constant", size)


def _changes_nothing(op: Op) -> bool:
    """Return whether a view is its input."""
    kind = find_kind(op.kind)
    if kind.permutes_axes:
        return tuple(op.sizes["order"]) == tuple(range(len(op.sizes["order"])))
    shape = tuple(op.sizes["shape"])
    return not kind.selects_elements and kind.out_shape(op.sizes, shape) == shape


def _drop_views(layer: Layer) -> Layer:
    """Return a layer without views at its end, and without those that nothing depends on."""

    def only_reshapes(op: Op) -> bool:
        kind = find_kind(op.kind)
        return kind.is_view and not kind.selects_elements

    kept = list(layer.tail)
    while kept and only_reshapes(kept[-1]):
        kept.pop()
    if not any(op.sizes.get("affine", 0) for op in kept):
        kept = [op for op in kept if not only_reshapes(op)]
    return replace(layer, tail=tuple(kept))


# -- names and blocks --------------------------------------------------------------------------

# A weight whose name an exporter kept.
_NAMED_WEIGHT = re.compile(r"((?!.*::).*)\.(weight|bias|kernel)")
# A name that covers this share of the heavy calls of the best one competes with it.
_COVERAGE_SHARE = 0.9
_NUMBERS = re.compile(r"\d+")

Range = tuple[int, int]


def _find_path(call: GraphCall) -> str:
    """Return the module of a call, which may be known from the name of a weight."""
    if call.path:
        return call.path
    found = filter(None, map(_NAMED_WEIGHT.fullmatch, list_weights(call)))
    return next((one[1][:_LONGEST_NAME] for one in found if one[1]), "")


def _name_layer(draft: _LayerDraft) -> str:
    path, kind, label = _find_path(draft.call), draft.op.kind, draft.call.label
    function = str(draft.op.sizes.get("fn", kind)) if find_kind(kind).is_function else kind
    if not path:
        # PyTorch names what its outermost module does after the operator alone: /Add_3.
        return function if not label or label.startswith("/") else label[:_LONGEST_NAME]
    if find_kind(kind).is_function and kind not in path.rsplit(".", 1)[-1]:
        return f"{path}.{function}"
    return path


def find_path_blocks(paths: Sequence[str], is_heavy: Sequence[bool]) -> list[Range]:
    """Return the half-open ranges of calls that the network repeats.

    Candidates are modules with at least two heavy calls whose names differ only in numbers. Of
    those that cover nearly as many heavy calls as the best ones, the most often repeated win.
    A path is empty where the module of a call is not known.
    """
    ranges: dict[str, dict[str, Range]] = {}
    for place, path in enumerate(paths):
        parts = path.split(".") if path else []
        for size in range(1, len(parts) + 1):
            name = ".".join(parts[:size])
            alike = ranges.setdefault(_NUMBERS.sub("#", name), {})
            start, _ = alike.get(name, (place, place))
            alike[name] = (start, place + 1)
    repeated: dict[str, list[Range]] = {}
    coverage: dict[str, int] = {}
    for key, alike in ranges.items():
        large = sorted(one for one in alike.values() if sum(is_heavy[slice(*one)]) > 1)
        if len(large) > 1 and not any(one[1] > two[0] for one, two in pairwise(large)):
            repeated[key] = large
            coverage[key] = sum(sum(is_heavy[slice(*one)]) for one in large)
    least = _COVERAGE_SHARE * max(coverage.values(), default=0)
    rivals = [key for key in repeated if coverage[key] >= least]
    # Of names that cover the same, the outermost is the block.
    best = max(rivals, key=lambda key: (len(repeated[key]), coverage[key], -len(key)), default="")
    return repeated.get(best, [])
