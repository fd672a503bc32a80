"""The model of a device: rates, encoding, host time, fits, predictions, and what devices share."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from additive_examples import (
    SETUP,
    count_network,
    draw_networks,
    encode_sums,
    observe_blocks,
    observe_idle,
    observe_on_unit,
    observe_step,
    predict,
    true_energies,
)
from joulecast.devices.data_sheets import find_data_sheet, list_data_sheets
from joulecast.estimators.additive import predict as device_model
from joulecast.estimators.additive.encode import (
    OperatorEncoder,
    define_durations,
    define_powers,
    number_name,
)
from joulecast.estimators.additive.estimator import start_from_sheet
from joulecast.estimators.additive.fit import (
    MeasuredDevice,
    SharedModel,
    encode_decomposed,
    find_powers,
    fit_model,
    fit_shared_model,
    identify_observations,
    load_shared_model,
    make_sheet_encoder,
    observe_durations,
    update_model,
)
from joulecast.estimators.additive.host_time import (
    combine_times,
    fit_host_time,
    update_host_time,
)
from joulecast.estimators.additive.layers import (
    count_layers,
    make_overhead,
    set_up_layer,
    split_layers,
)
from joulecast.estimators.additive.observations import DecomposedObservation, decompose_observations
from joulecast.estimators.additive.predict import (
    predict_durations,
    predict_layer_energies,
    predict_totals,
)
from joulecast.estimators.additive.roofline import (
    Hardware,
    complete_peaks,
    find_power_priors,
    find_roofline,
    find_sustained_roofline,
)
from joulecast.estimators.base import ISOLATED_SUM_ERROR_SD_SHARE
from joulecast.families import make_family
from joulecast.gp.lognormal import log_variance
from joulecast.gp.logsums import selection as local_rows
from joulecast.gp.logsums.posterior import condition_logsums, linearise_observations
from joulecast.gp.logsums.totals import explain_inputs
from joulecast.operators import HOST_CALLS, make_layer, make_op
from joulecast.records import FLOAT_PRECISIONS, DataSheet, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import MissingError
from joulecast.variants import REPEATED, Block, read_isolated_block

SEEDS = (301, 302, 303)
LEFT_OUT = 304


def describe_chip(chip):
    """Return the data sheet of a simulated device."""
    gains = {name: chip.gains[name] for name in ("fp32", "tf32", "bf16", "fp16")}
    return DataSheet(
        name=f"simulated-{chip.seed}",
        title=f"Simulated {chip.seed}",
        units=chip.workers,
        clock_hz=1.5e9,
        flops_per_s={name: gain * chip.rate_flops for name, gain in gains.items()},
        bytes_per_s=chip.bandwidth_bytes_per_s,
        memory_bytes=2**34,
        power_limit_w=chip.limit_w,
        vendor="simulated",
        l2_bytes=int(chip.cache_bytes),
    )


def observe_device(device, count=2, seed=1):
    networks = draw_networks(count, seed=seed)
    eager = [observe_step(device, Trial(networks[0], SETUP), energy=False)]
    return [*observe_blocks(device, networks), *eager, observe_idle(device)]


@lru_cache(maxsize=1)
def make_shared_model():
    """Return the shared model of three simulated devices; the fourth is left out."""
    measured, host_time = [], None
    for seed in SEEDS:
        device = make_simulated_device(seed, noise=0.0)
        observations = observe_device(device)
        host_time = host_time or fit_model(observations).host_time
        alone = [one for one in decompose_observations(observations) if one.mode == "graph"]
        measured.append(MeasuredDevice(describe_chip(device.chip), alone))
    return fit_shared_model(measured, measured, host_time, "a notice")


START_S = 400e-6
CALLS_S = (20e-6, 55e-6, 90e-6, 70e-6, 12e-6, 25e-6)
SETUPS = [
    Setup(phase=phase, precision=precision)
    for phase in ("train", "inference")
    for precision in ("tf32", "bf16")
]
OPERATORS = [
    ("linear", {"cin": 64, "cout": 64}),
    ("linear", {"cin": 64, "cout": 64, "bias": 0}),
    ("conv2d", {"cin": 8, "cout": 8, "space": 9, "kernel": 3, "padding": 1}),
    ("layer_norm", {"shape": (64,)}),
    ("elementwise", {"fn": "relu", "shape": (64,)}),
]
TAILS = [(), ("relu",), ("gelu", "tanh"), ("relu", "silu", "tanh")]


def list_layers():
    """Return layers of many structures, single layers and blocks."""
    layers = [
        make_layer(kind, tuple(make_op("elementwise", fn=fn) for fn in tail), **sizes)
        for kind, sizes in OPERATORS
        for tail in TAILS
    ]
    blocks = [Block("hidden", (layer,)) for layer in layers]
    blocks += [Block(REPEATED, tuple(layers[at : at + 5])) for at in range(0, len(layers), 3)]
    return [set_up_layer(block, setup) for block in blocks for setup in SETUPS]


def true_start(layer):
    return START_S if layer.phase == "train" else 0.0


def true_time(layer):
    return sum(calls * call_s for calls, call_s in zip(layer.host_calls, CALLS_S, strict=True))


def observe_host_bound(layer, count, host_s, is_isolated=True):
    """Return an eager step that waits for its host."""
    key = f"{layer.key} {count}"
    return DecomposedObservation(
        {layer: count}, "eager", None, 0.0, host_s, 0.0, host_s, is_isolated, key
    )


def observe_all(noise, seed=3):
    rng = random.Random(seed)
    found = []
    for layer in list_layers():
        copies = float(rng.choice((2, 4, 8)))
        host_s = (true_start(layer) + copies * true_time(layer)) * math.exp(rng.gauss(0.0, noise))
        found.append(observe_host_bound(layer, copies, host_s))
    return found


@pytest.fixture(scope="module")
def timed(device):
    return decompose_observations(observe_blocks(device, draw_networks(6, seed=1)))


def test_no_observation_beats_the_rates_but_perhaps_one(timed):
    """The single best of many may be an error."""
    roofline = find_roofline(timed)
    work = [sum_work(one) for one in timed]
    by_launch = sorted(
        one.duration_s / launches for one, (_, launches) in zip(timed, work, strict=True)
    )
    assert roofline.launch_s == pytest.approx(by_launch[1])
    by_flop = sorted(one.duration_s / flops for one, (flops, _) in zip(timed, work, strict=True))
    assert roofline.flop_s["fp32"] == pytest.approx(by_flop[1])


def sum_work(one):
    """Return the FLOPs and launches of an observation."""
    operators = [
        (operator, count * repeats)
        for layer, count in one.counts.items()
        for operator, repeats in layer.own_operators
    ]
    flops = sum(operator.padded_flops * count for operator, count in operators)
    return flops, sum(operator.launches * count for operator, count in operators)


def test_single_wrong_duration_does_not_set_a_rate(timed):
    wrong = replace(timed[0], duration_s=1e-3 * timed[0].duration_s)
    plain, disturbed = (find_roofline(some) for some in (timed[1:], [wrong, *timed[1:]]))
    assert disturbed.flop_s["fp32"] >= 0.5 * plain.flop_s["fp32"]
    assert disturbed.launch_s >= 0.5 * plain.launch_s


def test_unseen_precision_is_guessed_and_less_certain(timed):
    roofline = find_roofline(timed)
    seen = FLOAT_PRECISIONS.index("fp32")
    assert roofline.flop_s["bf16"] == roofline.flop_s["fp16"] < roofline.flop_s["tf32"]
    assert roofline.flop_s["tf32"] < roofline.flop_s["fp32"]
    log_sds = roofline.log_sds[1:-1]
    assert all(log_sds[seen] < sd for at, sd in enumerate(log_sds) if at != seen)


def test_precisions_have_rates_of_their_own(device, timed):
    half = observe_blocks(device, draw_networks(6, seed=1), replace(SETUP, precision="bf16"))
    both = find_roofline([*timed, *decompose_observations(half)])
    assert both.flop_s["fp32"] == pytest.approx(find_roofline(timed).flop_s["fp32"], rel=0.15)
    assert both.flop_s["bf16"] < 0.5 * both.flop_s["fp32"]


def test_overheads_of_imported_runs_are_no_work(timed):
    overhead = make_overhead("log")
    more = [replace(one, counts={**one.counts, overhead: 0.01}) for one in timed]
    found, plain = find_roofline(more), find_roofline(timed)
    assert found.flop_s["fp32"] == pytest.approx(plain.flop_s["fp32"], rel=0.15)
    assert found.byte_s == pytest.approx(plain.byte_s, rel=0.15)
    # An overhead is not the duration of launches.
    assert found.log_sds[0] > plain.log_sds[0]


T4 = find_data_sheet("t4")


def test_sustained_rates_never_exceed_peaks():
    for sheet in list_data_sheets():
        roofline, peaks = find_sustained_roofline(sheet), complete_peaks(sheet.flops_per_s)
        for precision, peak in peaks.items():
            assert 0.0 < 1.0 / roofline.flop_s[precision] <= peak, sheet.name
        assert 1.0 / roofline.byte_s <= sheet.bytes_per_s * (1 + 1e-9)


def test_rates_fall_with_the_power_limit():
    rates = [
        1.0
        / find_sustained_roofline(replace(T4, power_limit_w=limit_w, idle_w=None)).flop_s["fp32"]
        for limit_w in (300.0, 70.0, 35.0)
    ]
    assert rates[0] > rates[1] > rates[2]


def test_precision_that_is_not_listed_runs_like_fp32():
    peaks = complete_peaks(T4.flops_per_s)
    assert "bf16" not in T4.flops_per_s and peaks["bf16"] == T4.flops_per_s["fp32"]


def test_rates_of_a_multiprocessor_are_over_those_of_a_v100():
    v100 = find_data_sheet("v100-pcie-16gb")
    hardware = Hardware.from_data_sheet(v100)
    (own,) = hardware.relate_rates(
        np.array([v100.flops_per_s["fp32"]]), np.array([v100.bytes_per_s])
    )
    assert own == pytest.approx([0.0, 0.0], abs=0.1)
    twice = hardware.relate_rates(np.array([1e13, 2e13]), np.array([1e12, 1e12]))
    assert twice[1, 0] > twice[0, 0] and twice[1, 1] == twice[0, 1]


@pytest.mark.parametrize(
    ("device", "idle_w"),
    [
        ("nvidia-p100-pcie-16gb", 34.8),
        ("nvidia-v100-pcie-16gb", 38.0),
        ("nvidia-quadro-rtx-6000", 69.0),
        ("nvidia-a40", 89.0),
        ("nvidia-t4", 26.5),
        ("nvidia-a100-sxm4-40gb", 54.0),
    ],
)
def test_idle_power_at_active_clocks_is_near_published_figures(device: str, idle_w: float) -> None:
    median_w, log_sd = find_power_priors(find_data_sheet(device)).idle_w
    assert median_w == pytest.approx(idle_w, rel=0.17)
    assert 0.1 <= log_sd <= 0.3


@pytest.mark.parametrize("device", ["nvidia-v100-pcie-32gb", "nvidia-rtx-4090", "nvidia-l4"])
def test_a_device_that_waits_draws_little_and_one_at_its_peak_the_limit(device: str) -> None:
    sheet = find_data_sheet(device)
    priors = find_power_priors(sheet)
    most_w = sum(median for median, _ in (priors.static_w, priors.busy_w, priors.compute_w["fp32"]))
    assert 0.8 * sheet.power_limit_w < most_w < 1.2 * sheet.power_limit_w
    assert priors.idle_w[0] < priors.static_w[0] < 0.5 * sheet.power_limit_w


def test_without_a_device_its_own_powers_are_not_used() -> None:
    sheet = find_data_sheet("nvidia-h200")
    known, unknown = find_power_priors(sheet), find_power_priors(sheet, ["nvidia-h200"])
    assert unknown.compute_w["bf16"][0] < known.compute_w["bf16"][0]
    assert find_power_priors(sheet, ["amd-"]) == known


def test_other_vendors_are_less_certain() -> None:
    sheet = find_data_sheet("nvidia-h100-sxm")
    other = find_power_priors(replace(sheet, vendor="AMD"))
    for mine, theirs in zip(find_power_priors(sheet).coefficients, other.coefficients, strict=True):
        assert theirs[0] == mine[0] and theirs[1] > mine[1]


def test_a_device_never_idles_below_its_sleeping_power() -> None:
    sheet = replace(find_data_sheet("nvidia-h100-sxm"), idle_w=300.0)
    assert find_power_priors(sheet).idle_w[0] == 300.0


@pytest.fixture(scope="module")
def encoder(model):
    return model.encoder


@pytest.fixture(scope="module")
def operators():
    return encode_sums([count_network(make_family("transformer:64,2"))]).operators


def sum_operators(counts):
    found = {}
    for layer, count in counts.items():
        for operator, repeats in layer.own_operators:
            found[operator] = found.get(operator, 0.0) + count * repeats
    return found


def test_networks_become_sums_over_distinct_operators():
    networks = [count_network(network) for network in draw_networks(3, seed=1)]
    networks.append(count_network(make_family("transformer:64,2")))
    sums = encode_sums([*networks, {}])
    assert len(set(sums.operators)) == len(sums.operators)
    matrix = sums.counts.matmul(np.eye(len(sums.operators)))
    for row, counts in zip(matrix, [*networks, {}], strict=True):
        found = {sums.operators[at]: row[at] for at in np.flatnonzero(row)}
        assert found == pytest.approx(sum_operators(counts))
    assert any(layer.is_block for layer in sums.layers)
    assert all(layer.operators for layer in sums.layers)


def test_isolated_sum_moves_less_than_it_does_in_a_network():
    """Two inputs of a sum are one tensor if it runs alone."""
    layer = make_layer("elementwise", fn="add", inputs=2, shape=(64, 8, 8))
    layer = set_up_layer(Block("hidden", (replace(layer, reads=(1, 1), join="add"),)), SETUP)
    inside, alone = (encode_sums([{layer: 1.0}], [flag]).operators for flag in (True, False))
    assert sum(operator.size_bytes for operator in alone) < sum(
        operator.size_bytes for operator in inside
    )


def test_identities_tell_sums_apart_in_any_order():
    one, two = (count_network(network) for network in draw_networks(2, seed=1))
    backwards = dict(reversed(one.items()))
    identities = encode_sums([one, backwards, two]).identities
    assert identities[0] == identities[1] != identities[2]


def test_numbers_of_names_are_the_same_on_every_machine():
    assert number_name("networks") == 7911472207318826337
    assert number_name("networks") != number_name("network")


def test_flops_count_in_their_own_precision(encoder):
    network = draw_networks(1, seed=1)[0]
    used = []
    for precision in ("bf16", "fp16"):
        counts = count_network(network, replace(SETUP, precision=precision))
        basis = encoder.encode_durations(encode_sums([counts]).operators).basis
        used.append(set(np.flatnonzero(basis.any(axis=0)).tolist()))
    # Launches and bytes are common, FLOPs are not.
    assert len(used[0]) == len(used[1]) == 3
    assert len(used[0] & used[1]) == 2


def test_overhead_has_one_basis_function_of_its_own(encoder, operators):
    overhead = make_overhead("log")
    own = OperatorEncoder(encoder.roofline, (overhead.kind,), encoder.power_limit_w)
    inputs = [
        own.encode_durations([overhead, *operators]),
        own.encode_powers([overhead, *operators], np.ones(1 + len(operators))),
    ]
    for one in inputs:
        assert one.basis[0].tolist() == [0.0] * (one.basis.shape[1] - 1) + [1.0]
        assert not one.basis[1:, -1].any()
        assert one.basis[1:, :-1].any(axis=1).all()


def test_powers_depend_on_achieved_rates(encoder, operators):
    """Half the duration is twice the rate."""
    durations_s = np.full(len(operators), 1e-3)
    slow, fast = (encoder.encode_powers(operators, durations_s * factor) for factor in (1.0, 0.5))
    assert fast.basis[:, 2:] == pytest.approx(2.0 * slow.basis[:, 2:])
    assert (slow.basis[:, 0] == fast.basis[:, 0]).all()
    assert np.exp(slow.log_caps) == pytest.approx(encoder.power_limit_w)


def test_short_launches_leave_the_device_idle(encoder, operators):
    launches = np.array([max(operator.launches, 1) for operator in operators])
    shortest_s = encoder.roofline.launch_s * launches
    busy = [encoder.encode_powers(operators, times * shortest_s).basis[:, 1] for times in (1, 1000)]
    assert not busy[0].any()
    assert (busy[1] > 0.99).all()


def test_structures_have_their_share_of_a_sum(operators):
    """A network's discrepancy is its own, and one that all networks have."""
    sums = encode_sums([count_network(make_family("transformer:64,2"))])
    structures = sums.make_log_sums(np.ones(len(sums.operators))).structures
    weights = dict(zip(structures.column.tolist(), structures.weight.tolist(), strict=True))
    assert number_name("networks") in weights and int(sums.identities[0]) in weights
    is_block = np.array([layer.is_block for layer in sums.layers])
    count = sums.count[sums.layer >= 0] * is_block[sums.layer[sums.layer >= 0]]
    assert weights[number_name("blocks")] == pytest.approx(count.sum() / sums.count.sum())
    on_unit = sums.make_log_sums(np.ones(len(sums.operators)), ["mine"]).structures
    assert number_name("unit mine") in on_unit.column.tolist()


