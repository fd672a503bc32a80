"""Add operators that move elements by index, or multiply them by experts, to an ONNX graph.

Which elements they move is arbitrary; how many is as in the network that was read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from joulecast.records import Op
from joulecast.runtimes.onnx.graph import Array, OnnxGraph, Value, WeightSource


def build_index(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    """Add a selection by constant indices along an axis, across samples, or for each element."""
    s, x = op.sizes, inputs[0]
    batch, out = x.shape[0], tuple(s["out"])
    wanted = batch * math.prod(out)
    if s["params"]:
        width = out[-1] if s["params"] % out[-1] == 0 else 1
        table = graph.add_weight(weights("table", (s["params"],), None).reshape(-1, width))
        return _gather_rows(graph, table, wanted // width, (batch, *out))
    if s["across"] and len(x.shape) > 1:
        rows = graph.reshape(x, (batch * x.shape[1], math.prod(x.shape[2:])))
        found = _gather_rows(
            graph, rows, batch * out[0], (batch, math.prod(rows.shape[1:]) * out[0])
        )
        return graph.fit(found, out)
    if not s["axes"] or max(s["axes"]) + 1 >= len(x.shape):
        flat = graph.reshape(x, (batch, math.prod(x.sample)))
        index = graph.add_weight(_draw(flat.shape[1], wanted).reshape(batch, math.prod(out)))
        found = graph.add("GatherElements", [flat, index], index.shape, axis=1)
        return graph.reshape(found, (batch, *out))
    return graph.fit(_gather_axes(graph, x, s["axes"], math.prod(out)), out)


def build_scatter(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add an addition of elements to arbitrary places."""
    x = inputs[0]
    target = graph.reshape(x, (x.shape[0], math.prod(x.sample)))
    source = graph.fit(inputs[-1], (math.prod(op.sizes["source"]),))
    index = graph.add_weight(_draw(target.shape[1], math.prod(source.shape)).reshape(source.shape))
    out = graph.add(
        "ScatterElements", [target, index, source], target.shape, axis=1, reduction="add"
    )
    return graph.reshape(out, x.shape)


def build_sort(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    """Add a sort of the last axis, or of its largest elements."""
    x, out = inputs[0], tuple(op.sizes["out"])
    is_part = op.sizes["fn"] == "topk" and out[-1] < x.shape[-1]
    kept = out[-1] if is_part else x.shape[-1]
    shape = (*x.shape[:-1], kept)
    # PyTorch sorts upwards, and its topk returns the largest.
    values, _ = graph.add_split(
        "TopK", [x, graph.add_integers([kept])], [shape, shape], axis=-1, largest=int(is_part)
    )
    return graph.fit(values, out)


def build_slice(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    """Add a copy of the first elements of each sample: ONNX has no views of a part."""
    x, out = inputs[0], tuple(op.sizes["out"])
    flat = graph.reshape(x, (x.shape[0], math.prod(x.sample)))
    wanted = math.prod(out)
    if wanted > flat.shape[1]:
        return graph.fit(flat, out)
    return graph.reshape(graph.slice(flat, 1, 0, wanted), (x.shape[0], *out))


def build_gradient_copy(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add a reshape, a copy of a part, or an expansion of the first element of each sample."""
    x, out = inputs[0], tuple(op.sizes["out"])
    if math.prod(out) <= math.prod(x.sample):
        return build_slice(graph, op, inputs, weights)
    flat = graph.reshape(x, (x.shape[0], math.prod(x.sample)))
    one = graph.reshape(graph.slice(flat, 1, 0, 1), (x.shape[0], *(1 for _ in out)))
    shape = (x.shape[0], *out)
    return graph.add("Expand", [one, graph.add_integers(shape)], shape)


def build_grouped_linear(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add the experts of a mixture, each multiplying an equal share of the rows."""
    s, x = op.sizes, inputs[0]
    experts, cin, cout = s["experts"], s["cin"], s["cout"]
    weight = weights("weight", (experts, cout, cin), None)
    rows = graph.reshape(x, (math.prod(x.shape[:-1]), cin))
    ends = [rows.shape[0] * one // experts for one in range(experts + 1)]
    products = [
        graph.add(
            "MatMul",
            [graph.slice(rows, 0, begin, end), graph.add_weight(weight[expert].T)],
            (end - begin, cout),
        )
        for expert, (begin, end) in enumerate(pairwise(ends))
        if end > begin
    ]
    out = graph.add("Concat", products, (rows.shape[0], cout), axis=0)
    return graph.reshape(out, (*x.shape[:-1], cout))


def _gather_axes(graph: OnnxGraph, x: Value, axes: Sequence[int], wanted: int) -> Value:
    """Return elements selected along some axes of a sample, which become its first axis."""
    rest = [axis for axis in range(len(x.sample)) if axis not in axes]
    moved = graph.transpose(x, [0, *(axis + 1 for axis in (*axes, *rest))])
    places = math.prod(x.sample[axis] for axis in axes)
    width = math.prod(x.sample[axis] for axis in rest)
    rows = graph.reshape(moved, (x.shape[0], places, width))
    index = graph.add_weight(_draw(places, max(1, wanted // width)))
    return graph.add("Gather", [rows, index], (x.shape[0], *index.shape, width), axis=1)


def _gather_rows(graph: OnnxGraph, rows: Value, count: int, shape: tuple[int, ...]) -> Value:
    index = graph.add_weight(_draw(rows.shape[0], count))
    found = graph.add("Gather", [rows, index], (count, *rows.shape[1:]), axis=0)
    return graph.reshape(found, shape)


def _draw(limit: int, count: int) -> Array:
    # Always the same: which elements are moved does not matter.
    return np.random.default_rng(0).integers(0, limit, count)
