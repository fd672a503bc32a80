"""A profile of a simulated device with isolated layers of cnn5 in two precisions."""

import random

import pytest

from joulecast.estimators import find_estimator
from joulecast.families import draw_family
from joulecast.records import Device, Execution, Network, Observation, Profile, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import observe
from joulecast.variants import make_isolated_trial, split_network

FAMILY, SHAPE = "cnn5:64,128,256,512", (3, 32, 32)
SETUPS = (Setup(batch=32), Setup(batch=32, precision="bf16"))
LAYERS, NETS, DEVICE_SEED = 30, 4, 300


def observe_layers(setup: Setup) -> list[Observation]:
    """Return observations of isolated layers, a few whole networks and the idle device."""
    world, rng = make_simulated_device(DEVICE_SEED, noise=0.0), random.Random(3)
    trials: dict[str, Trial] = {}
    while len(trials) < LAYERS:
        for place in split_network(draw_family(FAMILY, rng.randint, SHAPE)):
            trial = make_isolated_trial(place.block, setup, "graph")
            trials[trial.key] = trial
    nets = [draw_family(FAMILY, rng.randint, SHAPE) for _ in range(NETS)]
    whole = [Trial(net, setup, Execution(mode="graph")) for net in nets]
    idle = Trial(Network(), Setup())
    return [observe(world, one) for one in (*list(trials.values())[:LAYERS], *whole, idle)]


@pytest.fixture(scope="session")
def cnn_profile() -> Profile:
    seen = [one for setup in SETUPS for one in observe_layers(setup)]
    fits = {"additive": find_estimator().fit(seen).to_dict()}
    return Profile(Device("test"), "sim", "device", "simulated", tuple(seen), fits)
