"""Zeus itself on emulated vendor libraries and counters, and compared with our own meters."""

import functools
import json
import re
import sys
from importlib.metadata import distribution
from types import SimpleNamespace

import fake_amdsmi
import pytest
from click.testing import CliRunner
from virtual_instruments import VirtualClock, VirtualContract
from virtual_sysfs import PowercapTree

import fake_pynvml
from joulecast.cli.main import cli
from joulecast.meters import cross_check, detect_meter, make_meter, rapl, zeus_meters
from joulecast.meters.base import UnavailableError
from joulecast.meters.cross_check import compare_pairs, cross_check_meters, find_pairs
from joulecast.meters.rapl import RaplMeter
from joulecast.meters.zeus_meters import ZeusMeter, open_amd, open_apple, open_nvidia, open_rapl
from joulecast.system.errors import InputError, MeasurementError, MissingError

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
    KINDS = ("efficiency", "performance")
    FIELDS = [
        *("cpu_total_mj", "dram_mj", "gpu_mj", "gpu_sram_mj", "ane_mj"),
        *(f"{kind}_{part}_mj" for kind in KINDS for part in ("cores", "cluster", "core_manager")),
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


class ZeusContract(VirtualContract):
    """The contract of a meter of Zeus, on a virtual clock."""

    power_share = 1e-3

    @pytest.fixture(autouse=True)
    def use_clock(self, set_clock, clock):
        self.clock = clock


@pytest.mark.usefixtures("amdsmi")
class TestAmdCounter(ZeusContract):
    # HIP's GPU 0 is the second one of amd-smi.
    make, power_w = staticmethod(lambda: open_amd(0)), 120.0


class TestAmdPower(ZeusContract):
    """A GPU whose counter Zeus finds to be wrong."""

    make, power_w = staticmethod(lambda: open_amd(1)), 300.0

    @pytest.fixture(autouse=True)
    def machine(self, amdsmi, monkeypatch):
        monkeypatch.setattr(amdsmi, "COUNTER_FACTOR", 100.0)


@pytest.mark.usefixtures("mac")
class TestApple(ZeusContract):
    """Parts of a processor, of which each counts once."""

    make, power_w = staticmethod(open_apple), 17.5


# -- make and detect ----------------------------------------------------------------------------


def test_amd_reads_the_gpu_of_the_load(amdsmi):
    assert make_meter("amd", on="cuda:1").instrument == "amd 1"
    assert make_meter("amd").instrument == "amd 0"
    assert make_meter("amd:1").name == "amd:1"
    assert make_meter("amd:0+amd:1").covers == "gpu+gpu"


@pytest.mark.parametrize(
    ("argument", "on", "error", "named"),
    [
        ("1", "cuda:0", InputError, "does not read the GPU .*cuda:0"),
        ("x", "cpu", InputError, "amd:x"),
        ("2", "cpu", MissingError, "no AMD GPU 2; choose from 0 to 1"),
    ],
)
def test_wrong_amd_gpu_is_refused(amdsmi, argument, on, error, named):
    with pytest.raises(error, match=named):
        make_meter(f"amd:{argument}", on)


def test_detect_lists_amd_gpus(amdsmi, monkeypatch):
    rows = detect_meter("amd")
    assert [row.name for row in rows] == ["amd:0", "amd:1"]
    assert rows[0].reason == "AMD Instinct MI300X, energy counter"
    assert rows[0].idle_power_w == 120.0
    # Zeus trusts a counter only if it fits the power.
    monkeypatch.setattr(amdsmi, "HAS_POWER", False)
    row = detect_meter("amd")[0]
    assert not row.available and "not supported" in row.reason
    with pytest.raises(UnavailableError, match="not supported"):
        open_amd(0)


def fail(*args):
    raise fake_amdsmi.AmdSmiLibraryException(34)


def test_amd_without_a_driver_says_what_to_do(amdsmi, monkeypatch):
    monkeypatch.setattr(amdsmi, "amdsmi_init", fail)
    (row,) = detect_meter("amd")
    assert not row.available and "ROCm" in row.advice
    monkeypatch.setitem(sys.modules, "zeus.device.gpu.amd", None)
    assert detect_meter("amd")[0].advice == "run: pip install 'joulecast[zeus]'"


def test_gpu_that_fails_is_an_error(amdsmi, monkeypatch):
    with make_meter("amd") as meter:
        meter.begin()
        monkeypatch.setattr(amdsmi, "amdsmi_get_energy_count", fail)
        with pytest.raises(MeasurementError, match="Zeus can no longer read amd"):
            meter.end()


def test_emulation_has_the_names_of_amdsmi():
    text = distribution("amdsmi").locate_file("amdsmi/amdsmi_interface.py").read_text()
    names = set(re.findall(r"^def (amdsmi_\w+)\(", text, re.MULTILINE))
    emulated = {name for name in vars(fake_amdsmi) if name.startswith("amdsmi_")}
    assert len(emulated) > 5 and emulated <= names


def test_detect_finds_the_processor_of_a_mac(request):
    (row,) = detect_meter("apple")
    assert (row.available, row.reason) == (False, "this machine is not a Mac")
    request.getfixturevalue("mac")
    (row,) = detect_meter("apple")
    assert (row.available, row.covers) == (True, "cpu+gpu+dram+ane")


# -- what a cross-check reads -------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return counters as Linux shows them, which Zeus and Joulecast read."""
    rapl = zeus.device.cpu.rapl
    nested = PowercapTree(tmp_path / "intel-rapl")
    nested.add("intel-rapl:0", "package-0", 60.0).add("intel-rapl:1", "package-1", 40.0)
    nested.add("intel-rapl:0/intel-rapl:0:0", "core", 30.0)
    nested.add("intel-rapl:0/intel-rapl:0:2", "dram", 5.0).add("intel-rapl:2", "psys", 500.0)
    for folder in nested.powers_w:
        # Linux links all zones into one folder.
        (tmp_path / folder.rpartition("/")[2]).symlink_to(nested.root / folder)
    # Each tracker of Zeus is a process; how it counts wraps is not what is tested here.
    tracker = SimpleNamespace(get_num_wraparounds=lambda: 0)
    monkeypatch.setattr(rapl.RAPLFile, "wraparound_tracker", tracker)
    monkeypatch.setattr(rapl, "RAPL_DIR", str(nested.root))
    monkeypatch.delenv("ZEUSD_SOCK_PATH", raising=False)
    monkeypatch.setattr("joulecast.meters.rapl.POWERCAP", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    rapl.rapl_is_available.cache_clear()
    yield nested
    rapl.rapl_is_available.cache_clear()


def test_rapl_and_zeus_agree_on_the_same_counters(tree, tmp_path):
    clock = VirtualClock(step_s=0.5)
    tree.follow(clock)
    pair = clock.drive(RaplMeter(tmp_path, tmp_path)), clock.drive(open_rapl())
    (check,) = compare_pairs([pair], 10.0, clock.sleep)
    # Packages and memory, but not cores, nor the board that includes them.
    assert (check.power_w, check.zeus_power_w) == pytest.approx((105.0, 105.0))
    assert (check.covers, check.zeus_covers, check.faults) == ("cpu+dram", "cpu+dram", ())


def test_meters_that_zeus_reads_are_found(tree, monkeypatch):
    ((ours, other),), refused = find_pairs()
    assert list(refused) == ["nvml"]
    assert (ours.name, ours.covers, other.covers) == ("rapl", "cpu+dram", "cpu+dram")
    monkeypatch.setattr("zeus.device.cpu.rapl.RAPL_DIR", "/nowhere")
    zeus.device.cpu.rapl.rapl_is_available.cache_clear()
    pairs, refused = find_pairs()
    assert not pairs
    assert refused["rapl"].startswith("Zeus cannot read RAPL counters")


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
    assert open_nvidia(1)._read() == 9.5
    with pytest.raises(UnavailableError, match="CUDA_VISIBLE_DEVICES"):
        open_nvidia(0)


def make_pair(clock, ours_w, zeus_w, zeus_covers="cpu"):
    """Return two meters of constant power on a virtual clock."""
    ours = ZeusMeter("rapl", "cpu", "ours", "J", lambda: 1e3 * ours_w * clock.now())
    other = ZeusMeter("rapl", zeus_covers, "", "J", lambda: 1e3 * zeus_w * clock.now())
    return clock.drive(ours), clock.drive(other)


@pytest.mark.parametrize(
    ("zeus_w", "difference_share", "agrees"),
    [(100.0, 0.0, True), (104.0, 0.04, True), (94.0, -0.06, False), (0.1, -0.999, False)],
)
def test_powers_over_one_window_are_compared(zeus_w, difference_share, agrees):
    clock = VirtualClock()
    (check,) = compare_pairs([make_pair(clock, 100.0, zeus_w)], 10.0, clock.sleep)
    found = (check.power_w, check.zeus_power_w, check.difference_share)
    assert found == pytest.approx((100.0, zeus_w, difference_share))
    assert check.agrees == agrees


def test_all_meters_share_one_window_and_faults_of_either_are_named():
    clock = VirtualClock(start_s=0.0)
    pairs = [make_pair(clock, 100.0, zeus_w) for zeus_w in (100.0, 101.0, 0.0)]
    *good, bad = compare_pairs(pairs, 10.0, clock.sleep)
    assert clock.now() == pytest.approx(10.0)
    assert all(check.agrees for check in good) and not bad.agrees
    assert bad.faults == ("Zeus: stuck: the energy counter did not change in 10 s",)


def test_machine_without_such_meters_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingError, match=r"no meter can be compared .*nvml: .*rapl: no"):
        cross_check_meters()


# -- the command --------------------------------------------------------------------------------


def test_command_prints_both_powers(monkeypatch):
    clock = VirtualClock()
    pairs = [make_pair(clock, 100.0, 101.0), make_pair(clock, 100.0, 50.0)]
    pairs.append(make_pair(clock, 100.0, 120.0, "cpu+dram"))
    monkeypatch.setattr(cross_check, "find_pairs", lambda: (pairs, {"nvml": "no driver"}))
    checking = functools.partial(cross_check_meters, sleep=clock.sleep)
    monkeypatch.setattr("joulecast.meters.cross_check.cross_check_meters", checking)
    done = CliRunner().invoke(cli, ["detect", "--cross-check"])
    assert done.exit_code == 0, done.output
    assert "100 W" in done.stdout and "101 W" in done.stdout and "+1.0 %" in done.stdout
    assert done.stdout.count("rapl and Zeus disagree: check with another instrument") == 1
    assert "rapl and Zeus disagree: it covers cpu, Zeus cpu+dram." in done.stdout
    assert "nvml was not compared: no driver." in done.stdout
    rows = json.loads(CliRunner().invoke(cli, ["detect", "--cross-check", "--json"]).stdout)
    assert [row["agrees"] for row in rows["cross_checks"]] == [True, False, False]
    assert rows["refused"] == {"nvml": "no driver"}