def fit(observations, unit="", start=None):
    """Fit a host, or update that of another device, to steps whose kernels take 10 us."""
    known = observations, np.full(len(observations), 1e-5), np.zeros(len(observations)), unit
    return fit_host_time(*known) if start is None else update_host_time(start, *known)


def predict_time(model, layer, count):
    return model.predict_issue_time({layer: count})[0]


def test_issue_times_are_recovered():
    model = fit(observe_all(noise=0.0))
    assert model.step_overhead_s == pytest.approx(START_S, rel=0.15)
    assert model.per_call_s[:3] == pytest.approx(CALLS_S[:3], rel=0.2)
    for layer in list_layers():
        expected_s = true_start(layer) + 20 * true_time(layer)
        assert predict_time(model, layer, 20.0) == pytest.approx(expected_s, rel=0.12)


def test_error_of_one_window_is_not_inherited_by_a_network():
    """A network runs the same block twelve times."""
    observations = observe_all(noise=0.2)
    model, errors, window_errors = fit(observations), [], []
    for one in observations:
        ((layer, copies),) = one.counts.items()
        expected_s = true_start(layer) + 12 * true_time(layer)
        errors.append(math.log(predict_time(model, layer, 12.0) / expected_s))
        window_errors.append(
            math.log(one.duration_s / (true_start(layer) + copies * true_time(layer)))
        )
    assert np.std(errors) < 0.7 * np.std(window_errors)


