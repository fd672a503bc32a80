"""A simulated device that knows the layers of cnn5 at small inputs, alone, in two precisions."""

from __future__ import annotations

import random

import pytest

from joulecast.estimators import find_estimator
from joulecast.families import draw_family
from joulecast.records import Device, Execution, Network, Observation, Profile, Setup, Trial
from joulecast.testing.estimators import observe
from joulecast.variants import make_isolated, split_network
from joulecast.simulation import make_simulated_device

FAMILY, SHAPE = "cnn5:64,128,256,512", (3, 32, 32)
SETUPS = (Setup(batch=32), Setup(batch=32, precision="bf16"))
LOOKS, NETS, WORLD = 30, 4, 300


def see_layers(setup: Setup) -> list[Observation]:
    """Layers of random nets alone, a few whole nets, and the device that waits."""
    world, rng = make_simulated_device(WORLD, noise=0.0), random.Random(3)
    trials: dict[str, Trial] = {}
    while len(trials) < LOOKS:
        for place in split_network(draw_family(FAMILY, rng.randint, SHAPE)):
            trial = make_isolated(place.part, setup, "graph")
            trials[trial.key] = trial
    nets = [draw_family(FAMILY, rng.randint, SHAPE) for _ in range(NETS)]
    whole = [Trial(net, setup, Execution(mode="graph")) for net in nets]
    waiting = Trial(Network(), Setup())
    return [observe(world, one) for one in (*list(trials.values())[:LOOKS], *whole, waiting)]


@pytest.fixture(scope="session")
def cnn_profile() -> Profile:
    seen = [one for setup in SETUPS for one in see_layers(setup)]
    fits = {"additive": find_estimator().fit(seen)}
    return Profile(Device("test"), "sim", "device", "simulated", tuple(seen), fits)
