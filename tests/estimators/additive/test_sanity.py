"""What any estimate must satisfy, on a simulated device and with the shipped profile."""

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import joulecast
from additive_examples import draw_networks, observe_blocks, observe_idle, observe_step
from joulecast.campaign.anchors import assume_scale, make_anchor_trials
from joulecast.campaign.atlas import load_networks
from joulecast.estimators import fit_profile
from joulecast.estimators.additive.estimator import FIT_VERSION, AdditiveEstimator, FittedAdditive
from joulecast.families import FAMILIES, make_family
from joulecast.operators import checkpoint_blocks, layer_work, make_layer
from joulecast.records import MODES, Input, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.store.files import read_profile
from joulecast.variants import make_isolated_network, read_isolated_block
from kind_examples import join

PROFILE = Path(joulecast.__file__).parent / "profiles" / "nvidia-h200.json"
# Observations that are fitted to if the profile has no fit of this version.
SUBSET = 300
PRECISIONS = ("fp32", "bf16")
# Every family in one of the precisions.
FAMILY_PRECISIONS = list(zip(FAMILIES, cycle(PRECISIONS), strict=False))
BATCHES = (1, 32, 1024)
# Estimates are smooth but for tiles and alignment: a larger network may seem cheaper by this share.
JITTER_SHARE = 0.1
WIDTHS = {
    "cnn5:{0},{0},{0},{0}": (8, 32, 256),
    "lenet5:{0},{0},{0},{0}": (8, 32, 128),
    "lstm:{0},1": (32, 128, 512),
    "transformer:{0},2": (32, 128, 1024),
    "resnet18:{0},1,1,1,1": (16, 64, 128),
}


@dataclass(frozen=True, eq=False)
class World:
    """A device with the fit of its observations."""

    observations: list[Observation]
    fitted: FittedAdditive

    def predict(self, networks, setups):
        return self.fitted.predict(networks, setups)

    def find_sd_shares(self, networks, setups):
        found = self.predict(networks, setups)
        return found.energy_sd_j / found.energy_j


@pytest.fixture(scope="session")
def simulated_world():
    """Layers of five families in two precisions at two batch sizes, and the peaks."""
    device = make_simulated_device(210, noise=0.0)
    observations = [observe_idle(device)]
    for trial in make_anchor_trials(assume_scale(True, 16 * 2**30), MODES):
        observations.append(observe_step(device, trial))
    for at, name in enumerate(("cnn5", "lenet5", "lstm", "transformer", "resnet18")):
        networks = [make_family(name), *draw_networks(1, seed=at, family=name)]
        for precision, batch in (("fp32", 16), ("fp32", 256), ("bf16", 64)):
            setup = Setup(batch=batch, precision=precision)
            observations += observe_blocks(device, networks, setup)
            observations.append(observe_step(device, Trial(networks[0], setup)))
    return World(observations, AdditiveEstimator().fit(observations))


@pytest.fixture(scope="session")
def shipped_world():
    profile, estimator = read_profile(PROFILE), AdditiveEstimator()
    observations = list(profile.observations)
    data = profile.fits.get("additive", {})
    if data.get("version") == FIT_VERSION:
        return World(observations, estimator.load(data))
    layers = [one for one in observations if one.trial.network.layers]
    idle = [one for one in observations if not one.trial.network.layers]
    some = [*random.Random(0).sample(layers, SUBSET), *idle]
    return World(some, estimator.fit(some))


@pytest.fixture(params=["simulated_world", "shipped_world"])
def world(request):
    return request.getfixturevalue(request.param)


@cache
def predict_batches(world, name, precision, batches=BATCHES):
    setups = [Setup(batch=batch, precision=precision) for batch in batches]
    return world.predict([make_family(name)] * len(setups), setups)


def never_falls(values):
    """Return whether each value is at least about the one before."""
    return (values[1:] > (1.0 - JITTER_SHARE) * values[:-1]).all()


def assert_rises(values):
    """No value is far below the one before, and the last is far above the first."""
    assert never_falls(values), values
    assert values[-1] > (1.0 + JITTER_SHARE) * values[0], values


@pytest.mark.parametrize(("name", "precision"), FAMILY_PRECISIONS)
def test_cost_rises_with_batch_size_within_the_limits_of_the_device(world, name, precision):
    prediction = predict_batches(world, name, precision)
    assert_rises(prediction.energy_j)
    # The device alone is smooth only over larger steps: fitted to 300 observations of an H200, an
    # LSTM in bf16 costs 12 % less with four samples than with one. Why is not known.
    device_j = prediction.device_energy_j
    assert (device_j[2:] > (1.0 - JITTER_SHARE) * device_j[:-2]).all(), device_j
    assert device_j[-1] > (1.0 + JITTER_SHARE) * device_j[0]
    # A step that waits for its host takes as long with any batch.
    durations_s = prediction.duration_s
    assert never_falls(durations_s)
    # Larger batches fill the device better; caches may lose some of that, never tenfold.
    per_sample_j = prediction.energy_j / np.array(BATCHES)
    assert (per_sample_j <= 2.0 * np.minimum.accumulate(per_sample_j)).all()
    power_w = prediction.energy_j / durations_s
    assert (power_w >= (1.0 - 1e-6) * world.fitted.idle_w).all()
    assert (power_w <= (1.0 + 1e-6) * world.fitted.encoder.power_limit_w).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", WIDTHS)