def test_structure_that_several_networks_show_has_its_own_factor():
    layer = list_layers()[-1]
    networks = [
        observe_host_bound(layer, float(n), 2.0 * n * true_time(layer), is_isolated=False)
        for n in (6, 8, 12)
    ]
    model = fit([*observe_all(noise=0.05), *networks])
    assert predict_time(model, layer, 10.0) == pytest.approx(20.0 * true_time(layer), rel=0.1)


def test_unseen_structure_takes_the_time_of_its_calls():
    observations = observe_all(noise=0.0)
    (unseen,) = observations[-1].counts
    others = [
        one
        for one in observations
        if unseen.structure not in {layer.structure for layer in one.counts}
    ]
    model = fit(others)
    assert unseen.structure not in model.structure_factors
    time_s, sd_s = model.predict_issue_time({unseen: 10.0})
    assert time_s == pytest.approx(true_start(unseen) + 10 * true_time(unseen), rel=0.15)
    assert sd_s > fit(observations).predict_issue_time({unseen: 10.0})[1]


def test_calls_between_layers_take_as_long_as_launches_and_less_at_inference():
    model = fit(observe_all(noise=0.0))
    for phase, name, share in (
        ("train", "launches", 1.0),
        ("inference", "inference launches", 0.5),
    ):
        counts = {next(layer for layer in list_layers() if layer.phase == phase): 3.0}
        more_s = model.predict_issue_time(counts, unattributed_calls=100.0)[0]
        more_s -= model.predict_issue_time(counts)[0]
        assert more_s == pytest.approx(100 * share * model.per_call_s[HOST_CALLS.index(name)])


