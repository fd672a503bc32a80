"""Build an ONNX graph from a Network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, cycle

import numpy as np

from joulecast.errors import InputError, NetError
from joulecast.kinds import output_shape
from joulecast.records import Layer, Network, Op
from joulecast.runtimes.input_fits import (
    InputFit,
    concat_channels_to_fit,
    is_op_join,
    plan_input_fits,
)
from joulecast.runtimes.onnx.function_builders import JOINS
from joulecast.runtimes.onnx.graph import Array, OnnxGraph, Shape, Value, WeightSource
from joulecast.runtimes.onnx.op_builders import build_op
from joulecast.runtimes.wiring import plan_wiring

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
            result = _add_layer(graph, layer, inputs, _number_weights(weights, number))
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
    graph: OnnxGraph, layer: Layer, inputs: Sequence[Value], weights: WeightSource
) -> Value:
    inputs = _fit_inputs(graph, layer, inputs)
    if layer.join != "none" and not is_op_join(layer):
        inputs = [JOINS[layer.join](graph, inputs)]
    x = build_op(graph, Op(layer.kind, layer.sizes), inputs, _prefix_weights(weights, "op."))
    for place, op in enumerate(layer.tail):
        x = build_op(graph, op, [x], _prefix_weights(weights, f"tail.{place}."))
    return x


def _fit_inputs(graph: OnnxGraph, layer: Layer, inputs: Sequence[Value]) -> Sequence[Value]:
    shapes = [x.sample for x in inputs]
    fits = plan_input_fits(layer, shapes)
    if fits:
        inputs = [
            _fit_input(graph, x, how, shape) for x, (how, shape) in zip(inputs, fits, strict=True)
        ]
    channels = concat_channels_to_fit(layer, shapes)
    return _fit_channels(graph, inputs, channels) if channels else inputs


def _fit_input(graph: OnnxGraph, x: Value, how: InputFit, shape: Shape) -> Value:
    if how is InputFit.ELEMENTS:
        return graph.fit(x, shape)
    if how is InputFit.ONE_ELEMENT:
        flat = graph.reshape(x, (x.shape[0], math.prod(x.sample)))
        return graph.reshape(graph.slice(flat, 1, 0, 1), (x.shape[0], *(1 for _ in shape)))
    return x


def _fit_channels(graph: OnnxGraph, inputs: Sequence[Value], wanted: int) -> list[Value]:
    """Return inputs that have ``wanted`` channels in total: some are repeated or cut."""
    fitted: list[Value] = []
    for x in chain(inputs, cycle(inputs)):
        if not wanted:
            break
        fitted.append(graph.slice(x, 1, 0, min(wanted, x.shape[1])))
        wanted -= fitted[-1].shape[1]
    return fitted


def _number_weights(weights: NetworkWeights, number: int) -> WeightSource:
    return lambda name, shape, start: weights(number, name, shape, start)


def _prefix_weights(weights: WeightSource, prefix: str) -> WeightSource:
    return lambda name, shape, start: weights(prefix + name, shape, start)
