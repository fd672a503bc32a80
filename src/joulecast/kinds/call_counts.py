"""Count what the host does for a layer in one step, by type of call.

Not every launch takes the host the same time. Matrix products and convolutions need more setup, and
in half precision their inputs are cast first; autograd and the optimizer visit every weight, and
the optimizer updates all of them together; recurrent layers issue all their tokens at once. All
other launches are those of plain operators. A forward pass alone records nothing for autograd, so
its calls are counted apart.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds.autocast import uses_autocast
from joulecast.kinds.cost import UPDATE_LAUNCHES, layer_work
from joulecast.kinds.kind_table import find_kind
from joulecast.records import Layer, Setup

HOST_CALLS = (
    "launches",
    "weights",
    "products",
    "casts",
    "inference launches",
    "inference products",
)


def count_host_calls(layer: Layer, setup: Setup) -> tuple[float, ...]:
    """Return one count for each of ``HOST_CALLS``."""
    if layer.parts:
        return add_host_calls(*(count_host_calls(part, setup) for part in layer.parts))
    row = find_kind(layer.kind)
    work = layer_work(layer, setup)
    without_tail = layer_work(replace(layer, tail=()), setup) if layer.tail else work
    forward, backward = without_tail.forward.launches, without_tail.backward.launches
    launches = work.forward.launches + work.backward.launches
    if row.is_recurrent:
        passes = bool(forward) + bool(backward)
        launches += passes * layer.calls - forward - backward
    weights = work.update.launches // UPDATE_LAUNCHES[setup.optimizer]
    products = layer.calls * row.product_calls if without_tail.forward.flops else 0
    products *= max(setup.accumulate, 1) * (2 if layer.recomputed else 1)
    if setup.phase == "inference":
        return 0.0, 0.0, 0.0, 0.0, float(launches), float(products)
    casts = products if uses_autocast(setup) else 0
    return float(launches), float(weights), float(products), float(casts), 0.0, 0.0


def add_host_calls(*counts: tuple[float, ...]) -> tuple[float, ...]:
    """Return the counts of several layers together."""
    return tuple(map(sum, zip(*counts, strict=True)))