def test_host_that_finished_early_has_not_bound_the_step():
    """Device times may be underestimated; issue times are measured."""
    observations = observe_all(noise=0.0)
    slow = [replace(one, duration_s=60.0 * one.issue_s) for one in observations[::3]]
    assert fit([*observations, *slow]).per_call_s == pytest.approx(
        fit(observations).per_call_s, rel=0.05
    )


def test_pace_of_another_host_is_uncertain():
    layer = list_layers()[-1]
    networks = [
        observe_host_bound(layer, float(n), n * true_time(layer), is_isolated=False)
        for n in (6, 8, 12)
    ]
    observations = [replace(one, unit="a") for one in [*observe_all(noise=0.05), *networks]]
    same, other = (fit(observations, unit) for unit in "ab")
    assert other.per_call_s == same.per_call_s
    assert other.sd_share > 0.2 > same.sd_share


def test_few_steps_set_the_pace_of_another_host():
    model = fit(observe_all(noise=0.0))
    layer = list_layers()[0]
    steps = [
        observe_host_bound(layer, n, 1.7 * predict_time(model, layer, n), is_isolated=False)
        for n in (20.0, 60.0)
    ]
    found = fit(steps, start=model)
    for other in list_layers():
        expected_s = 1.7 * predict_time(model, other, 30.0)
        assert predict_time(found, other, 30.0) == pytest.approx(expected_s, rel=0.02)
    assert found.network_count == 2
    assert fit([], start=model) == model
    many = observe_all(noise=0.0)
    assert fit(many, start=model.scale(3.0)) == model, "many steps replace another host"


