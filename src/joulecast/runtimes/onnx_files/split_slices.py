"""Recognise slices that cut a value into parts: exporters write a split as one slice per part."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.runtimes.onnx_files.constant_folding import resolve_slices
from joulecast.runtimes.onnx_files.graph_values import GraphCall, Node


def merge_slices(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls with slices that together cover a value once replaced by one ``Split``."""
    slices: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if call.op == "Slice" and call.outputs[0].shape is not None:
            slices.setdefault(call.node.inputs[0], []).append(place)
    replaced: dict[int, GraphCall | None] = {}
    for places in slices.values():
        parts = sorted(places, key=lambda place: _find_range(calls[place])[1:])
        if len(parts) > 1 and _covers([calls[place] for place in parts]):
            # A value that a call reads is computed before the first of its slices.
            replaced.update(dict.fromkeys(places))
            replaced[places[0]] = _make_split([calls[place] for place in parts])
    merged = (replaced.get(place, call) for place, call in enumerate(calls))
    return [call for call in merged if call is not None]


def _find_range(call: GraphCall) -> tuple[int, int, int]:
    """Return axis, start and stop of a slice along one axis; an axis of -1 for any other."""
    ranges = {
        axis: (first, last)
        for axis, (first, last, step, count) in resolve_slices(call).items()
        if step != 1 or count != call.shape(0)[axis]
    }
    steps = {step for _, _, step, _ in resolve_slices(call).values()}
    if len(ranges) != 1 or steps != {1}:
        return (-1, 0, 0)
    axis, (first, last) = next(iter(ranges.items()))
    return (axis, first, last)


def _covers(calls: Sequence[GraphCall]) -> bool:
    """Return whether slices, in order, cover every element along one axis once."""
    axes = {_find_range(call)[0] for call in calls}
    if len(axes) != 1 or -1 in axes:
        return False
    end = 0
    for call in calls:
        axis, first, last = _find_range(call)
        if first != end:
            return False
        end = last
    return end == calls[0].shape(0)[axis]


def _make_split(calls: Sequence[GraphCall]) -> GraphCall:
    first = calls[0]
    node = Node(
        "Split",
        first.node.inputs[:1],
        tuple(call.node.outputs[0] for call in calls),
        {"axis": _find_range(first)[0]},
        first.node.path,
        first.node.label,
    )
    return GraphCall(node, first.inputs[:1], tuple(call.outputs[0] for call in calls))
