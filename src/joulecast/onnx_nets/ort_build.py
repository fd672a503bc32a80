"""Build an ONNX graph from a Network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import numpy as np

from joulecast.onnx_nets.ort_graph import Array, OnnxGraph, Shape, Value
from joulecast.onnx_nets.ort_operators import JOINS, build_op
from joulecast.operators import output_shape
from joulecast.operators.building import (
    InputFit,
    concat_channels_to_fit,
    is_op_join,
    plan_input_fits,
    plan_wiring,
)
from joulecast.records import Layer, Network, Op
from joulecast.system.errors import InputError, NetError

NetworkWeights = Callable[[int, str, Shape, "float | None"], Array]
"""Gives a weight by the number of its layer and its name in the module that PyTorch builds."""


def add_network(graph: OnnxGraph, network: Network, x: Value, weights: NetworkWeights) -> Value:
    """Add the layers of a network, and return the result of the last one.

    Raises:
        NetError: The network is empty, cannot be rebuilt, or has a layer that ONNX lacks.
    """
    _check_buildable(network)
    results = [x]
    for number, (layer, wiring) in enumerate(
        zip(network.layers, plan_wiring(network), strict=True)
    ):
        inputs = [results[read] for read in wiring.reads]
        name = layer.name or f"{number}.{layer.kind}"
        try:
            result = _add_layer(graph, layer, inputs, partial(weights, number))
        except (NetError, InputError) as error:
            raise NetError(f"layer {name}: {error}") from error
        if result.sample != output_shape(layer):
            raise NetError(
                f"layer {name} gives {result.sample} in ONNX instead of {output_shape(layer)}: "
                "run it in PyTorch (--on cpu)"
            )
        results.append(result)
    return results[-1]


def draw_weights(seed: int) -> NetworkWeights:
    """Return weights drawn from a seed, each uniform in the range of PyTorch's layers."""
    draw = np.random.default_rng(seed)

    def weights(number: int, name: str, shape: Shape, start: float | None) -> Array:
        if start is not None:
            return np.full(shape, start, dtype="float32")
        bound = 1.0 / math.sqrt(max(1, math.prod(shape[1:]) if shape[1:] else math.prod(shape)))
        return draw.random(shape, dtype="float32") * np.float32(2.0 * bound) - np.float32(bound)

    return weights


def _check_buildable(network: Network) -> None:
    if not network.layers:
        raise NetError("an empty network cannot be built: it has no layers")
    if not network.buildable:
        raise NetError(
            f"{network.name or 'this network'} was read from a file or module that cannot be "
            "rebuilt from its layers: export it to ONNX and give the file (net.onnx)"
        )


def _add_layer(
    graph: OnnxGraph,
    layer: Layer,
    inputs: Sequence[Value],
    weights: Callable[[str, Shape, float | None], Array],
) -> Value:
    inputs = _fit_inputs(graph, layer, inputs)
    if layer.join != "none" and not is_op_join(layer):
        inputs = [JOINS[layer.join](graph, inputs)]
    ops = {"op.": Op(layer.kind, layer.sizes)}
    ops.update((f"tail.{place}.", op) for place, op in enumerate(layer.tail))
    for prefix, op in ops.items():
        graph.weights = lambda name, shape, start=None, prefix=prefix: weights(
            prefix + name, shape, start
        )
        inputs = [build_op(graph, op, inputs)]
    return inputs[0]


def _fit_inputs(graph: OnnxGraph, layer: Layer, inputs: Sequence[Value]) -> Sequence[Value]:
    shapes = [x.sample for x in inputs]
    fits = plan_input_fits(layer, shapes)
    if fits:
        inputs = [
            _fit_input(graph, x, how, shape) for x, (how, shape) in zip(inputs, fits, strict=True)
        ]
    wanted = concat_channels_to_fit(layer, shapes)
    if not wanted:
        return inputs
    # Some are repeated or cut, to have as many channels in total.
    fitted: list[Value] = []
    for x in cycle(inputs):
        fitted.append(graph.slice(x, 1, 0, min(wanted, x.shape[1])))
        wanted -= fitted[-1].shape[1]
        if not wanted:
            break
    return fitted


def _fit_input(graph: OnnxGraph, x: Value, how: InputFit, shape: Shape) -> Value:
    if how is InputFit.ELEMENTS:
        return graph.fit(x, shape)
    if how is InputFit.ONE_ELEMENT:
        one = graph.slice(graph.flatten(x), 1, 0, 1)
        return graph.reshape(one, (x.shape[0], *(1 for _ in shape)))
    return x
