"""Building networks for MNN."""

from dataclasses import replace

import pytest

pytest.importorskip("MNN")

from joulecast.errors import NetError
from joulecast.kinds import make_layer
from joulecast.records import Input, Network
from joulecast.runtimes.mnn.build import MnnNetwork
from joulecast.runtimes.mnn.engine import draw_uniform

CONV = make_layer("conv2d", cin=3, cout=4, space=(8, 8), kernel=3, padding=1)


def test_unused_results_and_inputs_read_late_are_kept():
    layers = (
        CONV,
        replace(make_layer("conv2d", cin=3, cout=2, space=(8, 8), kernel=1), reads=(2,)),
    )
    net = MnnNetwork(Network(layers, Input((3, 8, 8))), 1)
    assert net.run(draw_uniform([2, 3, 8, 8], 1.0, 1)).shape == [2, 2, 8, 8]


def test_shape_that_differs_from_the_record_is_refused():
    # Training such a graph ends the process.
    net = MnnNetwork(Network((CONV,), Input((3, 8, 8))), 1)
    with pytest.raises(NetError, match=r"layer 0 gives None in MNN instead of \[4, 8, 8\]"):
        net.check_shapes(draw_uniform([2, 3, 9, 9], 1.0, 1))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(), "no layers"),
        (Network((CONV,), Input((3, 8, 8)), buildable=False), "cannot be rebuilt"),
        (Network((replace(CONV, channels_last=True),), Input((3, 8, 8))), "memory format"),
    ],
)
def test_network_that_cannot_be_built_is_refused(network, message):
    with pytest.raises(NetError, match=message):
        MnnNetwork(network, 1)
