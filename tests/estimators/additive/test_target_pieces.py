"""The target of profiling as pieces."""

from dataclasses import replace

import pytest

from additive_examples import SETUP, draw_networks, list_probes, observe_parts, observe_step
from joulecast.estimators.additive.acquisition import (
    find_host_probe,
    read_target,
)
from joulecast.estimators.base import Target
from joulecast.kinds import make_layer
from joulecast.records import MODES, Input, Network, Observation


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
    half = everything[: len(everything) // 2]
    assert len(list_probes(target, [])) == len(everything)
    assert len(list_probes(target, half)) == len(everything) - len(half)
    assert not list_probes(target, everything)


def test_output_without_weights_is_timed_once(device):
    """It runs without its loss, which it would not train; that shows it all the same."""
    first = make_layer("linear", cin=8, cout=8)
    total = replace(make_layer("elementwise", fn="add", inputs=2, shape=(8,)), reads=(1, 2))
    network = Network((first, first, replace(total, join="add")), Input((8,)))
    target = Target(network, SETUP, modes=MODES)
    (trial,) = (
        probe for probe in list_probes(target, []) if probe.network.layers[0].kind == "elementwise"
    )
    shown = observe_parts(device, [network], energy=False)
    assert trial.execution.upstream == "random"
    assert not list_probes(target, shown)


def test_structure_is_issued_once(device, target):
    layers, observations = read_target(target, []), []
    while trial := find_host_probe(layers, observations):
        observations.append(observe_step(device, trial, energy=False))
    structures = {layer.structure for layer in layers.layers}
    assert len(observations) == len(structures)
