"""Take apart what ONNX Runtime's optimiser fused: a convolution with a sum and an activation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from joulecast.runtimes.onnx_files.graph_values import GraphCall, Node
from joulecast.runtimes.onnx_files.shape_rules import MICROSOFT

# The plain operator, and how many inputs it reads.
_PLAIN = {f"{MICROSOFT}FusedConv": ("Conv", 3), f"{MICROSOFT}FusedGemm": ("Gemm", 3)}


def split_fused(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls with every fused operator replaced by those that it was made of."""
    return [part for call in calls for part in _split(call)]


def _split(call: GraphCall) -> Iterator[GraphCall]:
    if call.op not in _PLAIN:
        yield call
        return
    op, count = _PLAIN[call.op]
    result = call.node.outputs[0]
    names = [f"{result}#{op}"]
    yield _make_part(call, op, call.node.inputs[:count], names[-1])
    added = call.node.inputs[3:4]
    if added and added[0]:
        names.append(f"{result}#Add")
        yield _make_part(call, "Add", (names[-2], added[0]), names[-1])
    activation = str(call.attribute("activation", "") or "Identity")
    yield _make_part(call, activation, (names[-1],), result)


def _make_part(call: GraphCall, op: str, inputs: Sequence[str], output: str) -> GraphCall:
    """Return a part of a fused call; the parts hand on a value of one shape."""
    known = dict(zip(call.node.inputs, call.inputs, strict=True))
    result = replace(call.outputs[0])
    attributes = dict(call.node.attributes)
    limits = attributes.get("activation_params", ())
    if op == "Clip" and len(limits) == 2:
        attributes = {"min": limits[0], "max": limits[1]}
    node = Node(op, tuple(inputs), (output,), attributes, call.node.path, call.node.label)
    values = tuple(known.get(name, result) if name else None for name in inputs)
    return GraphCall(node, values, (result,))
