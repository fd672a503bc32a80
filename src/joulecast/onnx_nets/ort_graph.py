"""Collect the nodes and weights of an ONNX graph whose shapes are all known.

The batch is part of every shape, as in a graph that is exported for one batch size. Shapes of
results are those that ``onnx.shape_inference`` gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper, shape_inference

OPSET = 20
"""The first with ``Gelu``; ONNX Runtime 1.22, the oldest that is supported, knows it."""
# Of the format, not of an operator: what the oldest supported ONNX Runtime reads.
_IR_VERSION = 9

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
NetworkWeights = Callable[[int, str, Shape, float | None], Array]
"""Gives a weight by the number of its layer and its name in the module that PyTorch builds."""


@dataclass(frozen=True)
class Value:
    """A result in a graph: its name, its shape with the batch first, and its element type."""

    graph: OnnxGraph = field(repr=False, compare=False)
    name: str
    shape: Shape
    type: int = TensorProto.FLOAT

    @property
    def sample(self) -> Shape:
        """The shape of one sample."""
        return self.shape[1:]

    def apply(self, op_type: str, *others: Operand, **attributes: Any) -> Value:
        """Add a node that reads this value first, and return its result."""
        return self.graph.add(op_type, self, *others, **attributes)

    def __add__(self, other: Operand) -> Value:
        return self.apply("Add", other)

    def __mul__(self, other: Operand) -> Value:
        return self.apply("Mul", other)

    def __matmul__(self, other: Operand) -> Value:
        return self.apply("MatMul", other)

    def reshape(self, *shape: int) -> Value:
        """Return its elements in another shape."""
        return self if self.shape == shape else self.apply("Reshape", shape)

    def transpose(self, *order: int) -> Value:
        """Return it with its axes in another order."""
        is_same = order == tuple(range(len(self.shape)))
        return self if is_same else self.apply("Transpose", perm=list(order))

    def slice(self, axis: int, begin: int, end: int) -> Value:
        """Return a range of an axis."""
        is_whole = (begin, end) == (0, self.shape[axis])
        return self if is_whole else self.apply("Slice", [begin], [end], [axis])

    def flatten(self) -> Value:
        """Return the elements of each sample in a row."""
        return self.reshape(self.shape[0], math.prod(self.sample))

    def fit(self, sample: Shape) -> Value:
        """Return its elements in another sample shape, repeated or cut to fit."""
        x, size, wanted = self, math.prod(self.sample), math.prod(sample)
        if size != wanted:
            x = x.flatten()
            if size < wanted:
                x = x.apply("Tile", [1, -(-wanted // size)])
            x = x.slice(1, 0, wanted)
        return x.reshape(x.shape[0], *sample)

    def take_first(self, axes: int) -> Value:
        """Return the first element of each sample, to be broadcast over so many axes."""
        return self.flatten().slice(1, 0, 1).reshape(self.shape[0], *(1,) * axes)


Operand = Value | Array | float | Sequence[int] | None
"""An input of a node: a result, a weight of its own, numbers that are shared, or none."""


class OnnxGraph:
    """A graph under construction.

    Attributes:
        batch: Samples of the input.
        weights: Gives weights, drawn or with one number in every element.
        place: Number of the layer that is being added, and what begins the names of its weights.
    """

    weights: NetworkWeights
    place: tuple[int, str]

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.inputs: list[Value] = []
        self.nodes: list[NodeProto] = []
        self.weights_bytes = 0
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, Shape, bytes], Value] = {}
        self._numbers: dict[str, TensorProto] = {}
        self._count = 0

    def add_input(self, name: str, shape: Shape, is_tokens: bool = False) -> Value:
        """Return a new input of the graph."""
        self.inputs.append(Value(self, name, shape, TensorProto.INT64 if is_tokens else 1))
        return self.inputs[-1]

    def draw(self, name: str, *shape: int, start: float | None = None) -> Array:
        """Return a weight of the operator that is being added."""
        number, prefix = self.place
        return self.weights(number, prefix + name, shape, start)

    def add(self, op_type: str, *operands: Operand, **attributes: Any) -> Value:
        """Add a node and return its result."""
        (value,) = self.add_split(op_type, operands, 1, **attributes)
        return value

    def add_split(
        self, op_type: str, operands: Sequence[Operand], count: int, **attributes: Any
    ) -> list[Value]:
        """Add a node with several results."""
        inputs = [None if one is None else self._add_operand(one) for one in operands]
        names = [one.name if one is not None else "" for one in inputs]
        outputs = [self._make_name(op_type) for _ in range(count)]
        node = helper.make_node(op_type, names, outputs, **attributes)
        types = {
            one.name: helper.make_tensor_type_proto(one.type, one.shape)
            for one in inputs
            if one is not None
        }
        numbers = {name: self._numbers[name] for name in names if name in self._numbers}
        schema, opsets = defs.get_schema(op_type, OPSET), [helper.make_opsetid("", OPSET)]
        found = shape_inference.infer_node_outputs(
            schema, node, types, numbers, opset_imports=opsets, ir_version=_IR_VERSION
        )
        self.nodes.append(node)
        tensors = [found[name].tensor_type for name in outputs]
        shapes = [tuple(size.dim_value for size in one.shape.dim) for one in tensors]
        results = zip(outputs, shapes, tensors, strict=True)
        return [Value(self, name, shape, one.elem_type) for name, shape, one in results]

    def share(self, numbers: Any) -> Value:
        """Return an initializer of numbers; equal ones are shared."""
        array = np.asarray(numbers)
        array = array.astype("float32" if array.dtype.kind == "f" else "int64")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            value = self._constants[key] = self._add_weight(array)
            self._numbers[value.name] = self._initializers[-1]
        return self._constants[key]

    def make_model(self, outputs: Sequence[Value], name: str = "network") -> ModelProto:
        """Return the model that computes these results."""
        inputs, results = (
            [helper.make_tensor_value_info(one.name, one.type, one.shape) for one in values]
            for values in (self.inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, name, inputs, results, self._initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)

    def _add_operand(self, operand: Value | Array | float | Sequence[int]) -> Value:
        if isinstance(operand, Value):
            return operand
        return self._add_weight(operand) if isinstance(operand, np.ndarray) else self.share(operand)

    def _add_weight(self, array: Array) -> Value:
        name = self._make_name("weight")
        self._initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        self.weights_bytes += array.nbytes
        return Value(self, name, array.shape, self._initializers[-1].data_type)

    def _make_name(self, base: str) -> str:
        self._count += 1
        return f"{base}_{self._count}"
