"""Predictions of the fitted model for networks given by their layers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from additive_examples import SETUP, count_network, draw_networks, encode_sums, observe_blocks
from joulecast.estimators.additive import predict as device_model
from joulecast.estimators.additive.fit import identify_observations, update_model
from joulecast.estimators.additive.layers import set_up_layer, split_layers
from joulecast.estimators.additive.predict import (
    predict_layer_energies,
    predict_totals,
)
from joulecast.estimators.base import ISOLATED_SUM_ERROR_SD_SHARE
from joulecast.families import make_family
from joulecast.gp.logsums import selection as local_rows
from joulecast.gp.logsums.posterior import condition_logsums, explain_inputs, linearise_observations
from joulecast.records import Setup
from joulecast.variants import read_isolated_block

SHARE = ISOLATED_SUM_ERROR_SD_SHARE


def test_device_energies_of_joined_networks_add(model):
    """Up to the discrepancy that networks have in common."""
    one, two = (Counter(count_network(network)) for network in draw_networks(2, seed=3))
    energy_j = predict_totals(model, [one, two, one + two], SHARE).device_energy_j
    assert energy_j[2] == pytest.approx(energy_j[0] + energy_j[1], rel=0.01)


def test_more_observations_never_raise_a_variance_under_fixed_hyper_parameters(
    device, model, observations
):
    counts = [count_network(network) for network in draw_networks(6, seed=4)]
    extra = observe_blocks(device, draw_networks(3, seed=12))
    known = identify_observations(observations)
    more = update_model(model, [*observations, *extra], known)
    operators = encode_sums(counts).operators
    before, after = (
        explain_inputs(condition_logsums(one.duration), one.encoder.encode_durations(operators))[0]
        for one in (model, more)
    )
    assert (after.log_variance <= 1.05 * before.log_variance).all()
    assert after.log_variance.mean() < before.log_variance.mean()


def test_power_does_not_fall_between_launches(model):
    """The host of this model takes next to no time: the device only pauses."""
    counts = [count_network(network) for network in draw_networks(3, seed=4)]
    fast = replace(model, host_time=model.host_time.scale(1e-3))
    totals = predict_totals(fast, counts, SHARE)
    assert (totals.duration_s > 1.001 * totals.durations.total).all()
    assert totals.energy_j / totals.duration_s == pytest.approx(totals.powers.total, rel=1e-6)


def test_graph_does_not_wait_for_the_host(model):
    counts = [count_network(network) for network in draw_networks(2, seed=4)]
    slow = replace(model, host_time=model.host_time.scale(100.0))
    setups = [Setup(cuda_graphs=True), Setup()]
    totals = predict_totals(slow, counts, SHARE, setups=setups, between_calls=[5.0, 5.0])
    device_s, duration_s = totals.durations.total, totals.duration_s
    assert duration_s[1] > 2.0 * device_s[1]
    # Only the start of each kernel is added, at the power of an idle device.
    paused_s = duration_s - device_s
    launches = sum(layer.launches * count for layer, count in counts[0].items())
    assert paused_s[0] == pytest.approx(model.host_time.graph_gap_s * launches)
    paused_j = totals.energy_j - totals.device_energy_j
    assert paused_j[0] == pytest.approx(model.idle_w * paused_s[0])


def test_selecting_observations_for_some_operators_keeps_the_medians(model, monkeypatch):
    """Medians are those given all observations, whatever variances are conditioned on."""
    model = replace(
        model,
        **{name: linearise_observations(getattr(model, name)) for name in ("duration", "power")},
    )
    counts = [count_network(network) for network in draw_networks(12, seed=4)]
    monkeypatch.setattr(local_rows, "MAX_EXACT_ROWS", 20)
    monkeypatch.setattr(local_rows, "LOCAL_ROWS", 20)
    every = predict_totals(model, counts, SHARE)
    monkeypatch.setattr(device_model, "_MAX_QUERIES", 8)
    some = predict_totals(model, counts, SHARE)
    assert some.durations.by_operator == pytest.approx(every.durations.by_operator, rel=1e-9)
    assert some.powers.by_operator == pytest.approx(every.powers.by_operator, rel=1e-9)
    ratio = some.durations.logs.log_variance / every.durations.logs.log_variance
    assert np.median(ratio) == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("batch", [1, 32, 4096])
def test_power_stays_below_the_limit(model, batch):
    families = ["cnn5", "transformer:256,4", "lstm"]
    counts = [count_network(make_family(name), Setup(batch=batch)) for name in families]
    powers = predict_totals(model, counts, SHARE).powers
    assert (powers.total <= model.encoder.power_limit_w * (1 + 1e-9)).all()
    assert (powers.by_operator <= model.encoder.power_limit_w * (1 + 1e-9)).all()


def test_energy_rises_less_than_duration(model):
    """A layer that takes longer runs at lower rates, which draw less power."""
    counts = [count_network(network, SETUP) for network in draw_networks(4, seed=4)]
    totals = predict_totals(replace(model, mode="eager"), counts, SHARE)
    elasticity = totals.grad_time_j / totals.device_energy_j
    assert (elasticity > 0.0).all() and (elasticity < 1.0).all()


@pytest.mark.parametrize("networks", [draw_networks(3, seed=5), [make_family("transformer:64,2")]])
def test_layers_add_up_to_the_network(fitted, networks):
    prediction = fitted.predict(networks, [SETUP] * len(networks), per_layer=True)
    sums_j = [sum(layer.energy_j for layer in layers) for layers in prediction.layers]
    assert sums_j == pytest.approx(prediction.energy_j, rel=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_of_a_block_share_it_by_the_energies_of_their_operators(fitted, precision):
    setup = replace(SETUP, precision=precision)
    network = make_family("transformer:64,2")
    (layers,) = fitted.predict([network], [setup], per_layer=True).layers
    (block,) = {one.layer for one in split_layers(network, setup) if one.layer.is_block}
    device = predict_totals(fitted, [{block: 1.0}], 0.0)
    operator_j = dict(zip(device.sums.operators, device.operator_j.tolist(), strict=True))
    expected = {
        kind: sum(
            operator_j[operator] * count
            for operator, count in block.operators
            if operator.kind == kind
        )
        for kind in ("linear", "sdpa", "layer_norm")
    }
    inside = layers[1 : 1 + len(network.layers) - 3]
    found = {kind: sum(one.energy_j for one in inside if one.kind == kind) / 2 for kind in expected}
    ratios = [found[kind] / expected[kind] for kind in ("sdpa", "layer_norm")]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.2)
    # Linear layers have tails, which are operators of their own.
    assert found["linear"] / expected["linear"] >= 0.8 * ratios[0]


def test_layers_of_unseen_kinds_are_marked(fitted):
    prediction = fitted.predict([make_family("lstm")], [SETUP], per_layer=True)
    assert any(layer.kind == "lstm" and not layer.seen for layer in prediction.layers[0])


def test_energies_agree_with_what_was_measured(observations, model):
    found = [(read_isolated_block(one.trial), one) for one in observations]
    hidden = [(block, one) for block, one in found if block and block.role == "hidden"]
    measured_j = np.array([one.energy_j / one.trial.execution.copies for _, one in hidden])
    layers = [set_up_layer(block, SETUP) for block, _ in hidden]
    means_j, sds_j = predict_layer_energies(model, layers)
    assert len(means_j) > 10
    assert np.median(np.abs(means_j / measured_j - 1)) < 0.02
    assert (sds_j > 0).all()
