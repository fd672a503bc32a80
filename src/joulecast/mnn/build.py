"""Build a function on MNN's variables from a Network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulecast.mnn.engine import ENGINE, Var, Weights, to_image, to_plain
from joulecast.mnn.op_builders import JOINS, Shape, align, build_op, refuse
from joulecast.operators import find_kind, input_shape, output_shape
from joulecast.operators.building import plan_wiring
from joulecast.records import Layer, Network
from joulecast.system.errors import InputError, NetError


class MnnNetwork:
    """A network with weights.

    Args:
        network: The network to build.
        seed: Seed of its weights.

    Raises:
        NetError: The network is empty, cannot be rebuilt, or holds what MNN cannot train.
    """

    def __init__(self, network: Network, seed: int) -> None:
        _check_buildable(network)
        self.weights = Weights(seed)
        self.output_shape = output_shape(network.layers[-1])
        self._shapes = [output_shape(layer) for layer in network.layers]
        self._wiring = plan_wiring(network)
        self._layers = []
        for index, layer in enumerate(network.layers):
            name = layer.name or f"{index}.{layer.kind}"
            self.weights.begin_layer(name, layer.trains)
            try:
                self._layers.append(_build_layer(layer, self.weights))
            except (NetError, InputError) as error:
                raise NetError(f"layer {name}: {error}") from error

    def run(self, x: Var) -> Var:
        """Return the network's result as plain rows; MNN computes it when it is read."""
        return to_plain(self._list_results(x)[-1], self.output_shape)

    def check_shapes(self, x: Var) -> None:
        """Compare every result with the shape that it should have.

        MNN ends the process if it trains a graph whose shapes do not fit.

        Raises:
            NetError: A result has another shape.
        """
        results = self._list_results(x)[1:]
        for number, (result, shape) in enumerate(zip(results, self._shapes, strict=True)):
            found = result.shape
            # Signals are images of height 1.
            if found is None or _drop_ones(found[1:]) != _drop_ones(shape):
                raise NetError(
                    f"layer {number} gives {found and found[1:]} in MNN instead of {list(shape)}: "
                    "use PyTorch for it (--on cpu)"
                )

    def _list_results(self, x: Var) -> list[Var]:
        results = [x]
        for wiring, layer in zip(self._wiring, self._layers, strict=True):
            results.append(layer(*[results[read] for read in wiring.reads]))
        return results


def _build_layer(layer: Layer, weights: Weights) -> Callable[..., Var]:
    shape = input_shape(layer)
    functions = [build_op(layer, shape, weights)]
    join = None if find_kind(layer.kind).combines_inputs else _find_join(layer, shape)
    shape = find_kind(layer.kind).out_shape(layer.sizes, shape)
    for op in layer.tail:
        functions.append(build_op(op, shape, weights))
        shape = find_kind(op.kind).out_shape(op.sizes, shape)
    first, *tail = functions

    def run(*inputs: Var) -> Var:
        x = first(join(inputs)) if join else first(*inputs)
        for function in tail:
            x = function(x)
        return x

    return run


def _find_join(layer: Layer, shape: Shape) -> Callable[[tuple[Var, ...]], Var] | None:
    if layer.join == "none":
        return None
    if layer.join == "concat":
        return lambda inputs: _concat(inputs, shape)
    return lambda inputs: JOINS[layer.join](align(inputs, shape))


def _concat(inputs: tuple[Var, ...], shape: Shape) -> Var:
    """Return inputs one after another along the channels, which may differ in number."""
    if any(x.data_format == ENGINE.NC4HW4 for x in inputs):
        images = [to_image(x, (x.shape[1], *shape[1:])) for x in inputs]
        return ENGINE.concat(images, 1)
    return ENGINE.concat(list(inputs), 1)


def _drop_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _check_buildable(network: Network) -> None:
    if not network.layers:
        raise NetError("an empty network cannot be built: it has no layers")
    if not network.buildable:
        raise NetError(
            f"{network.name or 'this network'} was read from a module that cannot be rebuilt from "
            "its layers: measure it with PyTorch (--on cpu)"
        )
    for layer in network.layers:
        if layer.channels_last or layer.transposed:
            raise refuse(f"{layer.name or layer.kind} on inputs in another memory format")
