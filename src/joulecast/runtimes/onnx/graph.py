"""Collect the nodes and weights of an ONNX graph whose shapes are all known.

The batch is part of every shape, as in a graph that is exported for one batch size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 20
"""The first with ``Gelu``; ONNX Runtime 1.22, the oldest that is supported, knows it."""
# Of the format, not of an operator: what the oldest supported ONNX Runtime reads.
_IR_VERSION = 9

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A result in the graph: its name and its shape, batch first."""

    name: str
    shape: Shape

    @property
    def sample(self) -> Shape:
        """The shape of one sample."""
        return self.shape[1:]


class WeightSource(Protocol):
    """Gives the weights of a layer by the names that PyTorch's modules have for them."""

    def __call__(self, name: str, shape: Shape, start: float | None) -> Array:
        """Return a weight: drawn, or ``start`` in every element if that is given."""


class OnnxGraph:
    """A graph under construction.

    Args:
        batch: Samples of the input.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.inputs: list[tuple[Value, int]] = []
        self.nodes: list[NodeProto] = []
        self.weights_bytes = 0
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, Shape, bytes], str] = {}
        self._count = 0

    def add_input(self, name: str, shape: Shape, is_tokens: bool) -> Value:
        """Return a new input of the graph."""
        value = Value(name, shape)
        self.inputs.append((value, TensorProto.INT64 if is_tokens else TensorProto.FLOAT))
        return value

    def add(
        self, op_type: str, inputs: Sequence[Value | str], shape: Shape, **attributes: Any
    ) -> Value:
        """Add a node and return its result, which has this shape."""
        (value,) = self.add_split(op_type, inputs, [shape], **attributes)
        return value

    def add_split(
        self,
        op_type: str,
        inputs: Sequence[Value | str],
        shapes: Sequence[Shape],
        **attributes: Any,
    ) -> list[Value]:
        """Add a node with several results."""
        names = [one if isinstance(one, str) else one.name for one in inputs]
        values = [Value(self._make_name(op_type), tuple(shape)) for shape in shapes]
        self.nodes.append(
            helper.make_node(op_type, names, [one.name for one in values], **attributes)
        )
        return values

    def add_weight(self, array: Array) -> Value:
        """Return an initializer of its own."""
        name = self._make_name("weight")
        self._initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        self.weights_bytes += array.nbytes
        return Value(name, array.shape)

    def add_numbers(self, values: Any, dtype: str = "float32") -> Value:
        """Return an initializer of a few numbers; equal ones are shared."""
        array = np.asarray(values, dtype=dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.add_weight(array).name
        return Value(self._constants[key], array.shape)

    def add_integers(self, values: Any) -> Value:
        """Return an initializer of a few integers, such as a shape."""
        return self.add_numbers(values, "int64")

    def reshape(self, x: Value, shape: Shape) -> Value:
        """Return the elements of a value in another shape."""
        if x.shape == tuple(shape):
            return x
        return self.add("Reshape", [x, self.add_integers(shape)], tuple(shape))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Return a value with its axes in another order."""
        if list(order) == list(range(len(x.shape))):
            return x
        shape = tuple(x.shape[axis] for axis in order)
        return self.add("Transpose", [x], shape, perm=list(order))

    def slice(self, x: Value, axis: int, begin: int, end: int) -> Value:
        """Return a range of an axis."""
        if (begin, end) == (0, x.shape[axis]):
            return x
        shape = (*x.shape[:axis], end - begin, *x.shape[axis + 1 :])
        bounds = [self.add_integers([one]) for one in (begin, end, axis)]
        return self.add("Slice", [x, *bounds], shape)

    def fit(self, x: Value, sample: Shape) -> Value:
        """Return the elements of a value in another sample shape, repeated or cut to fit."""
        if x.sample == sample:
            return x
        size, wanted = math.prod(x.sample), math.prod(sample)
        if size != wanted:
            x = self.reshape(x, (x.shape[0], size))
        if size < wanted:
            times = -(-wanted // size)
            repeats = self.add_integers([1, times])
            x = self.add("Tile", [x, repeats], (x.shape[0], size * times))
        return self.reshape(
            self.slice(x, 1, 0, wanted) if size != wanted else x, (x.shape[0], *sample)
        )

    def make_model(self, outputs: Sequence[Value], name: str = "network") -> ModelProto:
        """Return the model that computes these results."""
        floats = [
            helper.make_tensor_value_info(one.name, TensorProto.FLOAT, one.shape) for one in outputs
        ]
        inputs = [
            helper.make_tensor_value_info(one.name, kind, one.shape) for one, kind in self.inputs
        ]
        graph = helper.make_graph(self.nodes, name, inputs, floats, self._initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)

    def _make_name(self, base: str) -> str:
        self._count += 1
        return f"{base}_{self._count}"
