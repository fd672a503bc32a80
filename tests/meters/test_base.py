"""Readings: whatever a meter returns, no value that is none gets further."""

import math

import pytest

from joulecast.meters.base import METER_CHECKS, Reading


@pytest.mark.parametrize(
    ("energy_j", "duration_s", "fault"),
    [
        (math.nan, 1.0, "invalid: the meter returned nan J"),
        (math.inf, 1.0, "invalid: the meter returned inf J"),
        (-math.inf, 1.0, "invalid: the meter returned -inf J"),
        (None, 1.0, "invalid: the meter returned nan J"),
        ("many", 1.0, "invalid: the meter returned nan J"),
        (10**400, 1.0, "invalid: the meter returned nan J"),
        (-2.0, 1.0, "negative: the meter returned -2 J"),
        (5.0, math.nan, "invalid: the meter returned nan s"),
        (5.0, -1.0, "negative: the meter returned -1 s"),
    ],
)
def test_value_that_is_none_becomes_a_fault(energy_j, duration_s, fault):
    reading = Reading(energy_j, duration_s)
    assert reading.faults == (fault,)
    assert 0 <= reading.energy_j < math.inf
    assert 0 <= reading.duration_s < math.inf


def test_fault_that_the_meter_named_is_not_repeated():
    assert Reading(-1.0, 1.0, ("negative: by far",)).faults == ("negative: by far",)
    assert Reading(math.nan, 1.0, ("gap",)).faults == ("gap", "invalid: the meter returned nan J")


def test_power_is_that_of_the_window():
    assert Reading(6.0, 2.0).power_w == 3.0
    assert Reading(6.0, 0.0).power_w == 0.0


def test_nothing_is_checked_unless_the_meter_says_so():
    assert Reading(1.0, 1.0).unchecked == METER_CHECKS
