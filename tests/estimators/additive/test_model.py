"""The model of a device: rates, encoding, host time, fits, predictions, and what devices share."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from additive_examples import (
    SETUP,
    count_network,
    draw_networks,
    encode_sums,
    observe_blocks,
    observe_device,
    observe_on_unit,
    observe_step,
    predict,
    true_energies,
)
from joulecast.devices.data_sheets import find_data_sheet, list_data_sheets
from joulecast.estimators.additive import predict as device_model
from joulecast.estimators.additive.encode import define_durations, define_powers, number_name
from joulecast.estimators.additive.estimator import start_from_sheet
from joulecast.estimators.additive.fit import (
    PAUSE_SHARE,
    MeasuredDevice,
    SharedModel,
    encode_decomposed,
    encode_powers,
    find_powers,
    fit_model,
    fit_pause_share,
    fit_shared_model,
    identify_observations,
    load_shared_model,
    make_sheet_encoder,
    observe_durations,
    update_model,
)
from joulecast.estimators.additive.host_time import (
    HOST_LOG_SD,
    combine_times,
    fit_host_time,
    set_pace,
)
from joulecast.estimators.additive.layers import make_overhead, set_up_layer, split_layers
from joulecast.estimators.additive.observations import DecomposedObservation, decompose_observations
from joulecast.estimators.additive.predict import (
    HOST_TIME,
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
from joulecast.gp.logsums.posterior import (
    FittedLogSums,
    condition_logsums,
    explain_inputs,
    linearise_observations,
)
from joulecast.operators import HOST_CALLS, make_layer, make_op
from joulecast.records import FLOAT_PRECISIONS, DataSheet, Setup, StepTotals, Trial
from joulecast.records.network import WAIT_BINS
from joulecast.simulation import make_simulated_device
from joulecast.system.errors import MissingError
from joulecast.variants import REPEATED, Block, read_isolated_block

# The best rates of a device, read off its observations.


@pytest.fixture(scope="module")
def timed(device):
    return decompose_observations(observe_blocks(device, draw_networks(6, seed=1)))


@pytest.fixture(scope="module")
def roofline(timed):
    return find_roofline(timed)


def test_no_observation_beats_the_rates_but_perhaps_one(timed, roofline):
    """The single best of many may be an error."""
    by_launch, by_flop = [], []
    for one in timed:
        operators = sum_operators(one.counts).items()
        launches = sum(operator.launches * count for operator, count in operators)
        flops = sum(operator.padded_flops * count for operator, count in operators)
        by_launch.append(one.duration_s / launches)
        by_flop.append(one.duration_s / flops)
    assert roofline.launch_s == pytest.approx(sorted(by_launch)[1])
    assert roofline.flop_s["fp32"] == pytest.approx(sorted(by_flop)[1])


def sum_operators(counts):
    found = Counter()
    for layer, count in counts.items():
        for operator, repeats in layer.own_operators:
            found[operator] += count * repeats
    return found


def test_precisions_have_rates_and_unseen_ones_are_less_certain(device, timed, roofline):
    found = roofline.flop_s
    assert found["bf16"] == found["fp16"] < found["tf32"] < found["fp32"]
    log_sds = dict(zip(FLOAT_PRECISIONS, roofline.log_sds[1:-1], strict=True))
    seen = log_sds.pop("fp32")
    assert all(seen < sd for sd in log_sds.values())
    half = observe_blocks(device, draw_networks(6, seed=1), replace(SETUP, precision="bf16"))
    both = find_roofline([*timed, *decompose_observations(half)]).flop_s
    assert both["fp32"] == pytest.approx(found["fp32"], rel=0.15)
    assert both["bf16"] < 0.5 * both["fp32"]


def test_overheads_of_imported_runs_are_no_work(timed, roofline):
    overhead = make_overhead("log")
    more = [replace(one, counts={**one.counts, overhead: 0.01}) for one in timed]
    found = find_roofline(more)
    assert found.flop_s["fp32"] == pytest.approx(roofline.flop_s["fp32"], rel=0.15)
    assert found.byte_s == pytest.approx(roofline.byte_s, rel=0.15)
    # An overhead is not the duration of launches.
    assert found.log_sds[0] > roofline.log_sds[0]


T4, H100 = find_data_sheet("t4"), find_data_sheet("nvidia-h100-sxm")


def test_sustained_rates_never_exceed_peaks_and_fall_with_the_power_limit():
    for sheet in list_data_sheets():
        sustained, peaks = find_sustained_roofline(sheet), complete_peaks(sheet.flops_per_s)
        for precision, peak in peaks.items():
            assert 0.0 < 1.0 / sustained.flop_s[precision] <= peak, sheet.name
        assert 1.0 / sustained.byte_s <= sheet.bytes_per_s * (1 + 1e-9)
    limited = [replace(T4, power_limit_w=limit_w, idle_w=None) for limit_w in (300.0, 70.0, 35.0)]
    flop_s = [find_sustained_roofline(sheet).flop_s["fp32"] for sheet in limited]
    assert flop_s[0] < flop_s[1] < flop_s[2]
    # A precision that is not listed runs like fp32.
    peaks = complete_peaks(T4.flops_per_s)
    assert "bf16" not in T4.flops_per_s and peaks["bf16"] == T4.flops_per_s["fp32"]


def test_rates_of_a_multiprocessor_are_over_those_of_a_v100():
    v100 = find_data_sheet("v100-pcie-16gb")
    rates = [v100.flops_per_s["fp32"], 1e13, 2e13], [v100.bytes_per_s, 1e12, 1e12]
    own, one, two = Hardware.from_data_sheet(v100).relate_rates(*map(np.array, rates))
    assert own == pytest.approx([0.0, 0.0], abs=0.1)
    assert two[0] > one[0] and two[1] == one[1]


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
def test_idle_power_at_active_clocks_is_near_published_figures(device, idle_w):
    median_w, log_sd = find_power_priors(find_data_sheet(device)).idle_w
    assert median_w == pytest.approx(idle_w, rel=0.17)
    assert 0.1 <= log_sd <= 0.3


@pytest.mark.parametrize("device", ["nvidia-v100-pcie-32gb", "nvidia-rtx-4090", "nvidia-l4"])
def test_a_device_that_waits_draws_little_and_one_at_its_peak_the_limit(device):
    sheet = find_data_sheet(device)
    priors = find_power_priors(sheet)
    most_w = sum(median for median, _ in (priors.static_w, priors.busy_w, priors.compute_w["fp32"]))
    assert 0.8 * sheet.power_limit_w < most_w < 1.2 * sheet.power_limit_w
    assert priors.idle_w[0] < priors.static_w[0] < 0.5 * sheet.power_limit_w


def test_power_priors_of_devices_left_out_other_vendors_and_high_idle_power():
    h200 = find_data_sheet("nvidia-h200")
    known, unknown = find_power_priors(h200), find_power_priors(h200, ["nvidia-h200"])
    assert unknown.compute_w["bf16"][0] < known.compute_w["bf16"][0]
    assert find_power_priors(h200, ["amd-"]) == known
    other = find_power_priors(replace(H100, vendor="AMD"))
    for mine, theirs in zip(find_power_priors(H100).coefficients, other.coefficients, strict=True):
        assert theirs[0] == mine[0] and theirs[1] > mine[1], "other vendors are less certain"
    assert find_power_priors(replace(H100, idle_w=300.0)).idle_w[0] == 300.0


# Layers and sums over their operators as arrays.


@pytest.fixture(scope="module")
def encoder(model):
    return model.encoder


@pytest.fixture(scope="module")
def sums():
    return encode_sums([count_network(make_family("transformer:64,2"))])


@pytest.fixture(scope="module")
def operators(sums):
    return sums.operators


def test_networks_become_sums_over_distinct_operators():
    networks = [*draw_networks(3, seed=1), make_family("transformer:64,2")]
    counts = [*map(count_network, networks), {}]
    sums = encode_sums(counts)
    assert len(set(sums.operators)) == len(sums.operators)
    matrix = sums.counts.matmul(np.eye(len(sums.operators)))
    for row, one in zip(matrix, counts, strict=True):
        found = {sums.operators[at]: row[at] for at in np.flatnonzero(row)}
        assert found == pytest.approx(dict(sum_operators(one)))
    assert any(layer.is_block for layer in sums.layers)
    assert all(layer.operators for layer in sums.layers)


def test_isolated_sum_moves_less_than_it_does_in_a_network():
    """Two inputs of a sum are one tensor if it runs alone."""
    layer = make_layer("elementwise", fn="add", inputs=2, shape=(64, 8, 8))
    layer = set_up_layer(Block("hidden", (replace(layer, reads=(1, 1), join="add"),)), SETUP)
    inside, alone = (
        sum(one.size_bytes for one in encode_sums([{layer: 1.0}], [flag]).operators)
        for flag in (True, False)
    )
    assert alone < inside


def test_identities_tell_sums_apart_in_any_order_and_on_every_machine():
    one, two = (count_network(network) for network in draw_networks(2, seed=1))
    identities = encode_sums([one, dict(reversed(one.items())), two]).identities
    assert identities[0] == identities[1] != identities[2]
    assert number_name("networks") == 7911472207318826337 != number_name("network")


def test_flops_count_in_their_own_precision(encoder):
    network = draw_networks(1, seed=1)[0]
    used = []
    for precision in ("bf16", "fp16"):
        counts = count_network(network, replace(SETUP, precision=precision))
        basis = encoder.encode_durations(encode_sums([counts]).operators).basis
        used.append(set(np.flatnonzero(basis.any(axis=0)).tolist()))
    # Launches, bytes and tiles are common, FLOPs are not.
    assert len(used[0]) == len(used[1]) == 4
    assert len(used[0] & used[1]) == 3


def test_overhead_has_one_basis_function_of_its_own(encoder, operators):
    overhead = make_overhead("log")
    own, every = replace(encoder, overheads=(overhead.kind,)), [overhead, *operators]
    for one in (own.encode_durations(every), own.encode_powers(every, np.ones(len(every)))):
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
    # Short launches leave the device idle.
    launches = np.array([max(operator.launches, 1) for operator in operators])
    shortest_s = encoder.roofline.launch_s * launches
    busy = [encoder.encode_powers(operators, times * shortest_s).basis[:, 1] for times in (1, 1000)]
    assert not busy[0].any() and (busy[1] > 0.99).all()


def test_structures_have_their_share_of_a_sum(sums):
    """A network's discrepancy is its own, and one that all networks have."""
    structures = sums.make_log_sums(np.ones(len(sums.operators)), ["mine"]).structures
    weights = dict(zip(structures.column.tolist(), structures.weight.tolist(), strict=True))
    assert {*map(number_name, ("networks", "unit mine")), int(sums.identities[0])} <= set(weights)
    is_block = np.array([layer.is_block for layer in sums.layers])
    count = sums.count[sums.layer >= 0] * is_block[sums.layer[sums.layer >= 0]]
    assert weights[number_name("blocks")] == pytest.approx(count.sum() / sums.count.sum())
    unnamed = sums.make_log_sums(np.ones(len(sums.operators))).structures
    assert number_name("unit mine") not in unnamed.column.tolist()


