"""Sustained rates from data sheets stay within the peaks and the power limit."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.catalogue import find_data_sheet, list_data_sheets
from joulecast.estimators.additive.roofline import (
    Hardware,
    complete_peaks,
    find_sustained_roofline,
)

T4 = find_data_sheet("t4")


@pytest.mark.parametrize("sheet", list_data_sheets(), ids=lambda one: one.name)
def test_sustained_rates_never_exceed_peaks(sheet):
    roofline, peaks = find_sustained_roofline(sheet), complete_peaks(sheet.flops_per_s)
    for precision, peak in peaks.items():
        assert 0.0 < 1.0 / roofline.flop_s[precision] <= peak
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


def test_unknown_cache_is_assumed_by_the_units():
    found = Hardware.from_data_sheet(replace(T4, l2_bytes=None))
    assert found.l2_bytes == T4.units * 2**18
    assert Hardware.from_dict(found.to_dict()) == found


def test_rates_of_a_multiprocessor_are_over_those_of_a_v100():
    v100 = find_data_sheet("v100-pcie-16gb")
    hardware = Hardware.from_data_sheet(v100)
    (own,) = hardware.relate_rates(
        np.array([v100.flops_per_s["fp32"]]), np.array([v100.bytes_per_s])
    )
    assert own == pytest.approx([0.0, 0.0], abs=0.1)
    twice = hardware.relate_rates(np.array([1e13, 2e13]), np.array([1e12, 1e12]))
    assert twice[1, 0] > twice[0, 0] and twice[1, 1] == twice[0, 1]
