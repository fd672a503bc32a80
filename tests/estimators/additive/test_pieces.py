"""Pieces of what lies channels last: kinds of their own; what lies as usual keeps its names."""

from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.estimators.additive.pieces import make_piece
from joulecast.estimators.baselines.stages import find_kind
from joulecast.families import make_family
from joulecast.kinds import make_layer, make_op
from joulecast.kinds.check import check_layer
from joulecast.records import Layer, Network, Setup, fold_blocks
from joulecast.variants import Part, curve_key, describe_part, split_blocks

CONV = make_layer(
    "conv2d", (make_op("batch_norm"),), cin=8, cout=16, space=(9, 9), kernel=3, padding=1
)
FLAGS = ("channels_last", "channels_last_weights")


@pytest.mark.parametrize("flag", FLAGS)
def test_what_lies_otherwise_is_another_piece_and_curve(flag: str) -> None:
    setup = Setup()
    usual = Part("hidden", (CONV,))
    other = Part("hidden", (replace(CONV, **{flag: True}),))
    one, two = make_piece(usual, setup), make_piece(other, setup)
    assert (one.label, two.label) == ("conv2d fp32", "conv2d channels last fp32")
    assert one.key != two.key
    assert one.frame != two.frame
    assert one.place == two.place
    assert curve_key(usual, setup) != curve_key(other, setup)
    assert find_kind(usual, setup) != find_kind(other, setup)
    assert "channels last" in describe_part(other)


@pytest.mark.parametrize("flag", FLAGS)
def test_blocks_that_lie_otherwise_have_another_structure(flag: str) -> None:
    network = make_family("resnet18")
    layers = tuple(turn(layer, flag) for layer in network.layers)
    turned = replace(network, layers=layers)
    assert list_blocks(network).isdisjoint(list_blocks(turned))
    assert list_folded(network).isdisjoint(list_folded(turned))


def turn(layer: Layer, flag: str) -> Layer:
    return replace(layer, **{flag: True}) if layer.kind == "conv2d" else layer


def list_blocks(network: Network) -> set[str]:
    labels = {make_piece(place.part, Setup()).label for place in split_blocks(network)}
    return {label for label in labels if label.startswith("block:")}


def list_folded(network: Network) -> set[str]:
    kinds = {layer.kind for layer in fold_blocks(network).layers}
    found = {kind for kind in kinds if kind.startswith("block:")}
    assert found
    return found


def test_names_of_what_lies_as_usual_stay() -> None:
    """Profiles that were measured before layouts were told apart still mean the same."""
    piece = make_piece(Part("hidden", (CONV,)), Setup())
    assert (piece.key, piece.frame) == ("2630feb9bb0f23ee", "968ab81f7392bbf9")
    assert curve_key(Part("hidden", (CONV,)), Setup()) == "f4bf6bcc8dc7b264"


@pytest.mark.parametrize(
    "layer",
    [
        replace(make_layer("linear", cin=4, cout=4), channels_last=True),
        replace(make_layer("linear", cin=4, cout=4, lead=(3, 3)), channels_last_weights=True),
        replace(
            make_layer("conv1d", cin=4, cout=4, space=(5,), kernel=3), channels_last_weights=True
        ),
        replace(CONV, channels_last="yes"),
    ],
)
def test_what_cannot_lie_so_is_refused(layer: Layer) -> None:
    with pytest.raises(InputError, match="channels_last"):
        check_layer(layer)