def test_priors_have_the_costs_of_the_roofline_and_the_idle_power(encoder):
    process = define_durations(encoder, overhead_s=1.0)
    pairs = zip(encoder.roofline.costs, encoder.roofline.log_sds, strict=True)
    assert list(process.coefficients[:-1]) == list(pairs), "the last one is that of tiles"
    unknown, one, two = (
        define_powers(encoder, idle_w, 1.0).coefficients[0][0] for idle_w in (0.0, 4.0, 8.0)
    )
    assert two == pytest.approx(2.0 * one) and one > 4.0
    assert 0.0 < unknown < encoder.power_limit_w
    # Overheads have coefficients of their own.
    own = replace(encoder, overheads=("overhead of a", "overhead of b"))
    for define in (define_durations, lambda one, value: define_powers(one, 1.0, value)):
        plain, more = (define(each, 7.0).coefficients for each in (encoder, own))
        assert more[: len(plain)] == plain
        assert [median for median, _ in more[len(plain) :]] == [7.0, 7.0]


# Issue times of steps: what all windows share is fitted, the error of one is not.

START_S = 400e-6
CALLS_S = (20e-6, 55e-6, 90e-6, 70e-6, 12e-6, 25e-6)
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
        for (kind, sizes), tail in product(OPERATORS, TAILS)
    ]
    blocks = [Block("hidden", (layer,)) for layer in layers]
    blocks += [Block(REPEATED, tuple(layers[at : at + 5])) for at in range(0, len(layers), 3)]
    return [
        set_up_layer(block, Setup(phase=phase, precision=precision))
        for block, phase, precision in product(blocks, ("train", "inference"), ("tf32", "bf16"))
    ]


