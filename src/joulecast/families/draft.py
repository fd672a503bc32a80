"""Draft a network layer by layer.

Sizes that follow from the layers read are filled in, and so is which inputs need a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from joulecast.operators import Shape, find_kind, make_layer, make_op, output_shape
from joulecast.records import Input, Layer, Network, Op

DATA = -1
"""The source of layers that read the network's input."""

Tail = tuple[Op, ...]
Sources = int | Sequence[int] | None


def make_function(fn: str) -> Op:
    """Return a function of elements, such as ``relu``, for a tail."""
    return make_op("elementwise", fn=fn)


def make_pool(
    fn: str, kernel: int, stride: int = 0, padding: int = 0, dims: int = 2, ceil: int = 0
) -> Op:
    """Return a pooling operator for a tail; adaptive pooling takes only its output size."""
    if fn.startswith("adaptive"):
        return make_op("pool", fn=fn, kernel=(kernel,) * dims)
    sizes = {"kernel": kernel, "stride": stride or kernel, "padding": padding}
    return make_op(
        "pool", fn=fn, ceil=ceil, **{name: (size,) * dims for name, size in sizes.items()}
    )


class NetworkDraft:
    """Layers in call order that may still grow.

    Every method that adds a layer returns its index, which later layers name as a source. Without
    a source, a layer reads the one before it.
    """

    def __init__(self, shape: Shape, vocabulary: int = 0) -> None:
        self.input = Input(shape, vocabulary)
        self.layers: list[Layer] = []
        self.groups: list[tuple[int, int]] = []
        self._needs_grad: list[bool] = []
        self._prefix = ""

    @property
    def last(self) -> int:
        """Index of the newest layer; ``DATA`` before the first."""
        return len(self.layers) - 1

    def shape(self, source: int | None = None) -> Shape:
        """Return the shape of a layer's output, by default the newest one's."""
        source = self.last if source is None else source
        return self.input.shape if source == DATA else output_shape(self.layers[source])

    @contextmanager
    def block(self, name: str = "") -> Iterator[None]:
        """Mark the layers that are added inside as one repeated block, and prefix their names."""
        start, self._prefix = len(self.layers), f"{name}." if name else ""
        yield
        self._prefix = ""
        self.groups.append((start, len(self.layers)))

    def add(self, layer: Layer, source: Sources = None, name: str = "") -> int:
        """Add a layer; derive what it reads and whether its input needs a gradient."""
        kind, sources = find_kind(layer.kind), self._list_sources(source)
        input_grad = not kind.reads_tokens and any(
            one >= 0 and self._needs_grad[one] for one in sources
        )
        has_weights = bool(kind.params(layer.sizes, kind.in_shape(layer.sizes)))
        reads = tuple(len(self.layers) - one for one in sources)
        name = f"{self._prefix}{name}" if name else ""
        self.layers.append(replace(layer, reads=reads, input_grad=input_grad, name=name))
        self._needs_grad.append(input_grad or has_weights)
        return self.last

    def embedding(self, vocabulary: int, width: int, source: Sources = None, name: str = "") -> int:
        """Add an embedding of the tokens read."""
        lead = self.input.shape
        layer = make_layer("embedding", vocabulary=vocabulary, width=width, lead=lead)
        return self.add(layer, source, name)

    def linear(
        self, cout: int, source: Sources = None, tail: Tail = (), name: str = "", bias: int = 1
    ) -> int:
        """Add a linear layer on the last axis of what it reads."""
        *lead, cin = self._read_shape(source)
        layer = make_layer("linear", tail, cin=cin, cout=cout, lead=tuple(lead), bias=bias)
        return self.add(layer, source, name)

    def conv(
        self,
        cout: int,
        kernel: int,
        source: Sources = None,
        tail: Tail = (),
        name: str = "",
        kind: str = "",
        **sizes: Any,
    ) -> int:
        """Add a convolution over all axes but the first; ``kind`` may name a transposed one."""
        cin, *space = self._read_shape(source)
        kind = kind or f"conv{len(space)}d"
        shape: dict[str, Any] = {"cin": cin, "cout": cout, "space": tuple(space), "kernel": kernel}
        return self.add(make_layer(kind, tail, **shape, **sizes), source, name)

    def function(
        self, fn: str, source: Sources = None, tail: Tail = (), name: str = "", params: int = 0
    ) -> int:
        """Add a function of elements; several sources are added or multiplied."""
        count = len(self._list_sources(source))
        shape = self._read_shape(source)
        layer = make_layer("elementwise", tail, fn=fn, shape=shape, inputs=count, params=params)
        return self.add(replace(layer, join=fn if count > 1 else "none"), source, name)

    def concat(self, sources: Sequence[int], tail: Tail = (), name: str = "") -> int:
        """Add the concatenation of images or features along their channels."""
        shapes = [self.shape(one) for one in sources]
        shape = (sum(one[0] for one in shapes), *shapes[0][1:])
        layer = make_layer("elementwise", tail, fn="concat", shape=shape)
        return self.add(replace(layer, join="concat"), sources, name)

    def norm(self, kind: str, source: Sources = None, tail: Tail = (), name: str = "") -> int:
        """Add a norm that is not in the tail of another layer."""
        return self.add(make_layer(kind, tail, shape=self._read_shape(source)), source, name)

    def pool(self, op: Op, source: Sources = None, tail: Tail = (), name: str = "") -> int:
        """Add pooling that is not in the tail of another layer."""
        layer = make_layer("pool", tail, shape=self._read_shape(source), **op.sizes)
        return self.add(layer, source, name)

    def finish(self, name: str, buildable: bool = True) -> Network:
        """Return the network."""
        return Network(
            tuple(self.layers), self.input, tuple(self.groups), buildable=buildable, name=name
        )

    def _list_sources(self, source: Sources) -> tuple[int, ...]:
        if source is None:
            return (self.last,)
        return (source,) if isinstance(source, int) else tuple(source)

    def _read_shape(self, source: Sources) -> Shape:
        return self.shape(self._list_sources(source)[0])
