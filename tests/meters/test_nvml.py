"""The NVML meter: edges and what cannot be true, the contract, other processes, detection."""

import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import VirtualClock, VirtualContract, VirtualPoller

import fake_pynvml
from joulecast.meters import detect_meters, make_meter
from joulecast.meters.base import METER_CHECKS, UnavailableError
from joulecast.meters.nvml import (
    LIMIT_FACTOR,
    THROTTLES,
    Edge,
    Gpu,
    NvmlMeter,
    detect_nvml,
    find_changed_limit,
    find_implausible,
    find_limit,
    find_other_processes,
    format_edge,
    list_unchecked,
    parse_edge,
    read_edges,
)
from joulecast.system.errors import InputError, MeasurementError, MissingError


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    return fake_pynvml


class TestNvmlMeter(VirtualContract):
    def make_meter(self):
        return NvmlMeter("0", now=self.clock.now, start=lambda gpu: VirtualPoller(self.clock))

    def test_power_of_the_gpu_is_read(self):
        with self.make_meter() as meter:
            reading = self.read(meter, 1.0)
            assert reading.energy_j == pytest.approx(400.0 * meter.window_s, rel=1e-6)
            assert len(meter.edges) == round(meter.window_s / meter.update_interval_s)

    def test_everything_is_checked_where_the_gpu_tells_all(self):
        with self.make_meter() as meter:
            reading = self.read(meter)
        assert (reading.unchecked, reading.busy_share) == ((), 1.0)


def read_window(change, windows=1, source="counter", **options):
    """Return the last of some windows of 1 s; ``change(poller)`` is called before it."""
    clock = VirtualClock()
    poller = VirtualPoller(clock, source=source)
    with NvmlMeter(now=clock.now, start=lambda gpu: poller, **options) as meter:
        for number in range(1, windows + 1):
            if number == windows:
                change(poller)
            meter.begin()
            clock.sleep(1.0)
            reading = meter.end()
    return reading


def set_values(**values):
    return lambda poller: [setattr(poller, name, value) for name, value in values.items()]


def test_unknown_values_are_unchecked():
    unknown = set_values(sensor_w=None, limit_w=None, busy_share=None)
    reading = read_window(unknown)
    assert reading.faults == ()
    assert set(reading.unchecked) == set(METER_CHECKS)
    assert reading.busy_share is None


def test_integral_of_the_sensor_has_no_second_sensor():
    assert read_window(set_values(), source="sensor").unchecked == ("second sensor",)


@pytest.mark.parametrize(("windows", "limit_w"), [(2, None), (1, 700.0)])
def test_power_limit_is_read_in_every_window(windows, limit_w):
    lowered = set_values(limit_w=500.0)
    reading = read_window(lowered, windows, limit_w=limit_w)
    assert reading.faults == ("limit changed: 700 W before, 500 W now",)


def test_limit_is_remembered_when_the_meter_is_made(nvml, monkeypatch):
    meter = make_meter("nvml:0")
    monkeypatch.setattr(nvml, "nvmlDeviceGetEnforcedPowerLimit", lambda handle: 300_000)
    assert meter._limit_w == 700.0


def test_counter_that_jumps_is_implausible():
    def jump(poller):
        poller.clock.hooks.append(lambda: jump_once(poller))

    def jump_once(poller):
        if poller.clock.now() >= 1000.5 and poller.energy_j < 2000:
            poller.energy_j += 1600.0

    fault = read_window(jump).faults[0]
    assert fault.startswith("implausible: ")
    assert fault.endswith("although the power limit is 700 W")


def test_counter_and_sensor_must_agree():
    (fault,) = read_window(set_values(sensor_w=80.0)).faults
    assert fault == "implausible: 400 W by the counter, 80 W by the power sensor"


class ScriptedPoller:
    """A poller that yields given lines and ends."""

    def __init__(self, *lines):
        self.lines = lines

    def __iter__(self):
        return iter(self.lines)

    def stop(self):
        self.lines = ()


