"""Draft a network layer by layer, as reading a module finds its layers.

Sizes that follow from the layers read are filled in. Views that reading loses are not layers: where
one changes the shape, the next layer is given the shape that it gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from joulecast.kinds import Shape, find_kind, make_layer, make_op, output_shape
from joulecast.records import JOINS, Input, Layer, Network, Op

DATA = -1
"""The source of layers that read the network's input."""

_LAYOUT = ("channels_last", "channels_last_weights", "transposed")

Tail = tuple[Op, ...]
Sources = int | Sequence[int] | None


def make_function(fn: str, passes: int = 1) -> Op:
    """Return the operator of a function of elements, for a tail."""
    return make_op("elementwise", fn=fn, passes=passes)


def make_pool(fn: str, kernel: int, stride: int = 0, padding: int = 0, dims: int = 2) -> Op:
    """Return a pooling operator for a tail; adaptive pooling takes only its output size."""
    if fn.startswith("adaptive"):
        return make_op("pool", fn=fn, kernel=(kernel,) * dims)
    sizes = {"kernel": kernel, "stride": stride or kernel, "padding": padding}
    return make_op("pool", fn=fn, **{name: (size,) * dims for name, size in sizes.items()})


def make_dropout(p: float = 0.1) -> Op:
    """Return dropout, for a tail."""
    return make_op("dropout", p=p)


