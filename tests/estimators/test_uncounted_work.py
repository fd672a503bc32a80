"""Work that no layer counts is a source of uncertainty, unless the step was measured."""

from dataclasses import replace

import pytest

from joulecast.estimators.fitted_profile import (
    NO_COST_RULE,
    NO_LAYER,
    find_uncounted_share,
    is_step_measured,
)
from joulecast.families import make_family
from joulecast.records import (
    Execution,
    LazyObservations,
    Observation,
    Setup,
    StepTotals,
    Trial,
    summarise_observations,
)

NETWORK = make_family("lenet5")


@pytest.mark.parametrize(
    ("shares", "source"),
    [
        ({}, (NO_COST_RULE, 0.0)),
        ({"uncounted_bytes_share": 0.3}, (NO_COST_RULE, 0.3)),
        ({"uncounted_bytes_share": 0.1, "unattributed_flops_share": 0.2}, (NO_LAYER, 0.2)),
        ({"unattributed_bytes_share": 0.4, "unattributed_flops_share": 0.2}, (NO_LAYER, 0.4)),
        ({"unattributed_params_share": 0.5}, (NO_COST_RULE, 0.0)),
    ],
)
def test_the_largest_share_names_the_source(shares, source):
    network = replace(NETWORK, totals=StepTotals(1.0, 1.0, 1, **shares))
    assert find_uncounted_share(network) == source


def test_a_network_that_was_not_read_has_none():
    assert find_uncounted_share(NETWORK)[1] == 0.0


def test_only_whole_steps_with_energy_are_measured():
    setup = Setup(batch=4)
    own_loss = Trial(NETWORK, replace(setup, loss="own"))
    own = [Observation(own_loss, energy_j=1.0)]
    assert is_step_measured(NETWORK, setup, own)
    assert not is_step_measured(NETWORK, replace(setup, batch=5), own)
    assert not is_step_measured(make_family("lenet5:1,2,3,4"), setup, own)
    graph = Trial(NETWORK, setup, Execution(mode="graph"))
    unmeasured = [Observation(own_loss, duration_s=1.0), Observation(graph, energy_j=1.0)]
    assert not is_step_measured(NETWORK, setup, unmeasured)


def test_observations_of_other_setups_are_not_parsed():
    def parse():
        raise AssertionError("parsed")

    other = Observation(Trial(NETWORK, Setup(batch=5)), energy_j=1.0)
    lazy = LazyObservations(1, parse, summarise_observations([other]))
    assert not is_step_measured(NETWORK, Setup(batch=4), lazy)