class HeldPoller(ScriptedPoller):
    """A poller whose last line comes when it is stopped."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.stopped = threading.Event()

    def __iter__(self):
        yield from self.lines
        self.stopped.wait()

    def stop(self):
        self.stopped.set()


def test_poller_that_cannot_start_is_quoted():
    meter = NvmlMeter(start=lambda gpu: ScriptedPoller("Traceback", "ImportError: no pynvml"))
    with pytest.raises(MissingError, match="ImportError: no pynvml"):
        meter.open()


def test_error_line_of_the_poller_is_quoted():
    meter = NvmlMeter(start=lambda gpu: ScriptedPoller("error the GPU is on fire; leave"))
    with pytest.raises(UnavailableError, match=r"\(the GPU is on fire; leave\)"):
        meter.open()


def test_poller_without_output_is_unavailable():
    meter = NvmlMeter(start=lambda gpu: HeldPoller("hm"), limit_s=0.0)
    with pytest.raises(MissingError, match="no answer in 0 s"):
        meter.open()


def test_poller_that_stops_reporting_is_an_error():
    clock = VirtualClock()
    with NvmlMeter(now=clock.now, start=lambda gpu: HeldPoller("ready 0.1 counter")) as meter:
        meter.begin()
        meter._limit_s = 0.0
        with pytest.raises(MeasurementError, match="not responded"):
            meter.end()


def test_ended_poller_fails_every_later_window():
    clock = VirtualClock()
    poller = VirtualPoller(clock)
    meter = NvmlMeter(now=clock.now, start=lambda gpu: poller)
    with meter:
        meter.begin()
        poller.write("error NVML failed (GPU is lost)")
        poller.lines.put(None)
        clock.time_s += 1.0
        with pytest.raises(MeasurementError, match="GPU is lost"):
            meter.end()
        with pytest.raises(MeasurementError, match="open it again"):
            meter.begin()


# ---------------------------------------------------------------------------------------------
# Other programs


def make_process(root, pid, parent, name):
    folder = root / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 0\n")
    (folder / "comm").write_text(f"{name}\n")


@pytest.fixture
def processes(tmp_path):
    make_process(tmp_path, 10, 1, "shell")
    make_process(tmp_path, 20, 10, "ours")
    make_process(tmp_path, 21, 20, "odd) name (x")
    make_process(tmp_path, 22, 21, "grandchild")
    make_process(tmp_path, 30, 10, "theirs")
    return tmp_path


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((), []),
        ((20,), []),
        ((20, 21, 22), []),
        ((20, 30), ["pid 30 (theirs)"]),
        ((22, 30, 99), ["pid 30 (theirs)", "pid 99"]),
        ((30, 99), []),  # none is ours: pids of another namespace, not to be believed
    ],
)
def test_find_other_processes_ignores_descendants(processes, pids, others):
    edges = (Edge(1.0, 1.0, pids=pids), Edge(1.1, 2.0, pids=None))
    assert find_other_processes(edges, 20, processes) == others


def test_other_processes_are_a_fault(processes):
    make_process(processes, os.getpid(), 1, "test")
    clock = VirtualClock()
    poller = VirtualPoller(clock)
    with NvmlMeter(now=clock.now, start=lambda gpu: poller, processes=processes) as meter:
        meter.begin()
        clock.sleep(0.5)
        poller.write(format_edge(Edge(clock.now() - 0.001, 1200.0, pids=(os.getpid(), 30))))
        clock.sleep(0.5)
        assert "other load: pid 30 (theirs)" in meter.end().faults


# ---------------------------------------------------------------------------------------------
# Asking for it


def test_detect_lists_every_gpu(nvml):
    rows = detect_nvml()
    assert [row.name for row in rows] == ["nvml:0", "nvml:1"]
    for row in rows:
        assert row.available
        assert row.covers == "gpu"
        assert row.reason == "NVIDIA H200, energy counter"
        assert (row.update_interval_s, row.resolution_j, row.idle_power_w) == (0.1, 0.001, 81.5)
        assert row.advice == ""


def test_gpu_without_a_counter_integrates_power(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", nvml.fail)
    assert "power is integrated" in detect_nvml()[0].reason


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_detect_explains_nvml_errors(nvml, monkeypatch, broken):
    monkeypatch.setattr(nvml, broken, nvml.fail)
    (row,) = detect_nvml()
    assert not row.available
    assert "Not Supported" in row.reason
    assert "nvidia-smi" in row.advice


def test_detect_without_gpus(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "UUIDS", [])
    (row,) = detect_nvml()
    assert (row.name, row.available, row.reason) == ("nvml", False, "NVML lists no GPU")


def test_detect_without_nvidia_ml_py(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    row = next(row for row in detect_meters() if row.name == "nvml")
    assert "nvidia-ml-py" in row.advice


@pytest.mark.parametrize("meter", ["nvml", "auto", "nvml:1", "nvml:01", "nvml:GPU-1a2b3c4d-0000"])
@pytest.mark.parametrize("gpu", ["1", fake_pynvml.UUIDS[1]])
def test_meter_reads_the_gpu_of_the_load(nvml, monkeypatch, meter, gpu):
    monkeypatch.setitem(nvml.MIGS, "GPU-1a2b3c4d-0000", 1)
    assert make_meter(meter, on="cuda:0", gpu=gpu).instrument == nvml.UUIDS[1]


def test_meter_reads_the_first_gpu_of_another_load(nvml):
    assert make_meter("nvml").instrument == nvml.UUIDS[0]
    assert make_meter("nvml:1", on="cpu").instrument == nvml.UUIDS[1]


@pytest.mark.parametrize("meter", ["nvml:1", f"nvml:{fake_pynvml.UUIDS[1]}", "nvml:1+modelled"])
def test_meter_of_another_gpu_than_that_of_the_load_is_refused(nvml, meter):
    with pytest.raises(InputError, match=r"does not read the GPU .* --on cuda:0: use .* nvml"):
        make_meter(meter, on="cuda:0", gpu=nvml.UUIDS[0])


def test_gpus_are_added_up_by_their_uuid(nvml):
    both = make_meter("nvml:0+nvml:1", on="cuda:0", gpu=nvml.UUIDS[0])
    assert (both.name, both.covers) == ("nvml:0+nvml:1", "gpu+gpu")
    for twice in ("nvml:0+nvml:00", "nvml:0+nvml", f"nvml:1+nvml:{nvml.UUIDS[1]}"):
        with pytest.raises(InputError, match="twice"):
            make_meter(twice, on="cpu", gpu=None)


def test_gpu_of_the_load_must_be_known(nvml):
    with pytest.raises(InputError, match="find_gpu"):
        make_meter("nvml", on="cuda:1")


@pytest.mark.parametrize(
    ("spec", "error"),
    [("nvml:7", MissingError), ("nvml:x", InputError), ("nvml:\u00b2", InputError)],
)
def test_unknown_gpu_is_refused(nvml, spec, error):
    with pytest.raises(error, match=spec.partition(":")[2]):
        make_meter(spec)


def test_optional_values_may_be_missing(nvml, monkeypatch):
    gpu = Gpu(nvml, "0")
    assert (gpu.temperature_c(), gpu.clock_hz(), gpu.throttle_bits()) == (41.0, 1.98e9, 4)
    assert (gpu.sensor_power_w(), gpu.limit_w(), gpu.busy_share()) == (81.5, 700.0, 0.3)
    assert gpu.pids() == ()
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", nvml.fail)
    assert gpu.throttle_bits() == 4
    for call in ("Temperature", "ClockInfo", "CurrentClocksThrottleReasons"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{call}", nvml.fail)
    for call in ("PowerUsage", "EnforcedPowerLimit", "UtilizationRates"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{call}", nvml.fail)
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", nvml.fail)
    assert (gpu.temperature_c(), gpu.clock_hz(), gpu.throttle_bits()) == (0.0, 0.0, 0)
    assert gpu.pids() is None
    assert (gpu.sensor_power_w(), gpu.limit_w(), gpu.busy_share()) == (None, None, None)


PERIOD_S = 0.1


def make_edges(power_w=400.0, count=12, start_s=10.05):
    times = [start_s + i * PERIOD_S for i in range(count)]
    return [Edge(time_s, power_w * time_s, 0.001) for time_s in times]


def name_faults(reading):
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
    assert name_faults(reading) == ["too short"]


def test_decreasing_counter_is_a_reset():
    edges = make_edges()
    edges[6:] = [edge._replace(energy_j=edge.energy_j - 4000) for edge in edges[6:]]
    reading = read_edges(edges, 10.0, 11.25, PERIOD_S)
    assert name_faults(reading) == ["reset"]
    assert reading.energy_j == 0


@pytest.mark.parametrize("kept", [slice(0, 0), slice(0, 4), slice(8, 12)])
def test_constant_counter_is_stuck(kept):
    assert name_faults(read_edges(make_edges()[kept], 10.0, 11.25, PERIOD_S)) == ["stuck"]


def test_missed_edges_are_a_gap():
    edges = make_edges()
    assert name_faults(read_edges(edges[:3] + edges[9:], 10.0, 11.25, PERIOD_S)) == ["gap"]


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


def make_checked_edges(powers_w, sensors_w=None, limit_w=700.0, late_s=0.001):
    """Return one edge after each tenth of a second of some power, from 10 s on."""
    edges, energy_j = [], 500.0
    for number, power_w in enumerate(powers_w):
        energy_j += PERIOD_S * power_w
        sensor_w = None if sensors_w is None else sensors_w[number]
        time_s = 10.0 + PERIOD_S * (number + 1)
        edges.append(Edge(time_s, energy_j, late_s, sensor_w=sensor_w, limit_w=limit_w))
    return edges


def check(powers_w, power_w=None, **options):
    edges = make_checked_edges(powers_w, **options)
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
    edges = make_checked_edges([650.0] * 10)
    merged = [*edges[:3], edges[8]._replace(late_s=0.5), edges[9]]
    assert list(find_implausible(merged, 10.0, 650.0)) == []


def test_an_update_after_one_that_was_seen_late_is_no_jump():
    edges = make_checked_edges([700.0] * 10)
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
    edges = make_checked_edges([2000.0] * 12)
    reading = read_edges(edges, 10.0, 11.25, PERIOD_S)
    assert reading.faults == ("implausible: 2000 W, although the power limit is 700 W",)


def test_changed_limit_is_reported_once():
    edges = make_checked_edges([100.0] * 4) + make_checked_edges([100.0] * 4, limit_w=500.0)
    assert find_limit(edges) == 700.0
    assert find_changed_limit(edges, 700.0) == ["limit changed: 700 W before, 500 W now"]
    assert find_changed_limit(edges[:4], 690.0) == []


def test_unchecked_is_what_no_edge_tells():
    assert list_unchecked(()) == METER_CHECKS
    assert list_unchecked(make_checked_edges([1.0])) == ("other load", "second sensor")
    known = Edge(1.0, 1.0, sensor_w=1.0, limit_w=1.0, busy_share=0.0)
    assert list_unchecked([Edge(0.5, 0.5), known]) == ()