LAYERS = list_layers()


def true_time(layer, count, with_start=True):
    start_s = START_S if with_start and layer.phase == "train" else 0.0
    calls = zip(layer.host_calls, CALLS_S, strict=True)
    return start_s + count * sum(number * call_s for number, call_s in calls)


def observe_host_bound(layer, count, host_s, is_isolated=True):
    """Return an eager step that waits for its host."""
    key = f"{layer.key} {count}"
    return DecomposedObservation(
        {layer: count}, "eager", None, 0.0, host_s, 0.0, host_s, is_isolated, key
    )


def observe_all(noise):
    rng = random.Random(3)
    copies = [float(rng.choice((2, 4, 8))) for _ in LAYERS]
    return [
        observe_host_bound(layer, n, true_time(layer, n) * math.exp(rng.gauss(0.0, noise)))
        for layer, n in zip(LAYERS, copies, strict=True)
    ]


def observe_networks(factor):
    """Return three networks of one layer whose calls take so many times as long."""
    return [
        observe_host_bound(LAYERS[-1], n, factor * true_time(LAYERS[-1], n, False), False)
        for n in (6.0, 8.0, 12.0)
    ]


def fit_host(observations, unit="", start=None):
    """Fit a host, or set the pace of another one, to steps whose kernels take 10 us."""
    busy_s = np.full(len(observations), 1e-5)
    if start is not None:
        return set_pace(start, observations, busy_s)
    return fit_host_time(observations, busy_s, np.zeros(len(observations)), unit)


