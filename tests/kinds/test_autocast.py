"""Test which layers get half-precision inputs under autocast."""

from dataclasses import replace

from joulecast.kinds import list_half_inputs, make_layer, make_op
from joulecast.records import Input

LINEAR = make_layer("linear", cin=8, cout=8, lead=(7,))
NORM = make_layer("layer_norm", shape=(7, 8))
ADD = make_layer("elementwise", fn="add", inputs=2, shape=(7, 8))
DATA = Input((7, 8))


def test_contractions_return_half_and_norms_full_precision():
    assert list_half_inputs([LINEAR, LINEAR, NORM, LINEAR], DATA) == (False, True, True, False)


def test_input_may_be_in_half_precision():
    assert list_half_inputs([LINEAR], replace(DATA, half=True)) == (True,)


def test_sum_is_half_only_if_both_inputs_are():
    add = replace(ADD, reads=(1, 2), join="add")
    assert list_half_inputs([LINEAR, LINEAR, add, LINEAR], DATA)[2:] == (True, True)
    assert list_half_inputs([LINEAR, NORM, add, LINEAR], DATA)[2:] == (False, False)


def test_tail_determines_the_output_precision():
    for fn, is_half in (("relu", True), ("softmax", False)):
        first = replace(LINEAR, tail=(make_op("elementwise", fn=fn),))
        assert list_half_inputs([first, LINEAR], DATA) == (False, is_half)
