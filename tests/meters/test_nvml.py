"""The NVML meter: the contract, edges and what cannot be true, its poller, detection."""

import math
import os
import random
import select
import shutil
import subprocess
import sys
from collections import deque
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import (
    GpuPoller,
    VirtualClock,
    VirtualContract,
    VirtualPoller,
    read_through,
)
from virtual_sysfs import write_files

import fake_pynvml
from joulecast.families import make_family
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters import detect_meter, make_meter
from joulecast.meters.base import METER_CHECKS
from joulecast.meters.nvml import (
    LIMIT_FACTOR,
    THROTTLES,
    Edge,
    Gpu,
    GpuSource,
    NvmlMeter,
    find_other_processes,
    read_edges,
)
from joulecast.meters.pollers import PollerProcess, serve_requests
from joulecast.records import Device, Setup, Trial
from joulecast.system.errors import ContaminatedError, InputError, MeasurementError, MissingError

PERIOD_S = 0.1


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    return fake_pynvml


class TestNvmlMeter(VirtualContract):
    power_w = 400.0

    def make(self):
        return GpuPoller(self.clock).drive(NvmlMeter())

    def test_all_is_checked(self):
        reading = self.read_through(1.0)
        assert (reading.unchecked, reading.busy_share) == ((), 1.0)


def read_window(windows=1, source="counter", changes=None, **options):
    """Return the last of some windows of 1 s, before which the poller shows other values."""
    clock = VirtualClock()
    poller = GpuPoller(clock, source=source)
    with poller.drive(NvmlMeter(**options)) as meter:
        for _ in range(windows - 1):
            read_through(clock, meter, 1.0)
        poller.shown |= changes or {}
        return read_through(clock, meter, 1.0)


def test_unknown_values_are_unchecked():
    reading = read_window(changes={"sensor_w": None, "limit_w": None, "busy_share": None})
    assert (reading.faults, reading.busy_share) == ((), None)
    assert set(reading.unchecked) == set(METER_CHECKS)
    assert read_window(source="sensor").unchecked == ("second sensor",)


@pytest.mark.parametrize(("windows", "limit_w"), [(2, None), (1, 700.0)])
def test_power_limit_is_read_in_every_window(windows, limit_w):
    reading = read_window(windows, changes={"limit_w": 500.0}, limit_w=limit_w)
    assert reading.faults == ("limit changed: 700 W before, 500 W now",)
    assert read_window(windows, changes={"limit_w": 690.0}, limit_w=limit_w).faults == ()


def test_poller_that_no_longer_answers_is_quoted_in_every_later_window():
    clock = VirtualClock()
    poller = GpuPoller(clock)
    with poller.drive(NvmlMeter()) as meter:
        meter.begin()
        poller.failure = "has ended (GPU is lost)"
        for call in (meter.end, meter.begin):
            with pytest.raises(MeasurementError, match=r"nvml has ended \(GPU is lost\); check"):
                call()


# -- other programs -----------------------------------------------------------------------------


def make_process(root, pid, parent, name):
    write_files(root / str(pid), stat=f"{pid} ({name}) S {parent} {pid} 0", comm=name)


@pytest.fixture
def processes(tmp_path):
    for pid, parent, name in (
        *((10, 1, "shell"), (20, 10, "ours"), (21, 20, "odd) name (x")),
        *((22, 21, "grandchild"), (30, 10, "theirs")),
    ):
        make_process(tmp_path, pid, parent, name)
    return tmp_path


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((), []),
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
    reading = read_window(changes={"pids": (os.getpid(), 30)}, processes=processes)
    assert "other load: pid 30 (theirs)" in reading.faults


# -- edges --------------------------------------------------------------------------------------


