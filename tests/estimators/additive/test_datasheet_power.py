"""Powers of a device that only its data sheet describes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.roofline import find_power_priors
from joulecast.records import FLOAT_PRECISIONS


def test_priors_follow_the_basis_of_powers() -> None:
    priors = find_power_priors(find_data_sheet("nvidia-rtx-3060"))
    static, busy, *compute, memory = priors.coefficients
    assert (static, busy, memory) == (priors.static_w, priors.busy_w, priors.memory_w)
    assert compute == [priors.compute_w[name] for name in FLOAT_PRECISIONS]


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


def test_power_scales_with_the_limit() -> None:
    sheet = find_data_sheet("nvidia-h100-sxm")
    half = find_power_priors(replace(sheet, power_limit_w=350.0, idle_w=None))
    whole = find_power_priors(replace(sheet, power_limit_w=700.0, idle_w=None))
    for small, large in zip(half.coefficients, whole.coefficients, strict=True):
        assert large == pytest.approx((2 * small[0], small[1]))


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
