"""The idle device: other load, implausible and stuck meters, and what cannot be checked."""

import pytest

from joulecast.families import make_family
from joulecast.measurer import MeasureClock, Measurer
from joulecast.measurer.windows import CHECK_EVERY_S, CHECK_S, PULSES, draw_pulses
from joulecast.meters.base import Meter, Reading
from joulecast.meters.file import LaterMeter
from joulecast.records import Device, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import ContaminatedError, InputError

NET = Trial(make_family("lenet5"), Setup())
STEP_S = 0.01


class Bench:
    """A device on a virtual clock: its step, its meter, and other programs on it."""

    name, modes, device = "bench-1", ("eager",), Device("bench")

    def __init__(self, idle_w=120.0, load_w=400.0):
        self.time_s, self.energy_j = 0.0, 0.0
        self.idle_w, self.load_w = idle_w, load_w
        self.loads_s, self.idle_reads, self.pauses_s = [], 0, []
        self.is_busy = False

    def now(self):
        return self.time_s

    def sleep(self, duration_s):
        self.pauses_s.append(duration_s)
        self.time_s += duration_s
        self.energy_j += duration_s * self.find_power_w(self.idle_w)

    def prepare(self, trial):
        return self

    def run(self, count):
        self.time_s += count * STEP_S
        self.energy_j += count * STEP_S * self.find_power_w(self.load_w)
        self.is_busy = True

    def find_power_w(self, own_w):
        return own_w

    def wait(self):
        pass

    def close(self):
        pass

    def peak_memory_bytes(self):
        return 0


class BenchMeter(Meter):
    """A meter of a bench, with values to change what it shows."""

    name, covers, window_s = "bench", "gpu", 0.6

    def __init__(self, bench, busy_share=0.0, unchecked=(), shown_w=None):
        self.bench, self.busy_share, self.shown_w = bench, busy_share, shown_w
        self.unchecked = unchecked
        self.faults = ()

    def begin(self):
        self.bench.is_busy = False
        self.begun = self.bench.now(), self.bench.energy_j

    def end(self):
        begun_s, begun_j = self.begun
        duration_s, energy_j = self.bench.now() - begun_s, self.bench.energy_j - begun_j
        busy_share = self.busy_share
        if self.bench.is_busy and busy_share is not None:
            busy_share = 1.0
        if not self.bench.is_busy:
            self.bench.idle_reads += 1
        if self.shown_w is not None:
            energy_j = self.shown_w * duration_s
        return Reading(energy_j, duration_s, self.faults, busy_share, self.unchecked)


def make_bench_measurer(bench, meter=None, **options):
    clock = MeasureClock(bench.now, bench.sleep, bench.now)
    return Measurer(bench, meter or BenchMeter(bench), clock=clock, **options)


def measure(bench, meter=None, trials=1, **options):
    with make_bench_measurer(bench, meter, **options) as measurer:
        return [measurer.measure(NET) for _ in range(trials)][-1]


def test_calm_device_is_read_idle_now_and_then():
    bench = Bench()
    seen = measure(bench, trials=100)
    assert seen.energy_j == pytest.approx(bench.load_w * STEP_S) and seen.unchecked == ()
    periods = bench.now() / CHECK_EVERY_S
    assert periods > 1 and periods - 1 <= bench.idle_reads <= periods + 1


def test_meter_that_does_not_see_other_load_reads_the_idle_device_once():
    bench = Bench()
    seen = measure(bench, BenchMeter(bench, None, ("other load", "second sensor")), trials=100)
    assert bench.idle_reads == 1
    assert seen.unchecked == ("other load", "second sensor")


@pytest.mark.parametrize("verb", ["measure", "time"])
def test_hidden_load_on_the_idle_device_is_refused(verb):
    bench = Bench(idle_w=280.0, load_w=560.0)
    with (
        make_bench_measurer(bench, BenchMeter(bench, busy_share=0.8)) as measurer,
        pytest.raises(ContaminatedError, match=r"other load .*busy 80% .*close other programs"),
    ):
        getattr(measurer, verb)(NET)
    assert measurer.disturbances["other load"] == 6
    # Longer each time, so that a disturbance of some seconds passes.
    assert [s for s in bench.pauses_s if s != CHECK_S] == [0.25, 0.5, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("change", "fault"), [({"busy_share": 0.5}, "other load"), ({"shown_w": 400.0}, "stuck")]
)
def test_what_begins_later_is_refused_soon_and_until_it_ends(change, fault):
    bench = Bench()
    meter = BenchMeter(bench)
    with make_bench_measurer(bench, meter) as measurer:
        measurer.measure(NET)
        vars(meter).update(change)
        begun_s = bench.now()
        with pytest.raises(ContaminatedError, match=fault):
            for _ in range(100):
                measurer.measure(NET)
        assert bench.now() - begun_s < CHECK_EVERY_S + 30.0
        with pytest.raises(ContaminatedError, match=fault):
            measurer.measure(NET)
        vars(meter).update(busy_share=0.05, shown_w=None)
        assert measurer.measure(NET).energy_j == pytest.approx(4.0)


def test_passing_load_is_waited_for():
    bench = Bench()

    class Passing(BenchMeter):
        def end(self):
            self.busy_share = 0.9 if bench.now() < 4.0 else 0.0
            return super().end()

    seen = measure(bench, Passing(bench))
    assert seen.energy_j == pytest.approx(4.0)
    assert bench.idle_reads > 1