def make_edges(powers_w=12 * [400.0], sensors_w=None, limit_w=None, start_s=10.05, late_s=0.001):
    """Return one edge after each tenth of a second of some power."""
    edges, energy_j = [], 500.0
    for number, power_w in enumerate(powers_w):
        energy_j += PERIOD_S * power_w
        sensor_w = None if sensors_w is None else sensors_w[number]
        time_s = start_s + number * PERIOD_S
        edges.append(Edge(time_s, energy_j, late_s, sensor_w=sensor_w, limit_w=limit_w))
    return edges


def read(edges, end_s=11.25):
    return read_edges(edges, 10.0, end_s, PERIOD_S)


def name_faults(edges, end_s=11.25):
    return [fault.partition(":")[0] for fault in read(edges, end_s).faults]


@given(st.floats(50, 700), st.floats(0, 0.0999), st.floats(0.6, 3.0))
def test_constant_power_is_exact_at_any_phase(power_w, phase_s, window_s):
    """Reading the counter at the ends of the window would be wrong by up to one interval each."""
    reading = read(make_edges(60 * [power_w], start_s=9.0 + phase_s), 10.0 + window_s)
    assert reading.energy_j == pytest.approx(power_w * window_s, rel=1e-6)
    assert reading.duration_s == pytest.approx(window_s)
    assert reading.faults == ()


def test_only_clear_edges_inside_the_window_count():
    edges = make_edges()
    plain = read(edges)
    assert plain.energy_j == pytest.approx(500.0)
    assert read([Edge(9.99, 0.0, 0.001), *edges, Edge(11.3, 9e9, 0.001)]) == plain
    may_precede = Edge(10.01, 0.0, 0.02)
    assert read([may_precede, *edges]) == plain
    late = edges[-1]._replace(time_s=edges[-1].time_s + 0.04, late_s=0.041)
    assert read([*edges[:-1], late]).energy_j == pytest.approx(500.0)
    halfway = edges[0]._replace(time_s=edges[0].estimated_s + 0.005, late_s=0.01)
    assert read([halfway, *edges[1:]]).energy_j == pytest.approx(500.0)


EDGES = make_edges()
FALLEN = [*EDGES[:6], *(edge._replace(energy_j=edge.energy_j - 4000) for edge in EDGES[6:])]


@pytest.mark.parametrize(
    ("edges", "end_s", "faults"),
    [
        ([], 10.3, ["too short"]),
        (EDGES[:1], 10.3, ["too short"]),
        (EDGES[:2], 10.3, ["too short"]),
        (FALLEN, 11.25, ["reset"]),
        ([], 11.25, ["stuck"]),
        (EDGES[:4], 11.25, ["stuck"]),
        (EDGES[8:], 11.25, ["stuck"]),
        (EDGES[:3] + EDGES[9:], 11.25, ["gap"]),
        # A counter that is slower than expected.
        ([Edge(10.0 + i * 0.7, 100.0 * i, 0.001) for i in range(1, 14)], 19.5, []),
    ],
)
def test_counter_that_misses_updates_or_falls_is_a_fault(edges, end_s, faults):
    assert name_faults(edges, end_s) == faults
    assert faults != ["reset"] or read(edges, end_s).energy_j == 0


@pytest.mark.parametrize("bits", [*THROTTLES, 0x0, 0x1, 0x2])
def test_slowdowns_are_named_but_not_idling_and_the_power_limit(bits):
    edges = make_edges()
    edges[5] = edges[5]._replace(throttle_bits=bits | 0x4)
    named = (f"throttled: {THROTTLES[bits]}",) if bits in THROTTLES else ()
    assert read(edges).faults == named


def check(powers_w, sensors_w=None, limit_w=700.0):
    """Return the faults of a window with the first edge after a tenth of a second."""
    edges = make_edges(powers_w, sensors_w, limit_w, start_s=10.1)
    return list(read(edges, 10.15 + PERIOD_S * len(powers_w)).faults)


