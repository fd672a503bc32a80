"""The poller: reports every edge, beats in between, and ends with its parent."""

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_pynvml
from joulecast.meters import nvml_poller
from joulecast.meters.nvml import Gpu, NvmlMeter, parse_edge, read_edges, start_nvml_poller
from joulecast.meters.nvml_poller import BEAT_S, EnergyCounter, PowerIntegral, make_source, poll
from joulecast.system.errors import MeasurementError

FAKE = Path(fake_pynvml.__file__)


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
    return fake_pynvml


class PolledGpu:
    """A GPU on a virtual clock that advances by one poll at a time."""

    def __init__(self, duration_s, power_w=300.0, phase_s=0.0):
        self.time_s, self.end_s = 50.0, 50.0 + duration_s
        self._power_w, self._phase_s = power_w, phase_s
        self.lines = []
        self.listings = 0

    def now(self):
        return self.time_s

    def wait(self, seconds):
        self.time_s += seconds
        return self.time_s > self.end_s

    def energy_j(self):
        return round((self.time_s - self._phase_s) / 0.1 - 0.5) * 0.1 * self._power_w

    def power_w(self):
        return self._power_w

    def sensor_power_w(self):
        return self._power_w + 1.0

    def limit_w(self):
        return 700.0

    def busy_share(self):
        return 0.9

    def temperature_c(self):
        return 41.0

    def clock_hz(self):
        return 1.98e9

    def throttle_bits(self):
        return 4

    def pids(self):
        self.listings += 1
        return (7,)

    def poll(self, source):
        poll(source, self, self.lines.append, self.wait, self.now)
        return [parse_edge(line) for line in self.lines if line.startswith("edge")]


@given(st.floats(50, 700), st.floats(0, 0.0999))
def test_edges_of_a_counter_give_its_power(power_w, phase_s):
    bench = PolledGpu(1.5, power_w, phase_s)
    edges = bench.poll(EnergyCounter(bench))
    reading = read_edges(edges, 50.1, 51.4, 0.1)
    assert reading.energy_j == pytest.approx(power_w * 1.3, rel=0.01)
    assert reading.faults == ()


def test_power_is_integrated_without_a_counter():
    bench = PolledGpu(1.5, 300.0)
    edges = bench.poll(PowerIntegral(bench.power_w, bench.now))
    assert read_edges(edges, 50.1, 51.4, PowerIntegral.update_interval_s).energy_j == pytest.approx(
        390.0
    )


def test_every_beat_has_a_line():
    bench = PolledGpu(1.0)
    bench.poll(EnergyCounter(bench))
    times = [float(line.split()[1]) for line in bench.lines]
    assert times == sorted(times)
    gaps = [after - before for before, after in zip([50.0, *times], times, strict=False)]
    assert max(gaps) <= BEAT_S + 2 * EnergyCounter.poll_s


def test_edges_have_the_state_and_sometimes_the_processes():
    bench = PolledGpu(1.0)
    edges = bench.poll(EnergyCounter(bench))
    assert {edge[3:9] for edge in edges} == {(41.0, 1.98e9, 4, 301.0, 700.0, 0.9)}
    assert [edge.pids for edge in edges].count((7,)) == bench.listings == 2


def test_counter_is_preferred(nvml, monkeypatch):
    assert isinstance(make_source(Gpu(nvml, "0"), lambda: 0.0), EnergyCounter)
    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", nvml.fail)
    source = make_source(Gpu(nvml, "0"), lambda: 0.0)
    assert isinstance(source, PowerIntegral)
    assert source.name == "sensor"


def test_lost_gpu_is_reported(nvml, monkeypatch):
    lines = []

    def wait(seconds):
        monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", nvml.fail)
        return False

    assert nvml_poller.run("0", lines.append, wait) == 1
    assert lines[0] == "ready 0.1 counter"
    assert lines[-1].startswith("error NVML failed (Not Supported)")


# ---------------------------------------------------------------------------------------------
# As a process that imports the fake pynvml


@pytest.fixture
def fake_on_path(tmp_path, monkeypatch):
    shutil.copy(FAKE, tmp_path / "pynvml.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_process_reports_the_edges_of_a_window(fake_on_path):
    start_s = []

    def now():
        """Return a time in the future, so that end() waits only for the poller."""
        estimated_s = nvml_poller.time.monotonic()
        start_s.append(estimated_s)
        return estimated_s + (0.1 if len(start_s) == 2 else 0.0)

    with NvmlMeter("1", now=now) as meter:
        meter.begin()
        reading = meter.end()
    rises = [edge.energy_j for edge in meter.edges]
    assert rises
    assert rises == sorted(rises)
    assert reading.energy_j >= 0


def test_process_reports_a_missing_package(fake_on_path):
    with pytest.raises(Exception, match="NVML has no GPU 9"):
        NvmlMeter("9").open()


def test_killed_process_is_an_error(fake_on_path):
    started = []

    def start(gpu):
        started.append(start_nvml_poller(gpu))
        return started[0]

    with NvmlMeter("0", start=start) as meter:
        meter.begin()
        started[0]._process.kill()
        started[0]._process.wait()
        meter._now = lambda: float("1e12")
        with pytest.raises(MeasurementError, match="has ended"):
            meter.end()


def test_process_ends_with_its_parent(fake_on_path):
    """The parent is killed and cannot stop the process itself."""
    script = (
        "import os, signal\n"
        "from joulecast.meters.nvml import start_nvml_poller\n"
        "poller = start_nvml_poller('0')\n"
        "next(iter(poller))\n"
        "print(poller._process.pid, flush=True)\n"
        "input()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with parent:
        poller = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    ended, _, _ = select.select([poller], [], [], 10.0)
    os.close(poller)
    assert ended == [poller]