def test_slower_of_host_and_device_decides():
    host_s, device_s = np.array([1.0, 2.0, 1.0]), np.array([2.0, 1.0, 1.0])
    duration_s, grad_host, grad_device = combine_times(host_s, device_s)
    assert duration_s == pytest.approx([2.0, 2.0, 2.0 ** (1 / 12)], rel=1e-4)
    step = 1e-6
    more_s = combine_times(host_s + step, device_s)[0]
    assert grad_host == pytest.approx((more_s - duration_s) / step, abs=1e-4)
    assert grad_host * host_s + grad_device * device_s == pytest.approx(duration_s)


def test_probes_alone_are_too_little(device):
    probes = observe_blocks(device, draw_networks(2), energy=False)
    with pytest.raises(MissingError, match="profile"):
        fit_model(probes)


def test_structures_are_fitted_to_all_hosts_and_their_pace_to_the_own_one(device, observations):
    networks = draw_networks(4, seed=71)
    eager = [observe_step(device, Trial(one, SETUP), energy=False) for one in networks]
    slow = [
        replace(one, issue_s=3.0 * one.issue_s, duration_s=max(one.duration_s, 3.0 * one.issue_s))
        for one in eager
    ]
    plain = fit_model([*observations, *eager]).host_time
    other = observe_on_unit(observations, "other", 1.0, 0.0)
    own = fit_model([*other, *observe_on_unit(slow, "own", 1.0, 1e6)]).host_time
    counts = count_layers(split_layers(networks[0], SETUP))
    own_s, plain_s = (host.predict_issue_time(counts)[0] for host in (own, plain))
    assert own_s == pytest.approx(3.0 * plain_s, rel=0.1)
    assert own.network_count == len(slow)