def average_last_second(before_w, powers_w):
    """Return what a sensor shows that averages over the last second."""
    past = [*[before_w] * 10, *powers_w]
    return [sum(past[i - 10 : i]) / 10 for i in range(11, len(past) + 1)]


@pytest.mark.parametrize("power_w", [1.01 * LIMIT_FACTOR * 700.0, 2500.0])
def test_power_above_the_limit_is_implausible(power_w):
    expected = f"implausible: {power_w:.0f} W, although the power limit is 700 W"
    assert check([power_w] * 10) == [expected]
    assert check([power_w] * 10, limit_w=None) == []
    assert check([761.2] * 10) == [], "the highest power that was measured on H200s of 700 W"


def test_counter_that_jumps_is_implausible_although_the_mean_is_not():
    (fault,) = check([200.0] * 9 + [2000.0])
    assert fault.startswith("implausible: the counter rose by 200 J in 0.1 s, although")


def test_updates_that_were_seen_late_are_no_jump():
    edges = make_edges([650.0] * 10, limit_w=700.0)
    assert name_faults([*edges[:3], edges[8]._replace(late_s=0.5), edges[9]], 11.05) == ["gap"]
    edges[4] = edges[4]._replace(time_s=edges[5].time_s - 0.01, late_s=0.09)
    assert name_faults(edges, 11.05) == []


@given(st.floats(60.0, 750.0), st.floats(60.0, 750.0), st.integers(6, 30))
def test_sensor_that_averages_over_a_second_is_no_contradiction(before_w, power_w, count):
    powers_w = [power_w] * count
    assert check(powers_w, average_last_second(before_w, powers_w)) == []


@given(st.lists(st.sampled_from([120.0, 700.0]), min_size=6, max_size=30), st.floats(0.5, 1.9))
def test_sensor_may_differ_by_less_than_a_factor_of_two(powers_w, factor):
    mean_w = sum(powers_w[1:]) / len(powers_w[1:])
    assert check(powers_w, [factor * mean_w] * len(powers_w)) == []


@pytest.mark.parametrize(
    ("power_w", "sensors_w", "is_implausible"),
    [
        (500.0, [150.0] * 6, True),
        (500.0, [150.0] * 30, True),
        # In a short window, the sensor may show what was before it.
        (100.0, [400.0] * 6, False),
        (100.0, [400.0] * 20, True),
        # Few samples are not compared.
        *((500.0, [10.0] * count + [None] * (10 - count), False) for count in range(3)),
    ],
)
def test_counter_and_sensor_must_agree(power_w, sensors_w, is_implausible):
    shown = f"{power_w:.0f} W by the counter, {sensors_w[-1] or 0:.0f} W by the power sensor"
    found = check([power_w] * len(sensors_w), sensors_w)
    assert found == ([f"implausible: {shown}"] if is_implausible else [])


def test_window_of_a_moment_is_not_compared():
    edges = [Edge(10.0 + 0.01 * n, n, sensor_w=1.0) for n in range(1, 5)]
    assert read(edges, 10.05).faults == ()


# -- the poller ---------------------------------------------------------------------------------


class PolledGpu:
    """A GPU on a virtual clock that advances by one poll at a time."""

    def __init__(self, power_w=300.0, phase_s=0.0, has_counter=True):
        self.time_s, self.shown_w = 50.0, power_w
        self.phase_s, self.has_counter = phase_s, has_counter
        self.listings = 0
        self.source = GpuSource(self, lambda: self.time_s)

    def energy_j(self):
        return round((self.time_s - self.phase_s) / 0.1 - 0.5) * 0.1 * self.shown_w

    def power_w(self):
        return self.shown_w

    def read_state(self):
        return (4, 301.0, 700.0, 0.9)

    def pids(self):
        self.listings += 1
        return [7]

    def poll(self, duration_s):
        end_s, edges = self.time_s + duration_s, []
        while self.time_s < end_s:
            self.time_s += self.source.poll_s
            edges.append(self.source.poll())
        return [edge for edge in edges if edge is not None]


