"""Test that valid networks pass and invalid ones are refused with the layer and the value."""

from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.families import FAMILIES, make_family
from joulecast.kinds import check_chain, check_network, check_observed, make_layer, make_op
from joulecast.kinds.check import check_layer
from joulecast.records import Input, Network, Sizes, fold_blocks
from kind_examples import LAYERS

CONV = LAYERS["conv2d"]


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_examples_of_every_kind_are_valid(layer):
    check_layer(layer)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_valid(name):
    check_network(make_family(name))
    check_network(replace(fold_blocks(make_family(name)), buildable=False, groups=()))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (replace(CONV, sizes=Sizes({**CONV.sizes, "cin": 0})), "cin is 0; give an integer from 1"),
        (replace(CONV, sizes=Sizes({**CONV.sizes, "kernel": (3,)})), "conv2d needs 2 numbers"),
        (replace(CONV, sizes=Sizes({**CONV.sizes, "groups": 4})), "cout is 6; .* its 4 groups"),
        (
            make_layer("attention", width=9, heads=2, tokens=3, kv_tokens=3),
            "width is 9; .* 2 heads",
        ),
        (make_layer("dropout", p=1.5, shape=(3,)), "p is 1.5; give a share"),
        (replace(CONV, tail=(make_op("pool", fn="max", kernel=(9, 9)),)), "larger input"),
        (replace(CONV, tail=(LAYERS["linear"],)), "linear cannot be in a tail"),
        (replace(LAYERS["linear"], channels_last=True), "is not an image"),
        (replace(LAYERS["batch_norm"], channels_last_weights=True), "no weights in that format"),
    ],
)
def test_invalid_layer_is_refused(layer, message):
    with pytest.raises(InputError, match=message) as caught:
        check_layer(layer)
    assert "\n" not in str(caught.value)


def test_measured_layer_may_lack_a_size_that_is_new():
    whole = LAYERS["grouped_linear"]
    older = replace(whole, sizes=Sizes({k: v for k, v in whole.sizes.items() if k != "half"}))
    network = Network((older, whole), Input((4,)))
    check_observed(network)
    with pytest.raises(InputError, match="needs the size 'half'"):
        check_layer(older)
    wrong = replace(whole, sizes=Sizes({**whole.sizes, "cin": "many"}))
    with pytest.raises(InputError, match="cin is 'many'"):
        check_observed(replace(network, layers=(wrong,)))


def test_error_names_the_layer_and_both_shapes():
    first = replace(make_layer("linear", cin=4, cout=5), name="fc1")
    second = replace(make_layer("linear", cin=6, cout=2), name="fc2")
    message = r"layer 2 \(fc2, linear\) is invalid: its input is \[6\], but it reads \[5\]"
    with pytest.raises(InputError, match=message):
        check_chain(Network((first, second), Input((4,))))


def test_product_of_two_inputs_may_read_another_shape():
    first = make_layer("linear", cin=5, cout=5, lead=(4,))
    product = replace(make_layer("matmul", m=4, k=5, n=4), reads=(1, 2))
    check_chain(Network((first, product), Input((4, 5))))