@pytest.fixture(scope="module")
def host():
    return fit_host(observe_all(noise=0.0))


def predict_time(model, layer, count):
    return model.predict_issue_time({layer: count})[0]


def test_issue_times_are_recovered(host):
    assert host.step_overhead_s == pytest.approx(START_S, rel=0.15)
    assert host.per_call_s[:3] == pytest.approx(CALLS_S[:3], rel=0.2)
    for layer in LAYERS:
        assert predict_time(host, layer, 20.0) == pytest.approx(true_time(layer, 20), rel=0.12)


def test_error_of_one_window_is_not_inherited_by_a_network():
    """A network runs the same block twelve times."""
    observations = observe_all(noise=0.2)
    model, errors, window_errors = fit_host(observations), [], []
    for one in observations:
        ((layer, copies),) = one.counts.items()
        errors.append(math.log(predict_time(model, layer, 12.0) / true_time(layer, 12)))
        window_errors.append(math.log(one.duration_s / true_time(layer, copies)))
    assert np.std(errors) < 0.7 * np.std(window_errors)


def test_structure_that_several_networks_show_has_its_own_factor():
    model = fit_host([*observe_all(noise=0.05), *observe_networks(2.0)])
    expected_s = 2.0 * true_time(LAYERS[-1], 10.0, False)
    assert predict_time(model, LAYERS[-1], 10.0) == pytest.approx(expected_s, rel=0.1)


def test_unseen_structure_takes_the_time_of_its_calls(host):
    unseen = LAYERS[-1]
    model = fit_host(
        [
            one
            for one in observe_all(noise=0.0)
            if unseen.structure not in {layer.structure for layer in one.counts}
        ]
    )
    assert unseen.structure not in model.structure_factors
    time_s, sd_s = model.predict_issue_time({unseen: 10.0})
    assert time_s == pytest.approx(true_time(unseen, 10), rel=0.15)
    assert sd_s > host.predict_issue_time({unseen: 10.0})[1]


