"""Represent the nodes and values of an ONNX graph, apart from its file format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import onnx

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.model_file import GraphError, decode_numbers, list_dims

FLOAT_TYPES = frozenset((1, 10, 11, 16, 17, 18, 19, 20))
"""Numbers of the floating-point types (``onnx.TensorProto.DataType``)."""
INT64, BOOL = 7, 9

_STANDARD_DOMAINS = ("", "ai.onnx")
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class GraphValue:
    """What is known about a value before anything runs.

    Attributes:
        shape: Its shape; None where it depends on the data, as after ``NonZero``.
        type: Number of its element type.
        is_constant: It does not depend on the inputs of the graph.
        numbers: Elements of a small constant, in order; None if they are not known.
        weights: Names of the weights that it is, or is computed from.
        is_scale: It scales quantised numbers; a network in floating point does not have it.
        batch_axis: The axis that holds the samples; -1 if there is none.
    """

    shape: Shape | None
    type: int = 1
    is_constant: bool = False
    numbers: tuple[Any, ...] | None = None
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


@dataclass(frozen=True)
class GraphCall:
    """A node with the values that it reads and, once they are known, those that it computes."""

    node: Node
    inputs: tuple[GraphValue | None, ...]
    outputs: tuple[GraphValue, ...] = ()

    @property
    def op(self) -> str:
        """The name of its operator."""
        return self.node.op

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
        """Return a list that is an attribute in old models and an input in newer ones.

        None if there is neither.

        Raises:
            GraphError: It is an input whose elements are not known.
        """
        value = self.get(index)
        if value is None:
            found = self.attribute(name)
            return None if found is None else tuple(found)
        if value.numbers is None:
            where = (
                "in another file, or depends" if value.is_constant else "not constant: it depends"
            )
            raise GraphError(f"reads its {name} from a value that is {where} on the data")
        return value.numbers


def make_constant(
    shape: Shape, numbers: tuple[Any, ...] | None = None, type: int = INT64
) -> GraphValue:
    """Return a constant that is not a weight."""
    return GraphValue(shape, type, True, numbers)


def read_tensor(tensor: onnx.TensorProto, name: str = "") -> GraphValue:
    """Return the value of a tensor in the file: a weight if it has a name."""
    shape = list_dims(tensor)
    is_learned = bool(name) and math.prod(shape) > 1
    weights = (name,) if is_learned else ()
    return GraphValue(shape, tensor.data_type, True, decode_numbers(tensor), weights)


def read_node(proto: onnx.NodeProto, path: str = "") -> Node:
    """Return a node of the file."""
    return Node(
        op=_name_op(proto),
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={one.name: _read_attribute(one) for one in proto.attribute},
        path=path,
        label=proto.name,
    )


def _name_op(proto: onnx.NodeProto) -> str:
    if proto.domain in _STANDARD_DOMAINS:
        return str(proto.op_type)
    return f"{proto.domain}::{proto.op_type}"


def _read_attribute(proto: onnx.AttributeProto) -> Any:
    kinds = onnx.AttributeProto
    if proto.type == kinds.INTS:
        return tuple(proto.ints)
    if proto.type == kinds.INT:
        return int(proto.i)
    if proto.type == kinds.FLOAT:
        return float(proto.f)
    if proto.type == kinds.FLOATS:
        return tuple(proto.floats)
    if proto.type == kinds.STRING:
        return proto.s.decode("utf-8", "replace")
    if proto.type == kinds.STRINGS:
        return tuple(one.decode("utf-8", "replace") for one in proto.strings)
    if proto.type == kinds.TENSOR:
        return read_tensor(proto.t)
    return None
