"""Parse and check an ONNX file, and give its inputs their sizes.

An ONNX file is data from elsewhere. Weights that it keeps in other files are not opened, wherever
they are: their shapes are in the model. Shapes and sizes are compared before anything is computed
from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import helper, numpy_helper

from joulecast.operators import Shape
from joulecast.records.network import LARGEST_SIZE, MOST_AXES
from joulecast.system.errors import FileError, NetError
from joulecast.system.units import format_shape

MOST_NODES = 50_000

_OUTSIDE = re.compile(r"^([A-Za-z]:|[\\/]|$)|(^|[\\/])\.\.([\\/]|$)|\0")
# Types with later numbers may be packed, several elements in a byte.
_LAST_WHOLE_TYPE = 20


class GraphError(ValueError):
    """A graph is inconsistent, or its sizes cannot be known."""


def parse_model(content: bytes, name: str) -> onnx.ModelProto:
    """Return the model in the content of a file, which messages call ``name``; none is opened.

    A weight that does not have the size of its shape, or lies outside of the model's folder, is
    refused.
    """
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise FileError(
            f"{name} is truncated or not an ONNX model: export or copy it again"
        ) from error
    if not model.ir_version or not (model.graph.node or model.graph.input):
        raise FileError(f"{name} is not an ONNX model: export the net again")
    try:
        for message in _walk(model):
            _check_message(message)
    except GraphError as error:
        raise FileError(f"{name}: {error}: export the net again") from error
    return model


def list_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return all tensors in a model, those in nodes, subgraphs and functions included."""
    return [one for one in _walk(model) if isinstance(one, onnx.TensorProto)]


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return whether the elements of a tensor are in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def shorten(text: str, most: int = 80) -> str:
    """Return a text of the file, cut off for a message."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def check_shape(owner: str, shape: Sequence[int]) -> None:
    """Raise GraphError for a shape that no tensor can have."""
    if len(shape) > MOST_AXES:
        raise GraphError(f"{owner} has {len(shape)} axes, more than {MOST_AXES}")
    if any(size < 0 for size in shape):
        raise GraphError(f"{owner} has a negative size: {format_shape(tuple(shape))}")
    if math.prod(shape) > LARGEST_SIZE:
        elements = f"{math.prod(shape):.3g}"
        raise GraphError(f"{owner} has {elements} elements, more than {LARGEST_SIZE:,}")


def _walk(message: Message) -> Iterator[Message]:
    """Return a message and those inside it; protobuf limits how deep they are."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                yield from _walk(inner)


def _check_message(message: Message) -> None:
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING and field.name != "doc_string":
            # Protobuf returns bytes that are not text as they are.
            texts = (value,) if isinstance(value, str | bytes) else value
            if not all(isinstance(one, str) for one in texts):
                raise GraphError("a name in it is not text")
    if isinstance(message, onnx.TensorProto):
        _check_tensor(message)
    elif isinstance(message, onnx.SparseTensorProto):
        check_shape(f"the weight {message.values.name!r}", message.dims)
    elif isinstance(message, onnx.GraphProto):
        if len(message.node) > MOST_NODES:
            raise GraphError(f"it has {len(message.node):,} nodes, more than {MOST_NODES:,}")
        # Every value is computed once.
        weights = [tensor.name for tensor in message.initializer]
        weights += [sparse.values.name for sparse in message.sparse_initializer]
        computed = [name for node in message.node for name in node.output if name]
        inputs = [value.name for value in message.input]
        for names in (inputs, [*weights, *computed]):
            seen: set[str] = set()
            for name in names:
                if name in seen:
                    raise GraphError(f"two values are named {shorten(name)!r}")
                seen.add(name)
        if both := {*inputs} & {*computed}:
            raise GraphError(f"a node computes the input {shorten(min(both))!r}")


def _check_tensor(tensor: onnx.TensorProto) -> None:
    owner = f"the weight {shorten(tensor.name)!r}"
    check_shape(owner, tensor.dims)
    shape = format_shape(tuple(tensor.dims)) or "()"
    try:
        if not is_external(tensor):
            numpy_helper.to_array(tensor)
            return
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, length = str(entries.get("location", "")), str(entries.get("length", ""))
        size_bytes = math.prod(tensor.dims)
        if length and tensor.data_type <= _LAST_WHOLE_TYPE:
            size_bytes *= helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            if length != str(size_bytes):
                raise GraphError(
                    f"{owner} has {shorten(length)} bytes, but its shape needs {size_bytes:,}"
                )
    except GraphError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise GraphError(f"{owner} does not have the elements of its shape {shape}") from error
    if _OUTSIDE.search(location):
        raise GraphError(f"{owner} is in {shorten(location)!r}, outside of the model's folder")


