"""The best rates of a device, read off its observations."""

from dataclasses import replace

import numpy as np
import pytest

from additive_examples import SETUP, draw_networks, observe_blocks
from joulecast.devices.data_sheets import find_data_sheet, list_data_sheets
from joulecast.estimators.additive.layers import make_overhead
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.roofline import (
    Hardware,
    complete_peaks,
    find_power_priors,
    find_roofline,
    find_sustained_roofline,
)
from joulecast.records import FLOAT_PRECISIONS


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
