"""What the host does for a layer in a step, by sort: how long it takes depends on these.

Not every launch takes a host the same time. A matrix product or a convolution is set up at length,
and in half precision what it reads is cast first; a weight is visited by autograd and by the
optimizer, which issues its update together with those of all others; recurrent layers issue all
their tokens at once. What is left are launches of plain operators.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds.cost import UPDATE_LAUNCHES, layer_work
from joulecast.kinds.precision import is_half
from joulecast.records import Layer, Setup

CALLS = ("launches", "weights", "products", "casts")
_RECURRENT = ("lstm", "gru", "rnn")
# Projections in and out, and what is between them.
_PRODUCTS = {"attention": 3}


def count_calls(layer: Layer, setup: Setup) -> tuple[float, ...]:
    """One number for each of CALLS."""
    if layer.parts:
        return add_calls(*(count_calls(part, setup) for part in layer.parts))
    work = layer_work(layer, setup)
    own = layer_work(replace(layer, tail=()), setup)
    launches = work.forward.launches + work.backward.launches
    if layer.kind in _RECURRENT:
        ways = bool(own.forward.launches) + bool(own.backward.launches)
        launches += ways * layer.calls - own.forward.launches - own.backward.launches
    weights = work.update.launches // UPDATE_LAUNCHES[setup.optimizer]
    products = layer.calls * _PRODUCTS.get(layer.kind, 1) if own.forward.flops else 0
    casts = products if is_half(setup) else 0
    return float(launches), float(weights), float(products), float(casts)


def add_calls(*each: tuple[float, ...]) -> tuple[float, ...]:
    """Calls of several layers together."""
    return tuple(map(sum, zip(*each, strict=False)))
