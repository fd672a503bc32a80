"""Follow the shapes through an ONNX graph, from its inputs to its outputs.

Nothing runs. ``onnx.shape_inference`` gives the shapes of every node, and the reference operators
of ``onnx`` compute the small constants from which exporters derive shapes. Operators of ONNX
Runtime, which ``onnx`` does not know, have a table here. What remains are the calls that a device
would run.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference.ops import load_op

from joulecast.onnx_nets.model_file import (
    MOST_CONSTANT_ELEMENTS,
    GraphError,
    GraphInput,
    check_shape,
    is_external,
    read_dims,
    shorten,
)
from joulecast.operators import Shape
from joulecast.system.units import format_shape

FLOAT_TYPES = frozenset((1, 10, 11, 16, 17, 18, 19, 20))
"""Numbers of the floating-point types (``onnx.TensorProto.DataType``)."""
MICROSOFT = "com.microsoft::"
"""Domain of the operators that ONNX Runtime's optimiser writes."""
RECURRENT = ("LSTM", "GRU", "RNN", f"{MICROSOFT}DynamicQuantizeLSTM")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

_FLOAT, _BOOL = 1, 9
# Types whose elements NumPy has.
_DECODED_TYPES = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
# Results of these are the numbers that they read: networks in floating point do not have them.
_QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_SHAPE_READERS = ("Shape", "Size")
# The arithmetic by which exporters derive shapes; none of it is slow on few elements.
_FOLDED = frozenset((
    *_SHAPE_READERS, *VIEWS, "Identity", "Cast", "Transpose", "Slice", "Gather", "Concat", "Expand",
    "ConstantOfShape", "Range", "Add", "Sub", "Mul", "Div", "Mod", "Pow", "Equal", "Less",
    "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not", "Where", "Min", "Max", "Neg",
    "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil", "ReduceProd", "ReduceSum", "ReduceMax",
    "ReduceMin", "CastLike", "Tile", "Split", "GatherND", "ScatterND",
))  # fmt: skip
# The numbers in their other inputs have to be known.
_SHAPED_BY_NUMBERS = frozenset((
    "Reshape", "Expand", "Slice", "Tile", "Pad", "Resize", "Upsample", "Squeeze", "Unsqueeze",
    "ConstantOfShape", "Range", "OneHot", "TopK", "Split", "ReduceMean", "ReduceSum", "ReduceMax",
    "ReduceMin", "ReduceProd",
))  # fmt: skip
_DEEPEST_BRANCH = 20
# Where PyTorch's exporter writes the modules of a node.
_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST_SCOPES = 10_000
_LONGEST_PATH = 200


