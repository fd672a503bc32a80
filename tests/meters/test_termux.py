"""The phone that this runs on, in Termux: a program that prints JSON."""

import pytest
from virtual_instruments import VirtualClock
from virtual_phone import Phone

from joulecast.errors import InputError, MeasurementError, MissingError
from joulecast.meters import make_meter
from joulecast.meters.phones import PhoneMeter, detect_termux, parse_termux
from joulecast.testing.meters import MeterContract


class TestTermux(MeterContract):
    @pytest.fixture(autouse=True)
    def phone(self):
        self.clock = VirtualClock(step_s=0.5)
        self.phone = Phone(self.clock)

    def make_meter(self):
        clock = self.clock
        read = lambda: parse_termux(self.phone.termux())  # noqa: E731
        return PhoneMeter("termux", read, "here", clock.now, clock.sleep, clock.make_ticker)

    def load(self, duration_s):
        self.clock.sleep(duration_s)

    def test_power_of_the_phone_is_measured(self):
        with self.make_meter() as meter:
            assert self.read(meter).power_w == pytest.approx(3.0, rel=0.02)


def test_charge_is_used_without_a_current():
    phone = Phone(VirtualClock())
    phone.has_nodes = False
    state = parse_termux(phone.termux())
    assert (state.power_w, state.left, state.voltage_v) == (None, pytest.approx(10800.0), 4.0)


def test_charging_is_noticed():
    phone = Phone(VirtualClock())
    phone.powered = {"USB": True}
    assert parse_termux(phone.termux()).charger == "PLUGGED_USB"


@pytest.mark.parametrize("text", ["", "Termux:API is not yet available", "[]", "{}", "null"])
def test_output_that_is_no_battery_is_an_error(text):
    with pytest.raises(MeasurementError, match="printed no battery"):
        parse_termux(text)


def test_missing_program_is_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="pkg install termux-api"):
        make_meter("termux")
    (row,) = detect_termux()
    assert not row.available


def test_unknown_argument_is_refused():
    with pytest.raises(InputError, match="termux:force"):
        make_meter("termux:x")


def test_real_program_is_run(monkeypatch, tmp_path):
    phone = Phone(VirtualClock())
    phone.powered = {"USB": True}
    program = tmp_path / "termux-battery-status"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{phone.termux()}\nEOF\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert detect_termux()[0].available
    with pytest.raises(MissingError, match=r"PLUGGED_USB.*unplug"):
        make_meter("termux").open()
    assert make_meter("termux:force").covers == "battery while charging"