@pytest.fixture(scope="module")
def rows(observations):
    return [one for one in decompose_observations(observations) if one.mode == "graph"]


def test_powers_of_graphs_are_energy_over_time_and_need_both(model, rows):
    timed = [replace(one, energy_j=None) for one in rows[:2]]
    some = [*timed, *rows[2:5]]
    busy = predict_durations(model.encoder, model.duration, encode_decomposed(model.encoder, some))
    found = find_powers(some, busy, "graph", model.idle_w, 0.0)
    assert [one.observation for one in found] == rows[2:5]
    assert [one.power_w for one in found] == pytest.approx(
        [one.energy_j / one.duration_s for one in rows[2:5]]
    )


def test_networks_are_one_stratum_and_labels_are_others(model, observations):
    every = [one for one in decompose_observations(observations) if one.duration_s]
    sums = encode_decomposed(model.encoder, every)
    strata = observe_durations(every, sums, np.ones(len(sums.operators))).strata
    networks = {number for one, number in zip(every, strata, strict=True) if not one.is_isolated}
    labels = {number for one, number in zip(every, strata, strict=True) if one.is_isolated}
    assert len(networks) == 1 and len(labels) > 1 and not networks & labels


def test_costs_of_the_roofline_are_medians(encoder):
    process = define_durations(encoder, overhead_s=1.0)
    assert [median for median, _ in process.coefficients] == list(encoder.roofline.costs)
    assert [log_sd for _, log_sd in process.coefficients] == list(encoder.roofline.log_sds)


def test_idle_power_sets_the_prior_of_static_power(encoder):
    unknown, one, two = (
        define_powers(encoder, idle_w, 1.0).coefficients[0][0] for idle_w in (0.0, 4.0, 8.0)
    )
    assert two == pytest.approx(2.0 * one)
    assert one > 4.0
    assert 0.0 < unknown < encoder.power_limit_w


