"""Which profiles start from a data sheet, and with which estimator."""

from dataclasses import replace

import pytest

from joulecast.catalogue import find_data_sheet, make_sheet_profile
from joulecast.errors import InputError
from joulecast.estimators import fit_profile
from joulecast.estimators.fitted_profile import (
    check_sheet_precision,
    find_starting_sheet,
    make_starting_estimator,
    match_device_sheet,
    rests_on_sheet,
)
from joulecast.records import Device, Network, Observation, Profile, Setup, Trial

A10 = find_data_sheet("nvidia-a10")
DEVICE = Device("my-gpu", "NVIDIA A10")
MEASURED = Profile(DEVICE, "torch-2.13.0", "gpu", "measured")


def test_small_measured_profile_starts_from_the_sheet_of_its_device():
    assert find_starting_sheet(MEASURED) == A10
    assert find_starting_sheet(make_sheet_profile(A10)) == A10
    assert match_device_sheet(Device("nvidia-a10", "unknown")) == A10


@pytest.mark.parametrize(
    "change",
    [
        {"provenance": "imported"},
        {"runtime": "mnn-3.0"},
        {"device": Device("a-cpu", "Some Processor 9000")},
        {"fits": {"additive": {"encoder": {"sources": [{"name": "nvidia-h200"}]}}}},
        {"observations": (Observation(Trial(Network(), Setup())),) * 150},
    ],
)
def test_other_profiles_do_not(change):
    assert find_starting_sheet(replace(MEASURED, **change)) is None


def test_estimator_that_needs_measurements_is_refused_in_one_line():
    with pytest.raises(InputError, match="subtractive needs measurements") as caught:
        fit_profile(make_sheet_profile(A10), "subtractive")
    assert "\n" not in str(caught.value)
    assert make_starting_estimator("additive", A10).name == "additive"


def test_precision_that_the_sheet_lacks_is_refused():
    t4 = make_sheet_profile(find_data_sheet("t4"))
    with pytest.raises(InputError, match="no bf16 peak"):
        check_sheet_precision(t4, Setup(precision="bf16"))
    check_sheet_precision(t4, Setup(precision="fp16"))


def test_profile_without_energies_rests_on_the_sheet():
    assert rests_on_sheet(MEASURED)
