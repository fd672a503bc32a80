"""Take apart what ONNX Runtime's optimisers fused: sums, activations, norms and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphValue, Node
from joulecast.runtimes.onnx_files.shape_rules import MICROSOFT

PACKED_ATTENTION = "joulecast::packed_attention"
"""Attention on queries, keys and values side by side."""


def split_fused(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls with every fused operator replaced by those that it was made of."""
    found: list[GraphCall] = []
    for call in calls:
        split = _SPLITTERS.get(call.op)
        found += [call] if split is None else split(_Parts(call))
    return found


class _Parts:
    """The operators that a fused call was made of; they hand on a value of one shape."""

    def __init__(self, call: GraphCall) -> None:
        self.call = call
        self.known = dict(zip(call.node.inputs, call.inputs, strict=True))
        self.result = call.node.outputs[0]

    def name_input(self, place: int) -> str:
        """Return the name of an input; empty if it is missing."""
        names = self.call.node.inputs
        return names[place] if place < len(names) else ""

    def make(
        self,
        op: str,
        inputs: Sequence[str],
        output: str = "",
        value: GraphValue | None = None,
        **attributes: Any,
    ) -> GraphCall:
        """Return one part.

        Args:
            op: Its operator.
            inputs: Names of its inputs.
            output: Name of its result; one of its own by default.
            value: What it computes, if not what the fused call does.
            attributes: Attributes of the node.
        """
        call = self.call
        output = output or f"{self.result}#{op}"
        value = value or replace(call.outputs[0])
        node = Node(op, tuple(inputs), (output,), attributes, call.node.path, call.node.label)
        given = tuple(self.known.get(name) if name else None for name in inputs)
        self.known[output] = value
        return GraphCall(node, given, (value,))


def _split_activation(op: str) -> Callable[[_Parts], Iterator[GraphCall]]:
    """Return what takes a convolution or product apart, with a sum and an activation."""

    def split(parts: _Parts) -> Iterator[GraphCall]:
        call = parts.call
        plain = parts.make(op, call.node.inputs[:3], **call.node.attributes)
        yield plain
        last = plain.node.outputs[0]
        if parts.name_input(3):
            added = parts.make("Add", (last, parts.name_input(3)))
            yield added
            last = added.node.outputs[0]
        activation = str(call.attribute("activation", "") or "Identity")
        limits = call.attribute("activation_params", ())
        more = {"min": limits[0], "max": limits[1]} if len(limits) == 2 else {}
        yield parts.make(activation, (last,), parts.result, **more)

    return split


def _split_norm(parts: _Parts) -> Iterator[GraphCall]:
    """Take a norm apart that adds a bias and the input of the block before."""
    is_plain = "Simplified" not in parts.call.op
    last = parts.name_input(0)
    bias = parts.name_input(4 if is_plain else 3)
    if bias:
        biased = parts.make("Add", (last, bias), f"{parts.result}#bias")
        yield biased
        last = biased.node.outputs[0]
    outputs = parts.call.node.outputs
    total = outputs[3] if len(outputs) > 3 and outputs[3] else f"{parts.result}#sum"
    yield parts.make("Add", (last, parts.name_input(1)), total)
    if is_plain:
        weights = (parts.name_input(2), parts.name_input(3))
        yield parts.make("LayerNormalization", (total, *weights), parts.result)
    else:
        yield parts.make("RMSNormalization", (total, parts.name_input(2)), parts.result)


def _split_bias(parts: _Parts) -> Iterator[GraphCall]:
    """Take an activation apart that adds a bias first."""
    last = parts.name_input(0)
    if parts.name_input(1):
        biased = parts.make("Add", (last, parts.name_input(1)))
        yield biased
        last = biased.node.outputs[0]
    yield parts.make("Gelu", (last,), parts.result)


def _split_attention(parts: _Parts) -> Iterator[GraphCall]:
    """Take attention apart that projects its input to queries, keys and values first."""
    call = parts.call
    width = call.shape(1)[-1]
    packed = replace(call.outputs[0], shape=(*call.shape(0)[:-1], width))
    op = "joulecast::linear" if parts.name_input(2) else "MatMul"
    inputs = call.node.inputs[:3] if parts.name_input(2) else call.node.inputs[:2]
    projected = parts.make(op, inputs, value=packed)
    yield projected
    yield parts.make(PACKED_ATTENTION, projected.node.outputs, parts.result, **call.node.attributes)


_SPLITTERS: dict[str, Callable[[_Parts], Iterator[GraphCall]]] = {
    f"{MICROSOFT}FusedConv": _split_activation("Conv"),
    f"{MICROSOFT}FusedGemm": _split_activation("Gemm"),
    f"{MICROSOFT}SkipLayerNormalization": _split_norm,
    f"{MICROSOFT}SkipSimplifiedLayerNormalization": _split_norm,
    f"{MICROSOFT}BiasGelu": _split_bias,
    f"{MICROSOFT}FastGelu": _split_bias,
    f"{MICROSOFT}Attention": _split_attention,
}
