"""Test that a new kind needs one row, one reader and one builder, and no other change.

The example is a gated linear unit: a linear layer with two halves, one of which gates the other.
"""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from joulecast.estimators import find_estimator
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.simulated import SimulatedMeter
from joulecast.operators import KINDS, Kind, check_network, layer_work, make_layer, make_op
from joulecast.operators.kind import REQUIRED, gives_half, make_contraction_rules
from joulecast.records import Input, Network, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.modules import OP_BUILDERS
from joulecast.torch_nets.net_reader import read_net
from joulecast.torch_nets.op_readers import LEAF_MODULES, OP_READERS
from joulecast.variants import (
    block_widths,
    describe_block,
    make_isolated_trial,
    make_variant,
    match_precision,
    read_isolated_block,
    read_variant,
    resize_block,
    split_network,
)
from joulecast.variants.curves import plan_curves

KIND = "gated_linear"
SETUP = Setup(batch=8)
RELU = make_op("elementwise", fn="relu")


class GatedLinear(nn.Module):
    """A linear layer whose output is gated by a second half of it."""

    def __init__(self, cin, cout):
        super().__init__()
        self.halves = nn.Linear(cin, 2 * cout)

    def forward(self, x):
        value, gate = self.halves(x).chunk(2, dim=-1)
        return value * torch.sigmoid(gate)


def define_gated_linear():
    def out_shape(s, shape):
        return (*shape[:-1], s["cout"])

    def params(s, shape):
        return (2 * s["cin"] * s["cout"], 2 * s["cout"])

    def flops(weight, in_shape, out_shape):
        return 4.0 * math.prod(in_shape) * out_shape[-1]

    forward, backward = make_contraction_rules(flops, out_shape, params)
    return Kind(
        {"cin": REQUIRED, "cout": REQUIRED, "lead": ()},
        lambda s: (*s["lead"], s["cin"]),
        out_shape,
        forward,
        backward,
        params,
        widths=("cin", "cout"),
        input_widths=("cin",),
        channel_axis=-1,
        autocast=gives_half,
    )


def read_gated_linear(event, batch):
    cout, cin = event.leaf_module.halves.weight.shape
    return make_op(KIND, cin=cin, cout=cout // 2, lead=event.args[0].shape[1:-1])


def build_gated_linear(op, shape):
    return GatedLinear(op.sizes["cin"], op.sizes["cout"])


@pytest.fixture(autouse=True)
def gated_linear(monkeypatch):
    """Add the kind: one row, one reader (for a module of its own), one builder."""
    monkeypatch.setitem(KINDS, KIND, define_gated_linear())
    monkeypatch.setitem(LEAF_MODULES, GatedLinear, KIND)
    monkeypatch.setitem(OP_READERS, KIND, read_gated_linear)
    monkeypatch.setitem(OP_BUILDERS, KIND, build_gated_linear)


def make_network(first=16, second=24):
    """Return two gated layers and a classifier."""
    layers = (
        replace(make_layer(KIND, (RELU,), cin=12, cout=first), input_grad=False),
        make_layer(KIND, cin=first, cout=second),
        make_layer("linear", cin=second, cout=10),
    )
    return Network(layers, Input((12,)))


def make_simulated_measurer(simulated):
    clock = MeasureClock(simulated.now, simulated.sleep, lambda: 1e9 + simulated.now())
    return Measurer(SimulatedRuntime(simulated), SimulatedMeter(simulated), clock=clock)


def test_module_is_read_counted_stored_and_built():
    module = nn.Sequential(GatedLinear(12, 16), nn.ReLU(), GatedLinear(16, 24), nn.Linear(24, 10))
    network = read_net(module, torch.randn(4, 12))
    assert network == make_network() == Network.from_dict(network.to_dict())
    assert network.buildable
    assert read_net(build_net(network), torch.randn(4, 12)) == network
    work = layer_work(network.layers[1], SETUP)
    assert work.params == 2 * 16 * 24 + 2 * 24
    assert work.forward.flops == 8 * 4 * 16 * 24
    assert network.totals.unattributed_flops_share == 0
    assert network.totals.unattributed_params_share == 0
    check_network(network)


def test_every_block_is_isolated_and_read_back():
    for placed in split_network(make_network()):
        trial = make_isolated_trial(placed.block, SETUP)
        assert read_isolated_block(trial) == match_precision(placed.block, SETUP)
        assert build_net(trial.network)(torch.randn(2, *trial.network.input.shape)).shape[0] == 2


def test_every_curve_has_variants_that_are_read_back():
    network = make_network()
    plan = {describe_block(found.block): found for found in plan_curves(network)}
    assert plan[f"input {KIND}, relu"].highs == (16,)
    assert plan[f"hidden {KIND}"].highs == (16, 24)
    for found in plan.values():
        for widths in (found.lows, found.highs):
            block = resize_block(found.block, widths)
            assert block_widths(block) == widths
            variant = make_variant(block, network)
            shown, *_ = read_variant(variant)
            assert shown == replace(block, half_input=shown.half_input)
            check_network(variant)


def test_layer_is_measured_on_a_simulated_device():
    block = split_network(make_network())[1].block
    simulated = make_simulated_device(7)
    trial = make_isolated_trial(block, SETUP, mode="graph")
    with make_simulated_measurer(simulated) as measurer:
        observation = measurer.measure(trial)
    steps = observation.trial.execution.steps
    cost = simulated.true_cost(trial)
    assert observation.energy_j / steps == pytest.approx(cost.energy_j, rel=0.1)
    assert observation.duration_s / steps == pytest.approx(cost.duration_s, rel=0.1)


@pytest.mark.parametrize("name", ["additive", "subtractive", "flops"])
def test_estimators_estimate_the_kind(name):
    estimator, network = find_estimator(name), make_network()
    with make_simulated_measurer(make_simulated_device(7, noise=0.0)) as measurer:
        observations = list(map(measurer.measure, list_trials()))
        # After the first load, as campaigns do, when clock rates are up.
        observations.append(measurer.measure_idle())
        truth = measurer.measure(Trial(network, SETUP))
    prediction = estimator.fit(observations).predict([network], [SETUP], per_layer=True)
    assert math.isfinite(prediction.energy_j[0])
    assert prediction.energy_j[0] > 0
    assert [row.kind for row in prediction.layers[0]] == [KIND, KIND, "linear"]
    assert all(row.energy_j > 0 for row in prediction.layers[0])
    if name == "additive":
        steps = truth.trial.execution.steps
        assert prediction.energy_j[0] == pytest.approx(truth.energy_j / steps, rel=0.1)


def list_trials():
    """Return trials of isolated blocks, stages, variants and whole networks."""
    rng = random.Random(1)
    trials = {}
    for _ in range(4):
        network = make_network(rng.randint(4, 32), rng.randint(4, 32))
        alone = [placed.block for placed in split_network(network)]
        made = [make_isolated_trial(block, SETUP, mode="graph") for block in alone]
        made += [
            make_isolated_trial(block, SETUP, stage=stage)
            for block in alone
            for stage in ("forward", "backward", "update")
        ]
        variants = [make_variant(found.block, network) for found in plan_curves(network)]
        made += [Trial(variant, SETUP) for variant in variants]
        made.append(Trial(network, SETUP))
        trials.update((trial.key, trial) for trial in made)
    return list(trials.values())
