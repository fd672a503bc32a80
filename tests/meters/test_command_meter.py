"""Programs as meters: which number counts, counters and powers, and what can go wrong."""

import shutil
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meter_bench import VirtualClock

from joulecast.errors import InputError, MeasurementError, MissingError
from joulecast.meters import make_meter
from joulecast.meters.command import CommandMeter, detect_command, run_program
from joulecast.meters.quantity import Quantity, read_quantity
from joulecast.meters.ticker import Ticker
from joulecast.testing.meters import MeterContract


class CommandContract(MeterContract):
    @pytest.fixture(autouse=True)
    def clock(self):
        self.clock = VirtualClock()

    def make_meter(self):
        return CommandMeter(
            ["meter"], now=self.clock.now, run=self.run, ticker=self.clock.make_ticker
        )

    def load(self, duration_s):
        self.clock.sleep(duration_s)


class TestCounter(CommandContract):
    def run(self, command):
        return f"banner 3 W\n{30 * self.clock.now():.6f} J\n"

    def test_it_reads_the_difference(self):
        with self.make_meter() as meter:
            assert self.read(meter, 1.0).energy_j == pytest.approx(30.0)


class TestPower(CommandContract):
    def run(self, command):
        return "now 30 W\n"

    def test_it_adds_up(self):
        with self.make_meter() as meter:
            assert self.read(meter, 1.5).energy_j == pytest.approx(45.0)


def make_scripted(*outputs):
    told = iter(outputs)
    return CommandMeter(["meter"], run=lambda command: next(told))


@pytest.mark.parametrize(
    ("end", "fault"), [("90 J", "reset: the counter fell"), ("100 J", "stuck: the counter stayed")]
)
def test_a_counter_that_does_not_rise_is_named(end, fault):
    with make_scripted("100 J", "100 J", end) as meter:
        meter.begin()
        reading = meter.end()
    assert reading.energy_j == 0
    assert reading.faults[0].startswith(fault)


def test_a_program_must_keep_to_its_unit():
    with make_scripted("100 J", "5 W") as meter, pytest.raises(MeasurementError, match="one unit"):
        meter.begin()


def test_a_slow_program_asks_for_longer_windows():
    clock = VirtualClock()

    def run(command):
        clock.sleep(0.5)
        return "1 J"

    with CommandMeter(["slow"], now=clock.now, run=run) as meter:
        assert meter.window_s == pytest.approx(25.0)


# ---------------------------------------------------------------------------------------------
# The number on its output


@given(st.floats(0, 1e6, allow_subnormal=False), st.sampled_from(["J", "W"]))
def test_the_last_number_counts(value, unit):
    text = f"took 12 J, cpu0: 7 W at 35 C\n{value!r} {unit}"
    assert read_quantity(text) == Quantity(pytest.approx(value), unit)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("123.4 J", 123.4, "J"),
        ("55W", 55.0, "W"),
        ("250 mJ", 0.25, "J"),
        ("1.5kJ", 1500.0, "J"),
        ("700 mW", 0.7, "W"),
        ("2 Wh", 7200.0, "J"),
        ("1 mWh", 3.6, "J"),
        ("3 µJ", 3e-6, "J"),
        ("-4 W", -4.0, "W"),
        ("1,234.56 Joules power/energy-pkg/", 1234.56, "J"),
        ("12 watts", 12.0, "W"),
        ("power: 12.5 W (limit 700 GHz)", 12.5, "W"),
    ],
)
def test_units_are_understood(text, value, unit):
    quantity = read_quantity(text)
    assert (quantity.value, quantity.unit) == (pytest.approx(value), unit)


@pytest.mark.parametrize("text", ["", "42", "5 V", "12 Wx", "v1.2J3", "9 Jack", "W 7"])
def test_without_a_unit_there_is_no_number(text):
    with pytest.raises(InputError, match="no joules or watts"):
        read_quantity(text)


# ---------------------------------------------------------------------------------------------
# Real programs


def test_a_real_program_is_run():
    assert read_quantity(run_program([sys.executable, "-c", "print(5, 'J')"])).value == 5


def test_a_program_that_fails_is_quoted():
    with pytest.raises(MeasurementError, match=r"exit code 3 \(no sensor\)"):
        run_program(
            [sys.executable, "-c", "import sys; print('no sensor', file=sys.stderr); exit(3)"]
        )


def test_a_program_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr("joulecast.meters.command._LIMIT_S", 0.01)
    with pytest.raises(MeasurementError, match="printed nothing"):
        run_program([sys.executable, "-c", "import signal; signal.pause()"])


def test_a_program_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(MissingError, match="does not run"):
        run_program([str(tmp_path / "none")])
    for spec in ("command", "command:", "command:no-such-program-anywhere -x"):
        with pytest.raises(MissingError, match="no program"):
            make_meter(spec)


def test_words_that_cannot_be_split_are_refused():
    with pytest.raises(InputError, match="No closing quotation"):
        make_meter("command:echo 'x")


def test_arguments_are_kept_as_quoted():
    meter = make_meter("command:echo '1 and' 2+3 '7 J'")
    assert meter._command == ("echo", "1 and", "2+3", "7 J")
    with meter:
        assert meter.covers == "board by echo"


def test_programs_are_told_apart_without_their_folders():
    path = shutil.which("echo")
    assert make_meter(f"command:{path} 7 J").covers == "board by echo"
    assert make_meter("command:printf 7J").covers == "board by printf"


def test_detect_says_how_to_ask():
    (row,) = detect_command()
    assert row.available
    assert "command:" in row.reason


# ---------------------------------------------------------------------------------------------
# The thread


def test_a_ticker_ticks_until_it_is_stopped():
    many = 3
    ticks = []
    enough = threading.Event()

    def tick():
        ticks.append(1)
        if len(ticks) >= many:
            enough.set()

    ticker = Ticker(0.0, tick)
    ticker.start()
    assert enough.wait(10)
    ticker.stop()
    count = len(ticks)
    ticker.stop()
    assert len(ticks) == count >= many


def test_what_a_ticker_met_is_raised_when_it_stops():
    ended = threading.Event()

    def tick():
        ended.set()
        raise MeasurementError("the program failed")

    ticker = Ticker(0.0, tick)
    ticker.start()
    assert ended.wait(10)
    with pytest.raises(MeasurementError, match="the program failed"):
        ticker.stop()
    ticker.stop()
