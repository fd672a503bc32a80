"""Add embeddings, recurrent layers and attention to an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from joulecast.records import Op, Sizes
from joulecast.runtimes.onnx.graph import Array, OnnxGraph, Shape, Value, WeightSource

# ONNX's order of gates, as positions in PyTorch's.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
_LOWEST_SCORE = -1e9


def build_embedding(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add a lookup of one row for each token."""
    (tokens,), width = inputs, op.sizes["width"]
    table = graph.add_weight(weights("weight", (op.sizes["vocabulary"], width), None))
    return graph.add("Gather", [table, tokens], (*tokens.shape, width))


def build_embedding_bag(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add sums of rows, ``bags`` for each sample."""
    (tokens,), width, bags = inputs, op.sizes["width"], op.sizes["bags"]
    table = graph.add_weight(weights("inner.weight", (op.sizes["vocabulary"], width), None))
    per_bag = max(1, math.prod(tokens.sample) // bags)
    tokens = graph.fit(tokens, (bags, per_bag))
    rows = graph.add("Gather", [table, tokens], (*tokens.shape, width))
    shape = (graph.batch, bags, width)
    sums = graph.add("ReduceSum", [rows, graph.add_integers([2])], shape, keepdims=0)
    return sums if bags > 1 else graph.reshape(sums, (graph.batch, width))


def build_recurrent(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add an LSTM, GRU or plain RNN that returns its output sequence."""
    s = op.sizes
    directions = 1 + s["bidirectional"]
    x = graph.transpose(inputs[0], (1, 0, 2))
    tokens, batch = x.shape[:2]
    attributes = {
        "hidden_size": s["hidden"],
        "direction": "bidirectional" if directions == 2 else "forward",
        # PyTorch multiplies by the reset gate after the product.
        **({"linear_before_reset": 1} if op.kind == "gru" else {}),
    }
    for level in range(s["depth"]):
        names = [x, *_read_recurrent(graph, op, x.shape[-1], level, weights)]
        shape = (tokens, directions, batch, s["hidden"])
        x = graph.add(op.kind.upper(), names, shape, **attributes)
        x = graph.transpose(x, (0, 2, 1, 3))
        x = graph.reshape(x, (tokens, batch, directions * s["hidden"]))
    return graph.transpose(x, (1, 0, 2))


def build_sdpa(graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource) -> Value:
    """Add scaled dot-product attention on one packed input, or on query, key and value."""
    s = op.sizes
    windows, tokens = s.get("windows", 1), s["tokens"]
    if windows > 1:
        # A window attends only to itself: windows are samples.
        inputs = [_split_windows(graph, x, s) for x in inputs]
    out = _attend(graph, s, inputs)
    if windows == 1:
        return out
    return graph.reshape(out, (graph.batch, windows, tokens, out.shape[-1]))


def build_attention(
    graph: OnnxGraph, op: Op, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    """Add multi-head attention: one product for query, key and value, attention, one product."""
    s, x = op.sizes, inputs[0]
    width, heads, rows = s["width"], s["heads"], x.shape
    x = graph.reshape(x, (math.prod(rows[:-2]), *rows[-2:]))
    packed = _project(
        graph, x, weights, ("inner.in_proj_weight", "inner.in_proj_bias"), 3 * width, s["bias"]
    )
    inner = Sizes(
        {
            "heads": heads,
            "kv_heads": heads,
            "head_dim": width // heads,
            "tokens": rows[-2],
            "kv_tokens": rows[-2],
            "causal": 0,
        }
    )
    out = _attend(graph, inner, [packed])
    out = _project(
        graph, out, weights, ("inner.out_proj.weight", "inner.out_proj.bias"), width, s["bias"]
    )
    return graph.reshape(out, rows)


def _project(
    graph: OnnxGraph,
    x: Value,
    weights: WeightSource,
    names: tuple[str, str],
    cout: int,
    has_bias: bool,
) -> Value:
    weight = weights(names[0], (cout, x.shape[-1]), None)
    out = graph.add("MatMul", [x, graph.add_weight(weight.T)], (*x.shape[:-1], cout))
    if not has_bias:
        return out
    bias = graph.add_weight(weights(names[1], (cout,), None))
    return graph.add("Add", [bias, out], out.shape)


def _attend(graph: OnnxGraph, s: Sizes, inputs: Sequence[Value]) -> Value:
    heads, head_dim, tokens, kv_tokens = s["heads"], s["head_dim"], s["tokens"], s["kv_tokens"]
    query, key, value = _split_inputs(graph, s, inputs)
    batch = query.shape[0]
    key = graph.transpose(key, (0, 1, 3, 2))
    # Exporters scale both factors by the root of the scale; the product is as it is.
    root = graph.add_numbers(head_dim**-0.25)
    query = graph.add("Mul", [query, root], query.shape)
    key = graph.add("Mul", [key, root], key.shape)
    shape = (batch, heads, tokens, kv_tokens)
    scores = graph.add("MatMul", [query, key], shape)
    if len(inputs) > 3:
        bias = _fit_bias(graph, inputs[3], tokens, kv_tokens)
        scores = graph.add("Add", [scores, bias], shape)
    elif s["causal"]:
        mask = np.triu(np.full((tokens, kv_tokens), _LOWEST_SCORE, dtype="float32"), 1)
        scores = graph.add("Add", [scores, graph.add_numbers(mask)], shape)
    shares = graph.add("Softmax", [scores], shape, axis=-1)
    out = graph.add("MatMul", [shares, value], (batch, heads, tokens, head_dim))
    out = graph.transpose(out, (0, 2, 1, 3))
    return graph.reshape(out, (batch, tokens, heads * head_dim))


def _split_inputs(graph: OnnxGraph, s: Sizes, inputs: Sequence[Value]) -> list[Value]:
    """Return query, key and value by heads, from one packed input or from several."""
    counts = (s["heads"], s["kv_heads"], s["kv_heads"])
    lengths = (s["tokens"], s["kv_tokens"], s["kv_tokens"])
    widths = [count * s["head_dim"] for count in counts]
    if len(inputs) == 1 and inputs[0].sample == (s["tokens"], sum(widths)):
        packed = inputs[0]
        shapes = [(*packed.shape[:-1], width) for width in widths]
        inputs = graph.add_split(
            "Split", [packed, graph.add_integers(widths)], shapes, axis=len(packed.shape) - 1
        )
    last = len(inputs) - 1
    values = []
    for position, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        x, width = inputs[min(position, last)], count * s["head_dim"]
        if length > s["tokens"] and x.sample not in (
            (length, width),
            (count, length, s["head_dim"]),
        ):
            # Keys and values of earlier tokens, which inference has computed before.
            shape = (x.shape[0], count, length, s["head_dim"])
            x = graph.add_input(f"cache_{len(graph.inputs)}", shape, is_tokens=False)
        x = _split_heads(graph, x, length, count, s["head_dim"])
        values.append(x if count == s["heads"] else _repeat_heads(graph, x, s["heads"]))
    return values


def _split_heads(graph: OnnxGraph, x: Value, tokens: int, heads: int, head_dim: int) -> Value:
    if x.sample == (heads, tokens, head_dim):
        return x
    # Another sequence, or a view was lost on reading: any elements will do.
    x = graph.fit(x, (tokens, heads * head_dim))
    x = graph.reshape(x, (x.shape[0], tokens, heads, head_dim))
    return graph.transpose(x, (0, 2, 1, 3))


def _repeat_heads(graph: OnnxGraph, x: Value, heads: int) -> Value:
    """Return keys or values of which several heads read each, repeated as exporters do."""
    batch, groups, *rest = x.shape
    times = heads // groups
    x = graph.reshape(x, (batch, groups, 1, *rest))
    shape = (batch, groups, times, *rest)
    x = graph.add("Expand", [x, graph.add_integers(shape)], shape)
    return graph.reshape(x, (batch, heads, *rest))


def _fit_bias(graph: OnnxGraph, bias: Value, tokens: int, kv_tokens: int) -> Value:
    return graph.fit(bias, (1, tokens, kv_tokens))


def _split_windows(graph: OnnxGraph, x: Value, s: Sizes) -> Value:
    windows, tokens = s["windows"], s["tokens"]
    if len(x.shape) != 4 or x.shape[1] != windows:
        x = graph.fit(x, (windows, tokens, s["heads"] * s["head_dim"]))
    return graph.reshape(x, (x.shape[0] * windows, *x.shape[2:]))


def _read_recurrent(
    graph: OnnxGraph, op: Op, width: int, level: int, weights: WeightSource
) -> list[Value]:
    """Return the weights of one level: those of the input, of the state, and the biases."""
    gates, hidden = len(_GATES[op.kind]), op.sizes["hidden"]
    shapes: dict[str, Shape] = {
        "weight_ih": (gates * hidden, width),
        "weight_hh": (gates * hidden, hidden),
    }
    if op.sizes["bias"]:
        shapes.update(bias_ih=(gates * hidden,), bias_hh=(gates * hidden,))
    suffixes = ("", "_reverse")[: 1 + op.sizes["bidirectional"]]
    stacked = {
        name: np.stack(
            [
                _order_gates(weights(f"inner.{name}_l{level}{suffix}", shape, None), op.kind)
                for suffix in suffixes
            ]
        )
        for name, shape in shapes.items()
    }
    found = [stacked["weight_ih"], stacked["weight_hh"]]
    if op.sizes["bias"]:
        found.append(np.concatenate([stacked["bias_ih"], stacked["bias_hh"]], axis=1))
    return [graph.add_weight(one) for one in found]


def _order_gates(weight: Array, kind: str) -> Array:
    order = _GATES[kind]
    parts = np.split(weight, len(order))
    return np.concatenate([parts[gate] for gate in order])
