"""Power samples: their integral, and files that another instrument writes, now or later."""

import threading
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import VirtualClock, VirtualContract, read_through

from joulecast.meters import make_meter
from joulecast.meters.file import STAND_IN_W, FileMeter, LaterMeter, parse_sample, read_samples
from joulecast.meters.sampling import Sample, Ticker, integrate
from joulecast.system.errors import FileError, MeasurementError, MissingError

POWER_W = 40.0


class Instrument:
    """An instrument that appends a sample every ``update_interval_s`` of the virtual clock."""

    def __init__(self, path, clock, update_interval_s=0.05):
        self.path, self.clock, self.update_interval_s = path, clock, update_interval_s
        self.next_s = clock.now()
        self.write_samples()
        clock.hooks.append(self.write_samples)

    def write_samples(self):
        while self.next_s <= self.clock.now():
            with self.path.open("a") as file:
                file.write(f"{self.next_s!r},{POWER_W}\n")
            self.next_s += self.update_interval_s


class TestFileMeter(VirtualContract):
    power_w = POWER_W

    @pytest.fixture(autouse=True)
    def instrument(self, set_clock, tmp_path):
        self.clock.time_s = 1.7e9
        self.path = tmp_path / "power.csv"
        self.path.write_text("time,watts\n")
        self.instrument = Instrument(self.path, self.clock)

    def make(self):
        return FileMeter(self.path)

    def test_end_waits_for_a_slow_instrument(self):
        with self.make_meter() as meter:
            meter.begin()
            self.load(1.0)
            self.instrument.next_s += 0.04
            end_s = self.clock.now()
            assert meter.end().faults == ()
            assert self.clock.now() > end_s

    def test_instrument_that_stops_is_a_gap(self):
        stop = partial(setattr, self.instrument, "next_s", float("inf"))
        reading = self.read_through(1.0, stop, 1.0)
        assert reading.faults[-1].startswith("gap: the file ends 1")
        assert reading.duration_s == pytest.approx(2.0)

    def test_update_interval_is_that_of_the_file(self):
        self.instrument.update_interval_s = 2.0
        self.load(20.0)
        with self.make_meter() as meter:
            assert meter.update_interval_s == pytest.approx(2.0)
            assert meter.window_s == pytest.approx(20.0)


def write_ramp(path, count, header=""):
    """Return a line for each tenth of a second, with watts that count up to 96 repeatedly."""
    path.write_text(header + "".join(f"{i / 10},{i % 97}\n" for i in range(count)))


@given(st.integers(0, 2000), st.integers(20, 3000))
def test_only_the_end_of_a_long_file_is_read(tmp_path_factory, since, block_bytes):
    path = tmp_path_factory.mktemp("long") / "power.csv"
    write_ramp(path, 2000, "time,watts\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joulecast.meters.file._BLOCK_BYTES", block_bytes)
        samples = read_samples(path, since / 10)
    start = round(samples[0].time_s * 10)
    assert start <= since
    assert [sample.power_w for sample in samples] == [i % 97 for i in range(start, 2000)]


@pytest.mark.parametrize("header", ["", "time,watts\n", "\ufefftime,watts\n", "t1,power 2\n"])
@pytest.mark.parametrize("end", ["", "\n", "9,"])
def test_header_is_optional_and_an_unfinished_line_skipped(tmp_path, header, end):
    path = tmp_path / "power.csv"
    path.write_text(f"{header}0,5\n1,5\n2,5\n{end}")
    assert [sample.time_s for sample in read_samples(path, 0.0)] == [0.0, 1.0, 2.0]