@pytest.mark.parametrize(
    ("phase", "name", "share"),
    [("train", "launches", 1.0), ("inference", "inference launches", 0.5)],
)
def test_calls_between_layers_take_as_long_as_launches(host, phase, name, share):
    counts = {next(layer for layer in LAYERS if layer.phase == phase): 3.0}
    more_s = host.predict_issue_time(counts, unattributed_calls=100.0)[0]
    more_s -= host.predict_issue_time(counts)[0]
    assert more_s == pytest.approx(100 * share * host.per_call_s[HOST_CALLS.index(name)])


def test_host_that_finished_early_has_not_bound_the_step(host):
    """Device times may be underestimated; issue times are measured."""
    observations = observe_all(noise=0.0)
    slow = [replace(one, duration_s=60.0 * one.issue_s) for one in observations[::3]]
    assert fit_host([*observations, *slow]).per_call_s == pytest.approx(host.per_call_s, rel=0.05)


def test_pace_of_another_host_is_uncertain():
    seen = [*observe_all(noise=0.05), *observe_networks(1.0)]
    same, other = (fit_host([replace(one, unit="a") for one in seen], unit) for unit in "ab")
    assert other.per_call_s == same.per_call_s
    assert (same.pace_log_sd, other.pace_log_sd) == (0.0, HOST_LOG_SD)
    sds = [
        one.predict_issue_time({LAYERS[0]: 20.0})[1] for one in (same, other, same.for_any_host())
    ]
    assert sds[1] == sds[2] > 0.2 > sds[0]


def test_each_host_has_a_pace_over_that_of_a_typical_one():
    """Structures are those of all hosts: what only the slow one ran takes less on the other."""
    factors = {"slow": 1.5, "fast": 1.0, "other": 1.2}
    steps = [
        replace(one, duration_s=factor * one.duration_s, issue_s=factor * one.issue_s, unit=unit)
        for unit, factor in factors.items()
        for one in [*observe_all(noise=0.05), *observe_networks(1.0)][:: 1 if unit == "slow" else 2]
    ]
    slow, fast = (fit_host(steps, unit) for unit in ("slow", "fast"))
    assert slow.per_call_s == fast.per_call_s
    assert slow.pace / fast.pace == pytest.approx(1.5, rel=0.05)
    assert max(slow.pace_log_sd, fast.pace_log_sd) < 0.05


def test_few_steps_set_the_pace_of_another_host(host):
    steps = [
        observe_host_bound(LAYERS[0], n, 1.7 * predict_time(host, LAYERS[0], n), is_isolated=False)
        for n in (20.0, 60.0)
    ]
    found = fit_host(steps, start=host)
    for other in LAYERS:
        expected_s = 1.7 * predict_time(host, other, 30.0)
        assert predict_time(found, other, 30.0) == pytest.approx(expected_s, rel=0.1)
    assert 1.5 < found.pace < 1.7, "two steps, and the prior"
    assert found.pace_log_sd < 0.5 * HOST_LOG_SD
    assert fit_host(steps, start=found) == found, "the same steps, whatever the pace was before"
    assert fit_host([], start=found) == host.for_any_host()


def test_calls_between_layers_and_batches_are_no_part_of_the_pace(host):
    """They are predicted beside it, so that a user's own module does not count them twice."""
    counts, known = {LAYERS[0]: 30.0}, (80.0, 3)
    issue_s = host.predict_issue_time(counts, *known)[0]
    plain = observe_host_bound(LAYERS[0], 30.0, issue_s, is_isolated=False)
    step = replace(plain, between_calls=known[0], batches=known[1])
    found = fit_host([step] * 40, start=host)
    assert found.predict_issue_time(counts, *known)[0] == pytest.approx(issue_s, rel=0.02)
    again = fit_host([*observe_all(noise=0.0), *[step] * 5])
    assert again.predict_issue_time(counts, *known)[0] == pytest.approx(issue_s, rel=0.1)