def test_overheads_have_coefficients_of_their_own(encoder):
    own = replace(encoder, overheads=("overhead of a", "overhead of b"))
    for define, value in (
        (define_durations, 7.0),
        (lambda *a: define_powers(a[0], 1.0, a[1]), 9.0),
    ):
        plain, more = (define(one, value).coefficients for one in (encoder, own))
        assert more[: len(plain)] == plain
        assert [median for median, _ in more[len(plain) :]] == [value, value]


def test_noise_of_imported_runs_needs_all_to_be_imported(observations):
    observations = observations[:12]
    imported = [replace(one, provenance="imported") for one in observations]
    noises = [
        fit_model(some).power.process.noise_sd
        for some in (imported, [*imported[1:], observations[0]], observations)
    ]
    assert noises[0] != noises[1] == noises[2]


@pytest.fixture(scope="module")
def unknown():
    return make_simulated_device(LEFT_OUT, noise=0.0)


@pytest.fixture(scope="module")
def sheet(unknown):
    return describe_chip(unknown.chip)


def start(sheet, observations=()):
    return start_from_sheet(sheet, observations, make_shared_model())


def find_log_sds(found):
    pairs = zip(found.energy_j, found.energy_sd_j**2, strict=True)
    return np.sqrt([log_variance(*one) for one in pairs])


def test_left_out_device_is_within_its_interval(unknown, sheet):
    networks = draw_networks(10, seed=5)
    found = predict(start(sheet), networks)
    errors = np.log(found.energy_j / true_energies(unknown, networks)) / find_log_sds(found)
    assert np.mean(np.abs(errors) < 1.96) >= 0.9


def test_durations_and_then_energies_each_narrow_the_estimate(unknown, sheet):
    network = draw_networks(1, seed=6)
    metered = observe_blocks(unknown, network)
    timed = [replace(one, energy_j=None, energy_sd_j=None) for one in metered]
    sds = [find_log_sds(predict(start(sheet, own), network))[0] for own in ((), timed, metered)]
    assert sds[0] > sds[1] > sds[2]


def test_own_observations_overrule_the_data_sheet(unknown, sheet):
    """The device takes three times as long as its data sheet suggests, at half the power."""
    odd = [
        replace(
            one,
            duration_s=3.0 * one.duration_s,
            energy_j=one.energy_j and 1.5 * one.energy_j,
            issue_s=None,
        )
        for one in observe_blocks(unknown, draw_networks(3, seed=7))
    ]
    networks = draw_networks(5, seed=8)
    # Graphs: the host takes no part.
    graphs = replace(SETUP, cuda_graphs=True)
    before, after = (predict(start(sheet, own), networks, graphs) for own in ((), odd[:12]))
    alone = predict(start(sheet, observe_blocks(unknown, networks)), networks, graphs)
    truth_s = 3.0 * alone.duration_s
    errors = [np.abs(np.log(one.duration_s / truth_s)).mean() for one in (before, after)]
    assert errors[0] > math.log(2.0) and errors[1] < 0.25


def test_shared_model_survives_json(sheet):
    again = SharedModel.from_dict(json.loads(json.dumps(make_shared_model().to_dict())))
    networks = draw_networks(2, seed=5)
    one = predict(start(sheet), networks)
    two = predict(start_from_sheet(sheet, (), again), networks)
    assert one.energy_j == pytest.approx(two.energy_j, rel=1e-6) and again.notice == "a notice"


def test_shipped_model_loads_and_names_its_devices():
    assert "NVIDIA H200 SXM 141 GB" in load_shared_model().devices


def test_notes_say_what_estimates_rest_on(unknown, sheet):
    network = draw_networks(1, seed=6)
    nothing = start(sheet).predict(network, [SETUP], per_layer=True).notes[0]
    some = start(sheet, observe_device(unknown, 1)).predict(network, [SETUP], per_layer=True)
    assert any("Nothing was measured" in one for one in nothing)
    assert any("observations of this device" in one for one in some.notes[0])


def test_every_device_is_fitted_and_told_apart():
    shared = make_shared_model()
    assert len(shared.devices) == len(SEEDS)
    for seed in SEEDS:
        device = make_simulated_device(seed, noise=0.0)
        rows = decompose_observations(observe_blocks(device, draw_networks(2, seed=1)))
        encoder = make_sheet_encoder(describe_chip(device.chip))
        sums = encode_decomposed(encoder, rows)
        found_s = predict_durations(encoder, shared.duration, sums).total
        errors = np.abs(np.log(found_s / [one.duration_s for one in rows]))
        assert np.median(errors) < 0.05


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
