"""Read the structure of an ONNX file: operators, shapes and small constants, never the weights.

An ONNX file is data from elsewhere. Weights that it keeps in other files are not opened, wherever
they are: their shapes are in the model. Shapes and sizes are compared before anything is computed
from them.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from joulecast.errors import FileError
from joulecast.input_files import read_limited
from joulecast.records.network import LARGEST_SIZE, MOST_AXES
from joulecast.units import format_shape

MOST_MODEL_BYTES = 2**30
"""Size of a model with its weights; larger ones keep their weights in files of their own."""
MOST_NODES = 50_000
MOST_CONSTANT_ELEMENTS = 1024
"""Elements of a constant whose values are kept: shapes and axes have few."""

# Bits of one element, by number of the type (``onnx.TensorProto.DataType``).
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64,
    15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip
_FORMATS = {1: "f", 2: "B", 3: "b", 4: "H", 5: "h", 6: "i", 7: "q", 9: "?", 10: "e", 11: "d"}
_FORMATS |= {12: "I", 13: "Q"}
_COMPLEX, _STRING = (14, 15), 8
_WINDOWS_DRIVE = re.compile(r"^[A-Za-z]:")
_NESTED_DEEPEST = 20


class GraphError(ValueError):
    """A graph is inconsistent, or its sizes cannot be known."""


def read_model(path: Path) -> onnx.ModelProto:
    """Return the model in a file; no other file is opened.

    Raises:
        FileError: The file is missing, too large, damaged, or not an ONNX model; a weight does not
            have the size of its shape, or lies outside of the model's folder.
    """
    return parse_model(read_limited(path, MOST_MODEL_BYTES), str(path))


def parse_model(content: bytes, name: str) -> onnx.ModelProto:
    """Return the model in the content of a file; no file is opened.

    Args:
        content: The whole file.
        name: What messages call it.

    Raises:
        FileError: It is damaged, or not an ONNX model; a weight does not have the size of its
            shape, or lies outside of the model's folder.
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
        _check_graph(model.graph, depth=0)
    except GraphError as error:
        raise FileError(f"{name}: {error}: export the net again") from error
    return model


def list_dims(tensor: onnx.TensorProto) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return tuple(int(size) for size in tensor.dims)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return whether the elements of a tensor are in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def decode_numbers(tensor: onnx.TensorProto) -> tuple[Any, ...] | None:
    """Return the elements of a small tensor, in order; None if they are elsewhere or many."""
    count = math.prod(tensor.dims)
    if is_external(tensor) or count > MOST_CONSTANT_ELEMENTS:
        return None
    code = _FORMATS.get(tensor.data_type)
    if code is None:
        return None
    if tensor.raw_data:
        return struct.unpack(f"<{count}{code}", tensor.raw_data)
    numbers = tuple(_list_typed_elements(tensor))
    if tensor.data_type == onnx.TensorProto.FLOAT16:
        return struct.unpack(f"<{count}e", struct.pack(f"<{count}H", *numbers))
    return numbers


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


def _check_graph(graph: onnx.GraphProto, depth: int) -> None:
    if depth > _NESTED_DEEPEST:
        raise GraphError(f"its subgraphs are nested more than {_NESTED_DEEPEST} deep")
    if len(graph.node) > MOST_NODES:
        raise GraphError(f"it has {len(graph.node):,} nodes, more than {MOST_NODES:,}")
    _check_text(graph)
    for tensor in graph.initializer:
        _check_tensor(tensor)
    for sparse in graph.sparse_initializer:
        check_shape(f"the weight {sparse.values.name!r}", sparse.dims)
        _check_tensor(sparse.values)
    for attribute in _list_attributes(graph):
        tensors = [attribute.t] if attribute.HasField("t") else []
        for tensor in (*tensors, *attribute.tensors):
            _check_tensor(tensor)
        inner = [attribute.g] if attribute.HasField("g") else []
        for subgraph in (*inner, *attribute.graphs):
            _check_graph(subgraph, depth + 1)
    _check_names(graph)


