"""The NVML meter: the contract on a virtual GPU, other programs, and what detect says."""

import os
import sys
import threading

import pytest
from meter_bench import VirtualClock, VirtualPoller

import fake_pynvml
from joulecast.errors import InputError, MeasurementError, MissingError
from joulecast.meters import detect_meters, make_meter
from joulecast.meters.base import UnavailableError
from joulecast.meters.nvml import NvmlMeter, detect_nvml, find_others
from joulecast.meters.nvml_edges import Edge, format_edge
from joulecast.meters.nvml_gpu import Gpu
from joulecast.testing.meters import MeterContract


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    return fake_pynvml


class TestNvmlMeter(MeterContract):
    @pytest.fixture(autouse=True)
    def clock(self):
        self.clock = VirtualClock()

    def make_meter(self):
        return NvmlMeter("0", now=self.clock.now, start=lambda gpu: VirtualPoller(self.clock))

    def load(self, duration_s):
        self.clock.sleep(duration_s)

    def test_it_reads_the_gpus_power(self):
        with self.make_meter() as meter:
            reading = self.read(meter, 1.0)
            assert reading.energy_j == pytest.approx(400.0 * meter.window_s, rel=1e-6)
            assert len(meter.edges) == round(meter.window_s / meter.period_s)


class Script:
    """A poller that tells prepared lines and ends."""

    def __init__(self, *lines):
        self.lines = lines

    def __iter__(self):
        return iter(self.lines)

    def stop(self):
        self.lines = ()


class HeldScript(Script):
    """One whose last line comes when it is stopped."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.stopped = threading.Event()

    def __iter__(self):
        yield from self.lines
        self.stopped.wait()

    def stop(self):
        self.stopped.set()


def test_a_poller_that_cannot_start_is_quoted():
    meter = NvmlMeter(start=lambda gpu: Script("Traceback", "ImportError: no pynvml"))
    with pytest.raises(MissingError, match="ImportError: no pynvml"):
        meter.open()


def test_a_poller_that_says_why_is_quoted():
    meter = NvmlMeter(start=lambda gpu: Script("error the GPU is on fire; leave"))
    with pytest.raises(UnavailableError, match=r"\(the GPU is on fire; leave\)"):
        meter.open()


def test_a_poller_that_keeps_quiet_is_given_up():
    meter = NvmlMeter(start=lambda gpu: HeldScript("hm"), limit_s=0.0)
    with pytest.raises(MissingError, match="no answer in 0 s"):
        meter.open()


def test_a_poller_that_falls_silent_does_not_hang_the_meter():
    clock = VirtualClock()
    with NvmlMeter(now=clock.now, start=lambda gpu: HeldScript("ready 0.1")) as meter:
        meter.begin()
        meter._limit_s = 0.0
        with pytest.raises(MeasurementError, match="silent"):
            meter.end()


def test_a_poller_that_ends_spoils_the_next_window_too():
    clock = VirtualClock()
    poller = VirtualPoller(clock)
    meter = NvmlMeter(now=clock.now, start=lambda gpu: poller)
    with meter:
        meter.begin()
        poller.tell("error NVML failed (GPU is lost)")
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
def test_other_programs_are_those_that_are_not_ours(processes, pids, others):
    edges = (Edge(1.0, 1.0, pids=pids), Edge(1.1, 2.0, pids=None))
    assert find_others(edges, 20, processes) == others


def test_other_programs_are_a_fault(processes):
    make_process(processes, os.getpid(), 1, "test")
    clock = VirtualClock()
    poller = VirtualPoller(clock)
    with NvmlMeter(now=clock.now, start=lambda gpu: poller, processes=processes) as meter:
        meter.begin()
        clock.sleep(0.5)
        poller.tell(format_edge(Edge(clock.now() - 0.001, 1e6, pids=(os.getpid(), 30))))
        clock.sleep(0.5)
        assert "other load: pid 30 (theirs)" in meter.end().faults


# ---------------------------------------------------------------------------------------------
# Asking for it


def test_each_gpu_has_its_row(nvml):
    rows = detect_nvml()
    assert [row.name for row in rows] == ["nvml:0", "nvml:1"]
    for row in rows:
        assert row.available
        assert row.covers == "gpu"
        assert row.reason == "NVIDIA H200, energy counter"
        assert (row.period_s, row.resolution_j, row.idle_power_w) == (0.1, 0.001, 81.5)
        assert row.advice == ""


def test_a_gpu_without_a_counter_says_so(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", nvml.fail)
    assert "power is added up" in detect_nvml()[0].reason


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_where_nvml_fails_one_row_says_why(nvml, monkeypatch, broken):
    monkeypatch.setattr(nvml, broken, nvml.fail)
    (row,) = detect_nvml()
    assert not row.available
    assert "Not Supported" in row.reason
    assert "nvidia-smi" in row.advice


def test_without_gpus_one_row_says_so(nvml, monkeypatch):
    monkeypatch.setattr(nvml, "UUIDS", [])
    (row,) = detect_nvml()
    assert (row.name, row.available, row.reason) == ("nvml", False, "NVML sees no GPU")


def test_without_the_package_the_advice_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    row = next(row for row in detect_meters() if row.name == "nvml")
    assert "nvidia-ml-py" in row.advice


def test_the_gpu_of_the_load_is_the_one_that_is_watched(nvml):
    assert make_meter("nvml", on="cuda:0", gpu=nvml.UUIDS[1]).gpu == nvml.UUIDS[1]
    assert make_meter("auto", on="cuda:0", gpu=nvml.UUIDS[1]).gpu == nvml.UUIDS[1]
    assert make_meter("nvml:1", on="cuda:0", gpu=nvml.UUIDS[0]).gpu == "1"
    assert make_meter("nvml").gpu == "0"


def test_which_gpu_is_never_guessed(nvml):
    with pytest.raises(InputError, match="find_gpu"):
        make_meter("nvml", on="cuda:1")


@pytest.mark.parametrize(("spec", "error"), [("nvml:7", MissingError), ("nvml:x", InputError)])
def test_a_gpu_that_is_not_there_is_refused(nvml, spec, error):
    with pytest.raises(error, match=spec.partition(":")[2]):
        make_meter(spec)


def test_optional_numbers_may_be_missing(nvml, monkeypatch):
    gpu = Gpu(nvml, "0")
    assert (gpu.temperature_c(), gpu.clock_hz(), gpu.throttle_bits()) == (41.0, 1.98e9, 4)
    assert gpu.pids() == ()
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", nvml.fail)
    assert gpu.throttle_bits() == 4
    for call in ("Temperature", "ClockInfo", "CurrentClocksThrottleReasons", "PowerUsage"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{call}", nvml.fail)
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", nvml.fail)
    assert (gpu.temperature_c(), gpu.clock_hz(), gpu.throttle_bits()) == (0.0, 0.0, 0)
    assert gpu.pids() is None
    assert gpu.idle_power_w() is None
