"""Test the cost of stages without a regression, or beyond its sizes."""

from dataclasses import replace

import pytest

from joulecast.estimators.baselines.stages import list_stages
from joulecast.families import make_family
from joulecast.kinds import make_layer
from joulecast.testing.estimators import FAMILY, SETUP
from joulecast.variants import split_network


def test_unseen_type_is_estimated_from_rates(ideal):
    _, fitted = ideal.profile()
    layers = make_family(FAMILY).layers
    new = replace(make_layer("linear", (), cin=16, cout=16), name="new")  # no ReLU: another type
    network = replace(make_family(FAMILY), layers=(*layers[:-1], new, layers[-1]))
    found = fitted.predict([network], [SETUP], per_layer=True)
    rows = {row.name: row for row in found.layers[0]}
    assert [name for name, row in rows.items() if not row.seen] == ["new"]
    assert found.unseen_share[0] == pytest.approx(rows["new"].energy_j / found.energy_j[0])
    truth = sum(
        ideal.find_cost(stage)[0] for stage in list_stages(split_network(network)[-2].part, SETUP)
    )
    assert rows["new"].energy_j == pytest.approx(truth, rel=0.3)
    known = fitted.predict([make_family(FAMILY)], [SETUP])
    assert found.energy_sd_j[0] / found.energy_j[0] > known.energy_sd_j[0] / known.energy_j[0]


def test_costs_beyond_observed_sizes_follow_the_work(ideal):
    _, fitted = ideal.profile()
    nets = [make_family(f"lenet5:4,6,{width},16") for width in (24, 240, 2400)]
    found = fitted.predict(nets, [SETUP] * len(nets))
    truth = [ideal.sum_stages(net)[0] for net in nets]
    assert found.energy_j == pytest.approx(truth, rel=0.25)
    assert found.unseen_share[0] == 0.0 < found.unseen_share[1] < found.unseen_share[2]
    shares = found.energy_sd_j / found.energy_j
    assert shares[2] > shares[0]
