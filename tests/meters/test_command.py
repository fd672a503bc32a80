"""Programs as meters: joules and watts in what they print, counters, powers, errors."""

import shutil
import sys
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_instruments import VirtualClock, VirtualContract, read_through

from joulecast.meters import make_meter
from joulecast.meters.command import CommandMeter, Quantity, read_quantity, run_program
from joulecast.system.errors import InputError, MeasurementError, MissingError


class CommandContract(VirtualContract):
    power_w = 30.0

    def make(self):
        return CommandMeter(["meter"], run=self.run)


class TestCounter(CommandContract):
    def run(self, command):
        return f"banner 3 W\n{30 * self.clock.now():.6f} J\n"


class TestPower(CommandContract):
    def run(self, command):
        return "now 30 W\n"


def make_scripted(clock, *outputs):
    told = iter(outputs)
    return clock.drive(CommandMeter(["meter"], run=lambda command: next(told)))


@pytest.mark.parametrize(
    ("end", "duration_s", "fault"),
    [("90 J", 1.0, "reset"), ("100 J", 1.0, "stuck"), ("100 J", 0.1, "too short")],
)
def test_counter_that_does_not_increase_is_a_fault(end, duration_s, fault):
    clock = VirtualClock()
    with make_scripted(clock, "100 J", "100 J", end) as meter:
        reading = read_through(clock, meter, duration_s)
    assert (reading.energy_j, reading.faults[0].partition(":")[0]) == (0, fault)


def test_changed_unit_is_an_error():
    meter = make_scripted(VirtualClock(), "100 J", "5 W")
    with meter, pytest.raises(MeasurementError, match="one unit"):
        meter.begin()


def test_error_in_a_window_that_was_never_ended_is_dropped():
    meter = make_scripted(VirtualClock(), "5 W")
    meter.make_ticker = lambda *args: Mock(stop=Mock(side_effect=MeasurementError("it hangs")))
    meter.open()
    meter.begin()
    meter.begin()
    with pytest.raises(MeasurementError, match="it hangs"):
        meter.end()


def test_slow_program_needs_longer_windows():
    clock = VirtualClock()

    def run(command):
        clock.sleep(0.5)
        return "1 J"

    with clock.drive(CommandMeter(["slow"], run=run)) as meter:
        assert meter.window_s == pytest.approx(25.0)


# -- real programs ------------------------------------------------------------------------------


def test_power_of_a_slow_program_is_that_of_the_middle_of_its_run():
    clock = VirtualClock(0.0)

    def run(command):
        clock.time_s += 0.2
        shown = f"{10 * clock.time_s:.6f} W"
        clock.time_s += 0.2
        return shown

    with clock.drive(CommandMeter(["slow"], run=run)) as meter:
        begun_s = clock.now()
        reading = read_through(clock, meter, 20.0)
    middle_s = begun_s + reading.duration_s / 2
    assert reading.power_w == pytest.approx(10 * middle_s, rel=0.005)


def test_output_of_a_program_is_returned_or_its_error_quoted():
    assert run_program([sys.executable, "-c", "print(5, 'J')"]).strip() == "5 J"
    with pytest.raises(MeasurementError, match=r"exit code 3 \(no sensor\)"):
        run_program(
            [sys.executable, "-c", "import sys; print('no sensor', file=sys.stderr); exit(3)"]
        )


def test_program_that_does_not_finish_is_an_error(monkeypatch):
    monkeypatch.setattr("joulecast.meters.command._LIMIT_S", 0.01)
    with pytest.raises(MeasurementError, match="did not finish"):
        run_program([sys.executable, "-c", "import signal; signal.pause()"])


def test_missing_program_is_refused(tmp_path):
    with pytest.raises(MissingError, match="cannot be run"):
        run_program([str(tmp_path / "none")])


def test_quoted_arguments_are_kept_and_the_folder_is_not_shown():
    meter = make_meter("command:echo '1 and' 2+3 '7 J'")
    assert (meter._command, meter.covers) == (("echo", "1 and", "2+3", "7 J"), "board by echo")
    assert make_meter(f"command:{shutil.which('echo')} 7 J").covers == "board by echo"


@given(st.floats(0, 1e6, allow_subnormal=False), st.sampled_from(["J", "W"]))
def test_last_number_counts(value, unit):
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
def test_units_and_prefixes(text, value, unit):
    quantity = read_quantity(text)
    assert (quantity.value, quantity.unit) == (pytest.approx(value), unit)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (("", "42", "5 V", "12 Wx", "v1.2J3", "9 Jack", "W 7"), "no joules or watts"),
        (("1e999 W", "1e999 J", "1e308 GWh"), "'{}' is too large"),
    ],
)
def test_other_texts_are_refused_as_printed(texts, reason):
    for text in texts:
        with pytest.raises(InputError, match=reason.format(text)):
            read_quantity(text)
