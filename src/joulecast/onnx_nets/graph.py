"""Follow the shapes through an ONNX graph, from its inputs to its outputs.

Nothing runs. ``onnx.shape_inference`` gives the shapes of every node, and the reference operators
of ``onnx`` compute the small constants from which exporters derive shapes. Operators of ONNX
Runtime and of quantised graphs, which ``onnx`` does not know, are first replaced by standard ones
on floating-point numbers. What remains are the calls that a device would run.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper, shape_inference
from onnx.reference.ops import load_op

from joulecast.onnx_nets.model_file import (
    GraphError,
    GraphInput,
    check_shape,
    is_external,
    read_dims,
    shorten,
)
from joulecast.operators import Shape
from joulecast.system.units import format_shape

MICROSOFT = "com.microsoft::"
"""Domain of the operators that ONNX Runtime's optimiser writes."""
FUSED = "joulecast::"
"""Domain of calls that stand for what a file fuses or spells out (``patterns``)."""
RECURRENT = ("LSTM", "GRU", "RNN")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

# Numbers of element types (``onnx.TensorProto.DataType``): floating-point ones, bytes, which stand
# for floating-point numbers in a quantised graph, and those whose elements NumPy has.
_FLOAT, _INT32, _BOOL = 1, 6, 9
_FLOAT_TYPES = (1, 10, 11, 16, 17, 18, 19, 20)
_BYTES = (2, 3)
_DECODED_TYPES = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
# Elements of a constant whose values are kept: shapes and axes have few.
_MOST_CONSTANT_ELEMENTS = 1024
# Results of these are the numbers that they read: networks in floating point do not have them.
_QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_SHAPE_READERS = ("Shape", "Size")
# The arithmetic by which exporters derive shapes. None of it is slow or large on few elements, as
# pooling with a window of 400 million is, or depends on chance.
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
# Where PyTorch's exporter writes the modules of a node.
_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST_SCOPES = 10_000
_LONGEST_PATH = 200
_BROKEN = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError,
    shape_inference.InferenceError, onnx.checker.ValidationError,
)  # fmt: skip


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
        return self.type in _FLOAT_TYPES

    @property
    def numbers(self) -> tuple[Any, ...] | None:
        """The elements of a small constant, in order; None if they are not known."""
        return None if self.array is None else tuple(np.ravel(self.array).tolist())

    @property
    def dims(self) -> Shape:
        """Its shape; a GraphError if that depends on the data."""
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