def test_slower_of_host_and_device_decides():
    host_s, device_s = np.array([1.0, 2.0, 1.0]), np.array([2.0, 1.0, 1.0])
    duration_s, grad_host, grad_device = combine_times(host_s, device_s)
    assert duration_s == pytest.approx([2.0, 2.0, 2.0 ** (1 / 12)], rel=1e-4)
    step = 1e-6
    more_s = combine_times(host_s + step, device_s)[0]
    assert grad_host == pytest.approx((more_s - duration_s) / step, abs=1e-4)
    assert grad_host * host_s + grad_device * device_s == pytest.approx(duration_s)


# Fits of the model of a device, and of what several devices share.


def test_probes_alone_are_too_little(device):
    with pytest.raises(MissingError, match="profile"):
        fit_model(observe_blocks(device, draw_networks(2), energy=False))


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
    counts = count_network(networks[0])
    own_s, plain_s = (one.predict_issue_time(counts)[0] for one in (own, plain))
    # Three times slower than all others is four standard deviations of the prior.
    assert own_s == pytest.approx(3.0 * plain_s, rel=0.2)


def test_powers_of_graphs_are_energy_over_time_and_need_both(model, observations):
    rows = [one for one in decompose_observations(observations) if one.mode == "graph"]
    some = [*(replace(one, energy_j=None) for one in rows[:2]), *rows[2:5]]
    busy = predict_durations(model.encoder, model.duration, encode_decomposed(model.encoder, some))
    found = find_powers(some, busy, "graph", model.idle_w, 0.0)
    assert [one.observation for one in found] == rows[2:5]
    expected_w = [one.energy_j / one.duration_s for one in rows[2:5]]
    assert [one.power_w for one in found] == pytest.approx(expected_w)


def test_networks_are_one_stratum_and_labels_are_others(model, observations):
    every = [one for one in decompose_observations(observations) if one.duration_s]
    sums = encode_decomposed(model.encoder, every)
    strata = observe_durations(every, sums, np.ones(len(sums.operators))).strata
    networks, labels = (
        {number for one, number in zip(every, strata, strict=True) if one.is_isolated == flag}
        for flag in (False, True)
    )
    assert len(networks) == 1 and len(labels) > 1 and not networks & labels


def test_noise_of_imported_runs_needs_all_to_be_imported(observations):
    observations = observations[:12]
    imported = [replace(one, provenance="imported") for one in observations]
    noises = [
        fit_model(some).power.process.noise_sd
        for some in (imported, [*imported[1:], observations[0]], observations)
    ]
    assert noises[0] != noises[1] == noises[2]


SEEDS, LEFT_OUT = (301, 302, 303), 304


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


@pytest.fixture(scope="module")
def measured():
    """Observations of three simulated devices; the fourth is left out."""
    devices = [make_simulated_device(seed, noise=0.0) for seed in SEEDS]
    return {one: observe_device(one, draw_networks(2, seed=1)) for one in devices}


@pytest.fixture(scope="module")
def shared(measured):
    host_time = fit_model(next(iter(measured.values()))).host_time
    devices = []
    for device, observations in measured.items():
        alone = [one for one in decompose_observations(observations) if one.mode == "graph"]
        devices.append(MeasuredDevice(describe_chip(device.chip), alone))
    return fit_shared_model(devices, devices, host_time, "a notice")


@pytest.fixture(scope="module")
def unknown():
    return make_simulated_device(LEFT_OUT, noise=0.0)


@pytest.fixture(scope="module")
def start(unknown, shared):
    """Start the device that was left out from its sheet and some observations."""
    sheet = describe_chip(unknown.chip)
    return lambda observations=(), model=shared: start_from_sheet(sheet, observations, model)


def find_log_sds(found):
    return np.sqrt(log_variance(found.energy_j, found.energy_sd_j**2))


def test_left_out_device_is_within_its_interval(unknown, start):
    networks = draw_networks(10, seed=5)
    found = predict(start(), networks)
    errors = np.log(found.energy_j / true_energies(unknown, networks)) / find_log_sds(found)
    assert np.mean(np.abs(errors) < 1.96) >= 0.9