def test_hidden_load_in_some_windows_does_not_become_the_result():
    """It adds 40 % to the power of the first two windows of three, and leaves the time as it is."""
    bench = Bench()
    bench.find_power_w = lambda own_w: own_w * (1.4 if 1.5 < bench.now() < 3.1 else 1.0)
    seen = measure(bench)
    assert seen.energy_j == pytest.approx(4.0) and seen.count > 3


@pytest.mark.parametrize("load_w", [99.0, 119.9, 121.0])
def test_load_may_be_near_idle_power_but_not_below(load_w):
    assert measure(Bench(120.0, load_w)).energy_j == pytest.approx(load_w * STEP_S)
    with pytest.raises(ContaminatedError, match=r"implausible .*60 W under load, 120 W without"):
        measure(Bench(120.0, 60.0))


def test_idle_power_is_read_again_if_another_program_may_have_raised_it():
    bench = Bench(load_w=60.0)
    bench.find_power_w = lambda own_w: 120.0 if bench.now() < 1.8 else min(own_w, 60.0)
    bench.idle_w = 20.0
    seen = measure(bench, BenchMeter(bench, None))
    assert seen.energy_j == pytest.approx(60.0 * STEP_S)
    assert bench.idle_reads == 2


def test_sensor_that_is_stuck_is_refused():
    bench = Bench()
    with pytest.raises(ContaminatedError, match=r"stuck .*150 W under load, and exactly as much"):
        measure(bench, BenchMeter(bench, None, shown_w=150.0))


@pytest.mark.parametrize("fault", ["gap", "stuck: the counter sleeps", "throttled"])
def test_faulty_reading_of_the_idle_device_does_not_refuse_a_load(fault):
    bench = Bench()

    class Sleeping(BenchMeter):
        def end(self):
            self.faults = () if bench.is_busy else (fault,)
            return super().end()

    seen = measure(bench, Sleeping(bench), trials=20)
    assert seen.energy_j == pytest.approx(4.0) and seen.unchecked == ("idle power",)
    assert bench.idle_reads <= 2


def test_measure_idle_counts_as_a_check_and_rejects_other_load():
    bench = Bench()
    meter = BenchMeter(bench)
    with make_bench_measurer(bench, meter) as measurer:
        assert measurer.measure_idle().energy_j == pytest.approx(120.0)
        measurer.measure(NET)
        assert bench.idle_reads == 1
        meter.busy_share = 0.7
        with pytest.raises(ContaminatedError, match="other load"):
            measurer.measure_idle()


@pytest.mark.parametrize("provenance", ["modelled", "simulated"])
def test_nothing_is_checked_without_a_real_instrument(provenance):
    bench = Bench()
    meter = BenchMeter(bench, None, shown_w=150.0)
    meter.provenance = provenance
    assert measure(bench, meter).unchecked == () and bench.idle_reads == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_rounds_that_are_no_numbers_are_refused(value):
    with pytest.raises(InputError, match="rounds is"):
        measure(Bench(), rounds=0 if value > 0 else value)


CNN = Trial(make_family("cnn5:8,16,16,32"), Setup(batch=8))
LENET = Trial(make_family("lenet5"), Setup(batch=8))


def record(trial, seed=3):
    device = make_simulated_device(seed)
    clock = MeasureClock(device.now, device.sleep, lambda: 1e9 + device.now())
    meter = LaterMeter("device", "simulated", clock)
    with Measurer(SimulatedRuntime(device), meter, clock=clock) as measurer:
        return device, measurer.measure(trial)


def test_every_trial_has_pulses_of_its_own():
    drawn = {
        tuple(draw_pulses(trial, place)) for trial in (CNN, LENET) for place in ("before", "after")
    }
    assert len(drawn) == 4
    assert list(draw_pulses(CNN, "before")) == list(draw_pulses(CNN, "before"))
    assert all(0.1 < length_s < 0.5 for pulses in drawn for pair in pulses for length_s in pair)


def test_windows_lie_between_the_pulses_and_all_of_them_are_loaded():
    device, observed = record(CNN)
    assert len(observed.pulses) == 2 * PULSES
    assert len(observed.windows) == observed.count == 3
    before, after = observed.pulses[PULSES - 1], observed.pulses[PULSES]
    assert before.end_s < observed.windows[0].start_s
    assert observed.windows[-1].end_s < after.start_s
    assert Observation.from_dict(observed.to_dict()) == observed
    for one in observed.windows:
        step_s = (one.end_s - one.start_s) / one.steps
        assert step_s == pytest.approx(observed.duration_s, rel=0.2)
    idle_w = device.chip.idle_w
    for one in (*observed.windows, *observed.pulses):
        start_s, end_s = one.start_s - 1e9, one.end_s - 1e9
        power_w = (device.energy_at(end_s) - device.energy_at(start_s)) / (end_s - start_s)
        assert power_w > 1.05 * idle_w
    for one, following in zip(observed.pulses, observed.pulses[1:PULSES], strict=False):
        gap_s = following.start_s - one.end_s
        rest_j = device.energy_at(following.start_s - 1e9) - device.energy_at(one.end_s - 1e9)
        assert rest_j / gap_s == pytest.approx(idle_w, rel=1e-3)
