"""Change the number of tokens of a network, apart for queries and for keys.

The network was read at a prime number of tokens T that divides no width, so that sizes which are
multiples of T are those that grow with the tokens. Of two such axes, as in scores of attention, the
first belongs to the queries and the second to the keys. A concatenation of one input along the
tokens appends to a cache of keys or values: it copies the whole cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulecast.operators import (
    APPENDS,
    count_operand,
    find_kind,
    input_shape,
    layer_work,
    make_layer,
    network_work,
    output_shape,
)
from joulecast.records import Layer, Network, Op, Setup, Sizes
from joulecast.system.errors import NetError

READING_TOKENS = (251, 61)
"""Primes at which language models are read; the second one where the first is too long."""
# Widths of weights and numbers of heads never grow with the tokens.
_FIXED = (
    "cin", "cout", "vocabulary", "width", "hidden", "heads", "kv_heads", "head_dim", "experts",
    "groups", "depth", "kernel", "stride", "padding", "dilation", "order",
)  # fmt: skip


def make_prefill_network(network: Network, tokens: int) -> Network:
    """Return the network that reads a prompt and computes the logits of its last token.

    Args:
        network: A language model that was read at one of ``READING_TOKENS``.
        tokens: Number of tokens of the prompt.

    Raises:
        NetError: It is not a language model, or was read at another length.
    """
    axes = _TokenAxes(_find_tokens(network), tokens, tokens)
    layers = [axes.resize_layer(layer) for layer in network.layers]
    last = network.layers[-1]
    if find_kind(last.kind).inner_width and "lead" in last.sizes:
        layers[-1] = replace(axes, queries=1).resize_layer(last)
    return _replace_layers(network, layers, network.groups, tokens)


def make_decode_network(network: Network, context: int) -> Network:
    """Return the network that computes one more token.

    Args:
        network: A language model that was read at one of ``READING_TOKENS``.
        context: Number of tokens that the new one attends to, itself included.

    Raises:
        NetError: It is not a language model, was read at another length, or does not attend.
    """
    axes = _TokenAxes(_find_tokens(network), 1, context)
    layers: list[Layer] = []
    places: list[int] = []
    for index, layer in enumerate(network.layers):
        reads = tuple(_shift_read(back, index, len(layers), places) for back in layer.reads)
        is_strided = _reads_part(network.layers, index)
        layers += axes.split_cache(replace(layer, reads=reads), is_strided)
        places.append(len(layers) - 1)
    if not any("kv_tokens" in layer.sizes or "k" in layer.sizes for layer in layers):
        raise NetError(f"{network.name or 'the network'} has no attention: it generates no text")
    # No blocks: most of a decode step is the start of kernels, which differs by their number.
    return _replace_layers(network, layers, (), 1)


@dataclass(frozen=True)
class _TokenAxes:
    """New lengths of the axes that had ``tokens`` tokens."""

    tokens: int
    queries: int
    keys: int

    def resize_layer(self, layer: Layer) -> Layer:
        """Return a layer with the new lengths; a single query needs no causal mask."""
        sizes = self._resize_sizes(layer.sizes)
        if "causal" in sizes and self.queries == 1 < self.keys:
            sizes["causal"] = 0
        tail = tuple(Op(op.kind, Sizes(self._resize_sizes(op.sizes))) for op in layer.tail)
        return replace(layer, sizes=Sizes(sizes), tail=tail)

    def split_cache(self, layer: Layer, is_strided: bool) -> Iterator[Layer]:
        """Yield a layer with the new lengths, and the cache that it appends to as a layer."""
        shape = input_shape(layer)
        tail: list[Op] = []
        current = replace(layer, tail=())
        if len(layer.reads) == 1 and self._appends(layer, shape):
            yield self._make_cache(current, shape, is_strided)
            return
        for op in layer.tail:
            before = output_shape(replace(current, tail=tuple(tail)))
            if self._appends(op, before):
                yield self.resize_layer(replace(current, tail=tuple(tail)))
                yield self._make_cache(replace(layer, reads=(1,)), before, False)
                return
            tail.append(op)
        yield self.resize_layer(layer)

    def _appends(self, op: Op, shape: tuple[int, ...]) -> bool:
        """Return whether an operator concatenates tokens to nothing that a layer computes."""
        is_concat = str(op.sizes.get("fn", "")).startswith("concat along ")
        is_alone = op.sizes.get("inputs") == 1 and not count_operand(op.sizes)
        return is_concat and is_alone and self.tokens in shape

    def _make_cache(self, layer: Layer, shape: tuple[int, ...], is_strided: bool) -> Layer:
        new, cached = (
            tuple(length if size == self.tokens else size for size in shape)
            for length in (self.queries, self.keys)
        )
        function = APPENDS[is_strided]
        cache = make_layer("elementwise", fn=function, shape=new, out=cached)
        return replace(cache, reads=layer.reads, name=f"{layer.name}.cache")

    def _resize_sizes(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        resized = dict(sizes)
        for name, value in sizes.items():
            if name == "kv_tokens":
                resized[name] = self._resize(value, self.keys)
            elif name not in _FIXED and isinstance(value, tuple):
                resized[name] = self._resize_axes(value)
            elif name not in (*_FIXED, "m", "k", "n") and isinstance(value, int):
                resized[name] = self._resize_count(value)
        if {"m", "k", "n"} <= sizes.keys():
            values = self._resize_axes(tuple(sizes[name] for name in ("m", "k", "n")))
            resized.update(zip(("m", "k", "n"), values, strict=True))
        return resized

    def _resize_axes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        lengths = iter((self.queries, self.keys))
        return tuple(
            self._resize(size, next(lengths, self.keys)) if self._grows(size) else size
            for size in axes
        )

    def _resize_count(self, count: int) -> int:
        """Return a number of elements: products of a query and a key axis grow with both."""
        if not self._grows(count):
            return count
        resized = self._resize(count, self.queries)
        if (count // self.tokens) % self.tokens == 0:
            return self._resize(resized, self.keys)
        return resized

    def _grows(self, size: int) -> bool:
        return size > 0 and size % self.tokens == 0

    def _resize(self, size: int, length: int) -> int:
        return size // self.tokens * length if size % self.tokens == 0 else size


def _find_tokens(network: Network) -> int:
    shape = network.input.shape
    reads_tokens = any(find_kind(layer.kind).reads_tokens for layer in network.layers)
    if not reads_tokens or len(shape) != 1:
        raise NetError(
            f"{network.name or 'the network'} does not read tokens: give a language model"
        )
    if shape[0] not in READING_TOKENS:
        lengths = " or ".join(map(str, READING_TOKENS))
        raise NetError(f"the network has {shape[0]} tokens: read it with {lengths}")
    return shape[0]


def _reads_part(layers: Sequence[Layer], index: int) -> bool:
    """Return whether a layer reads a part of a tensor, such as one third of a projection."""
    back = layers[index].reads[0] if layers[index].reads else index + 1
    if back > index:
        return False
    source = layers[index - back]
    given = math.prod(output_shape(source))
    is_view = not layer_work(source, Setup(phase="inference")).forward.size_bytes
    return math.prod(input_shape(layers[index])) < given or (
        is_view and given < math.prod(input_shape(source))
    )


def _shift_read(back: int, index: int, place: int, places: list[int]) -> int:
    """Return how far back a result lies among the new layers."""
    source = index - back
    return place - places[source] if source >= 0 else place - source


def _replace_layers(
    network: Network, layers: list[Layer], groups: tuple[tuple[int, int], ...], tokens: int
) -> Network:
    totals = network.totals
    changed = replace(
        network,
        layers=tuple(layers),
        groups=groups,
        input=replace(network.input, shape=(tokens,)),
        totals=None,
    )
    if totals is None:
        return changed
    setup = Setup(phase="inference")
    before, after = (network_work(one, setup).forward for one in (network, changed))
    totals = replace(
        totals,
        flops=totals.flops * after.flops / max(before.flops, 1.0),
        size_bytes=totals.size_bytes * after.size_bytes / max(before.size_bytes, 1.0),
    )
    return replace(changed, totals=totals)
