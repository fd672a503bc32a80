"""Equal blocks have the energy of their layers."""

import pytest

from joulecast.estimators.fitted_profile import estimate_blocks
from joulecast.families import make_family
from joulecast.records import LayerEstimate

NETWORK = make_family("resnet18")


def test_blocks_add_up_their_layers():
    layers = [LayerEstimate(one.name, one.kind, 0.5 + at) for at, one in enumerate(NETWORK.layers)]
    blocks = estimate_blocks(NETWORK, layers)
    assert blocks
    for block in blocks:
        own = [at for start in block.starts for at in range(start, start + block.layer_count)]
        assert block.count == len(block.starts)
        assert block.energy_j == pytest.approx(sum(0.5 + at for at in own))


def test_there_are_none_without_energies_of_layers():
    assert estimate_blocks(NETWORK, ()) == ()
