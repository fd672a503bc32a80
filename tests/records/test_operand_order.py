"""Networks that differ only in how they are written come into one order."""

from dataclasses import replace

import pytest

from joulecast.families import FAMILIES, make_family
from joulecast.kinds import make_layer
from joulecast.records import Layer
from joulecast.records.network import order_branches, order_operands

LINEAR = make_layer("linear", cin=8, cout=8)
WIDE = make_layer("linear", cin=8, cout=8, bias=0)


def add(*reads: int, **rest: object) -> Layer:
    layer = make_layer("elementwise", fn="add", inputs=len(reads), shape=(8,))
    return replace(layer, reads=reads, join="add", **rest)


def test_the_longest_branch_comes_first() -> None:
    for reads in ((1, 3), (3, 1)):
        assert order_operands([LINEAR, LINEAR, LINEAR, add(*reads)])[-1].reads == (1, 3)


def test_transposed_inputs_keep_their_place() -> None:
    (*_, last) = order_operands([LINEAR, LINEAR, LINEAR, add(3, 1, transposed=(0,))])
    assert (last.reads, last.transposed) == ((1, 3), (1,))


def test_concatenations_keep_their_order() -> None:
    layer = make_layer("elementwise", fn="concat", shape=(16,))
    joined = replace(layer, reads=(2, 1), join="concat")
    assert order_operands([LINEAR, LINEAR, joined])[-1].reads == (2, 1)


def test_order_of_parallel_branches_does_not_matter() -> None:
    """A shortcut may be computed before or after the branch it is added to."""
    main_first = [LINEAR, LINEAR, replace(WIDE, reads=(3,)), add(2, 1)]
    shortcut_first = [WIDE, replace(LINEAR, reads=(2,)), LINEAR, add(1, 3)]
    assert order_branches(main_first) == order_branches(shortcut_first) == tuple(main_first)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_are_in_order(name: str) -> None:
    layers = make_family(name).layers
    assert order_operands(layers) == layers
