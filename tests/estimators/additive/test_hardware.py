"""Sustained rates from data sheets stay within the peaks and the power limit."""

from dataclasses import replace

import pytest

from joulecast.catalogue import find_data_sheet, list_data_sheets
from joulecast.estimators.additive.hardware import (
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
