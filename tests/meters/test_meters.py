"""The value of --meter, what every meter shares, detection, and sums of several meters."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import GpuPoller, VirtualClock, VirtualContract, read_through
from virtual_sysfs import PowercapTree

from joulecast.meters import METERS, GuardedMeter, Reading, SumMeter, detect_meters, make_meter
from joulecast.meters.base import METER_CHECKS, Meter, UnavailableError
from joulecast.meters.modelled import CORE_W, ModelledMeter, cpu_time_s
from joulecast.meters.nvml import NvmlMeter
from joulecast.system.errors import InputError, MeasurementError, MeterLostError, MissingError


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_instruments_and_their_libraries_are_imported_when_named():
    script = (
        "import sys, joulecast.meters as meters; meters.make_meter('modelled');"
        "print(*[one for one in sys.modules if one.startswith('joulecast.meters.')]);"
        "sys.exit(any(one in sys.modules for one in ('pynvml', 'Monsoon', 'usb', 'zeus')))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    imported = {one.rpartition(".")[2] for one in done.stdout.decode().split()}
    assert imported == {"base", "modelled"}


def test_auto_uses_rapl_if_readable_and_else_modelled(monkeypatch, tmp_path):
    monkeypatch.setattr("joulecast.meters.rapl.POWERCAP", tmp_path)
    assert make_meter("auto").name == "modelled"
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    assert make_meter("auto").name == "rapl"


def test_auto_does_not_fall_back_for_a_gpu(no_gpu):
    with pytest.raises(MissingError, match="nvidia-ml-py"):
        make_meter("auto", on="cuda:0", gpu="0")


def test_meters_are_joined_by_plus(tmp_path):
    for name in ("a+b+raplx.csv", "c.csv"):
        (tmp_path / name).write_text("1,2\n")
    text = f"file:{tmp_path}/a+b+raplx.csv"
    assert make_meter(text).covers == "board by a+b+raplx.csv"
    assert make_meter(f"{text}+modelled:8W").name == f"{text}+modelled:8W"
    meter = make_meter(f"{text}+file:{tmp_path}/c.csv")
    assert meter.covers == "board by a+b+raplx.csv+board by c.csv"


@pytest.mark.parametrize(
    "text", ["", "nvm", "modelled+", "+modelled", "modelled+watts", "simulated"]
)
def test_error_for_an_unknown_meter_lists_all_forms(text):
    with pytest.raises(InputError, match="there is no meter") as caught:
        make_meter(text)
    assert all(spec.form in str(caught.value) for spec in METERS.values())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("battery:BAT0", "battery:BAT0"),
        ("apple:1", "apple:1"),
        ("amd:x", "amd:x"),
        ("android:A,charging", "android:A,charging"),
        ("termux:x", "termux:x"),
        ("command:echo 'x", "No closing quotation"),
        ("modelled+later", "still to come"),
        *((f"modelled:{watts}", watts) for watts in ("much", "5J", "-3W", "1e999W", "W")),
        ("modelled:0W", "watts above 0"),
        # One instrument is not counted twice.
        ("file:{folder}/a.csv+file:{folder}/./a.csv", "twice"),
        ("command:echo 7 J+command:/bin/echo 7 J", "twice"),
        ("rapl:{folder}+rapl:{folder}/", "twice"),
        ("modelled:8W+modelled:9W", "twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, monkeypatch, text, named):
    monkeypatch.setenv("PATH", "/bin")
    (tmp_path / "a.csv").write_text("1,2\n")
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    with pytest.raises(InputError, match=named):
        make_meter(text.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("nvml+modelled", "run: pip install nvidia-ml-py"),
        ("android", "adb is not installed; install"),
        ("termux", "pkg install termux-api"),
        ("rapl:/nowhere", "no RAPL packages under /nowhere; on bare Linux"),
        ("file:/nowhere", "no file '/nowhere' .*; start the instrument"),
        *((text, "start the instrument") for text in ("file", "file:", "file:/")),
        ("command:no-such-program -x", "no program 'no-such-program'; give one"),
        *((text, "no program") for text in ("command", "command:")),
    ],
)
def test_error_for_an_unavailable_meter_says_what_to_do(no_gpu, monkeypatch, text, advice):
    monkeypatch.setenv("PATH", "/nowhere")
    name = text.partition("+")[0].partition(":")[0]
    with pytest.raises(MissingError, match=f"meter {name} is not available: .*{advice}"):
        make_meter(text)
    row = next(row for row in detect_meters() if row.name.startswith(name))
    assert row.available == (name in ("file", "command"))


def test_detect_lists_every_meter(no_gpu):
    rows = detect_meters()
    names = list(dict.fromkeys(row.name.partition(":")[0] for row in rows))
    assert names == [name for name in METERS if name != "auto"]
    for row in rows:
        assert row.reason
        assert row.covers
        assert row.available or row.advice
        assert row.provenance == ("modelled" if row.name == "modelled" else "measured")
        assert set(row.to_dict()) >= {"name", "available", "reason", "covers", "update_interval_s"}


@pytest.mark.parametrize(
    ("energy_j", "duration_s", "fault"),
    [
        (math.nan, 1.0, "invalid: the meter returned nan J"),
        (math.inf, 1.0, "invalid: the meter returned inf J"),
        (-math.inf, 1.0, "invalid: the meter returned -inf J"),
        (None, 1.0, "invalid: the meter returned nan J"),
        ("many", 1.0, "invalid: the meter returned nan J"),
        (10**400, 1.0, "invalid: the meter returned nan J"),
        (-2.0, 1.0, "negative: the meter returned -2 J"),
        (5.0, math.nan, "invalid: the meter returned nan s"),
        (5.0, -1.0, "negative: the meter returned -1 s"),
    ],
)
def test_value_that_is_none_becomes_a_fault(energy_j, duration_s, fault):
    reading = Reading(energy_j, duration_s)
    assert reading.faults == (fault,)
    assert 0 <= reading.energy_j < math.inf
    assert 0 <= reading.duration_s < math.inf


def test_fault_that_the_meter_named_is_not_repeated():
    assert Reading(-1.0, 1.0, ("negative: by far",)).faults == ("negative: by far",)
    assert Reading(math.nan, 1.0, ("gap",)).faults == ("gap", "invalid: the meter returned nan J")


def test_power_is_that_of_the_window_and_nothing_is_checked_by_itself():
    assert (Reading(6.0, 2.0).power_w, Reading(6.0, 0.0).power_w) == (3.0, 0.0)
    assert Reading(1.0, 1.0).unchecked == METER_CHECKS


class FailingMeter(GuardedMeter):
    name, covers, provenance = "failing", "board", "measured"

    def __init__(self, fails_at):
        self._fails_at = fails_at

    def _start(self):
        self._fail("start")

    def _stop(self):
        self._fail("stop")
        return Reading(1.0, 1.0)

    def _fail(self, place):
        if place == self._fails_at:
            raise MeasurementError("the sensor can no longer be read (no such file): plug it in")


@pytest.mark.parametrize("place", ["start", "stop"])
def test_instrument_that_fails_is_a_lost_meter_and_a_wrong_call_is_not(place):
    meter = FailingMeter(place)
    with pytest.raises(MeasurementError, match="before open") as caught:
        meter.begin()
    assert not isinstance(caught.value, MeterLostError)
    meter.open()
    with pytest.raises(MeterLostError, match="plug it in"):
        meter.begin()
        meter.end()
    meter._fails_at = ""
    meter.begin()
    assert meter.end().energy_j == 1.0


class TestSumMeter(VirtualContract):
    power_w = 410.0

    def make(self):
        cpu = self.clock.drive(ModelledMeter(10.0, cpu_time=self.clock.now))
        return SumMeter([GpuPoller(self.clock, 400.0).drive(NvmlMeter()), cpu])

    def test_sum_has_the_weakest_provenance(self):
        with self.make_meter() as meter:
            pass
        assert meter.name == "nvml+modelled"
        assert meter.covers == "gpu+cpu at 10 W a core"
        assert meter.provenance == "modelled"
        assert (meter.window_s, meter.update_interval_s) == (NvmlMeter.window_s, 0.1)


class RecordingMeter(Meter):
    """A meter that records its calls."""

    def __init__(self, name, covers, instrument="", window_s=1.0, log=None, reading=None):
        self.name, self.covers, self.window_s = name, covers, window_s
        self.instrument, self.log = instrument, [] if log is None else log
        self.reading = reading or Reading(1.0, window_s, (f"gap: {name}",))

    def open(self):
        if self.name == "broken":
            raise UnavailableError("it is broken", "mend it")
        self.log.append(f"open {self.name}")

    def close(self):
        self.log.append(f"close {self.name}")

    def begin(self):
        self.log.append(f"begin {self.name}")

    def end(self):
        self.log.append(f"end {self.name}")
        return self.reading


def test_slowest_meter_begins_first_and_ends_last():
    log, windows_s = [], {"quick": 0.1, "slow": 9.0, "mid": 1.0}
    meters = [RecordingMeter(name, name, "", windows_s[name], log) for name in windows_s]
    with SumMeter(meters) as meter:
        log.clear()
        meter.begin()
        reading = meter.end()
        order = [f"begin {name}" for name in ("slow", "mid", "quick")]
        assert log == [*order, *(f"end {name}" for name in ("quick", "mid", "slow"))]
    assert reading == Reading(3.0, 9.0, ("gap: quick", "gap: mid", "gap: slow"))


def test_others_are_closed_if_one_does_not_open():
    log = []
    with pytest.raises(MissingError, match="it is broken"):
        SumMeter([RecordingMeter(name, name, log=log) for name in ("one", "broken")]).open()
    assert log == ["open one", "close one"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("rapl", "cpu+dram"), ("modelled", "cpu at 10 W a core")),
        (("file:a", "board by a+b.csv"), ("command:c", "board by c")),
        (("nvml", "gpu"), ("nvml:0", "gpu")),
        (("nvml:0", "gpu", "GPU-a"), ("nvml:00", "gpu", "GPU-a")),
        (("nvml:0", "gpu", "GPU-a"), ("shunt:1", "gpu", "tty1")),
        (("shunt:1", "gpu", ""), ("shunt:2", "gpu", "")),
    ],
)
def test_meters_that_cover_the_same_part_are_refused(one, other):
    with pytest.raises(InputError, match="twice"):
        SumMeter([RecordingMeter(*one), RecordingMeter(*other)])


def test_two_gpus_can_be_added_and_cover_more_than_one():
    gpus = [RecordingMeter("nvml:0", "gpu", "GPU-a"), RecordingMeter("nvml:1", "gpu", "GPU-b")]
    both = SumMeter(gpus)
    assert both.covers == "gpu+gpu"
    assert SumMeter([both, RecordingMeter("rapl", "cpu+dram")]).covers == "gpu+gpu+cpu+dram"


def test_sum_is_unchecked_where_one_of_its_meters_is():
    gpu = Reading(5.0, 1.0, busy_share=0.4, unchecked=("second sensor",))
    cpu = Reading(3.0, 1.0, unchecked=("other load", "second sensor"))
    one, other = RecordingMeter("a", "gpu", reading=gpu), RecordingMeter("b", "cpu", reading=cpu)
    with SumMeter([one, other]) as meter:
        meter.begin()
        assert meter.end() == Reading(8.0, 1.0, (), 0.4, ("other load", "second sensor"))


# -- the modelled meter: CPU time x watts -------------------------------------------------------


class TestModelledMeter(VirtualContract):
    power_w = 2 * 8.0 + 1.0

    def make(self):
        return ModelledMeter(8.0, 1.0, cpu_time=lambda: 2 * self.clock.now())


@given(st.floats(0.1, 500), st.floats(0, 100), st.floats(0, 64), st.floats(0.1, 100))
def test_energy_is_busy_time_plus_idle_time(power_w, idle_w, cores, window_s):
    clock = VirtualClock(0.0)
    meter = ModelledMeter(power_w, idle_w, lambda: cores * clock.now())
    with clock.drive(meter):
        reading = read_through(clock, meter, lambda: setattr(clock, "time_s", window_s))
    assert reading.energy_j == pytest.approx((cores * power_w + idle_w) * window_s)
    assert (reading.duration_s, reading.faults) == (window_s, ())


def test_work_of_this_process_counts():
    with ModelledMeter() as meter:
        meter.begin()
        begin_s = cpu_time_s()
        while cpu_time_s() == begin_s:
            pass
        assert meter.end().energy_j > 0


def test_watts_are_parsed_and_part_of_what_is_covered():
    for text, power_w in (("", CORE_W), (":65W", 65.0), (":2.5", 2.5), (":800mW", 0.8)):
        meter = make_meter(f"modelled{text}")
        assert meter.power_w == pytest.approx(power_w)
        assert meter.covers == f"cpu at {power_w:g} W a core"
    assert ModelledMeter(8.0, 1.5).covers == "cpu at 8 W a core and 1.5 W always"