@given(st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_times_are_seconds_or_iso_8601(tmp_path_factory, moment):
    path = tmp_path_factory.getbasetemp()
    zulu = moment.replace(tzinfo=None).isoformat() + "Z"
    for text in (moment.isoformat(), zulu, repr(moment.timestamp())):
        assert parse_sample(f" {text} , 4.5 ,more\r", path).time_s == moment.timestamp()


@pytest.mark.parametrize(
    "line", ["1", "1;2", "1,", "x,3", "1,three", "1,nan", "1,inf", "nan,1", "1700000000000,3"]
)
def test_invalid_line_is_quoted(tmp_path, line):
    path = tmp_path / "power.csv"
    path.write_text(f"0,1\n{line}\n")
    with pytest.raises(FileError, match=r"power\.csv: the line '.+' ") as caught:
        read_samples(path, 0.0)
    assert repr(line) in str(caught.value)


def test_file_that_vanished_is_refused(tmp_path):
    with pytest.raises(MissingError, match="cannot be read"):
        FileMeter(tmp_path / "none.csv").open()


class TestLaterMeter(VirtualContract):
    power_w = STAND_IN_W

    def make(self):
        return LaterMeter()


def test_span_is_on_the_clock_of_the_run_although_the_system_clock_is_set():
    clock = VirtualClock(0.0)
    clock.wall_time = lambda: 1e9
    with LaterMeter(clock=clock) as meter:
        clock.wall_time = lambda: 2e9
        clock.time_s = 5.0
        reading = read_through(clock, meter, 2.5)
    assert reading.span_s == (1e9 + 5.0, 1e9 + 7.5)
    assert reading.energy_j == STAND_IN_W * 2.5


def test_what_the_instrument_covers_can_be_named():
    assert make_meter("later").covers == "board"
    named = make_meter("later:battery")
    assert (named.covers, named.is_recorder) == ("battery", True)


# -- samples, and the thread that takes them ----------------------------------------------------


def make_samples(power, start_s=0.0, end_s=10.0, update_interval_s=0.1):
    count = round((end_s - start_s) / update_interval_s) + 1
    times = [start_s + i * update_interval_s for i in range(count)]
    return [Sample(time_s, power(time_s)) for time_s in times]


@given(st.floats(0, 100), st.floats(0, 10), st.floats(1, 4), st.floats(5, 9))
def test_linear_power_is_integrated(offset_w, slope, start_s, end_s):
    """Exact except for the ends of the window, where the nearest sample is used."""
    reading = integrate(make_samples(lambda t: offset_w + slope * t), start_s, end_s)
    true_j = offset_w * (end_s - start_s) + slope * (end_s**2 - start_s**2) / 2
    assert reading.energy_j == pytest.approx(true_j, abs=2 * slope * 0.1**2 + 1e-6)
    assert reading.duration_s == end_s - start_s
    assert reading.faults == ()


def test_samples_outside_the_window_are_ignored():
    samples = make_samples(lambda t: 50.0 if 2.0 <= t <= 7.0 else 1e9)
    assert integrate(samples, 2.0, 7.0).energy_j == pytest.approx(250.0)


STEADY = make_samples(lambda t: 5.0)


@pytest.mark.parametrize(
    ("samples", "window_s", "fault"),
    [
        (STEADY[:30] + STEADY[40:], (2.0, 7.0), "gap"),
        (STEADY[30:], (2.0, 7.0), "gap"),
        (STEADY[:60], (2.0, 7.0), "gap"),
        ([], (2.0, 7.0), "too short"),
        (STEADY, (2.05, 2.25), "too short"),
        # A clock that goes back.
        (STEADY[:50] + STEADY[45:], (2.0, 7.0), "reset"),
        (make_samples(lambda t: 5.0 - t), (2.0, 7.0), "negative"),
    ],
)
def test_faults_are_named(samples, window_s, fault):
    reading = integrate(samples, *window_s)
    assert reading.energy_j >= 0
    assert [one.partition(":")[0] for one in reading.faults] == [fault]


def test_ticker_calls_the_function_until_stopped_and_raises_its_error():
    ticks, enough = [], threading.Event()

    def tick():
        ticks.append(1)
        if len(ticks) == 3:
            enough.set()
            raise MeasurementError("the program failed")

    ticker = Ticker(0.0, tick)
    assert enough.wait(10)
    with pytest.raises(MeasurementError, match="the program failed"):
        ticker.stop()
    assert len(ticks) == 3