@dataclass(frozen=True, eq=False)
class GraphValue:
    """What is known about a value before anything runs.

    Attributes:
        shape: Its shape; None where it depends on the data, as after ``NonZero``.
        type: Number of its element type.
        is_constant: It does not depend on the inputs of the graph.
        array: Elements of a small constant; None if they are not known.
        weights: Names of the weights that it is, or is computed from.
        is_scale: It scales quantised numbers; a network in floating point does not have it.
        batch_axis: The axis that holds the samples; -1 if there is none.
    """

    shape: Shape | None
    type: int = _FLOAT
    is_constant: bool = False
    array: Any = None
    weights: tuple[str, ...] = ()
    is_scale: bool = False
    batch_axis: int = -1

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.type in FLOAT_TYPES

    @property
    def is_weight(self) -> bool:
        """Whether it is a constant that was learned, more than one number."""
        return self.is_constant and bool(self.weights)

    @property
    def numbers(self) -> tuple[Any, ...] | None:
        """The elements of a small constant, in order; None if they are not known."""
        return None if self.array is None else tuple(np.ravel(self.array).tolist())

    @property
    def dims(self) -> Shape:
        """Its shape.

        Raises:
            GraphError: It depends on the data.
        """
        if self.shape is None:
            raise GraphError("reads a value whose shape depends on the data")
        return self.shape

    @property
    def elements(self) -> int:
        """How many elements it has; 0 where that depends on the data."""
        return 0 if self.shape is None else math.prod(self.shape)

    def take_sample(self, batch: int) -> Shape:
        """Return the shape of one sample."""
        shape = self.dims
        if self.has_batch(batch):
            return (*shape[: self.batch_axis], *shape[self.batch_axis + 1 :])
        if shape and shape[0] % batch == 0:
            images = shape[0] // batch
            return (images, *shape[1:]) if images > 1 else shape[1:]
        return (-(-math.prod(shape) // batch),)

    def has_batch(self, batch: int) -> bool:
        """Return whether it has an axis for the samples."""
        axis = self.batch_axis
        return self.shape is not None and 0 <= axis < len(self.shape) and self.shape[axis] == batch


@dataclass(frozen=True)
class Node:
    """A call of an operator.

    Attributes:
        op: Its name; operators of other domains than ONNX's own carry theirs, ``com.acme::Op``.
        inputs: Names of values; empty where an optional input is missing.
        path: Name of the module that it belongs to, with dots; empty if that is not known.
        label: Its name in the file.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    label: str = ""


@dataclass(frozen=True, eq=False)
class GraphCall:
    """A node with the values that it reads and, once they are known, those that it computes."""

    node: Node
    inputs: tuple[GraphValue | None, ...]
    outputs: tuple[GraphValue, ...] = ()

    @property
    def op(self) -> str:
        """The name of its operator."""
        return self.node.op

    @property
    def named_inputs(self) -> list[tuple[str, GraphValue]]:
        """The inputs that it has, with their names."""
        pairs = zip(self.node.inputs, self.inputs, strict=True)
        return [(name, value) for name, value in pairs if value is not None]

    def get(self, index: int) -> GraphValue | None:
        """Return an input, or None where it is missing."""
        return self.inputs[index] if index < len(self.inputs) else None

    def read(self, index: int) -> GraphValue:
        """Return an input that the operator needs."""
        value = self.get(index)
        if value is None:
            raise GraphError(f"has no input {index + 1}")
        return value

    def shape(self, index: int) -> Shape:
        """Return the shape of an input that the operator needs."""
        return self.read(index).dims

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        value = self.node.attributes.get(name)
        return default if value is None else value

    def numbers(self, index: int, name: str) -> tuple[Any, ...] | None:
        """Return a list that is an attribute in old models and an input in newer ones."""
        value = self.get(index)
        if value is None:
            found = self.attribute(name)
            return None if found is None else tuple(found)
        if value.numbers is None:
            raise GraphError(f"reads its {name} from a value that is not known before it runs")
        return value.numbers


@dataclass
class ReadGraph:
    """A graph whose shapes are known.

    Attributes:
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        calls: What a device runs, in order.
        values: Every value by its name.
        weights: Number of elements of every weight.
        quantisers: Names of the operators that quantise, as far as the graph has them.
    """

    inputs: list[str]
    outputs: list[str] = field(default_factory=list)
    calls: list[GraphCall] = field(default_factory=list)
    values: dict[str, GraphValue] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    quantisers: set[str] = field(default_factory=set)


def normalise_axis(axis: Any, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        GraphError: There is no such axis.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise GraphError(f"names axis {axis}, but its input has {rank}")
    return axis % rank


def list_permutation(call: GraphCall) -> tuple[int, ...]:
    """Return the order of axes of a ``Transpose``."""
    return tuple(call.attribute("perm", tuple(reversed(range(len(call.shape(0)))))))


def list_reduced_axes(call: GraphCall) -> tuple[int, ...]:
    """Return the axes that a reduction runs over, counted from the front."""
    rank = len(call.shape(0))
    axes = call.numbers(1, "axes")
    if not axes:
        return () if call.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(normalise_axis(axis, rank) for axis in axes))


class GraphReader:
    """Reads the calls of a graph, with the shapes of everything that they read and compute.

    Args:
        model: A model that was checked (``parse_model``).
        inputs: Its inputs.
        shapes: Their shapes.
        sizes: Sizes of named dimensions, for what the file declares about values inside.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[GraphInput],
        shapes: Sequence[Shape],
        sizes: dict[str, int],
    ) -> None:
        self.graph = model.graph
        versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
        self.opset = min(max(versions, default=1), onnx.defs.onnx_opset_version())
        self.sizes = sizes
        self.found = ReadGraph([one.name for one in inputs])
        self.declared: dict[str, Shape] = {}
        self.aliases: dict[str, str] = {}
        for one, shape in zip(inputs, shapes, strict=True):
            check_shape(f"the input {shorten(one.name)!r}", shape)
            axis = 0 if shape[:1] == shapes[0][:1] else -1
            self.found.values[one.name] = GraphValue(shape, one.type, batch_axis=axis)

    def read(self) -> ReadGraph:
        """Return the graph with the calls that an output depends on.

        Raises:
            GraphError: The graph is inconsistent; the message names the node.
        """
        self._read_scope(self.graph, depth=0)
        found = self.found
        found.outputs = [self._resolve(value.name) for value in self.graph.output]
        wanted, kept = set(found.outputs), []
        for call in reversed(found.calls):
            if wanted.intersection(call.node.outputs):
                kept.append(call)
                wanted.update(call.node.inputs)
        found.calls = kept[::-1]
        return found

    def _read_scope(self, graph: onnx.GraphProto, depth: int) -> None:
        for tensor in graph.initializer:
            self._add_weight(tensor.name, _read_tensor(tensor, tensor.name))
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            dims = tuple(int(size) for size in sparse.dims)
            self._add_weight(name, GraphValue(dims, sparse.values.data_type, True, None, (name,)))
        for value in (*graph.value_info, *graph.output):
            declared = read_dims(value.type)
            sizes = [self.sizes.get(d, -1) if isinstance(d, str) else d for d in declared or ()]
            if declared is not None and min(sizes, default=0) >= 0:
                self.declared[value.name] = tuple(sizes)
        for proto in graph.node:
            node = _read_node(proto, find_module_path(proto))
            label = node.label or (node.outputs[0] if node.outputs else "")
            title = f"node {shorten(label)!r} ({shorten(node.op)})"
            try:
                if not (node.op == "If" and self._take_branch(proto, node, depth)):
                    self._add_node(node, proto)
            except GraphError as error:
                raise GraphError(f"{title} {shorten(str(error), 300)}") from error
            except (
                ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError,
                shape_inference.InferenceError, onnx.checker.ValidationError,
            ) as error:  # fmt: skip
                reason = shorten(str(error).strip().split("\n", 1)[0], 300)
                raise GraphError(f"{title} is invalid ({reason})") from error

    def _add_weight(self, name: str, value: GraphValue) -> None:
        self.found.values[name] = value
        if value.weights:
            self.found.weights[name] = value.elements

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

    def _add_node(self, node: Node, proto: onnx.NodeProto) -> None:
        if node.op == "Constant":
            self.found.values[node.outputs[0]] = _read_constant(node)
            return
        names = tuple(self._resolve(name) if name else "" for name in node.inputs)
        values = tuple(self._read_value(name) if name else None for name in names)
        call = GraphCall(replace(node, inputs=names), values)
        given = [value for value in values if value is not None]
        if node.op in _QUANTISERS:
            self.found.quantisers.add(node.op)
        if node.op in _SHAPE_READERS:
            is_constant = bool(given) and given[0].shape is not None
        else:
            is_constant = bool(given) and all(value.is_constant for value in given)
        if is_constant:
            self._add_constant(call, given, proto)
        elif not self._add_alias(call):
            self._add_call(call, given, proto)

    def _add_constant(
        self, call: GraphCall, given: list[GraphValue], proto: onnx.NodeProto
    ) -> None:
        weights = tuple(dict.fromkeys(name for value in given for name in value.weights))
        is_scale = any(value.is_scale for value in given)
        if call.op in _SHAPE_READERS:
            weights, is_scale = (), False
        elif call.op in _QUANTISERS:
            # Scales and zero points are not weights.
            weights, is_scale = given[0].weights, given[0].is_scale
        results = self._infer(call, proto)
        arrays = self._fold(call, proto, [shape for shape, _ in results])
        for name, (shape, type_), array in zip(call.node.outputs, results, arrays, strict=True):
            if name:
                value = GraphValue(shape, type_, True, array, weights, is_scale)
                self.found.values[name] = value

    def _add_alias(self, call: GraphCall) -> bool:
        """Let the result of a call that changes nothing be its input; return whether it does."""
        source = _find_same(call)
        if source is None:
            return False
        self.aliases[call.node.outputs[0]] = call.node.inputs[source]
        # Besides, a dynamic quantisation returns its scale and zero point, a dropout its mask.
        scale = GraphValue((), _FLOAT, True, is_scale=True)
        other = scale if call.op in _QUANTISERS else replace(call.read(0), type=_BOOL)
        self.found.values.update((name, other) for name in call.node.outputs[1:] if name)
        return True

    def _add_call(self, call: GraphCall, given: list[GraphValue], proto: onnx.NodeProto) -> None:
        is_sized = all(value.shape is not None for value in given)
        results: list[tuple[Shape | None, int]] = [(None, _FLOAT)] * len(call.node.outputs)
        results = self._infer(call, proto) if is_sized else results
        outputs = tuple(
            GraphValue(shape, type_, batch_axis=find_batch_axis(call, shape, place))
            for place, (shape, type_) in enumerate(results)
        )
        for name, value in zip(call.node.outputs, outputs, strict=True):
            if name:
                self.found.values[name] = value
        self.found.calls.append(replace(call, outputs=outputs))

    def _infer(self, call: GraphCall, proto: onnx.NodeProto) -> list[tuple[Shape | None, int]]:
        """Return shape and type of every result; a shape is None where it is not known."""
        first = next((value.type for value in call.inputs if value is not None), _FLOAT)
        names = call.node.outputs
        found: list[tuple[Shape | None, int]] = [(self.declared.get(name), first) for name in names]
        rule = _OWN_SHAPES.get(call.op)
        if rule is not None:
            shapes = rule(call)
            found = [(shapes[i] if i < len(shapes) else None, first) for i in range(len(names))]
        elif (schema := _find_schema(proto, self.opset)) is not None:
            inferred = self._infer_by_schema(schema, call, proto)
            types = [inferred.get(name) for name in names]
            shapes = [_read_shape(one) for one in types]
            found = [
                (shape, one.tensor_type.elem_type if one is not None else first)
                for shape, one in zip(shapes, types, strict=True)
            ]
            if shapes[0] is None and call.op in _SHAPED_BY_NUMBERS:
                raise GraphError(
                    "reads its shape from a value that is in another file, or depends on the data"
                )
        _check_elements(call, found[0][0] if found else None)
        for shape, _ in found:
            if shape is not None:
                check_shape("the result", shape)
        if "Quant" in call.op or "Integer" in call.op or "QLinear" in call.op:
            found = [(shape, _FLOAT) for shape, _ in found]
        return found

    def _infer_by_schema(
        self, schema: onnx.defs.OpSchema, call: GraphCall, proto: onnx.NodeProto
    ) -> dict[str, onnx.TypeProto]:
        types, data = {}, {}
        for name, value in zip(proto.input, call.inputs, strict=True):
            if value is None:
                continue
            # Numbers of a quantised graph stand for floats, and floats of any precision for others.
            type_ = _FLOAT if value.is_float else value.type
            types[name] = helper.make_tensor_type_proto(type_, value.shape)
            if value.array is not None:
                data[name] = numpy_helper.from_array(value.array)
        opsets = [helper.make_opsetid("", self.opset)]
        return shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)

    def _fold(
        self, call: GraphCall, proto: onnx.NodeProto, shapes: Sequence[Shape | None]
    ) -> Sequence[Any]:
        """Return the elements of the results of a constant call, as far as they are few."""
        unknown = [None] * len(shapes)
        sizes = [math.prod(shape) if shape is not None else math.inf for shape in shapes]
        if call.op not in _FOLDED or max(sizes, default=0) > MOST_CONSTANT_ELEMENTS:
            return unknown
        if call.op in _SHAPE_READERS:
            # No element is read: one stands for all.
            arrays: list[Any] = [np.broadcast_to(np.float32(0), call.shape(0))]
        else:
            arrays = [None if value is None else value.array for value in call.inputs]
            known = [value is None or value.array is not None for value in call.inputs]
            if not all(known):
                return unknown
        settings = {"log": lambda *_: None, "opsets": {"": self.opset}, "verbose": 0}
        with np.errstate(all="ignore"):
            operator = load_op("", proto.op_type, self.opset)(proto, {**settings, "new_ops": None})
            results = operator.run(*arrays)
        return [np.asarray(one) for one in results]

    def _resolve(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _read_value(self, name: str) -> GraphValue:
        value = self.found.values.get(self._resolve(name))
        if value is None:
            raise GraphError(f"reads {shorten(name)!r}, which no earlier node computes")
        return value


def find_batch_axis(call: GraphCall, shape: Shape | None, place: int = 0) -> int:
    """Return the axis of a result that holds the samples; -1 if there is none.

    Most operators have the samples on their first axis; recurrent ones have the tokens there.

    Args:
        call: The call that computes it.
        shape: The shape of the result.
        place: Which result it is.
    """
    given = [value for value in call.inputs if value is not None and value.batch_axis >= 0]
    if shape is None or not given or given[0].shape is None:
        return -1
    old, axis = given[0].shape, given[0].batch_axis
    samples = old[axis]
    if call.op in RECURRENT:
        has_samples_first = bool(call.attribute("layout", 0))
        return (0 if has_samples_first else 2) if place == 0 else int(not has_samples_first)
    if call.op == "Transpose":
        return list_permutation(call).index(axis)
    if call.op in VIEWS:
        # The axis that has as many elements before it, and the same size.
        before, count = math.prod(old[:axis]), 1
        for new, size in enumerate(shape):
            # An axis of one element may stand before the axis itself.
            if count == before and size == samples and (size > 1 or before > 1 or new == axis):
                return new
            count *= size
        return -1
    if "Reduce" in call.op and not call.attribute("keepdims", 1):
        axis -= sum(1 for one in list_reduced_axes(call) if one < axis)
    elif call.op in ("Gather", "ArgMax", "ArgMin"):
        if call.attribute("axis", 0) % len(old) < axis:
            is_gather = call.op == "Gather"
            axis += len(call.shape(1)) - 1 if is_gather else call.attribute("keepdims", 1) - 1
    else:
        # Axes of a broadcast result are counted from the back.
        axis += len(shape) - len(old)
    return axis if 0 <= axis < len(shape) and shape[axis] == samples else -1


def _find_same(call: GraphCall) -> int | None:
    """Return which input a call returns unchanged, as far as a network in floating point goes."""
    if call.op in _QUANTISERS or call.op == "Identity":
        return 0
    if call.op == "Dropout":
        training = call.get(2)
        return 0 if training is None or not (training.numbers or (0,))[0] else None
    if call.op in ("Cast", "CastLike"):
        type_ = call.attribute("to", _FLOAT) if call.op == "Cast" else call.read(1).type
        return 0 if (type_ in FLOAT_TYPES) == call.read(0).is_float else None
    if call.op == "Mul":
        scales = [value is not None and value.is_scale for value in call.inputs]
        return scales.index(False) if any(scales) and not all(scales) else None
    return None


def _check_elements(call: GraphCall, shape: Shape | None) -> None:
    """Refuse sizes that do not fit together and that ``onnx`` accepts."""
    value = call.get(0)
    if value is None or value.shape is None or shape is None:
        return
    if call.op in VIEWS and math.prod(shape) != value.elements:
        old = format_shape(value.shape) or "()"
        raise GraphError(f"reshapes {old} to {format_shape(shape) or '()'}, which does not fit")
    place = {"Conv": 1, "ConvInteger": 1, f"{MICROSOFT}FusedConv": 1, "QLinearConv": 3}.get(call.op)
    if place is not None:
        kernel = call.shape(place)
        image = value.shape
        if image[1] != kernel[1] * call.attribute("group", 1) or min(shape[2:], default=1) < 1:
            raise GraphError(
                f"convolves {format_shape(image)} with a kernel of {format_shape(kernel)}"
            )


def _find_schema(proto: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator that can tell shapes; None if there is none."""
    has_graph = any(one.type == onnx.AttributeProto.GRAPH for one in proto.attribute)
    if proto.domain not in ("", "ai.onnx") or has_graph:
        return None
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return schema if schema.has_type_and_shape_inference_function else None


def _read_shape(found: onnx.TypeProto | None) -> Shape | None:
    dims = None if found is None else read_dims(found)
    if dims is None or not all(isinstance(size, int) for size in dims):
        return None
    return tuple(int(size) for size in dims)


def _read_tensor(tensor: onnx.TensorProto, name: str = "") -> GraphValue:
    """Return the value of a tensor in the file: a weight if it has a name."""
    shape = tuple(int(size) for size in tensor.dims)
    count = math.prod(shape)
    weights = (name,) if name and count > 1 else ()
    is_known = count <= MOST_CONSTANT_ELEMENTS and tensor.data_type in _DECODED_TYPES
    array = numpy_helper.to_array(tensor) if is_known and not is_external(tensor) else None
    return GraphValue(shape, tensor.data_type, True, array, weights)


def _read_constant(node: Node) -> GraphValue:
    value = node.attributes.get("value")
    if isinstance(value, GraphValue):
        return value
    for name, type_ in (("int", np.int64), ("float", np.float32)):
        for found in (node.attributes.get(f"value_{name}"), node.attributes.get(f"value_{name}s")):
            if found is not None:
                array = np.asarray(found, dtype=type_)
                return GraphValue(array.shape, 7 if name == "int" else _FLOAT, True, array)
    return GraphValue(None, _FLOAT, True)


def _read_node(proto: onnx.NodeProto, path: str) -> Node:
    is_standard = proto.domain in ("", "ai.onnx")
    return Node(
        op=str(proto.op_type) if is_standard else f"{proto.domain}::{proto.op_type}",
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={one.name: _read_attribute(one) for one in proto.attribute},
        path=path,
        label=proto.name,
    )


def find_module_path(node: onnx.NodeProto) -> str:
    """Return the name of a node's module, ``layer1.0.conv1``; empty if it is not known."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES and len(entry.value) <= _LONGEST_SCOPES:
            return _parse_scopes(entry.value)
    *segments, _ = node.name.strip("/").split("/")
    path: list[str] = []
    for segment in segments:
        if path and segment.startswith(f"{path[-1]}."):
            path.pop()
        path.append(segment)
    return ".".join(path)[:_LONGEST_PATH]


def _parse_scopes(text: str) -> str:
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
        return ""
    # The last one is the node itself.
    return next((one for one in reversed(scopes[:-1]) if one), "")[:_LONGEST_PATH]


def _read_attribute(proto: onnx.AttributeProto) -> Any:
    kinds = onnx.AttributeProto
    if proto.type == kinds.TENSOR:
        return _read_tensor(proto.t)
    if proto.type not in (
        kinds.INT, kinds.INTS, kinds.FLOAT, kinds.FLOATS, kinds.STRING, kinds.STRINGS
    ):  # fmt: skip
        return None
    found = helper.get_attribute_value(proto)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    if proto.type == kinds.STRINGS:
        return tuple(one.decode("utf-8", "replace") for one in found)
    return found if isinstance(found, int | float) else tuple(found)


# -- operators of ONNX Runtime, and of quantised graphs ------------------------------------------


def find_hidden_size(call: GraphCall) -> int:
    """Return how many features a recurrent layer computes for each token."""
    recurrent = call.shape(2)
    # ONNX Runtime transposes the weights that it quantises.
    return recurrent[1] if call.op.startswith(MICROSOFT) else recurrent[-1]


def transpose_factors(call: GraphCall, right: int = 1) -> tuple[Shape, Shape]:
    """Return the shapes of the factors of a product that may transpose them first."""
    a, b = call.shape(0), call.shape(right)
    a = (*a[:-2], a[-1], a[-2]) if call.attribute("transA", 0) else a
    return a, (*b[:-2], b[-1], b[-2]) if call.attribute("transB", 0) else b


def _as_standard(op: str, places: Sequence[int] = ()) -> Callable[[GraphCall], list[Shape | None]]:
    """Return a rule for an operator whose results have the shapes of a standard one.

    Args:
        op: The standard operator.
        places: Which inputs it takes; all by default.
    """

    def infer(call: GraphCall) -> list[Shape | None]:
        opset = onnx.defs.onnx_opset_version()
        schema = onnx.defs.get_schema(op, opset, "")
        chosen = [call.read(place) for place in places or range(len(schema.inputs))]
        kept = {k: v for k, v in call.node.attributes.items() if k in schema.attributes}
        names = [f"i{place}" for place in range(len(chosen))]
        proto = helper.make_node(op, names, ["y"], **kept)
        types = {
            name: helper.make_tensor_type_proto(_FLOAT, one.dims)
            for name, one in zip(names, chosen, strict=True)
        }
        opsets = [helper.make_opsetid("", opset)]
        found = shape_inference.infer_node_outputs(schema, proto, types, opset_imports=opsets)
        return [_read_shape(found.get("y"))]

    return infer


def _first(call: GraphCall) -> list[Shape | None]:
    return [call.shape(0)]


def _recur(call: GraphCall) -> list[Shape | None]:
    tokens, batch, _ = call.shape(0)
    directions, hidden = call.shape(2)[0], find_hidden_size(call)
    state = (directions, batch, hidden)
    return [(tokens, directions, batch, hidden), state, state]


def _multiply(call: GraphCall) -> list[Shape | None]:
    a, b = transpose_factors(call)
    factors = (GraphValue(a), GraphValue(b))
    return _as_standard("MatMul")(GraphCall(Node("MatMul", ("a", "b"), ("y",)), factors))


_OWN_SHAPES: dict[str, Callable[[GraphCall], list[Shape | None]]] = {
    "SimplifiedLayerNormalization": _first,
    f"{MICROSOFT}DynamicQuantizeLSTM": _recur,
    f"{MICROSOFT}FusedMatMul": _multiply,
    f"{MICROSOFT}Attention": lambda call: [(*call.shape(0)[:-1], call.shape(1)[-1] // 3)],
    f"{MICROSOFT}MatMulNBits": lambda call: [(*call.shape(0)[:-1], call.attribute("N", 1))],
    f"{MICROSOFT}MultiHeadAttention": lambda call: [
        (*call.shape(0)[:-1], (call.get(2) or call.read(0)).dims[-1])
    ],
    **{
        f"{MICROSOFT}{op}": _first
        for op in (
            "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "SimplifiedLayerNormalization",
            "RotaryEmbedding", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax",
        )
    },
    **{
        f"{MICROSOFT}Skip{op}": lambda call: [call.shape(0)] * len(call.node.outputs)
        for op in ("LayerNormalization", "SimplifiedLayerNormalization")
    },
    **{
        op: _as_standard(standard, places)
        for standard, places, ops in (
            ("MatMul", (0, 1), ("MatMulInteger", f"{MICROSOFT}DynamicQuantizeMatMul")),
            ("MatMul", (0, 1), (f"{MICROSOFT}MatMulIntegerToFloat",)),
            ("MatMul", (0, 3), ("QLinearMatMul",)),
            ("Conv", (0, 1), ("ConvInteger", f"{MICROSOFT}FusedConv")),
            ("Conv", (0, 3), ("QLinearConv",)),
            ("Gemm", (0, 1), (f"{MICROSOFT}FusedGemm",)),
            ("Gemm", (0, 3), (f"{MICROSOFT}QGemm",)),
            ("Add", (0, 3), (f"{MICROSOFT}QLinearAdd", f"{MICROSOFT}QLinearMul")),
            ("GlobalAveragePool", (0,), (f"{MICROSOFT}QLinearGlobalAveragePool",)),
            ("AveragePool", (0,), (f"{MICROSOFT}QLinearAveragePool",)),
        )
        for op in ops
    },
}  # fmt: skip