def test_cost_rises_with_width(world, name, precision):
    networks = [make_family(name.format(width)) for width in WIDTHS[name]]
    setup = Setup(batch=64, precision=precision)
    prediction = world.predict(networks, [setup] * len(networks))
    assert_rises(prediction.energy_j)
    assert never_falls(prediction.duration_s)


def test_energy_per_sample_on_a_full_device_is_about_constant(world):
    """The device's own; while it waits for the host, larger batches cost less per sample."""
    batches = (128, 256, 512, 1024)
    prediction = predict_batches(world, "transformer:256,4", "bf16", batches)
    per_sample_j = prediction.device_energy_j / np.array(batches)
    assert per_sample_j.max() < 1.5 * per_sample_j.min()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_large_product_comes_near_the_measured_peak(world, precision):
    layer, setup = make_layer("linear", cin=8192, cout=8192), Setup(8192, precision=precision)
    (duration_s,) = world.predict([Network((layer,), Input((8192,)))], [setup]).duration_s
    flops_per_s = layer_work(layer, setup).total.flops / duration_s
    peak = 1.0 / world.fitted.encoder.roofline.flop_s[precision]
    assert flops_per_s >= 0.3 * peak


def test_equal_networks_cost_the_same_however_they_are_written(world):
    linear = make_layer("linear", cin=256, cout=256)
    shortcut = make_layer("linear", cin=256, cout=256, bias=0)
    total, output = join("add", (2, 1), shape=(256,)), make_layer("linear", cin=256, cout=10)
    plain = (linear, linear, replace(shortcut, reads=(3,)), total)
    ways = [
        plain,
        tuple(replace(layer, name=f"layer {at}") for at, layer in enumerate(plain)),
        (*plain[:3], replace(total, reads=(1, 2))),
        (shortcut, replace(linear, reads=(2,)), linear, replace(total, reads=(3, 1))),
    ]
    networks = [
        Network((*layers, output), Input((256,)), name=f"way {at}")
        for at, layers in enumerate(ways)
    ]
    for precision in PRECISIONS:
        found = world.predict(networks, [Setup(batch=512, precision=precision)] * len(networks))
        for values in (found.energy_j, found.duration_s, found.energy_sd_j):
            assert values == pytest.approx(values[0], rel=1e-9)


def test_intervals_of_measured_layers_are_no_wider_than_of_unseen_ones(world):
    """Every layer that was measured, and the same one under a setup that never was."""
    measured = [
        one
        for one in world.observations
        if one.energy_j and one.duration_s and one.trial.execution.mode == "graph"
    ][:200:6]
    blocks = [(read_isolated_block(one.trial), one.trial.setup) for one in measured]
    pairs = [(make_isolated_network(block), setup) for block, setup in blocks if block is not None]
    networks, setups = map(list, zip(*pairs, strict=True))
    unseen_setups = [replace(setup, threads=3) for setup in setups]
    seen, unseen = (world.find_sd_shares(networks, some) for some in (setups, unseen_setups))
    # Host time, which both share, is most of what is uncertain about small ones.
    assert (seen <= 1.02 * unseen).all()
    assert np.quantile(unseen / seen, 0.8) > 1.2


def test_leaving_out_a_kind_widens_the_intervals_of_its_networks(simulated_world):
    known = simulated_world
    others = [
        one
        for one in known.observations
        if not any("conv" in layer.kind for layer in one.trial.network.layers)
        and one.trial.setup.precision == "fp32"
    ]
    unaware = World(others, AdditiveEstimator().fit(others))
    networks = draw_networks(6, seed=3)
    setups = [Setup(batch=64)] * len(networks)
    seen, unseen = (one.find_sd_shares(networks, setups) for one in (known, unaware))
    assert (seen < unseen).all()
    assert min(unaware.predict(networks, setups).unseen_share) > 0.3


def test_estimates_do_not_depend_on_what_else_is_asked():
    """Networks of different kinds need different observations, of which only some are selected."""
    fitted = fit_profile(joulecast.load_profile("nvidia-h200"))
    networks = load_networks()[:32:8]
    setup = Setup(batch=32, precision="bf16")
    together = fitted.estimate(networks, setup)
    alone = [fitted.estimate([network], setup)[0] for network in networks]
    for one, other in zip(together, alone, strict=True):
        assert one.energy_j == pytest.approx(other.energy_j, rel=0.01)
        assert one.interval_j == pytest.approx(other.interval_j, rel=0.05)


def test_accumulated_steps_cost_about_as_much_as_their_batches(world):
    networks = [make_family("cnn5:32,64,64,128"), make_family("transformer:256,2")]
    one, four = (
        world.predict(networks, [Setup(64, accumulate=count)] * 2).energy_j for count in (1, 4)
    )
    # Updates are saved, but batches without one may draw a little more power.
    assert ((four > 3.0 * one) & (four < 4.05 * one)).all()


def test_recomputing_costs_a_forward_pass_and_compiling_saves(world):
    network, resnet = make_family("transformer:256,4"), make_family("resnet18")
    networks = [network, checkpoint_blocks(network), resnet, resnet]
    setups = [*[Setup(64)] * 3, Setup(64, compiled=True)]
    plain, recomputed, eager, compiled = world.predict(networks, setups).energy_j
    assert 1.1 < recomputed / plain < 1.6
    assert 0.3 < compiled / eager < 1.0
