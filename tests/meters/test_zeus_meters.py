"""Zeus itself on emulated vendor libraries (amdsmi, zeus-apple-silicon, NVML) and counters."""

import re
import sys
from importlib.metadata import distribution
from types import SimpleNamespace

import fake_amdsmi
import pytest
from virtual_instruments import PowercapTree, VirtualClock

import fake_pynvml
from joulecast.errors import InputError, MeasurementError
from joulecast.meters import make_meter, zeus_meters
from joulecast.meters.base import UnavailableError
from joulecast.meters.zeus_meters import (
    ZeusMeter,
    detect_amd,
    detect_apple,
    make_amd,
    make_apple,
    open_amd,
    open_apple,
    open_nvidia,
    open_rapl,
)
from joulecast.testing.meters import MeterContract

pytest.importorskip("zeus")

import zeus.device.cpu.rapl
import zeus.device.gpu.amd
import zeus.device.gpu.nvidia
import zeus.device.soc.apple


@pytest.fixture
def clock():
    return VirtualClock(step_s=0.05)


@pytest.fixture
def amdsmi(monkeypatch, clock):
    """Let Zeus use the fake amdsmi on a virtual clock."""
    amd = zeus.device.gpu.amd
    # Not undone: it closes the library, also for objects that outlive the test.
    amd.AMDGPUs.__del__ = lambda self: None
    monkeypatch.setitem(sys.modules, "amdsmi", fake_amdsmi)
    monkeypatch.setattr(amd, "amdsmi", fake_amdsmi)
    monkeypatch.setattr(amd, "time", SimpleNamespace(sleep=clock.sleep))
    monkeypatch.setattr(fake_amdsmi, "now", clock.now)
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for cached in (amd.amdsmi_is_available, amd._hip_to_amdsmi_handle):
        cached.cache_clear()
    yield fake_amdsmi
    for cached in (amd.amdsmi_is_available, amd._hip_to_amdsmi_handle):
        cached.cache_clear()


class VirtualApple:
    """``AppleEnergyMonitor`` of zeus-apple-silicon 1.1: counts in mJ since it was made.

    Fields that a processor does not count are None (README.md of ml-energy/zeus-apple-silicon).
    """

    POWERS_W = {"cpu_total_mj": 9.0, "gpu_mj": 6.0, "dram_mj": 2.0, "ane_mj": 0.5}
    FIELDS = [
        "cpu_total_mj",
        "efficiency_cores_mj",
        "performance_cores_mj",
        "efficiency_cluster_mj",
        "performance_cluster_mj",
        "efficiency_core_manager_mj",
        "performance_core_manager_mj",
        "dram_mj",
        "gpu_mj",
        "gpu_sram_mj",
        "ane_mj",
    ]

    def __init__(self, clock):
        self.clock, self.start_s = clock, clock.now()

    def get_cumulative_energy(self):
        passed_s = self.clock.now() - self.start_s
        counts = {name: int(1e3 * power * passed_s) for name, power in self.POWERS_W.items()}
        # Parts of the processor's total, which must not count twice.
        clusters = {"performance_cluster_mj": [counts["cpu_total_mj"]]}
        return SimpleNamespace(**dict.fromkeys(self.FIELDS) | counts | clusters)


