"""The LSTM that is built from matrix products."""

import pytest

pytest.importorskip("MNN")

from dataclasses import replace

from joulecast.families import make_family
from joulecast.kinds import make_layer
from joulecast.records import Network
from mnn_comparison import compare_with_torch


@pytest.mark.parametrize("depth", [1, 2])
def test_lstm_trains_as_in_pytorch(depth):
    compare_with_torch(make_family(f"lstm:5,{depth}"))


def test_whole_sequence_without_bias_trains_as_in_pytorch():
    network = make_family("lstm:6,1")
    lstm = make_layer("lstm", cin=6, hidden=4, tokens=32, bias=0)
    linear = make_layer("linear", cin=4, cout=3, lead=(32,))
    layers = (network.layers[0], lstm, replace(linear, name="fc"))
    compare_with_torch(Network(layers, network.input))
