"""Simulated observations for the tests of the additive estimator."""

import random
from dataclasses import replace

from joulecast.estimators.additive.acquisition import read_target
from joulecast.estimators.additive.encode import OperatorEncoder
from joulecast.estimators.additive.layers import count_layers, split_layers
from joulecast.families import draw_family, make_family
from joulecast.records import Network, Setup, StepTotals, Trial
from joulecast.records.network import WAIT_BINS
from joulecast.testing.estimators import observe
from joulecast.variants import make_isolated_trial, split_blocks

SETUP = Setup(batch=32)
FAMILY = "cnn5"


def draw_networks(count, seed=0, family=FAMILY):
    rng = random.Random(seed)
    return [draw_family(family, rng.randint) for _ in range(count)]


def observe_step(device, trial, energy=True):
    """Return an observation with its issue time."""
    return replace(observe(device, trial, energy), issue_s=device.true_cost(trial).issue_s)


def observe_blocks(device, networks, setup=SETUP, mode="graph", energy=True):
    """Return an observation of every distinct block of some networks in isolation."""
    trials = {}
    for network in networks:
        for placed in split_blocks(network):
            trial = make_isolated_trial(placed.block, setup, mode)
            trials[trial.key] = trial
    return [observe_step(device, trial, energy) for trial in trials.values()]


def encode_sums(counts, is_network=None):
    """Return sums over operators, as any encoder without a data sheet makes them."""
    return OperatorEncoder(None, (), 1.0).sum_layers(counts, is_network)


def list_probes(target, observations):
    """Return a time probe of every layer of a target that was not timed."""
    layers = read_target(target, observations)
    return [layers.isolate(key) for key in layers.untimed]


def observe_idle(device):
    return observe_step(device, Trial(Network(), Setup()))


def observe_device(device, networks, setup=SETUP):
    """Return graphs of the blocks of some networks, eager durations of two, and the idle device."""
    eager = [observe_step(device, Trial(one, setup), energy=False) for one in networks[:2]]
    return [*observe_blocks(device, networks, setup), *eager, observe_idle(device)]


def observe_on_unit(observations, unit, factor, start_s):
    """Return observations as another unit of the device would have made them."""
    return [
        replace(
            one,
            energy_j=one.energy_j and factor * one.energy_j,
            device=replace(one.device, unit=unit),
            taken_at_s=start_s + at,
        )
        for at, one in enumerate(observations)
    ]


def make_waiting(*waits):
    """Return a network whose host waits so often in the first parts of a step."""
    every = (*waits, *[0] * (2 * WAIT_BINS - len(waits))) if waits else ()
    return replace(make_family("lenet5"), totals=StepTotals(1.0, 1.0, 1, waits=every))


def true_energies(device, networks, setup=SETUP):
    return [device.true_cost(Trial(network, setup)).energy_j for network in networks]


def predict(fitted, networks, setup=SETUP):
    return fitted.predict(networks, [setup] * len(networks))


def count_network(network, setup=SETUP):
    return count_layers(split_layers(network, setup))
