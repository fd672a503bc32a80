"""Edges of a counter: constant power is exact, and every fault is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.meters.nvml import THROTTLES, Edge, format_edge, parse_edge, read_edges

PERIOD_S = 0.1


def make_edges(power_w=400.0, count=12, start_s=10.05):
    times = [start_s + i * PERIOD_S for i in range(count)]
    return [Edge(time_s, power_w * time_s, 0.001) for time_s in times]


def names(reading):
    return [fault.partition(":")[0] for fault in reading.faults]


numbers = st.floats(0, 1e9)
pids = st.none() | st.lists(st.integers(1, 4_000_000)).map(tuple)


optional = st.none() | numbers


@given(
    st.builds(
        Edge,
        *[numbers] * 5,
        st.integers(0, 1 << 40),
        *[optional] * 3,
        pids=pids,
    )
)
def test_edge_round_trip(edge):
    assert parse_edge(format_edge(edge)) == edge


@pytest.mark.parametrize("line", ["", "beat 1.0", "edge 1 2", "fringe 1 2 3 4 5 6 -"])
def test_other_lines_are_refused(line):
    with pytest.raises(ValueError, match=r"\S"):
        parse_edge(line)


@given(st.floats(50, 700), st.floats(0, 0.0999), st.floats(0.6, 3.0))
def test_constant_power_is_exact_at_any_phase(power_w, phase_s, window_s):
    """Reading the counter at the ends of the window would be wrong by up to one interval each."""
    edges = make_edges(power_w, 60, 9.0 + phase_s)
    reading = read_edges(edges, 10.0, 10.0 + window_s, PERIOD_S)
    assert reading.energy_j == pytest.approx(power_w * window_s, rel=1e-6)
    assert reading.duration_s == pytest.approx(window_s)
    assert reading.faults == ()


def test_edges_outside_the_window_are_ignored():
    inside = make_edges(300.0)
    outside = [Edge(9.99, 0.0, 0.001), *inside, Edge(11.3, 9e9, 0.001)]
    assert read_edges(outside, 10.0, 11.25, PERIOD_S) == read_edges(inside, 10.0, 11.25, PERIOD_S)


def test_edge_that_may_precede_the_window_is_ignored():
    early = Edge(10.01, 0.0, 0.02)
    edges = make_edges(300.0)
    assert read_edges([early, *edges], 10.0, 11.25, PERIOD_S).energy_j == pytest.approx(375.0)


def test_power_is_not_computed_from_a_late_edge():
    edges = make_edges(300.0)
    edges[-1] = edges[-1]._replace(time_s=edges[-1].time_s + 0.04, late_s=0.041)
    assert read_edges(edges, 10.0, 11.25, PERIOD_S).energy_j == pytest.approx(375.0)


def test_edge_time_is_halfway_between_two_polls():
    edges = make_edges(300.0)
    true_s = edges[0].estimated_s
    edges[0] = edges[0]._replace(time_s=true_s + 0.005, late_s=0.01)
    assert read_edges(edges, 10.0, 11.25, PERIOD_S).energy_j == pytest.approx(375.0)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_edges_are_too_short(count):
    reading = read_edges(make_edges(count=count), 10.0, 10.3, PERIOD_S)
    assert names(reading) == ["too short"]


def test_decreasing_counter_is_a_reset():
    edges = make_edges()
    edges[6:] = [edge._replace(energy_j=edge.energy_j - 4000) for edge in edges[6:]]
    reading = read_edges(edges, 10.0, 11.25, PERIOD_S)
    assert names(reading) == ["reset"]
    assert reading.energy_j == 0


@pytest.mark.parametrize("kept", [slice(0, 0), slice(0, 4), slice(8, 12)])
def test_constant_counter_is_stuck(kept):
    assert names(read_edges(make_edges()[kept], 10.0, 11.25, PERIOD_S)) == ["stuck"]


def test_missed_edges_are_a_gap():
    edges = make_edges()
    assert names(read_edges(edges[:3] + edges[9:], 10.0, 11.25, PERIOD_S)) == ["gap"]


def test_slower_counter_than_expected_is_not_a_gap():
    edges = [Edge(10.0 + i * 0.7, 100.0 * i, 0.001) for i in range(1, 14)]
    assert read_edges(edges, 10.0, 19.5, PERIOD_S).faults == ()


@pytest.mark.parametrize("bit", THROTTLES)
def test_slowdowns_are_named(bit):
    edges = make_edges()
    edges[5] = edges[5]._replace(throttle_bits=bit | 0x4)
    reading = read_edges(edges, 10.0, 11.25, PERIOD_S)
    assert reading.faults == (f"throttled: {THROTTLES[bit]}",)


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x2, 0x4])
def test_idling_and_the_power_limit_are_not_faults(bits):
    edges = [edge._replace(throttle_bits=bits) for edge in make_edges()]
    assert read_edges(edges, 10.0, 11.25, PERIOD_S).faults == ()
