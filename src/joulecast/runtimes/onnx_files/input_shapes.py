"""Give the inputs of an ONNX graph their sizes: those of the file, and those that a user names."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from joulecast.errors import NetError
from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.model_file import GraphError, check_shape, shorten
from joulecast.units import format_shape

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