@dataclass(frozen=True, eq=False)
class GraphCall:
    """A call of an operator, with the values that it reads and computes.

    Attributes:
        op: Its operator; those of other domains than ONNX's own carry theirs, ``com.acme::Op``.
        reads: Names of its inputs; empty where an optional input is missing.
        makes: Names of its outputs.
        path: Name of the module that it belongs to, with dots; empty if that is not known.
        label: Its name in the file.
        batch: Samples in the batch that it was read with.
    """

    op: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    inputs: tuple[GraphValue | None, ...]
    outputs: tuple[GraphValue, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    label: str = ""
    batch: int = 1

    @property
    def named_inputs(self) -> list[tuple[str, GraphValue]]:
        """The inputs that it has, with their names."""
        pairs = zip(self.reads, self.inputs, strict=True)
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

    def sample(self, index: int) -> Shape:
        """Return the shape of a sample of an input that the operator needs."""
        return self.read(index).take_sample(self.batch)

    @property
    def result(self) -> Shape:
        """The shape of a sample of the first output."""
        return self.outputs[0].take_sample(self.batch)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        value = self.attributes.get(name)
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


def normalise_axis(axis: Any, rank: int) -> int:
    """Return an axis counted from the front; a GraphError if there is no such axis."""
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


def transpose_factors(call: GraphCall) -> tuple[Shape, Shape]:
    """Return the shapes of the factors of a product that may transpose or pack them first."""
    a, b = call.shape(0), call.shape(1)
    if call.op == f"{FUSED}linear" and call.attribute("K"):
        return a, (call.attribute("K"), call.attribute("N"))
    a = (*a[:-2], a[-1], a[-2]) if call.attribute("transA", 0) else a
    return a, (*b[:-2], b[-1], b[-2]) if call.attribute("transB", 0) else b


class ReadGraph:
    """The calls of a checked graph, with the shapes of all that they read and compute.

    Inputs have ``shapes``; ``sizes`` are those of the named dimensions inside the graph. Errors
    name the node.

    Attributes:
        batch: Samples of the first input.
        inputs: Names of the inputs.
        outputs: Names of the values that are its outputs.
        calls: What a device runs for them, in order.
        values: What is known about the values that calls read and compute, by name.
        weights: Number of elements of every weight.
        quantisers: Names of operators on quantised numbers that the file has.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[GraphInput],
        shapes: Sequence[Shape],
        sizes: dict[str, int],
    ) -> None:
        versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
        self._opset = min(max(versions, default=1), onnx.defs.onnx_opset_version())
        self._sizes = sizes
        self._declared: dict[str, Shape] = {}
        self._aliases: dict[str, str] = {}
        self.batch = shapes[0][0]
        self.inputs = [one.name for one in inputs]
        self.calls: list[GraphCall] = []
        self.values: dict[str, GraphValue] = {}
        self.weights: dict[str, int] = {}
        self.quantisers: set[str] = set()
        for one, shape in zip(inputs, shapes, strict=True):
            check_shape(f"the input {shorten(one.name)!r}", shape)
            axis = 0 if shape[:1] == shapes[0][:1] else -1
            self.values[one.name] = GraphValue(shape, one.type, batch_axis=axis)
        self._read_scope(model.graph)
        self.outputs = [self._resolve(value.name) for value in model.graph.output]
        wanted, kept = set(self.outputs), []
        for call in reversed(self.calls):
            if wanted.intersection(call.makes):
                kept.append(call)
                wanted.update(call.reads)
        self.calls = kept[::-1]

    def _read_scope(self, graph: onnx.GraphProto) -> None:
        read = {one.name: _read_tensor(one, one.name) for one in graph.initializer}
        for one in graph.sparse_initializer:
            name, dims = one.values.name, tuple(map(int, one.dims))
            read[name] = GraphValue(dims, one.values.data_type, True, None, (name,))
        self.values.update(read)
        self.weights.update((name, v.elements) for name, v in read.items() if v.weights)
        for value in (*graph.value_info, *graph.output):
            declared = read_dims(value.type)
            sizes = [self._sizes.get(d, -1) if isinstance(d, str) else d for d in declared or ()]
            if declared is not None and min(sizes, default=0) >= 0:
                self._declared[value.name] = tuple(sizes)
        for proto in graph.node:
            label = proto.name or (proto.output[0] if proto.output else "")
            title = f"node {shorten(label)!r} ({shorten(_name_op(proto))})"
            try:
                if _name_op(proto) != "If" or not self._take_branch(proto):
                    for part in self._translate(proto):
                        self._add_node(part)
            except GraphError as error:
                raise GraphError(f"{title} {shorten(str(error), 300)}") from error
            except _BROKEN as error:
                reason = shorten(str(error).strip().split("\n", 1)[0], 300)
                raise GraphError(f"{title} is invalid ({reason})") from error

    def _take_branch(self, proto: NodeProto) -> bool:
        """Read the branch of an ``If`` whose condition is known; return whether it is."""
        condition = self._read_value(proto.input[0])
        if condition.numbers is None:
            return False
        wanted = "then_branch" if condition.numbers[0] else "else_branch"
        branch = next((one.g for one in proto.attribute if one.name == wanted), None)
        if branch is None:
            raise GraphError(f"has no {wanted}")
        self._read_scope(branch)
        for name, inner in zip(proto.output, branch.output, strict=True):
            self._aliases[name] = self._resolve(inner.name)
        return True

    def _translate(self, proto: NodeProto) -> Iterator[NodeProto]:
        """Return the standard nodes that a node stands for: itself, or parts of a fused one."""
        op = _name_op(proto)
        if op in _QUANTISERS or re.search("QLinear|QGemm|Integer|Quantize", op):
            self.quantisers.add(op)
        if op not in _STANDARD:
            yield proto
            return
        names = [*proto.input, *[""] * (_MOST_INPUTS - len(proto.input))]
        for standard, inputs, outputs, attributes in _STANDARD[op](proto, names):
            domain, _, op_type = standard.rpartition("::")
            part = helper.make_node(op_type, inputs, outputs, proto.name, domain=domain)
            schema = _find_schema(part, self._opset)
            part.attribute.extend(
                one for one in attributes if schema is None or one.name in schema.attributes
            )
            part.metadata_props.extend(proto.metadata_props)
            yield part

    def _add_node(self, proto: NodeProto) -> None:
        op, makes = _name_op(proto), tuple(proto.output)
        attributes = {one.name: _read_attribute(one) for one in proto.attribute}
        if op == "Constant":
            self.values[makes[0]] = _read_constant(attributes)
            return
        reads = tuple(self._resolve(name) if name else "" for name in proto.input)
        inputs = tuple(self._read_value(name) if name else None for name in reads)
        path = find_module_path(proto)
        call = GraphCall(op, reads, makes, inputs, (), attributes, path, proto.name, self.batch)
        given = [value for value in inputs if value is not None]
        is_constant = bool(given) and all(value.is_constant for value in given)
        is_sized = all(value.shape is not None for value in given)
        if op in _SHAPE_READERS:
            is_constant = is_constant or (bool(given) and is_sized)
        source = None if is_constant else _find_same(call)
        if source is not None:
            self._aliases[makes[0]] = reads[source]
            # Besides, a dynamic quantisation returns its scale and zero point, a dropout its mask.
            scale = GraphValue((), _FLOAT, True, is_scale=True)
            other = scale if op in _QUANTISERS else replace(call.read(0), type=_BOOL)
            self.values.update((name, other) for name in makes[1:] if name)
            return
        results: Sequence[tuple[Shape | None, int]] = [(None, _FLOAT)] * len(makes)
        if is_sized or is_constant:
            results = self._infer(call, proto)
        if is_constant:
            outputs = self._make_constants(call, proto, results)
        else:
            outputs = tuple(
                GraphValue(shape, type_, batch_axis=_find_batch_axis(call, shape, place))
                for place, (shape, type_) in enumerate(results)
            )
            self.calls.append(replace(call, outputs=outputs))
        self.values.update(zip(makes, outputs, strict=True))

    def _make_constants(
        self, call: GraphCall, proto: NodeProto, results: Sequence[tuple[Shape | None, int]]
    ) -> tuple[GraphValue, ...]:
        """Return the results of a call that reads constants alone, or only shapes."""
        given = [] if call.op in _SHAPE_READERS else [value for _, value in call.named_inputs]
        if call.op in _QUANTISERS:
            # Scales and zero points are not weights.
            given = given[:1]
        weights = tuple(dict.fromkeys(name for value in given for name in value.weights))
        is_scale = any(value.is_scale for value in given)
        arrays = self._fold(call, proto, [shape for shape, _ in results])
        return tuple(
            GraphValue(shape, type_, True, array, weights, is_scale)
            for (shape, type_), array in zip(results, arrays, strict=True)
        )

    def _infer(self, call: GraphCall, proto: NodeProto) -> list[tuple[Shape | None, int]]:
        """Return shape and type of every result; a shape is None where it is not known."""
        first = next((value.type for value in call.inputs if value is not None), _FLOAT)
        found: list[tuple[Shape | None, int]]
        found = [(self._declared.get(name), first) for name in call.makes]
        if call.op in _OWN_SHAPES:
            found[0] = (_OWN_SHAPES[call.op](call), _FLOAT)
        elif (schema := _find_schema(proto, self._opset)) is not None:
            types, data = {}, {}
            for name, value in zip(proto.input, call.inputs, strict=True):
                if value is None:
                    continue
                # Bytes of a quantised graph stand for floats, and so do sums of their products.
                is_sum = value.type == _INT32 and call.op in ("Conv", "Gemm")
                is_number = value.is_float or value.type in _BYTES or is_sum
                type_ = _FLOAT if is_number else value.type
                types[name] = helper.make_tensor_type_proto(type_, value.shape)
                if value.array is not None:
                    data[name] = numpy_helper.from_array(value.array)
            opsets = [helper.make_opsetid("", max(self._opset, schema.since_version))]
            inferred = shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=opsets
            )
            declared = [inferred.get(name) for name in call.makes]
            found = [
                (_read_shape(one), one.tensor_type.elem_type if one is not None else first)
                for one in declared
            ]
            if found[0][0] is None and call.op in _SHAPED_BY_NUMBERS:
                raise GraphError(
                    "reads its shape from a value that is in another file, or depends on the data"
                )
        _check_elements(call, found[0][0] if found else None)
        for shape, _ in found:
            if shape is not None:
                check_shape("the result", shape)
        return found

    def _fold(
        self, call: GraphCall, proto: NodeProto, shapes: Sequence[Shape | None]
    ) -> Sequence[Any]:
        """Return the elements of the results of a constant call, as far as they are few."""
        sizes = [math.prod(shape) if shape is not None else math.inf for shape in shapes]
        arrays = [None if value is None else value.array for value in call.inputs]
        is_known = all(value is None or value.array is not None for value in call.inputs)
        if call.op in _SHAPE_READERS:
            # No element is read: one stands for all.
            arrays, is_known = [np.broadcast_to(np.float32(0), call.shape(0))], True
        is_small = max(sizes, default=0) <= _MOST_CONSTANT_ELEMENTS
        if call.op not in _FOLDED or not is_small or not is_known:
            return [None] * len(shapes)
        settings = {"log": lambda *_: None, "opsets": {"": self._opset}, "verbose": 0}
        with np.errstate(all="ignore"):
            operator = load_op("", proto.op_type, self._opset)(proto, {**settings, "new_ops": None})
            return [np.asarray(one) for one in operator.run(*arrays)]

    def _resolve(self, name: str) -> str:
        return self._aliases.get(name, name)

    def _read_value(self, name: str) -> GraphValue:
        value = self.values.get(self._resolve(name))
        if value is None:
            raise GraphError(f"reads {shorten(name)!r}, which no earlier node computes")
        return value


def _find_batch_axis(call: GraphCall, shape: Shape | None, place: int) -> int:
    """Return the axis of a result that holds the samples; -1 if there is none.

    Most operators have the samples on their first axis; recurrent ones have the tokens there.
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
        return 0 if (type_ in _FLOAT_TYPES) == call.read(0).is_float else None
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
    if call.op == "Conv":
        image, kernel = value.shape, call.shape(1)
        if image[1] != kernel[1] * call.attribute("group", 1) or min(shape[2:], default=1) < 1:
            raise GraphError(
                f"convolves {format_shape(image)} with a kernel of {format_shape(kernel)}"
            )


def _find_schema(proto: NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator that can tell shapes; None if there is none.

    Operators that are newer than the file's others have replaced a fused one.
    """
    has_graph = any(one.type == onnx.AttributeProto.GRAPH for one in proto.attribute)
    if proto.domain not in ("", "ai.onnx") or has_graph:
        return None
    for version in (opset, onnx.defs.onnx_opset_version()):
        try:
            schema = onnx.defs.get_schema(proto.op_type, version, "")
        except onnx.defs.SchemaError:
            continue
        return schema if schema.has_type_and_shape_inference_function else None
    return None


def _read_shape(found: onnx.TypeProto | None) -> Shape | None:
    dims = None if found is None else read_dims(found)
    sizes = tuple(size for size in dims or () if isinstance(size, int))
    return None if dims is None or len(sizes) < len(dims) else sizes


def _read_tensor(tensor: onnx.TensorProto, name: str = "") -> GraphValue:
    """Return the value of a tensor in the file: a weight if it has a name."""
    shape = tuple(int(size) for size in tensor.dims)
    count = math.prod(shape)
    weights = (name,) if name and count > 1 else ()
    is_known = count <= _MOST_CONSTANT_ELEMENTS and tensor.data_type in _DECODED_TYPES
    array = numpy_helper.to_array(tensor) if is_known and not is_external(tensor) else None
    return GraphValue(shape, tensor.data_type, True, array, weights)


def _read_constant(attributes: dict[str, Any]) -> GraphValue:
    value = attributes.get("value")
    if isinstance(value, GraphValue):
        return value
    for name, dtype, type_ in (("int", np.int64, 7), ("float", np.float32, _FLOAT)):
        for found in (attributes.get(f"value_{name}"), attributes.get(f"value_{name}s")):
            if found is not None:
                array = np.asarray(found, dtype=dtype)
                return GraphValue(array.shape, type_, True, array)
    return GraphValue(None, _FLOAT, True)


def _name_op(proto: NodeProto) -> str:
    is_standard = proto.domain in ("", "ai.onnx")
    return str(proto.op_type) if is_standard else f"{proto.domain}::{proto.op_type}"


def find_module_path(node: NodeProto) -> str:
    """Return the name of a node's module, ``layer1.0.conv1``; empty if it is not known."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES and len(entry.value) <= _LONGEST_SCOPES:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                scopes = None
            if not isinstance(scopes, list) or not all(isinstance(one, str) for one in scopes):
                return ""
            # The last one is the node itself.
            return next((one for one in reversed(scopes[:-1]) if one), "")[:_LONGEST_PATH]
    *segments, _ = node.name.strip("/").split("/")
    path: list[str] = []
    for segment in segments:
        if path and segment.startswith(f"{path[-1]}."):
            path.pop()
        path.append(segment)
    return ".".join(path)[:_LONGEST_PATH]


def _read_attribute(proto: onnx.AttributeProto) -> Any:
    kinds = onnx.AttributeProto
    if proto.type == kinds.TENSOR:
        return _read_tensor(proto.t)
    if proto.type not in (kinds.INT, kinds.INTS, kinds.FLOAT, kinds.FLOATS, kinds.STRING):
        return None
    found = helper.get_attribute_value(proto)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return found if isinstance(found, int | float) else tuple(found)


# -- operators of ONNX Runtime, and of quantised graphs ------------------------------------------

# Operator, names of inputs and results, and attributes.
_Part = tuple[str, Sequence[str], Sequence[str], Sequence[onnx.AttributeProto]]
# Inputs of a fused operator, whose names are empty where it has fewer.
_MOST_INPUTS = 9
_Splitter = Callable[[NodeProto, Sequence[str]], Iterator[_Part]]


def _rename(standard: str, *places: int) -> _Splitter:
    """Put a standard operator, which reads some of the inputs, in the place of another."""

    def split(proto: NodeProto, names: Sequence[str]) -> Iterator[_Part]:
        inputs = [names[place] for place in places if place < len(proto.input)]
        yield standard, inputs, proto.output, proto.attribute

    return split


def _split_activation(proto: NodeProto, names: Sequence[str]) -> Iterator[_Part]:
    """Take a convolution or product apart, with a sum and an activation."""
    settings = {one.name: _read_attribute(one) for one in proto.attribute}
    result, plain = proto.output[0], proto.op_type.removeprefix("Fused")
    last = f"{result}#plain"
    yield plain, names[:3] if names[2] else names[:2], [last], proto.attribute
    if names[3]:
        yield "Add", (last, names[3]), [f"{result}#sum"], ()
        last = f"{result}#sum"
    activation, limits = settings.get("activation") or "Identity", list[str]()
    for limit in (settings.get("activation_params") or ()) if activation == "Clip" else ():
        limits.append(f"{result}#limit{len(limits)}")
        yield "Constant", (), limits[-1:], [helper.make_attribute("value_float", limit)]
    yield activation, (last, *limits), [result], ()


def _split_norm(proto: NodeProto, names: Sequence[str]) -> Iterator[_Part]:
    """Take a norm apart that adds a bias and the input of the block before."""
    is_plain, result = "Simplified" not in proto.op_type, proto.output[0]
    last, bias = names[0], names[4 if is_plain else 3]
    if bias:
        yield "Add", (last, bias), [f"{result}#bias"], ()
        last = f"{result}#bias"
    total = proto.output[3] if len(proto.output) > 3 and proto.output[3] else f"{result}#sum"
    yield "Add", (last, names[1]), [total], ()
    if is_plain:
        yield "LayerNormalization", (total, names[2], names[3]), [result], ()
    else:
        yield "RMSNormalization", (total, names[2]), [result], ()


def _split_bias(proto: NodeProto, names: Sequence[str]) -> Iterator[_Part]:
    """Take an activation apart that adds a bias first."""
    last, result = names[0], proto.output[0]
    if names[1]:
        last = f"{result}#bias"
        yield "Add", names[:2], [last], ()
    yield "Gelu", (last,), [result], ()


def _split_attention(proto: NodeProto, names: Sequence[str]) -> Iterator[_Part]:
    """Take attention apart that projects its input to queries, keys and values first."""
    op, last = f"{FUSED}linear" if names[2] else "MatMul", f"{proto.output[0]}#projected"
    yield op, names[: 3 if names[2] else 2], [last], ()
    yield f"{FUSED}packed_attention", (last,), proto.output[:1], proto.attribute


# What stands for another operator, with the inputs that it reads: networks in floating point have
# no scales and zero points.
_STANDARD: dict[str, _Splitter] = {
    "ConvInteger": _rename("Conv", 0, 1), "QLinearConv": _rename("Conv", 0, 3, 8),
    "MatMulInteger": _rename("MatMul", 0, 1), "QLinearMatMul": _rename("MatMul", 0, 3),
    "SimplifiedLayerNormalization": _rename("RMSNormalization", 0, 1),
    **{
        f"{MICROSOFT}{op}": split
        for op, split in {
            "SimplifiedLayerNormalization": _rename("RMSNormalization", 0, 1),
            "Gelu": _rename("Gelu", 0),
            "RotaryEmbedding": _rename("RotaryEmbedding", 0, 2, 3, 1),
            "QGemm": _rename("Gemm", 0, 3, 6),
            "QLinearAdd": _rename("Add", 0, 3), "QLinearMul": _rename("Mul", 0, 3),
            **{
                f"QLinear{one}": _rename(one, 0)
                for one in ("Sigmoid", "LeakyRelu", "Softmax", "GlobalAveragePool", "AveragePool")
            },
            "DynamicQuantizeLSTM": _rename("LSTM", 0, 1, 2, 3),
            "DynamicQuantizeMatMul": _rename(f"{FUSED}linear", 0, 1, 4),
            "MatMulIntegerToFloat": _rename(f"{FUSED}linear", 0, 1, 6),
            "MatMulNBits": _rename(f"{FUSED}linear", 0, 1, 5),
            "FusedConv": _split_activation, "FusedGemm": _split_activation,
            "SkipLayerNormalization": _split_norm,
            "SkipSimplifiedLayerNormalization": _split_norm,
            "BiasGelu": _split_bias, "FastGelu": _split_bias, "Attention": _split_attention,
        }.items()
    },
}  # fmt: skip


def _multiply(call: GraphCall) -> Shape:
    a, b = transpose_factors(call)
    if a[-1] != b[-2]:
        raise GraphError(f"multiplies {a} by {b}")
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


# Shapes of results that no schema tells.
_OWN_SHAPES: dict[str, Callable[[GraphCall], Shape | None]] = {
    f"{FUSED}linear": lambda call: (
        *call.shape(0)[:-1], call.attribute("N") or call.shape(1)[-1]
    ),
    f"{FUSED}packed_attention": lambda call: (*call.shape(0)[:-1], call.shape(0)[-1] // 3),
    f"{MICROSOFT}FusedMatMul": _multiply,
    f"{MICROSOFT}MultiHeadAttention": lambda call: (
        *call.shape(0)[:-1], (call.get(2) or call.read(0)).dims[-1]
    ),
    **dict.fromkeys(
        (
            *_QUANTISERS, "GroupNormalization", "RMSNormalization", "RotaryEmbedding",
            f"{MICROSOFT}QuickGelu",
        ),
        lambda call: call.shape(0),
    ),
}  # fmt: skip