@given(st.floats(50, 700), st.floats(0, 0.0999), st.booleans())
def test_polled_edges_give_the_power_with_and_without_a_counter(power_w, phase_s, has_counter):
    gpu = PolledGpu(power_w, phase_s, has_counter)
    shown = gpu.source.name, gpu.source.update_interval_s
    assert shown == (("counter", 0.1) if has_counter else ("sensor", 0.02))
    reading = read_edges(gpu.poll(1.5), 50.1, 51.4, 0.1)
    assert reading.energy_j == pytest.approx(power_w * 1.3, rel=0.01)
    assert [fault for fault in reading.faults if "sensor" not in fault] == []


def test_edges_have_the_state_of_the_gpu_and_how_late_they_were_seen():
    gpu = PolledGpu()
    edges = gpu.poll(1.0)
    assert {edge[3:7] for edge in edges} == {(4, 301.0, 700.0, 0.9)}
    assert all(edge.late_s == pytest.approx(0.001) for edge in edges)
    assert all(b.time_s - a.time_s == pytest.approx(0.1) for a, b in pairwise(edges))
    assert [edge.pids for edge in edges].count([7]) == gpu.listings == 2


def test_events_since_the_last_begin_are_kept_and_sent_in_parts(monkeypatch):
    monkeypatch.setattr("joulecast.meters.pollers._CHUNK_EVENTS", 2)
    requests = ["1 open", "", "2 begin", "", "3 begin", "", "", "", "4 end", "5 end", "6 end", ""]
    lines, source, received = [], PolledGpu(has_counter=False).source, iter([*requests, None])
    events = [(number,) for number in range(len(requests))]
    events[6] = None
    source.poll = partial(next, iter(events))
    serve_requests(source, lambda seconds: next(received), lines.append)
    assert lines == [
        *('answer 1 [0.02, "sensor"]', "answer 2 null", "answer 3 null"),
        *("answer 4 [[5], [7]]", "answer 5 [[8]]", "answer 6 []"),
    ]


@pytest.fixture
def fake_on_path(tmp_path, monkeypatch):
    """Let the process of a poller import the fake pynvml."""
    shutil.copy(Path(fake_pynvml.__file__), tmp_path / "pynvml.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_process_reports_the_edges_of_a_window(fake_on_path):
    with NvmlMeter("1") as meter:
        meter.begin()
        edges = [Edge(*fields) for fields in meter._ask("end")]
        assert meter._ask("end") == []
    assert edges and all(b.energy_j > a.energy_j for a, b in pairwise(edges))
    with pytest.raises(MissingError, match=r"NVML has no GPU 9 .*check that nvidia-smi"):
        NvmlMeter("9").open()


def test_process_that_is_slow_loses_an_answer_and_one_that_is_killed_ends(fake_on_path):
    poller = PollerProcess("joulecast.meters.nvml", "0")
    with pytest.raises(MeasurementError, match="has not responded for 0 s"):
        poller.ask("begin", 0.0)
    assert poller.ask("open", 60.0) == [0.1, "counter"]
    poller._process.kill()
    for _ in range(2):
        with pytest.raises(MeasurementError, match="has ended"):
            poller.ask("end", 60.0)
    poller.stop()


def test_error_of_a_process_is_quoted(fake_on_path):
    with (fake_on_path / "pynvml.py").open("a") as file:
        file.write("nvmlDeviceGetUtilizationRates = lambda handle: 1 / 0\n")
    with pytest.raises(MissingError, match=r"nvml has ended \(ZeroDivisionError"):
        NvmlMeter().open()


def test_message_of_a_library_is_quoted_and_does_not_prolong_the_wait(fake_on_path):
    with (fake_on_path / "pynvml.py").open("a") as file:
        file.write("import time\nwhile not print('no display', flush=True): time.sleep(0.05)\n")
    poller = PollerProcess("joulecast.meters.nvml", "0")
    # It takes a while to start.
    for _ in range(60):
        with pytest.raises(MeasurementError, match="has not responded for 1 s"):
            poller.ask("open", 1.0)
        if poller._last_line == "no display":
            break
    poller._process.kill()
    with pytest.raises(MeasurementError, match=r"has ended \(no display\)"):
        poller.ask("open", 60.0)
    poller.stop()


def test_process_imports_nothing_from_the_working_directory_and_misses_ctrl_c(
    fake_on_path, tmp_path_factory, monkeypatch
):
    folder = tmp_path_factory.mktemp("work")
    (folder / "select.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(folder)
    with NvmlMeter() as meter:
        pid = meter._poller._process.pid
        # Ctrl-C is sent to the processes of the session's foreground group.
        assert os.getsid(pid) == os.getpgid(pid) == pid


def test_process_of_a_poller_is_not_shared_after_a_fork(fake_on_path):
    with NvmlMeter() as meter:
        if not (child := os.fork()):
            try:
                meter.begin()
            except MeasurementError as error:
                os._exit("belongs to another process" in str(error))
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        meter.begin()
        assert meter.end().duration_s > 0


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyboardInterrupt, KeyboardInterrupt), (MeasurementError, MissingError)]
)
def test_poller_ends_if_the_meter_cannot_be_opened(error, raised):
    poller = Mock(ask=Mock(side_effect=error))
    meter = NvmlMeter()
    meter.make_poller = lambda module, gpu: poller
    with pytest.raises(raised):
        meter.open()
    poller.stop.assert_called_once_with()