class NetworkDraft:
    """Layers in call order that may still grow.

    Every method that adds a layer returns its index, which later layers name as a source. Without
    a source a layer reads the one before it.
    """

    def __init__(self, shape: Shape, vocabulary: int = 0) -> None:
        self.input = Input(shape, vocabulary)
        self.layers: list[Layer] = []
        self.groups: list[tuple[int, int]] = []
        self.is_frozen = False
        self._needs_grad: list[bool] = []

    @property
    def last(self) -> int:
        """Index of the newest layer; ``DATA`` before the first."""
        return len(self.layers) - 1

    def shape(self, source: int | None = None) -> Shape:
        """Return the shape of a layer's output, by default the newest one's."""
        source = self.last if source is None else source
        return self.input.shape if source == DATA else output_shape(self.layers[source])

    @contextmanager
    def block(self) -> Iterator[None]:
        """Mark the layers that are added inside as one repeated block."""
        start = len(self.layers)
        yield
        self.groups.append((start, len(self.layers)))

    def add(self, layer: Layer, source: Sources = None) -> int:
        """Add a layer; derive what it reads and which gradients it needs."""
        sources = self._list_sources(source)
        is_embedding = find_kind(layer.kind).reads_tokens
        input_grad = not is_embedding and any(one >= 0 and self._needs_grad[one] for one in sources)
        has_weights = bool(find_kind(layer.kind).params(layer.sizes, self._own_shape(layer)))
        trains = layer.trains and not (has_weights and self.is_frozen)
        reads = tuple(len(self.layers) - one for one in sources)
        self.layers.append(replace(layer, reads=reads, input_grad=input_grad, trains=trains))
        self._needs_grad.append(input_grad or (trains and has_weights))
        return self.last

    def embedding(self, vocabulary: int, width: int, source: Sources = None, **rest: Any) -> int:
        """Add an embedding of the tokens read, or of positions if it reads nothing."""
        lead = rest.pop("lead", self.input.shape)
        layer = make_layer("embedding", rest.pop("tail", ()), vocabulary=vocabulary, width=width,
                           lead=lead)  # fmt: skip
        return self.add(replace(layer, **rest), source)

    def linear(self, cout: int, source: Sources = None, tail: Tail = (), **rest: Any) -> int:
        """Add a linear layer on the last axis of what it reads, or of ``shape``."""
        *lead, cin = rest.pop("shape", None) or self.shape(self._list_sources(source)[0])
        bias = rest.pop("bias", 1)
        layer = make_layer("linear", tail, cin=cin, cout=cout, lead=tuple(lead), bias=bias)
        return self.add(replace(layer, **rest), source)

    def conv(
        self, cout: int, kernel: int | Shape, source: Sources = None, tail: Tail = (), **rest: Any
    ) -> int:
        """Add a convolution over all axes but the first; ``kind`` may name a transposed one."""
        cin, *space = rest.pop("shape", None) or self.shape(self._list_sources(source)[0])
        kind = rest.pop("kind", f"conv{len(space)}d")
        flags = {k: rest.pop(k) for k in _LAYOUT if k in rest}
        layer = make_layer(
            kind, tail, cin=cin, cout=cout, space=tuple(space), kernel=kernel, **rest
        )
        return self.add(replace(layer, **flags), source)

    def function(self, fn: str, source: Sources = None, tail: Tail = (), **rest: Any) -> int:
        """Add a function of elements; several sources are joined."""
        sources = self._list_sources(source)
        names = ("channels_last", "trains", "transposed")
        flags: dict[str, Any] = {name: rest.pop(name) for name in names if name in rest}
        if "shape" not in rest:
            rest["shape"] = self.shape(sources[0])
        if len(sources) > 1:
            join = fn.split(" along ")[0]
            flags["join"] = join if join in JOINS else "add"
            rest["inputs"] = 1 if join == "concat" else len(sources)
        layer = make_layer("elementwise", tail, fn=fn, **rest)
        return self.add(replace(layer, **flags), source)

    def norm(self, kind: str, source: Sources = None, tail: Tail = (), **rest: Any) -> int:
        """Add a norm as a layer of its own."""
        shape = rest.pop("shape", None) or self.shape(self._list_sources(source)[0])
        layout = {name: rest.pop(name) for name in _LAYOUT if name in rest}
        layer = make_layer(kind, tail, shape=shape, **rest)
        return self.add(replace(layer, **layout), source)

    def pool(self, op: Op, source: Sources = None, tail: Tail = (), **rest: Any) -> int:
        """Add pooling as a layer of its own."""
        shape = self.shape(self._list_sources(source)[0])
        layer = make_layer("pool", tail, shape=shape, **op.sizes)
        return self.add(replace(layer, **rest), source)

    def move(self, kind: str, source: Sources = None, tail: Tail = (), **sizes: Any) -> int:
        """Add an operator that moves elements, such as ``index``, ``scatter`` or ``slice``."""
        if "shape" not in sizes:
            sizes["shape"] = self.shape(self._list_sources(source)[0])
        return self.add(make_layer(kind, tail, **sizes), source)

    def attention(self, heads: int, tail: Tail = ()) -> int:
        """Add ``nn.MultiheadAttention`` of the newest layer with itself."""
        tokens, width = self.shape()
        sizes = {"tokens": tokens, "kv_tokens": tokens, "width": width, "heads": heads}
        return self.add(make_layer("attention", tail, **sizes))

    def dropout(self, shape: Shape) -> int:
        """Add dropout as a layer of its own."""
        return self.add(make_layer("dropout", p=0.1, shape=shape))

    def concat(self, sources: Sequence[int], tail: Tail = (), channels_last: bool = False) -> int:
        """Add the concatenation of images or features along their channels."""
        shapes = [self.shape(one) for one in sources]
        shape = (sum(one[0] for one in shapes), *shapes[0][1:])
        return self.function("concat", sources, tail, shape=shape, channels_last=channels_last)

    def finish(self, name: str, buildable: bool = False) -> Network:
        """Return the network.

        Args:
            name: A label for people.
            buildable: Reading a module of this architecture loses nothing.
        """
        return Network(
            tuple(self.layers), self.input, tuple(self.groups), buildable=buildable, name=name
        )

    def _list_sources(self, source: Sources) -> tuple[int, ...]:
        if source is None:
            return (self.last,)
        return (source,) if isinstance(source, int) else tuple(source)

    def _own_shape(self, layer: Layer) -> Shape:
        return find_kind(layer.kind).in_shape(layer.sizes)
