"""Draft the layers of a family one by one, by the indices of the layers that each reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from joulecast.kinds import Shape, make_layer, make_op, output_shape
from joulecast.records import Input, Layer, Op

Tail = tuple[Op, ...]

DATA = -1
"""Index of the network's input among the layers that a layer reads."""
RELU = make_op("elementwise", fn="relu")
# PyTorch runs ReLU6 as ``hardtanh``.
RELU6 = make_op("elementwise", fn="hardtanh")
NORM = make_op("batch_norm")
FLATTEN = make_op("flatten")
MEAN_POOL = make_op("pool", fn="adaptive_avg", kernel=(1, 1))


def make_max_pool(kernel: int, stride: int, padding: int = 0, ceil: bool = False) -> Op:
    """Return max pooling over square windows."""
    sizes = {"kernel": kernel, "stride": stride, "padding": padding}
    squares = {name: (size, size) for name, size in sizes.items()}
    return make_op("pool", fn="max", ceil=int(ceil), **squares)


class FamilyDraft:
    """Layers in call order that may still grow.

    Every method that adds a layer returns its index. Without a source, a layer reads the one before
    it.
    """

    def __init__(self, sample: Input) -> None:
        self.input = sample
        self.layers: list[Layer] = []
        self.groups: list[tuple[int, int]] = []
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
    def block(self, name: str) -> Iterator[None]:
        """Mark the layers that are added inside as one block, and prefix their names."""
        start, self._prefix = len(self.layers), f"{name}."
        yield
        self._prefix = ""
        self.groups.append((start, len(self.layers)))

    def add(self, name: str, layer: Layer, *sources: int) -> int:
        """Add a layer that reads these layers."""
        reads = tuple(len(self.layers) - one for one in sources or (self.last,))
        self.layers.append(replace(layer, reads=reads, name=f"{self._prefix}{name}"))
        return self.last

    def conv(
        self,
        name: str,
        cout: int,
        kernel: int = 1,
        source: int | None = None,
        tail: Tail = (NORM, RELU),
        **sizes: Any,
    ) -> int:
        """Add a convolution that keeps the image size at stride 1; without a bias before a norm."""
        source = self.last if source is None else source
        cin, *space = self.shape(source)
        sizes = {"padding": kernel // 2, "bias": int(NORM not in tail[:1]), **sizes}
        layer = make_layer(
            "conv2d", tail, cin=cin, cout=cout, kernel=kernel, space=tuple(space), **sizes
        )
        return self.add(name, layer, source)

    def depthwise(
        self, name: str, kernel: int, stride: int, source: int | None = None, tail: Tail = ()
    ) -> int:
        """Add a depthwise convolution with a norm and a tail."""
        channels = self.shape(source)[0]
        sizes = {"groups": channels, "stride": stride}
        return self.conv(name, channels, kernel, source, (NORM, *tail), **sizes)

    def sum(self, name: str, sources: Sequence[int], tail: Tail = ()) -> int:
        """Add the sum of two layers."""
        shape = self.shape(sources[0])
        layer = make_layer("elementwise", tail, fn="add", inputs=len(sources), shape=shape)
        return self.add(name, replace(layer, join="add"), *sources)

    def concat(self, name: str, sources: Sequence[int], tail: Tail = ()) -> int:
        """Add the concatenation of layers along their channels."""
        shapes = [self.shape(one) for one in sources]
        shape = (sum(one[0] for one in shapes), *shapes[0][1:])
        layer = make_layer("elementwise", tail, fn="concat", shape=shape)
        return self.add(name, replace(layer, join="concat"), *sources)

    def pool(self, name: str, op: Op, source: int | None = None, tail: Tail = ()) -> int:
        """Add pooling as a layer of its own."""
        source = self.last if source is None else source
        layer = make_layer("pool", tail, shape=self.shape(source), **op.sizes)
        return self.add(name, layer, source)

    def norm(self, name: str, tail: Tail = ()) -> int:
        """Add a batch norm as a layer of its own."""
        return self.add(name, make_layer("batch_norm", tail, shape=self.shape()))

    def linear(self, name: str, cout: int, tail: Tail = ()) -> int:
        """Add a linear layer on a flat result."""
        (cin,) = self.shape()
        return self.add(name, make_layer("linear", tail, cin=cin, cout=cout))