def test_process_ends_with_its_parent(fake_on_path):
    """The parent is killed and cannot stop the process itself."""
    script = (
        "from joulecast.meters.pollers import PollerProcess\n"
        "poller = PollerProcess('joulecast.meters.nvml', '0')\n"
        "poller.ask('open', 60.0)\n"
        "print(poller._process.pid, flush=True)\n"
        "input()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, **pipes) as parent:
        poller = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    ended, _, _ = select.select([poller], [], [], 10.0)
    os.close(poller)
    assert ended == [poller]


# -- asking for it ------------------------------------------------------------------------------


def test_detect_lists_every_gpu(nvml, monkeypatch):
    rows = detect_meter("nvml")
    assert [row.name for row in rows] == ["nvml:0", "nvml:1"]
    for row in rows:
        assert (row.available, row.covers, row.advice) == (True, "gpu", "")
        assert row.reason == "NVIDIA H200, energy counter"
        assert (row.update_interval_s, row.resolution_j, row.idle_power_w) == (0.1, 0.001, 81.5)
    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", nvml.fail)
    assert "power is integrated" in detect_meter("nvml")[0].reason


@pytest.mark.parametrize(
    ("broken", "replacement", "reason"),
    [
        ("nvmlInit", fake_pynvml.fail, "Not Supported"),
        ("nvmlDeviceGetCount", fake_pynvml.fail, "Not Supported"),
        ("UUIDS", [], "NVML lists no GPU"),
    ],
)
def test_detect_explains_nvml_errors(nvml, monkeypatch, broken, replacement, reason):
    monkeypatch.setattr(nvml, broken, replacement)
    (row,) = detect_meter("nvml")
    assert (row.name, row.available, row.covers) == ("nvml", False, "gpu")
    assert reason in row.reason and "nvidia-smi" in row.advice
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in detect_meter("nvml")[0].advice


@pytest.mark.parametrize("meter", ["nvml", "auto", "nvml:1", "nvml:01", "nvml:GPU-1a2b3c4d-0000"])
@pytest.mark.parametrize("gpu", ["1", fake_pynvml.UUIDS[1]])
def test_meter_reads_the_gpu_of_the_load_or_the_first_one(nvml, monkeypatch, meter, gpu):
    monkeypatch.setitem(nvml.MIGS, "GPU-1a2b3c4d-0000", 1)
    assert make_meter(meter, on="cuda:0", gpu=gpu).instrument == nvml.UUIDS[1]
    assert make_meter("nvml").instrument == nvml.UUIDS[0]
    assert make_meter("nvml:1", on="cpu").instrument == nvml.UUIDS[1]
    assert make_meter("nvml")._limit_w == 700.0


FIRST, OTHER = fake_pynvml.UUIDS


@pytest.mark.parametrize(
    ("meter", "on", "gpu", "error", "named"),
    [
        ("nvml:1", "cuda:0", FIRST, InputError, "does not read the GPU .*cuda:0"),
        (f"nvml:{OTHER}", "cuda:0", FIRST, InputError, "does not read the GPU .*cuda:0"),
        ("nvml:1+modelled", "cuda:0", FIRST, InputError, "does not read the GPU .*cuda:0"),
        ("nvml", "cuda:1", None, InputError, "find_gpu"),
        ("nvml:0+nvml:00", "cpu", None, InputError, "twice"),
        ("nvml:0+nvml", "cpu", None, InputError, "twice"),
        (f"nvml:1+nvml:{OTHER}", "cpu", None, InputError, "twice"),
        ("nvml:7", "cpu", None, MissingError, "7"),
        ("nvml:x", "cpu", None, InputError, "x"),
        ("nvml:\u00b2", "cpu", None, InputError, "\u00b2"),
    ],
)
def test_wrong_gpu_is_refused(nvml, meter, on, gpu, error, named):
    with pytest.raises(error, match=named):
        make_meter(meter, on=on, gpu=gpu)


def test_names_of_older_bindings_are_bytes(nvml, monkeypatch):
    uuid = nvml.UUIDS[0]
    monkeypatch.setattr(nvml, "NAMES", [b"NVIDIA H200"])
    monkeypatch.setattr(nvml, "UUIDS", [uuid.encode()])
    assert (Gpu(nvml, uuid).name, make_meter("nvml").instrument) == ("NVIDIA H200", uuid)


def test_optional_values_may_be_missing(nvml, monkeypatch):
    gpu = Gpu(nvml, "0")
    assert (gpu.read_state(), gpu.pids()) == ((4, 81.5, 700.0, 0.3), ())
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", nvml.fail)
    assert gpu.read_state()[0] == 4
    calls = ("CurrentClocksThrottleReasons", "PowerUsage", "EnforcedPowerLimit", "UtilizationRates")
    for call in (*calls, "ComputeRunningProcesses"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{call}", nvml.fail)
    assert (gpu.read_state(), gpu.pids()) == ((0, None, None, None), None)


# A measurer on a virtual GPU that behaves as H200s do: valid windows pass, wrong values do not

NETS = [Trial(make_family(name), Setup()) for name in ("lenet5", "cnn5", "har", "lstm")]
IDLE_W = 122.0


class VirtualGpu(VirtualPoller):
    """A GPU with its poller: its sensor and its utilisation are averages over the last second.

    The sensor is updated every 100 ms, and utilisation every second.

    Attributes:
        other_w: Power of a hidden program, which keeps the GPU busy for ``other_share``.
        distort: Changes what the counter shows.
    """

    name, modes, device = "virtual-1", ("eager",), Device("virtual")
    POLL_S = 0.02

    def __init__(self, powers_w, source="counter", step_s=0.02):
        super().__init__(VirtualClock(step_s=self.POLL_S), 0.1, source)
        self.powers_w, self.step_s, self.source = powers_w, step_s, source
        self.other_w = self.other_share = 0.0
        self.load_w = None
        self.distort = lambda energy_j: energy_j
        self.energy_j, self.sensor_w, self.busy_share = 1e6, IDLE_W, 0.0
        self.updated_s = self.next_s = self.sensed_s = self.counted_s = self.clock.now()
        self.powers, self.shares = (deque(maxlen=round(1 / self.POLL_S)) for _ in range(2))
        self.rng = random.Random(1)

    # The runtime and its step

    def prepare(self, trial):
        self.clock.sleep(0.3)
        self.trial = trial
        return self

    def run(self, count):
        self.load_w = self.powers_w[NETS.index(self.trial)]
        self.clock.sleep(count * self.step_s)
        self.load_w = None

    def wait(self):
        pass

    close = wait

    def peak_memory_bytes(self):
        return 0

    # The poller

    def update(self):
        now_s = self.clock.now()
        noise_w = self.rng.gauss(0.0, 2.0)
        power_w = (self.load_w or IDLE_W) + self.other_w + noise_w
        self.energy_j += (now_s - self.updated_s) * power_w
        self.updated_s = now_s
        self.powers.append(power_w)
        self.shares.append(1.0 if self.load_w else self.other_share)
        if now_s >= self.sensed_s + 0.1:
            self.sensed_s, self.sensor_w = now_s, fmean(self.powers)
        if now_s >= self.counted_s + 1.0:
            self.counted_s, self.busy_share = now_s, fmean(self.shares)
        if now_s >= self.next_s:
            self.next_s += 0.1 if self.source == "counter" else self.POLL_S
            shown = {"sensor_w": self.sensor_w, "limit_w": 700.0, "busy_share": self.busy_share}
            self.events.append(Edge(now_s, self.distort(self.energy_j), 0.001, **shown))


def measure_all(gpu, repeats=1):
    """Measure all nets, and then the idle GPU."""
    clock = MeasureClock(gpu.clock.now, gpu.clock.sleep, gpu.clock.now)
    with Measurer(gpu, gpu.drive(NvmlMeter()), clock=clock) as measurer:
        found = []
        for _ in range(repeats):
            found.extend(measurer.measure(trial) for trial in NETS)
            found.append(measurer.measure_idle())
    return found, measurer


@pytest.mark.parametrize("step_s", [0.002, 0.02, 0.7, 2.0])
@pytest.mark.parametrize("powers_w", [(650.0, 124.0, 755.0, 300.0), (123.0, 700.0, 121.0, 745.0)])
def test_valid_measurements_pass(powers_w, step_s):
    """Heavy and light loads in turn, at the power limit and hardly above idle power."""
    found, measurer = measure_all(VirtualGpu(powers_w, step_s=step_s), repeats=2)
    assert measurer.disturbances == {}
    for number, seen in enumerate(found):
        place = number % (len(NETS) + 1)
        true_w = powers_w[place] if place < len(NETS) else IDLE_W
        assert seen.energy_j / seen.duration_s == pytest.approx(true_w, rel=0.02)
        assert seen.unchecked == ()


def test_gpu_without_a_counter_passes_too():
    found, measurer = measure_all(VirtualGpu((400.0, 200.0, 600.0, 300.0), source="sensor"))
    assert measurer.disturbances == {}
    assert {seen.unchecked for seen in found} == {("second sensor",)}


def make_jumps(factor):
    """Return a counter that jumps every half second, so that power seems higher by a factor."""
    return lambda energy_j: energy_j + (factor - 1) * 0.5 * 400.0 * math.floor(energy_j / 200.0)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"other_w": 160.0, "other_share": 0.4}, "other load"),
        ({"distort": make_jumps(5.0)}, "implausible"),
        ({"distort": lambda energy_j: 5 * energy_j}, "implausible"),
        ({"distort": lambda energy_j: 0.1 * energy_j}, "implausible"),
    ],
)
def test_wrong_values_are_refused(change, fault):
    gpu = VirtualGpu((500.0, 500.0, 500.0, 500.0))
    vars(gpu).update(change)
    with pytest.raises(ContaminatedError, match=f"because of {fault}"):
        measure_all(gpu)