def test_durations_and_then_energies_each_narrow_the_estimate(unknown, start):
    network = draw_networks(1, seed=6)
    metered = observe_blocks(unknown, network)
    timed = [replace(one, energy_j=None, energy_sd_j=None) for one in metered]
    sds = [find_log_sds(predict(start(own), network))[0] for own in ((), timed, metered)]
    assert sds[0] > sds[1] > sds[2]


def test_own_observations_overrule_the_data_sheet(unknown, start):
    """The device takes three times as long as its data sheet suggests, at half the power."""
    odd = [
        replace(one, duration_s=3.0 * one.duration_s, energy_j=1.5 * one.energy_j, issue_s=None)
        for one in observe_blocks(unknown, draw_networks(3, seed=7))
    ]
    networks = draw_networks(5, seed=8)
    # Graphs: the host takes no part.
    graphs = replace(SETUP, cuda_graphs=True)
    before_s, after_s, alone_s = (
        predict(start(own), networks, graphs).duration_s
        for own in ((), odd[:12], observe_blocks(unknown, networks))
    )
    errors = [np.abs(np.log(one_s / (3.0 * alone_s))).mean() for one_s in (before_s, after_s)]
    assert errors[0] > math.log(2.0) and errors[1] < 0.25


def test_shared_models_are_stored_and_shipped(start, shared):
    again = SharedModel.from_dict(json.loads(json.dumps(shared.to_dict())))
    networks = draw_networks(2, seed=5)
    one, two = (predict(start((), model), networks).energy_j for model in (shared, again))
    assert one == pytest.approx(two, rel=1e-6) and again.notice == "a notice"
    assert "NVIDIA H200 SXM 141 GB" in load_shared_model().devices


def test_notes_say_what_estimates_rest_on(unknown, start):
    network = draw_networks(1, seed=6)
    for own, expected in (
        ((), "Nothing was measured"),
        (observe_device(unknown, draw_networks(1, seed=1)), "observations of this device"),
    ):
        (notes,) = start(own).predict(network, [SETUP], per_layer=True).notes
        assert any(expected in one for one in notes)


def test_every_device_is_fitted_and_told_apart(measured, shared):
    assert len(shared.devices) == len(SEEDS)
    for device, observations in measured.items():
        rows = [one for one in decompose_observations(observations) if one.mode == "graph"]
        encoder = make_sheet_encoder(describe_chip(device.chip))
        sums = encode_decomposed(encoder, rows)
        found_s = predict_durations(encoder, shared.duration, sums).total
        errors = np.abs(np.log(found_s / [one.duration_s for one in rows]))
        assert np.median(errors) < 0.05


# Predictions for networks given by their layers.

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


def test_steps_that_do_not_show_the_host_leave_it_as_it_is(device):
    """A step that waits for its device, or whose issue time is not known."""
    start = start_from_sheet(find_data_sheet("nvidia-l4"), [])
    totals = StepTotals(1.0, 1.0, 1, waits=(1,) * 2 * WAIT_BINS)
    steps = [observe_step(device, Trial(one, SETUP)) for one in draw_networks(8)]
    waiting = [
        replace(one, trial=Trial(replace(one.trial.network, totals=totals), SETUP)) for one in steps
    ]
    unknown = [replace(one, issue_s=None) for one in steps]
    for observations in (waiting, unknown):
        found = update_model(start, observations, identify_observations([]))
        assert found.host_time == start.host_time
    assert update_model(start, steps, identify_observations([])).host_time != start.host_time


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_power_falls_part_of_the_way_between_launches(model, share):
    """The host of this model takes next to no time: the device only pauses."""
    counts = [count_network(network) for network in draw_networks(3, seed=4)]
    host = replace(model.host_time, pace=1e-3)
    totals = predict_totals(replace(model, host_time=host, pause_share=share), counts, SHARE)
    paused_s = totals.duration_s - totals.durations.total
    assert (paused_s > 0.001 * totals.durations.total).all()
    paused_w = (totals.energy_j - totals.device_energy_j) / paused_s
    expected_w = model.idle_w + share * (totals.powers.total - model.idle_w)
    assert paused_w == pytest.approx(expected_w, rel=1e-3)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_power_in_pauses_is_fitted_to_whole_steps(device, model, observations, share):
    """Pauses are long here, so that they make up a good part of a step."""
    gap_s = 20e-6
    true = replace(
        model, host_time=replace(model.host_time, pace=1e-3, launch_gap_s=gap_s), pause_share=share
    )
    networks = draw_networks(8, seed=9)
    totals = predict_totals(true, list(map(count_network, networks)), SHARE)
    steps = [
        replace(observe_step(device, Trial(network, SETUP)), duration_s=step_s, energy_j=step_j)
        for network, step_s, step_j in zip(
            networks, totals.duration_s.tolist(), totals.energy_j.tolist(), strict=True
        )
    ]
    alone = [one for one in observations if one.trial.mode == "graph"]

    def fit(some):
        decomposed = decompose_observations(some)
        sums = encode_decomposed(model.encoder, decomposed)
        busy = predict_durations(model.encoder, model.duration, sums)
        powers = find_powers(decomposed, busy, "graph", model.idle_w, PAUSE_SHARE * gap_s)
        rows = encode_powers(model.encoder, model.duration, powers)
        start = FittedLogSums.start(model.power.process, model.power.theta, *rows)
        return fit_pause_share(start, powers, model.idle_w, gap_s)

    # The prior and what networks have in common take a part of it.
    assert fit([*alone, *steps]) == pytest.approx(share, abs=0.25)
    assert fit(alone) == PAUSE_SHARE


