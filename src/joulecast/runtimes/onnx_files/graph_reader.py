"""Follow the shapes through an ONNX graph, from its inputs to its outputs.

Nothing runs: shapes follow from rules, and the constants from which exporters derive shapes are
computed. What remains are the calls that a device would run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.batch_axes import find_batch_axis
from joulecast.runtimes.onnx_files.constant_folding import fold_call
from joulecast.runtimes.onnx_files.graph_values import (
    BOOL,
    FLOAT_TYPES,
    INT64,
    GraphCall,
    GraphValue,
    Node,
    make_constant,
    read_node,
    read_tensor,
)
from joulecast.runtimes.onnx_files.input_shapes import GraphInput, read_dims
from joulecast.runtimes.onnx_files.model_file import GraphError, check_shape, shorten
from joulecast.runtimes.onnx_files.module_paths import find_module_path
from joulecast.runtimes.onnx_files.shape_rules import has_shape_rule, infer_shapes

_FLOAT = 1
# Results of these are the numbers that they read: networks in floating point do not have them.
_QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_SHAPE_READERS = ("Shape", "Size")
_INT_RESULTS = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
_BOOL_RESULTS = (
    "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN",
    "IsInf",
)  # fmt: skip
_DEEPEST_BRANCH = 20


@dataclass
class ReadGraph:
    """A graph whose shapes are known.

    Attributes:
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        calls: What a device runs, in order.
        values: Every value by its name.
        weights: Number of elements of every weight.
        unsized: How often each operator works on sizes that depend on the data.
        quantisers: Names of the operators that quantise, as far as the graph has them.
    """

    inputs: list[str]
    outputs: list[str] = field(default_factory=list)
    calls: list[GraphCall] = field(default_factory=list)
    values: dict[str, GraphValue] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    unsized: Counter[str] = field(default_factory=Counter)
    quantisers: set[str] = field(default_factory=set)


def read_graph(
    graph: onnx.GraphProto,
    inputs: Sequence[GraphInput],
    shapes: Sequence[Shape],
    sizes: dict[str, int],
) -> ReadGraph:
    """Return the calls of a graph, with the shapes of everything that they read and compute.

    Args:
        graph: A graph that was checked (``read_model``).
        inputs: Its inputs.
        shapes: Their shapes.
        sizes: Sizes of named dimensions, for what the file declares about values inside.

    Raises:
        GraphError: The graph is inconsistent; the message names the node.
    """
    return _GraphPass(graph, inputs, shapes, sizes).run()


class _GraphPass:
    """One pass over the nodes of a graph and of the branches that are taken."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        inputs: Sequence[GraphInput],
        shapes: Sequence[Shape],
        sizes: dict[str, int],
    ) -> None:
        self.graph = graph
        self.sizes = sizes
        self.found = ReadGraph([one.name for one in inputs])
        self.declared: dict[str, Shape] = {}
        self.aliases: dict[str, str] = {}
        for one, shape in zip(inputs, shapes, strict=True):
            check_shape(f"the input {shorten(one.name)!r}", shape)
            axis = 0 if shape[:1] == shapes[0][:1] else -1
            self.found.values[one.name] = GraphValue(shape, one.type, batch_axis=axis)

    def run(self) -> ReadGraph:
        self._read_scope(self.graph, depth=0)
        self.found.outputs = [self._resolve(value.name) for value in self.graph.output]
        self.found.calls = _drop_unused(self.found)
        return self.found

    def _read_scope(self, graph: onnx.GraphProto, depth: int) -> None:
        for tensor in graph.initializer:
            self._add_weight(tensor.name, read_tensor(tensor, tensor.name))
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            dims = tuple(int(size) for size in sparse.dims)
            self._add_weight(name, GraphValue(dims, sparse.values.data_type, True, None, (name,)))
        for value in (*graph.value_info, *graph.output):
            self._declare(value)
        for proto in graph.node:
            self._read_proto(proto, depth)

    def _add_weight(self, name: str, value: GraphValue) -> None:
        self.found.values[name] = value
        if value.weights:
            self.found.weights[name] = value.elements

    def _declare(self, value: onnx.ValueInfoProto) -> None:
        dims = read_dims(value.type)
        if dims is None:
            return
        shape = [self.sizes.get(one, -1) if isinstance(one, str) else one for one in dims]
        if min(shape, default=0) >= 0:
            self.declared[value.name] = tuple(shape)

    def _read_proto(self, proto: onnx.NodeProto, depth: int) -> None:
        node = read_node(proto, find_module_path(proto))
        try:
            if node.op == "If" and self._take_branch(proto, node, depth):
                return
            self._add_node(node)
        except GraphError as error:
            raise GraphError(f"node {_name_node(node)} {shorten(str(error), 300)}") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = shorten(str(error).split("\n", 1)[0], 300)
            raise GraphError(f"node {_name_node(node)} is invalid ({reason})") from error

    def _take_branch(self, proto: onnx.NodeProto, node: Node, depth: int) -> bool:
        """Read the branch of an ``If`` whose condition is known; return whether it is."""
        condition = self._read_value(node.inputs[0])
        if condition.numbers is None or depth >= _DEEPEST_BRANCH:
            return False
        wanted = "then_branch" if condition.numbers[0] else "else_branch"
        branch = next((one.g for one in proto.attribute if one.name == wanted), None)
        if branch is None:
            raise GraphError(f"has no {wanted}")
        self._read_scope(branch, depth + 1)
        for name, inner in zip(node.outputs, branch.output, strict=True):
            self.aliases[name] = self._resolve(inner.name)
        return True

    def _add_node(self, node: Node) -> None:
        if node.op == "Constant":
            self.found.values[node.outputs[0]] = _read_constant(node)
            return
        names = tuple(self._resolve(name) if name else "" for name in node.inputs)
        call = GraphCall(
            replace(node, inputs=names), tuple(self._read_value(n) if n else None for n in names)
        )
        if node.op in _QUANTISERS:
            self.found.quantisers.add(node.op)
        given = [value for value in call.inputs if value is not None]
        if self._is_constant(call, given):
            self._add_constant(call, given)
        elif not self._add_alias(call):
            self._add_call(call, given)

    def _is_constant(self, call: GraphCall, given: list[GraphValue]) -> bool:
        if call.op in _SHAPE_READERS:
            return bool(given) and given[0].shape is not None
        return bool(given) and all(value.is_constant for value in given)

    def _add_constant(self, call: GraphCall, given: list[GraphValue]) -> None:
        weights = tuple(dict.fromkeys(name for value in given for name in value.weights))
        is_scale = any(value.is_scale for value in given)
        if call.op in _SHAPE_READERS:
            weights, is_scale = (), False
        elif call.op in _QUANTISERS:
            # Scales and zero points are not weights.
            weights, is_scale = given[0].weights, given[0].is_scale
        for place, shape in enumerate(self._find_shapes(call)):
            numbers = fold_call(call, shape) if shape is not None and place == 0 else None
            self._set_value(
                call.node.outputs[place],
                GraphValue(shape, _find_type(call, place), True, numbers, weights, is_scale),
            )

    def _add_alias(self, call: GraphCall) -> bool:
        """Let the result of a call that changes nothing be its input; return whether it does."""
        source = _find_same(call)
        if source is None:
            return False
        self.aliases[call.node.outputs[0]] = call.node.inputs[source]
        # Besides, a dynamic quantisation returns its scale and zero point, a dropout its mask.
        scale = replace(make_constant((), None, _FLOAT), is_scale=True)
        other = scale if call.op in _QUANTISERS else replace(call.read(0), type=BOOL)
        for name in call.node.outputs[1:]:
            self._set_value(name, other)
        return True

    def _add_call(self, call: GraphCall, given: list[GraphValue]) -> None:
        is_sized = all(value.shape is not None for value in given)
        shapes = self._find_shapes(call) if is_sized else [None] * len(call.node.outputs)
        if not is_sized or (has_shape_rule(call.op) and shapes[0] is None):
            self.found.unsized[call.op] += 1
        outputs = tuple(
            GraphValue(
                shape, _find_type(call, place), batch_axis=find_batch_axis(call, shape, place)
            )
            for place, shape in enumerate(shapes)
        )
        for name, value in zip(call.node.outputs, outputs, strict=True):
            self._set_value(name, value)
        self.found.calls.append(replace(call, outputs=outputs))

    def _find_shapes(self, call: GraphCall) -> list[Shape | None]:
        found = infer_shapes(call)
        if not has_shape_rule(call.op):
            found = [self.declared.get(name) for name in call.node.outputs]
        for shape in found:
            if shape is not None:
                check_shape("the result", shape)
        return found

    def _set_value(self, name: str, value: GraphValue) -> None:
        if name:
            self.found.values[name] = value

    def _resolve(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _read_value(self, name: str) -> GraphValue:
        value = self.found.values.get(self._resolve(name))
        if value is None:
            raise GraphError(f"reads {shorten(name)!r}, which no earlier node computes")
        return value


def _find_same(call: GraphCall) -> int | None:
    """Return which input a call returns unchanged, as far as a network in floating point goes."""
    if call.op in _QUANTISERS or call.op == "Identity":
        return 0
    if call.op == "Dropout":
        training = call.get(2)
        return 0 if training is None or not (training.numbers or (0,))[0] else None
    if call.op in ("Cast", "CastLike"):
        is_float = _find_type(call, 0) in FLOAT_TYPES
        return 0 if is_float == call.read(0).is_float else None
    if call.op == "Mul":
        scales = [value is not None and value.is_scale for value in call.inputs]
        return scales.index(False) if any(scales) and not all(scales) else None
    return None


def _find_type(call: GraphCall, place: int) -> int:
    """Return the number of the element type of a result."""
    first = next((value for value in call.inputs if value is not None), None)
    if call.op == "Cast":
        return int(call.attribute("to", _FLOAT))
    if call.op == "CastLike":
        return call.read(1).type
    if call.op in _INT_RESULTS or (call.op in ("TopK", "MaxPool") and place == 1):
        return INT64
    if call.op in _BOOL_RESULTS:
        return BOOL
    if call.op == "Where":
        return call.read(1).type
    if call.op == "ConstantOfShape":
        value = call.attribute("value")
        return _FLOAT if value is None else int(value.type)
    if "Quant" in call.op or "Integer" in call.op or "QLinear" in call.op:
        return _FLOAT
    return _FLOAT if first is None else first.type


def _read_constant(node: Node) -> GraphValue:
    value = node.attributes.get("value")
    if isinstance(value, GraphValue):
        return value
    for name, type_ in (("value_int", INT64), ("value_float", _FLOAT)):
        if name in node.attributes:
            return make_constant((), (node.attributes[name],), type_)
    for name, type_ in (("value_ints", INT64), ("value_floats", _FLOAT)):
        if name in node.attributes:
            numbers = tuple(node.attributes[name])
            return make_constant((len(numbers),), numbers, type_)
    return GraphValue(None, _FLOAT, True)


def _drop_unused(found: ReadGraph) -> list[GraphCall]:
    """Return the calls that an output depends on."""
    wanted = set(found.outputs)
    kept = []
    for call in reversed(found.calls):
        if wanted.intersection(call.node.outputs):
            kept.append(call)
            wanted.update(call.node.inputs)
    return kept[::-1]


def _name_node(node: Node) -> str:
    name = node.label or (node.outputs[0] if node.outputs else "")
    return f"{shorten(name)!r} ({shorten(node.op)})"
