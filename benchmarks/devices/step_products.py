"""List the operators of a step with the matrix products that each runs, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from joulecast.estimators.additive.layers import SetupLayer, set_up_layer, split_layers
from joulecast.estimators.additive.operators import list_operators
from joulecast.kinds import layer_work
from joulecast.records import Layer, Network, Setup
from joulecast.variants import BLOCK, Part, make_isolated_network, split_network

_WEIGHT_BYTES = 4
# Adding to a gradient reads two numbers and writes one.
_ADD_GRADIENT_MOVES = 3


@dataclass(frozen=True)
class Product:
    """A matrix product: b times m×n by n×k, as a ``linear`` or a ``bmm`` kernel."""

    op: str
    sizes: tuple[int, int, int, int]
    is_backward: bool


@dataclass(frozen=True)
class OperatorWork:
    """An operator of a step.

    Attributes:
        piece: The operator as a leaf.
        count: How often the step runs it.
        products: Its matrix products.
        forward: Bytes and launches of forward; ``backward`` likewise.
        added_bytes: Bytes of adding the gradients of a product's weights to those before.
    """

    piece: SetupLayer
    count: float
    products: tuple[Product, ...]
    forward: tuple[float, int]
    backward: tuple[float, int]
    added_bytes: float


def list_step_work(network: Network, setup: Setup) -> Iterator[OperatorWork]:
    """Yield the operators of a step; losses are left out, which take next to no time."""
    for placed in split_layers(network, setup):
        for layer, calls in _list_layers(placed.placed_part.part):
            for operator, half in list_operators(layer, False):
                piece = set_up_layer(Part("hidden", (operator,), half), setup)
                if piece.flops or piece.size_bytes:
                    yield _describe(piece, placed.count * calls, operator, setup)


def _list_layers(part: Part) -> Iterator[tuple[Layer, int]]:
    if part.role != BLOCK:
        yield from ((layer, 1) for layer in part.layers)
        return
    for placed in split_network(make_isolated_network(part)):
        yield from ((layer, placed.calls) for layer in placed.part.layers)


def _describe(piece: SetupLayer, count: float, operator: Layer, setup: Setup) -> OperatorWork:
    work = layer_work(operator, setup)
    forward = work.forward.size_bytes, work.forward.launches
    backward = piece.size_bytes - forward[0], piece.launches - forward[1]
    products = tuple(_list_products(operator, setup))
    is_added = bool(products) and setup.phase == "train"
    added_bytes = float(work.params * _ADD_GRADIENT_MOVES * _WEIGHT_BYTES) if is_added else 0.0
    return OperatorWork(piece, count, products, forward, backward, added_bytes)


def _list_products(operator: Layer, setup: Setup) -> Iterator[Product]:
    sizes, trains = operator.sizes, setup.phase == "train"
    if operator.kind == "linear":
        rows, width, out = setup.batch * math.prod(sizes["lead"]), sizes["cin"], sizes["cout"]
        yield Product("linear", (1, rows, width, out), False)
        if trains and operator.input_grad:
            yield Product("linear", (1, rows, out, width), True)
        if trains:
            yield Product("linear", (1, out, rows, width), True)
    elif operator.kind == "matmul":
        b, m, n, k = setup.batch * sizes["count"], sizes["m"], sizes["k"], sizes["n"]
        yield Product("bmm", (b, m, n, k), False)
        if trains:
            yield Product("bmm", (b, m, k, n), True)
            yield Product("bmm", (b, n, m, k), True)