def _check_text(graph: onnx.GraphProto) -> None:
    """Check that names are text: protobuf returns other bytes as they are."""
    for node in graph.node:
        names: list[Any] = [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [attribute.name for attribute in node.attribute]
        names += [text for one in node.metadata_props for text in (one.key, one.value)]
        _refuse_bytes(names)
    for tensor in graph.initializer:
        _refuse_bytes([tensor.name])
    for value in (*graph.input, *graph.output, *graph.value_info):
        _refuse_bytes([value.name])
        _refuse_bytes([dim.dim_param for dim in value.type.tensor_type.shape.dim])


def _refuse_bytes(names: Sequence[Any]) -> None:
    if not all(isinstance(name, str) for name in names):
        raise GraphError("a name in it is not text")


def _list_attributes(graph: onnx.GraphProto) -> Iterator[onnx.AttributeProto]:
    for node in graph.node:
        yield from node.attribute


def _check_names(graph: onnx.GraphProto) -> None:
    """Check that every value is computed once."""
    weights = [tensor.name for tensor in graph.initializer]
    weights += [sparse.values.name for sparse in graph.sparse_initializer]
    computed = [name for node in graph.node for name in node.output if name]
    inputs = [value.name for value in graph.input]
    for names in (inputs, [*weights, *computed]):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise GraphError(f"two values are named {shorten(name)!r}")
            seen.add(name)
    both = set(inputs).intersection(computed)
    if both:
        raise GraphError(f"a node computes the input {shorten(min(both))!r}")


def _check_tensor(tensor: onnx.TensorProto) -> None:
    owner = f"the weight {shorten(tensor.name)!r}"
    check_shape(owner, tensor.dims)
    if is_external(tensor):
        _check_location(owner, tensor)
        return
    count, found = math.prod(tensor.dims), _count_elements(tensor)
    if found != count:
        shape = format_shape(list_dims(tensor)) or "()"
        raise GraphError(f"{owner} has {found:,} elements, but its shape {shape} has {count:,}")


def _check_location(owner: str, tensor: onnx.TensorProto) -> None:
    """Check that the elements of a tensor are in a file beside the model, or below."""
    _refuse_bytes([text for entry in tensor.external_data for text in (entry.key, entry.value)])
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    parts = location.replace("\\", "/").split("/")
    is_absolute = not parts[0] or bool(_WINDOWS_DRIVE.match(location))
    if is_absolute or ".." in parts or "\0" in location:
        raise GraphError(f"{owner} is in {shorten(location)!r}, outside of the model's folder")
    bits = _BITS.get(tensor.data_type)
    length = entries.get("length", "")
    if bits is None or not length:
        return
    expected = -(-math.prod(tensor.dims) * bits // 8)
    if not length.isascii() or not length.isdigit() or int(length[:20]) != expected:
        shown = shorten(length)
        raise GraphError(f"{owner} has {shown} bytes, but its shape needs {expected:,}")


def _count_elements(tensor: onnx.TensorProto) -> int:
    """Return how many elements the file holds for a tensor."""
    bits = _BITS.get(tensor.data_type)
    if tensor.raw_data and bits:
        size_bytes = len(tensor.raw_data)
        count = math.prod(tensor.dims)
        # Elements of less than a byte are packed, with a rest that is not used.
        return count if size_bytes == -(-count * bits // 8) else size_bytes * 8 // bits
    found = len(_list_typed_elements(tensor))
    if tensor.data_type in _COMPLEX:
        return found // 2
    if bits is not None and bits < 8:
        count = math.prod(tensor.dims)
        return count if found == -(-count * bits // 8) else found
    return found


def _list_typed_elements(tensor: onnx.TensorProto) -> Sequence[Any]:
    for field in (
        tensor.float_data,
        tensor.int32_data,
        tensor.int64_data,
        tensor.double_data,
        tensor.uint64_data,
        tensor.string_data,
    ):
        if len(field):
            found: Sequence[Any] = field
            return found
    return ()
