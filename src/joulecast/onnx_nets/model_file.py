"""Parse and check an ONNX file, and give its inputs their sizes.

An ONNX file is data from elsewhere. Weights that it keeps in other files are not opened, wherever
they are: their shapes are in the model. Shapes and sizes are compared before anything is computed
from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from joulecast.operators import Shape
from joulecast.records.network import LARGEST_SIZE, MOST_AXES
from joulecast.system.errors import FileError, NetError
from joulecast.system.units import format_shape

MOST_NODES = 50_000
MOST_CONSTANT_ELEMENTS = 1024
"""Elements of a constant whose values are kept: shapes and axes have few."""

# Bits of one element, by number of the type (``onnx.TensorProto.DataType``).
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64,
    15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip
_COMPLEX = (14, 15)
_WINDOWS_DRIVE = re.compile(r"^[A-Za-z]:")
_NESTED_DEEPEST = 20


class GraphError(ValueError):
    """A graph is inconsistent, or its sizes cannot be known."""


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

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"its input {shorten(self.name)!r}"

    @property
    def text(self) -> str:
        """Its shape for people, with names or question marks for open sizes."""
        if self.dims is None:
            return "of unknown shape"
        return f"[{', '.join(str(one) or '?' for one in self.dims)}]"


def list_inputs(graph: onnx.GraphProto) -> list[GraphInput]:
    """Return the inputs of a graph, without weights that are listed among them.

    Raises:
        GraphError: There is none, one is not a tensor, or has an impossible shape.
    """
    weights = {tensor.name for tensor in graph.initializer}
    weights.update(sparse.values.name for sparse in graph.sparse_initializer)
    inputs = [_read_input(one) for one in graph.input if one.name not in weights]
    if not inputs:
        raise GraphError("it has no inputs")
    return inputs


def bind_shapes(
    inputs: list[GraphInput], batch: int, sample: Shape | None
) -> tuple[list[Shape], dict[str, int]]:
    """Return the shapes of all inputs, and the sizes of the dimensions that have names.

    Args:
        inputs: The inputs of a graph; the first axis of the first one is the batch.
        batch: Samples to read the graph with.
        sample: Shape of one sample of the first input, where the file leaves it open.

    Raises:
        NetError: A size is not given, or differs from the file's.
    """
    first = inputs[0]
    shape = (batch, *_find_sample(first, sample))
    sizes = dict(_list_named(first, shape))
    return [shape, *(_bind_other(one, shape, sizes) for one in inputs[1:])], sizes


def read_dims(declared: onnx.TypeProto) -> tuple[Dimension, ...] | None:
    """Return what a file declares about the shape of a value; None where it declares none."""
    if not declared.HasField("tensor_type") or not declared.tensor_type.HasField("shape"):
        return None
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param)[:80]
        for dim in declared.tensor_type.shape.dim
    )


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
    for attribute in (one for node in graph.node for one in node.attribute):
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
        shape = format_shape(tuple(tensor.dims)) or "()"
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


def _read_input(value: onnx.ValueInfoProto) -> GraphInput:
    owner = f"the input {shorten(value.name)!r}"
    if not value.type.HasField("tensor_type"):
        raise GraphError(f"{owner} is not a tensor, which cannot be read")
    dims = read_dims(value.type)
    # Exporters write sizes that they do not know as 0 or -1.
    dims = None if dims is None else tuple("" if one in (0, -1) else one for one in dims)
    check_shape(owner, [one for one in dims or () if isinstance(one, int)])
    return GraphInput(value.name, int(value.type.tensor_type.elem_type), dims)


def _find_sample(first: GraphInput, sample: Shape | None) -> Shape:
    """Return the shape of one sample of the first input."""
    declared = None if first.dims is None else first.dims[1:]
    if declared is not None and all(isinstance(one, int) for one in declared):
        fixed = tuple(int(one) for one in declared)
        if sample not in (None, fixed):
            raise NetError(
                f"{first.title} takes samples of {format_shape(fixed) or '()'}: leave "
                "the input shape out, or export the net for another shape"
            )
        return fixed
    if sample is None:
        raise NetError(
            f"{first.title} is {first.text}, with sizes that it leaves open: give the "
            f"shape of one sample, like --input {_suggest_sample(first)}"
        )
    if declared is not None:
        fits = len(declared) == len(sample) and all(
            isinstance(known, str) or known == size
            for known, size in zip(declared, sample, strict=True)
        )
        if not fits:
            raise NetError(
                f"{first.title} is {first.text}, which samples of "
                f"{format_shape(sample)} do not fit: give another shape"
            )
    return sample


def _suggest_sample(first: GraphInput) -> str:
    """Return an example of a shape: images of 224 pixels, sequences of 128 tokens."""
    if first.dims is None:
        return "3x224x224"
    rest = first.dims[1:]
    usual = 224 if len(rest) > 2 else 128
    channels = 3 if len(rest) > 2 else usual
    shape = [
        one if isinstance(one, int) else (channels if place == 0 else usual)
        for place, one in enumerate(rest)
    ]
    return "x".join(map(str, shape))


def _list_named(one: GraphInput, shape: Shape) -> list[tuple[str, int]]:
    return [
        (name, size)
        for name, size in zip(one.dims or (), shape, strict=False)
        if isinstance(name, str) and name
    ]


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
                f"{one.title} is {one.text}, and nothing says what {size or '?'!r} is: "
                "export the net with that size fixed"
            )
    return tuple(shape)
