"""The NVML meter: the contract on a virtual GPU, other processes, and detection."""

import os
import sys
import threading

import pytest
from virtual_instruments import VirtualClock, VirtualPoller

import fake_pynvml
from joulecast.errors import InputError, MeasurementError, MissingError
from joulecast.meters import detect_meters, make_meter
from joulecast.meters.base import UnavailableError
from joulecast.meters.nvml import NvmlMeter, detect_nvml, find_other_processes
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

    def test_power_of_the_gpu_is_read(self):
        with self.make_meter() as meter:
            reading = self.read(meter, 1.0)
            assert reading.energy_j == pytest.approx(400.0 * meter.window_s, rel=1e-6)
            assert len(meter.edges) == round(meter.window_s / meter.update_interval_s)


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
    with NvmlMeter(now=clock.now, start=lambda gpu: HeldPoller("ready 0.1")) as meter:
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
        poller.write(format_edge(Edge(clock.now() - 0.001, 1e6, pids=(os.getpid(), 30))))
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


def test_meter_reads_the_gpu_of_the_load(nvml):
    assert make_meter("nvml", on="cuda:0", gpu=nvml.UUIDS[1]).gpu == nvml.UUIDS[1]
    assert make_meter("auto", on="cuda:0", gpu=nvml.UUIDS[1]).gpu == nvml.UUIDS[1]
    assert make_meter("nvml:1", on="cuda:0", gpu=nvml.UUIDS[0]).gpu == "1"
    assert make_meter("nvml").gpu == "0"


def test_gpu_of_the_load_must_be_known(nvml):
    with pytest.raises(InputError, match="find_gpu"):
        make_meter("nvml", on="cuda:1")


@pytest.mark.parametrize(("spec", "error"), [("nvml:7", MissingError), ("nvml:x", InputError)])
def test_unknown_gpu_is_refused(nvml, spec, error):
    with pytest.raises(error, match=spec.partition(":")[2]):
        make_meter(spec)


def test_optional_values_may_be_missing(nvml, monkeypatch):
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
