"""A data sheet refuses figures beyond physics, and says which peaks it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.records import DataSheet, weakest_provenance

SHEET = DataSheet(
    name="card",
    title="A card",
    units=40,
    clock_hz=1.6e9,
    flops_per_s={"fp32": 8e12, "fp16": 65e12, "int8": 130e12},
    bytes_per_s=320e9,
    memory_bytes=16 * 2**30,
    power_limit_w=70.0,
)


def test_it_survives_json():
    assert DataSheet.from_dict(SHEET.to_dict()) == SHEET


def test_peaks_by_the_precision_of_a_setup():
    assert SHEET.find_peak("fp16") == 65e12
    assert SHEET.find_peak("int8_dynamic") == 130e12
    # Without TF32 units, PyTorch computes in fp32.
    assert SHEET.find_peak("tf32") == SHEET.find_peak("fp32") == 8e12
    with pytest.raises(InputError, match=r"no bf16 peak: choose fp32 or fp16, .*tflops\.bf16"):
        SHEET.find_peak("bf16")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"power_limit_w": 0.0}, "power_limit_w is 0.0"),
        ({"power_limit_w": float("nan")}, "finite"),
        ({"flops_per_s": {}}, "is empty"),
        ({"flops_per_s": {"fp8": 1e12}}, "fp8"),
        ({"flops_per_s": {"fp32": 1.1e16}}, "FLOP/s"),
        ({"flops_per_s": {"fp32": float("nan")}}, "nan"),
        ({"flops_per_s": {"fp32": 8e12, "fp16": 9e15}}, "at 70 W is more than any chip"),
        ({"clock_hz": 1e6}, "per unit and cycle"),
        ({"bytes_per_s": 9e13}, "more than any memory"),
        ({"idle_w": 71.0}, "less than the power limit of 70 W"),
        ({"units": 0}, "units is 0"),
    ],
)
def test_impossible_figures_are_refused(changes, part):
    with pytest.raises(InputError, match=part):
        replace(SHEET, **changes)


def test_a_data_sheet_is_weaker_than_measurements_and_stronger_than_a_simulation():
    assert weakest_provenance(["measured", "datasheet", "modelled"]) == "datasheet"
    assert weakest_provenance(["datasheet", "simulated"]) == "simulated"
