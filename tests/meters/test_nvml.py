"""The NVML meter: the contract on a virtual GPU, other processes, and detection."""

import os
import sys
import threading

import pytest
from virtual_instruments import VirtualClock, VirtualPoller

import fake_pynvml
from joulecast.errors import InputError, MeasurementError, MissingError
from joulecast.meters import detect_meters, make_meter
from joulecast.meters.base import METER_CHECKS, UnavailableError
from joulecast.meters.nvml import (
    Edge,
    Gpu,
    NvmlMeter,
    detect_nvml,
    find_other_processes,
    format_edge,
)
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