# -- inputs ------------------------------------------------------------------------------------

Dimension = int | str
"""A size, or the name of one that the file leaves open; empty if it has no name."""


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph, as its file declares it.

    Attributes:
        type: Number of its element type.
        dims: A size or a name for each axis; None if not even their number is declared.
    """

    name: str
    type: int
    dims: tuple[Dimension, ...] | None

    @property
    def batch(self) -> int:
        """The size of its first axis; 0 if it is left open."""
        first = self.dims[0] if self.dims else ""
        return first if isinstance(first, int) else 0

    def __str__(self) -> str:
        """Return what messages call it, with names or question marks for open sizes."""
        known = ", ".join(str(one) or "?" for one in self.dims or ())
        shape = "of unknown shape" if self.dims is None else f"[{known}]"
        return f"its input {shorten(self.name)!r} is {shape}"


def read_dims(declared: onnx.TypeProto) -> tuple[Dimension, ...] | None:
    """Return what a file declares about the shape of a value; None where it declares none."""
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param)[:80]
        for dim in declared.tensor_type.shape.dim
    )


def list_inputs(graph: onnx.GraphProto) -> list[GraphInput]:
    """Return the inputs of a graph, without weights that are listed among them."""
    weights = {tensor.name for tensor in graph.initializer}
    weights.update(sparse.values.name for sparse in graph.sparse_initializer)
    inputs = []
    for value in graph.input:
        if value.name in weights:
            continue
        owner = f"the input {shorten(value.name)!r}"
        if not value.type.HasField("tensor_type"):
            raise GraphError(f"{owner} is not a tensor, which cannot be read")
        dims = read_dims(value.type)
        # Exporters write sizes that they do not know as 0 or -1.
        dims = None if dims is None else tuple("" if one in (0, -1) else one for one in dims)
        check_shape(owner, [one for one in dims or () if isinstance(one, int)])
        inputs.append(GraphInput(value.name, int(value.type.tensor_type.elem_type), dims))
    if not inputs:
        raise GraphError("it has no inputs")
    return inputs


def bind_shapes(
    inputs: list[GraphInput], batch: int, sample: Shape | None
) -> tuple[list[Shape], dict[str, int]]:
    """Return the shapes of all inputs, and the sizes of the dimensions that have names.

    ``sample`` is the shape of one sample of the first input, where the file leaves it open. A
    NetError says that a size is missing, or differs from the file's.
    """
    first = inputs[0]
    fixed = [one if isinstance(one, int) else 0 for one in (first.dims or ("", ""))[1:]]
    if sample is None:
        if not all(fixed):
            raise NetError(
                f"{first}, with sizes that it leaves open: give the shape of one sample, like "
                f"--input {_suggest_sample(first)}"
            )
        sample = tuple(fixed)
    sizes = zip(fixed, sample, strict=False)
    fits = len(fixed) == len(sample) and all(known in (0, size) for known, size in sizes)
    if first.dims is not None and not fits:
        advice = "give another" if 0 in fixed else "leave it out, or export the net again"
        raise NetError(
            f"{first}, which samples of {format_shape(sample) or '()'} do not fit: {advice}"
        )
    shape = (batch, *sample)
    names = dict(zip(first.dims or (), shape, strict=False))
    named = {name: size for name, size in names.items() if isinstance(name, str) and name}
    return [shape, *(_bind_other(one, shape, named) for one in inputs[1:])], named


def _suggest_sample(first: GraphInput) -> str:
    """Return an example of a shape: images of 224 pixels, sequences of 128 tokens."""
    rest = (first.dims or ("", 3, "", ""))[1:]
    usual = 224 if len(rest) > 2 else 128
    channels = 3 if len(rest) > 2 else usual
    shape = [
        one if isinstance(one, int) else (usual if place else channels)
        for place, one in enumerate(rest)
    ]
    return "x".join(map(str, shape))


def _bind_other(one: GraphInput, first: Shape, sizes: dict[str, int]) -> Shape:
    """Return the shape of another input; open sizes without a name are those of the first."""
    if one.dims is None:
        return first
    shape = []
    for axis, size in enumerate(one.dims):
        if isinstance(size, int):
            shape.append(size)
        elif size in sizes:
            shape.append(sizes[size])
        elif axis == 0 or (not size and len(one.dims) == len(first)):
            shape.append(first[axis])
        else:
            raise NetError(
                f"{one}, and nothing says what {size or '?'!r} is: export the net with that size "
                "fixed"
            )
    return tuple(shape)