@pytest.fixture
def mac(monkeypatch, clock):
    """Let Zeus and the meter believe that this is a Mac."""
    apple = zeus.device.soc.apple
    library = SimpleNamespace(AppleEnergyMonitor=lambda: VirtualApple(clock))
    monkeypatch.setattr(apple, "zeus_apple_silicon", library)
    monkeypatch.setattr(apple, "zeus_apple_available", True)
    monkeypatch.setattr(apple, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(apple, "platform", SimpleNamespace(processor=lambda: "arm"))
    monkeypatch.setattr(zeus_meters, "platform", SimpleNamespace(system=lambda: "Darwin"))
    apple.apple_silicon_is_available.cache_clear()
    yield library
    apple.apple_silicon_is_available.cache_clear()


class ZeusContract(MeterContract):
    """The contract of a source that Zeus reads, on a virtual clock."""

    @pytest.fixture(autouse=True)
    def use_clock(self, clock):
        self.clock = clock

    def make_meter(self):
        return ZeusMeter(self.open(), now=self.clock.now, ticker=self.clock.make_ticker)

    def load(self, duration_s):
        self.clock.sleep(duration_s)


class TestAmdCounter(ZeusContract):
    @pytest.fixture(autouse=True)
    def machine(self, amdsmi):
        pass

    def open(self):
        return open_amd(0)

    def test_energy_is_that_of_the_gpu_by_hip_index(self):
        with self.make_meter() as meter:
            # HIP's GPU 0 is the second one of amd-smi.
            assert self.read(meter, 2.0).power_w == pytest.approx(120.0, rel=1e-3)


class TestAmdPower(ZeusContract):
    """A GPU whose counter Zeus finds to be wrong."""

    @pytest.fixture(autouse=True)
    def machine(self, amdsmi, monkeypatch):
        monkeypatch.setattr(amdsmi, "COUNTER_FACTOR", 100.0)

    def open(self):
        return open_amd(1)

    def test_power_is_integrated(self):
        with self.make_meter() as meter:
            assert self.read(meter, 2.0).power_w == pytest.approx(300.0, rel=1e-6)


class TestApple(ZeusContract):
    @pytest.fixture(autouse=True)
    def machine(self, mac):
        pass

    def open(self):
        return open_apple()

    def test_parts_add_up_once(self):
        with self.make_meter() as meter:
            assert meter.covers == "cpu+gpu+dram+ane"
            assert self.read(meter, 2.0).power_w == pytest.approx(17.5, rel=1e-3)


# ---------------------------------------------------------------------------------------------
# Make and detect


def test_amd_reads_the_gpu_of_the_load(amdsmi):
    assert make_amd("", "cuda:1").instrument == "amd 1"
    assert make_amd("", "cpu").instrument == "amd 0"
    assert make_meter("amd:1").name == "amd:1"
    with pytest.raises(InputError, match="does not read the GPU behind --on cuda:0"):
        make_amd("1", "cuda:0")
    with pytest.raises(InputError, match="give its index"):
        make_amd("x", "cpu")
    with pytest.raises(UnavailableError, match="no AMD GPU 2; choose from 0 to 1"):
        make_amd("2", "cpu")


def test_two_amd_gpus_add_up(amdsmi):
    assert make_meter("amd:0+amd:1").covers == "gpu+gpu"


def test_detect_lists_amd_gpus(amdsmi):
    rows = detect_amd()
    assert [row.name for row in rows] == ["amd:0", "amd:1"]
    assert rows[0].reason == "AMD Instinct MI300X, energy counter"
    assert rows[0].idle_power_w == 120.0


def test_chip_without_power_is_not_available(amdsmi, monkeypatch):
    # Zeus trusts a counter only if it fits the power.
    monkeypatch.setattr(amdsmi, "HAS_POWER", False)
    row = detect_amd()[0]
    assert not row.available
    assert "not supported" in row.reason
    with pytest.raises(UnavailableError, match="not supported"):
        open_amd(0)


def test_amd_without_a_driver_says_what_to_do(amdsmi, monkeypatch):
    def fail(flags):
        raise amdsmi.AmdSmiLibraryException(34)

    monkeypatch.setattr(amdsmi, "amdsmi_init", fail)
    (row,) = detect_amd()
    assert not row.available
    assert "ROCm" in row.advice


def test_gpu_that_fails_is_an_error(amdsmi, monkeypatch):
    meter = make_amd("", "cuda:0")

    def fail(handle):
        raise amdsmi.AmdSmiLibraryException(34)

    with meter:
        meter.begin()
        monkeypatch.setattr(amdsmi, "amdsmi_get_energy_count", fail)
        with pytest.raises(MeasurementError, match="Zeus can no longer read amd"):
            meter.end()


def test_emulation_has_the_names_of_amdsmi():
    text = distribution("amdsmi").locate_file("amdsmi/amdsmi_interface.py").read_text()
    names = set(re.findall(r"^def (amdsmi_\w+)\(", text, re.MULTILINE))
    emulated = {name for name in vars(fake_amdsmi) if name.startswith("amdsmi_")}
    assert len(emulated) > 5
    assert emulated <= names


def test_detect_finds_the_processor_of_a_mac(mac):
    (row,) = detect_apple()
    assert row.available
    assert row.covers == "cpu+gpu+dram+ane"
    with pytest.raises(InputError, match="give apple"):
        make_apple("1")


def test_apple_needs_a_mac():
    (row,) = detect_apple()
    assert not row.available
    assert row.reason == "this machine is not a Mac"


def test_missing_zeus_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus.device.gpu.amd", None)
    (row,) = detect_amd()
    assert row.advice == "run: pip install 'joulecast[zeus]'"


# ---------------------------------------------------------------------------------------------
# What a cross-check reads


@pytest.fixture
def zeus_rapl(tmp_path, monkeypatch):
    """Return counters as Linux shows them to Zeus: zones of memory lie in those of packages."""
    tree = PowercapTree(tmp_path)
    tree.add("intel-rapl:0", "package-0", 5_000_000).add("intel-rapl:1", "package-1")
    tree.add("intel-rapl:0/intel-rapl:0:0", "core").add("intel-rapl:0/intel-rapl:0:2", "dram")
    tree.add("intel-rapl:2", "psys")
    monkeypatch.setattr(zeus.device.cpu.rapl, "RAPL_DIR", str(tmp_path))
    monkeypatch.delenv("ZEUSD_SOCK_PATH", raising=False)
    zeus.device.cpu.rapl.rapl_is_available.cache_clear()
    yield tree
    zeus.device.cpu.rapl.rapl_is_available.cache_clear()


def test_zeus_adds_up_packages_and_memory(zeus_rapl, clock, monkeypatch):
    # Each tracker of Zeus is a process; how it counts wraps is not what is tested here.
    tracker = SimpleNamespace(get_num_wraparounds=lambda: 0)
    monkeypatch.setattr(zeus.device.cpu.rapl.RAPLFile, "wraparound_tracker", tracker)
    source = open_rapl()
    assert source.covers == "cpu+dram"
    with ZeusMeter(source, now=clock.now) as meter:
        meter.begin()
        for folder, count_uj in zip(zeus_rapl.zones, (25e6, 10e6, 99e6, 4e6, 99e6), strict=True):
            zeus_rapl.set(folder, count_uj)
        clock.sleep(2.0)
        assert meter.end().energy_j == pytest.approx(20.0 + 10.0 + 4.0)


def test_counter_that_may_not_be_read_is_explained(zeus_rapl):
    zeus_rapl.zones["intel-rapl:0"].unlink()
    with pytest.raises(UnavailableError, match="Zeus cannot read RAPL counters"):
        open_rapl()


@pytest.fixture
def nvml(monkeypatch):
    """Let Zeus use the fake pynvml."""

    def refuse(handle):
        error = fake_pynvml.NVMLError("Not Supported")
        error.value = 3
        raise error

    monkeypatch.setattr(fake_pynvml, "nvmlDeviceGetC2cModeInfoV", refuse, raising=False)
    monkeypatch.setattr(fake_pynvml, "NVML_ERROR_NOT_SUPPORTED", 3, raising=False)
    monkeypatch.setattr(zeus.device.gpu.nvidia, "pynvml", fake_pynvml)
    return fake_pynvml


def test_zeus_reads_gpus_by_the_index_of_nvml(nvml, monkeypatch):
    counts_mj = {0: 7_000, 1: 9_500}
    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", counts_mj.get)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert open_nvidia(1).read() == 9.5
    with pytest.raises(UnavailableError, match="CUDA_VISIBLE_DEVICES"):
        open_nvidia(0)
