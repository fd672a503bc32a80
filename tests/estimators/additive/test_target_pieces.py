"""The target of profiling as pieces."""

from dataclasses import replace

import pytest

from additive_examples import SETUP, draw_networks, observe_parts, observe_step
from joulecast.estimators.additive.acquisition import (
    HOST_NETWORKS,
    find_host_probe,
    list_host_trials,
    list_probes,
    read_target,
)
from joulecast.estimators.base import Target
from joulecast.kinds import make_layer
from joulecast.records import MODES, Input, Network, Observation, Trial


@pytest.fixture(scope="module")
def target():
    networks = tuple(draw_networks(5, seed=1))
    return Target(networks[0], SETUP, networks=networks, modes=MODES)


def test_measured_timed_and_refused_pieces_are_distinguished(device, target):
    first, second, third, *_ = observe_parts(device, target.networks)
    observations = [first, replace(second, energy_j=None), Observation(third.trial)]
    pieces = read_target(target, observations)
    assert (len(pieces.energy_keys), len(pieces.duration_keys), len(pieces.refused_keys)) == (
        1,
        2,
        1,
    )
    assert pieces.observation_count == 2
    (refused,) = pieces.refused_keys
    assert not pieces.lacks(refused, with_energy=True)
    (timed_only,) = pieces.duration_keys - pieces.energy_keys
    assert pieces.lacks(timed_only, with_energy=True)
    assert not pieces.lacks(timed_only, with_energy=False)


def test_probes_are_all_pieces_that_were_not_timed(device, target):
    everything = observe_parts(device, target.networks, energy=False)
    none, half = (read_target(target, some) for some in ([], everything[: len(everything) // 2]))
    assert len(list_probes(target, none)) == len(everything)
    assert len(list_probes(target, half)) == len(everything) - len(everything) // 2
    assert not list_probes(target, read_target(target, everything))


def test_output_without_weights_is_timed_once(device):
    """It runs without its loss, which it would not train; that shows it all the same."""
    first = make_layer("linear", cin=8, cout=8)
    total = replace(make_layer("elementwise", fn="add", inputs=2, shape=(8,)), reads=(1, 2))
    network = Network((first, first, replace(total, join="add")), Input((8,)))
    target = Target(network, SETUP, modes=MODES)
    (trial,) = (
        probe
        for probe in list_probes(target, read_target(target, []))
        if probe.network.layers[0].kind == "elementwise"
    )
    shown = read_target(target, observe_parts(device, [network], energy=False))
    assert trial.execution.upstream == "random"
    assert not list_probes(target, shown)


def test_networks_show_host_time_if_pieces_run_as_graphs(device, target):
    hosts = list_host_trials(target, [])
    assert len(hosts.required) == hosts.required_count == HOST_NETWORKS
    assert hosts.optional is not None
    done = [observe_step(device, Trial(one, SETUP)) for one in target.networks]
    left = list_host_trials(target, done)
    assert (left.required, left.required_count, left.optional) == ((), HOST_NETWORKS, None)
    assert list_host_trials(replace(target, modes=("eager",)), []).required_count == 0


def test_structure_is_issued_once(device, target):
    pieces, observations = read_target(target, []), []
    while trial := find_host_probe(target, pieces, observations):
        observations.append(observe_step(device, trial, energy=False))
    structures = {piece.structure for piece in pieces.pieces}
    assert len(observations) == len(structures)
