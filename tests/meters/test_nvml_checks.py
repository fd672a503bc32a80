"""What cannot be true of a GPU's counter: above the limit, jumps, and a sensor that disagrees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.meters.base import METER_CHECKS
from joulecast.meters.nvml import (
    LIMIT_FACTOR,
    Edge,
    find_changed_limit,
    find_implausible,
    find_limit,
    list_unchecked,
    read_edges,
)

PERIOD_S = 0.1


def make_edges(powers_w, sensors_w=None, limit_w=700.0, late_s=0.001):
    """Return one edge after each tenth of a second of some power, from 10 s on."""
    edges, energy_j = [], 500.0
    for number, power_w in enumerate(powers_w):
        energy_j += PERIOD_S * power_w
        sensor_w = None if sensors_w is None else sensors_w[number]
        time_s = 10.0 + PERIOD_S * (number + 1)
        edges.append(Edge(time_s, energy_j, late_s, sensor_w=sensor_w, limit_w=limit_w))
    return edges


def check(powers_w, power_w=None, **options):
    edges = make_edges(powers_w, **options)
    mean_w = sum(powers_w) / len(powers_w) if power_w is None else power_w
    return list(find_implausible(edges, 10.0, mean_w))


def average_last_second(before_w, powers_w):
    """Return what a sensor shows that averages over the last second."""
    past = [before_w] * 10
    shown = []
    for power_w in powers_w:
        past = [*past[1:], power_w]
        shown.append(sum(past) / len(past))
    return shown


def test_power_of_an_h200_at_its_limit_is_plausible():
    """The highest power that was measured on H200s with a limit of 700 W."""
    assert check([761.2] * 10) == []


@pytest.mark.parametrize("power_w", [1.01 * LIMIT_FACTOR * 700.0, 2500.0])
def test_power_above_the_limit_is_implausible(power_w):
    expected = f"implausible: {power_w:.0f} W, although the power limit is 700 W"
    assert check([power_w] * 10) == [expected]


def test_power_is_not_limited_without_a_limit():
    assert check([2500.0] * 10, limit_w=None) == []


def test_counter_that_jumps_is_implausible_although_the_mean_is_not():
    powers_w = [200.0] * 9 + [2000.0]
    (fault,) = check(powers_w)
    assert fault == (
        "implausible: the counter rose by 200 J in 0.1 s, although the power limit is 700 W"
    )


def test_updates_that_were_seen_together_are_no_jump():
    edges = make_edges([650.0] * 10)
    merged = [*edges[:3], edges[8]._replace(late_s=0.5), edges[9]]
    assert list(find_implausible(merged, 10.0, 650.0)) == []


def test_an_update_after_one_that_was_seen_late_is_no_jump():
    edges = make_edges([700.0] * 10)
    edges[4] = edges[4]._replace(time_s=edges[5].time_s - 0.01, late_s=0.09)
    assert list(find_implausible(edges, 10.0, 700.0)) == []


@given(st.floats(60.0, 750.0), st.floats(60.0, 750.0), st.integers(6, 30))
def test_sensor_that_averages_over_a_second_is_no_contradiction(before_w, power_w, count):
    powers_w = [power_w] * count
    assert check(powers_w, sensors_w=average_last_second(before_w, powers_w)) == []


@given(st.lists(st.sampled_from([120.0, 700.0]), min_size=6, max_size=30), st.floats(0.5, 1.9))
def test_sensor_may_differ_by_less_than_a_factor_of_two(powers_w, factor):
    mean_w = sum(powers_w) / len(powers_w)
    assert check(powers_w, sensors_w=[factor * mean_w] * len(powers_w)) == []


@pytest.mark.parametrize("count", [6, 10, 30])
def test_sensor_stuck_far_below_the_counter_is_implausible(count):
    (fault,) = check([500.0] * count, sensors_w=[150.0] * count)
    assert fault == "implausible: 500 W by the counter, 150 W by the power sensor"


def test_counter_far_below_the_sensor_is_implausible_in_a_long_window():
    assert check([100.0] * 6, sensors_w=[400.0] * 6) == []
    (fault,) = check([100.0] * 20, sensors_w=[400.0] * 20)
    assert "100 W by the counter, 400 W" in fault


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_samples_are_not_compared(count):
    assert check([500.0] * 10, sensors_w=[10.0] * count + [None] * (10 - count)) == []


def test_window_of_a_moment_is_not_compared():
    edges = [Edge(10.0 + 0.01 * n, n, sensor_w=1.0) for n in range(1, 5)]
    assert list(find_implausible(edges, 10.0, 100.0)) == []


def test_reading_has_these_faults():
    edges = make_edges([2000.0] * 12)
    reading = read_edges(edges, 10.0, 11.25, PERIOD_S)
    assert reading.faults == ("implausible: 2000 W, although the power limit is 700 W",)


def test_changed_limit_is_reported_once():
    edges = make_edges([100.0] * 4) + make_edges([100.0] * 4, limit_w=500.0)
    assert find_limit(edges) == 700.0
    assert find_changed_limit(edges, 700.0) == ["limit changed: 700 W before, 500 W now"]
    assert find_changed_limit(edges[:4], 690.0) == []


def test_unchecked_is_what_no_edge_tells():
    assert list_unchecked(()) == METER_CHECKS
    assert list_unchecked(make_edges([1.0])) == ("other load", "second sensor")
    known = Edge(1.0, 1.0, sensor_w=1.0, limit_w=1.0, busy_share=0.0)
    assert list_unchecked([Edge(0.5, 0.5), known]) == ()
