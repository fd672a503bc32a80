"""The sum of several meters."""

import pytest
from virtual_instruments import VirtualClock, VirtualPoller

from joulecast.errors import InputError, MissingError
from joulecast.meters.base import Meter, Reading, UnavailableError
from joulecast.meters.modelled import ModelledMeter
from joulecast.meters.nvml import NvmlMeter
from joulecast.meters.sum import SumMeter
from joulecast.testing.meters import MeterContract


class TestSumMeter(MeterContract):
    @pytest.fixture(autouse=True)
    def clock(self):
        self.clock = VirtualClock()

    def make_meter(self):
        now = self.clock.now
        gpu = NvmlMeter(now=now, start=lambda gpu: VirtualPoller(self.clock, 400.0))
        return SumMeter([gpu, ModelledMeter(10.0, now=now, cpu_time=now)])

    def load(self, duration_s):
        self.clock.sleep(duration_s)

    def test_energies_add_up_with_the_weakest_provenance(self):
        with self.make_meter() as meter:
            expected_j = 410.0 * 2.0 * meter.window_s
            assert self.read(meter, 2.0).energy_j == pytest.approx(expected_j, rel=1e-6)
        assert meter.name == "nvml+modelled"
        assert meter.covers == "gpu+cpu at 10 W a core"
        assert meter.provenance == "modelled"
        assert (meter.window_s, meter.update_interval_s) == (NvmlMeter.window_s, 0.1)


class RecordingMeter(Meter):
    """A meter that records its calls."""

    def __init__(self, name, covers, window_s=1.0, log=None, fails=False, instrument=""):
        self.name, self.covers, self.window_s = name, covers, window_s
        self.instrument = instrument
        self.log = [] if log is None else log
        self.fails = fails

    def open(self):
        if self.fails:
            raise UnavailableError(f"{self.name} is broken", "mend it")
        self.log.append(f"open {self.name}")

    def close(self):
        self.log.append(f"close {self.name}")

    def begin(self):
        self.log.append(f"begin {self.name}")

    def end(self):
        self.log.append(f"end {self.name}")
        return Reading(1.0, self.window_s, (f"gap: {self.name}",))


def test_slowest_meter_begins_first_and_ends_last():
    log = []
    meters = [
        RecordingMeter("quick", "a", 0.1, log),
        RecordingMeter("slow", "b", 9.0, log),
        RecordingMeter("mid", "c", 1.0, log),
    ]
    with SumMeter(meters) as meter:
        log.clear()
        meter.begin()
        reading = meter.end()
        order = [f"begin {name}" for name in ("slow", "mid", "quick")]
        assert log == [*order, *(f"end {name}" for name in ("quick", "mid", "slow"))]
    assert reading == Reading(3.0, 9.0, ("gap: quick", "gap: mid", "gap: slow"))


def test_others_are_closed_if_one_does_not_open():
    log = []
    meter = SumMeter(
        [RecordingMeter("one", "a", log=log), RecordingMeter("two", "b", log=log, fails=True)]
    )
    with pytest.raises(MissingError, match="two is broken"):
        meter.open()
    assert log == ["open one", "close one"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("rapl", "cpu+dram"), ("modelled", "cpu")),
        (("rapl", "cpu+dram"), ("modelled", "cpu at 10 W a core")),
        (("file:a", "board by a+b.csv"), ("command:c", "board by c")),
        (("nvml", "gpu"), ("nvml", "gpu")),
        (("nvml", "gpu"), ("nvml:0", "gpu")),
        (("nvml:0", "gpu"), ("nvml:0", "gpu")),
    ],
)
def test_meters_that_cover_the_same_part_are_refused(one, other):
    with pytest.raises(InputError, match="twice"):
        SumMeter([RecordingMeter(*one), RecordingMeter(*other)])


def make_gpu(name, instrument):
    return RecordingMeter(name, "gpu", instrument=instrument)


def test_two_gpus_can_be_added_and_cover_more_than_one():
    both = SumMeter([make_gpu("nvml:0", "GPU-a"), make_gpu("nvml:1", "GPU-b")])
    assert both.covers == "gpu+gpu"
    three = SumMeter([both, RecordingMeter("rapl", "cpu+dram")])
    assert three.covers == "gpu+gpu+cpu+dram"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (make_gpu("nvml:0", "GPU-a"), make_gpu("nvml:00", "GPU-a")),
        (make_gpu("nvml", "GPU-a"), make_gpu("nvml:GPU-a", "GPU-a")),
        (make_gpu("nvml:0", "GPU-a"), make_gpu("shunt:1", "tty1")),
        (make_gpu("shunt:1", ""), make_gpu("shunt:2", "")),
    ],
)
def test_one_gpu_is_not_counted_twice(one, other):
    with pytest.raises(InputError, match="twice"):
        SumMeter([one, other])


class ReadingMeter(RecordingMeter):
    """A meter that returns a given reading."""

    def __init__(self, name, covers, reading):
        super().__init__(name, covers)
        self.reading = reading

    def end(self):
        return self.reading


def test_sum_is_unchecked_where_one_of_its_meters_is():
    gpu = Reading(5.0, 1.0, busy_share=0.4, unchecked=("second sensor",))
    cpu = Reading(3.0, 1.0, unchecked=("other load", "second sensor"))
    with SumMeter([ReadingMeter("a", "gpu", gpu), ReadingMeter("b", "cpu", cpu)]) as meter:
        meter.begin()
        reading = meter.end()
    assert reading == Reading(8.0, 1.0, (), 0.4, ("other load", "second sensor"))


def test_sum_of_one_meter_is_refused():
    with pytest.raises(InputError, match="two meters"):
        SumMeter([RecordingMeter("one", "a")])