def test_host_of_which_little_is_known_widens_the_interval(model):
    """The median is that of a step on the host in the middle."""
    counts = [count_network(network) for network in draw_networks(2, seed=4)]
    busy_s = predict_totals(model, counts, SHARE).durations.total
    issue_s = model.host_time.predict_issue_time(counts[0])[0]
    host = replace(model.host_time, pace=0.9 * model.host_time.pace * float(busy_s[0]) / issue_s)
    known, unknown = (
        predict_totals(replace(model, host_time=replace(host, pace_log_sd=sd)), counts, SHARE)
        for sd in (0.0, 0.25)
    )
    assert unknown.duration_s == pytest.approx(known.duration_s)
    assert unknown.duration_var[0] > 2.0 * known.duration_var[0]
    host_vars = [one.variance_by_source[HOST_TIME][0] for one in (known, unknown)]
    assert host_vars[1] > 2.0 * host_vars[0]
    # The device waits at idle power, so that energies differ less.
    relative = unknown.variance_by_source[HOST_TIME] / unknown.energy_j**2
    assert relative[0] < unknown.duration_var[0] / unknown.duration_s[0] ** 2


def test_graph_does_not_wait_for_the_host(model):
    counts = [count_network(network) for network in draw_networks(2, seed=4)]
    slow = replace(model, host_time=replace(model.host_time, pace=100.0))
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


def test_energy_rises_less_than_duration(model):
    """A layer that takes longer runs at lower rates, which draw less power."""
    counts = [count_network(network, SETUP) for network in draw_networks(4, seed=4)]
    totals = predict_totals(replace(model, mode="eager"), counts, SHARE)
    elasticity = totals.grad_time_j / totals.device_energy_j
    assert (elasticity > 0.0).all() and (elasticity < 1.0).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_of_a_block_share_it_by_the_energies_of_their_operators(fitted, precision):
    setup = replace(SETUP, precision=precision)
    network = make_family("transformer:64,2")
    prediction = fitted.predict([network], [setup], per_layer=True)
    (layers,) = prediction.layers
    assert sum(layer.energy_j for layer in layers) == pytest.approx(prediction.energy_j[0], 1e-6)
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


def test_energies_agree_with_what_was_measured(observations, model):
    found = [(read_isolated_block(one.trial), one) for one in observations]
    hidden = [(block, one) for block, one in found if block and block.role == "hidden"]
    measured_j = np.array([one.energy_j / one.trial.execution.copies for _, one in hidden])
    layers = [set_up_layer(block, SETUP) for block, _ in hidden]
    means_j, sds_j = predict_layer_energies(model, layers)
    assert len(means_j) > 10
    assert np.median(np.abs(means_j / measured_j - 1)) < 0.02
    assert (sds_j > 0).all()
