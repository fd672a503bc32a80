"""Phones over adb and in Termux: what they show, chargers, choosing one, a real adb program."""

import shutil
from functools import partial

import pytest
from virtual_instruments import VirtualClock, VirtualContract, read_through
from virtual_phone import AdbServer, Phone

from joulecast.meters import detect_meter, make_meter
from joulecast.meters.base import UnavailableError
from joulecast.meters.battery import DischargeMeter
from joulecast.meters.phones import (
    POLL_S,
    AdbDevice,
    choose_device,
    list_devices,
    parse_dumpsys,
    parse_termux,
)
from joulecast.system.errors import MeasurementError, MissingError

WIRELESS = "192.168.1.20:5555"


class PhoneContract(VirtualContract):
    step_s, power_w, power_share = 0.5, 3.0, 0.02

    @pytest.fixture(autouse=True)
    def phone(self, set_clock):
        self.phone = Phone(self.clock)

    def read_phone(self):
        return parse_dumpsys(self.phone.dumpsys())

    def make(self):
        return DischargeMeter("android", self.read_phone, "phone", POLL_S)


class TestTermux(PhoneContract):
    def read_phone(self):
        return parse_termux(self.phone.termux())


class TestPhoneCurrent(PhoneContract):
    """A phone whose shell may read the files of the battery."""

    def test_charging_within_a_window_is_a_fault(self):
        plug_in = partial(setattr, self.phone, "powered", {"USB": True})
        assert self.read_through(15.0, plug_in, 15.0).faults == ("charging: USB powered",)

    def test_current_that_is_missing_at_times_is_a_fault(self):
        reading = self.read_through(15.0, partial(setattr, self.phone, "has_nodes", False), 30.0)
        assert "gap: the battery showed its power only at times" in reading.faults


class TestPhoneCharge(PhoneContract):
    """A phone whose shell may not: the charge counter has steps of a mAh."""

    @pytest.fixture(autouse=True)
    def charge(self, phone):
        self.phone.has_nodes = False

    def test_windows_are_long(self):
        with self.make_meter() as meter:
            assert meter.window_s >= 200.0


def test_current_in_ma_is_recognised():
    phone = Phone(VirtualClock())
    phone.per_a = 1e3
    assert parse_dumpsys(phone.dumpsys()).power_w == pytest.approx(3.0, rel=0.01)


def test_phones_of_samsung_show_their_current_in_dumpsys():
    """As on https://gh0st.tistory.com/6, discharging."""
    text = (
        "Current Battery Service state:\n  mBootCompleted: true\n  AC powered: false\n"
        "  USB powered: false\n  Wireless powered: false\n  Charge counter: 0\n  status: 3\n"
        "  voltage: 4063\n  LED Charging: true\n  current now: -321\n  charge counter: 0\n"
    )
    state = parse_dumpsys(text)
    assert (state.charger, state.power_w) == ("", pytest.approx(4.063 * 0.321))
    # A phone that is full.
    assert parse_dumpsys(text.replace("status: 3", "status: 5")).charger == "it does not drain"


FROZEN, MUTE = Phone(VirtualClock()), Phone(VirtualClock())
FROZEN.is_frozen, MUTE.is_mute, MUTE.has_nodes = True, True, False


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_dumpsys, FROZEN.dumpsys(), "dumpsys battery reset"),
        (parse_dumpsys, MUTE.dumpsys(), "neither current nor charge"),
        (parse_dumpsys, "sh: dumpsys: not found\n", "shows no battery"),
        *((parse_termux, text, "printed no battery") for text in ("", "not yet", "[]", "null")),
    ],
)
def test_phone_that_tells_nothing_is_an_error(parse, text, message):
    with pytest.raises(MeasurementError, match=message):
        parse(text)


# -- choosing a phone ---------------------------------------------------------------------------

CABLE = AdbDevice("R58M12ABCDE", "device")
WIFI = AdbDevice(WIRELESS, "device")
MDNS = AdbDevice("adb-R58M12ABCDE-x1y2z3._adb-tls-connect._tcp", "device")


@pytest.mark.parametrize(
    ("devices", "serial", "chosen"),
    [
        # One without a cable is preferred.
        ([CABLE], "", CABLE),
        ([CABLE, WIFI], "", WIFI),
        ([CABLE, MDNS], "", MDNS),
        ([CABLE, WIFI], CABLE.serial, CABLE),
        ([WIFI, AdbDevice("emulator-5554", "offline")], "", WIFI),
        # These cannot be chosen.
        ([], "", "lists no phone .it lists none.; turn on wireless debugging"),
        ([CABLE], "other", "no phone other .it lists R58M12ABCDE"),
        ([AdbDevice("A", "unauthorized")], "", "A is unauthorized; unlock the phone"),
        ([WIFI, MDNS], "", "2 phones; choose from android:192"),
    ],
)
def test_phone_is_chosen_or_explained(devices, serial, chosen):
    if isinstance(chosen, AdbDevice):
        assert choose_device(tuple(devices), serial) == chosen
        return
    with pytest.raises(UnavailableError, match=chosen):
        choose_device(tuple(devices), serial)


# -- a real adb program -------------------------------------------------------------------------

needs_adb = pytest.mark.skipif(
    shutil.which("adb") is None,
    reason="adb is not installed: run .ci/packages, or apt-get install adb",
)


@pytest.fixture
def server(monkeypatch):
    phone = Phone(VirtualClock(step_s=0.5))
    with AdbServer(phone, **{CABLE.serial: "device", WIRELESS: "device"}) as server:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(server.port))
        yield server


@needs_adb
def test_adb_lists_phones(server):
    server.devices["A"] = "unauthorized"
    assert list_devices() == (CABLE, WIFI, AdbDevice("A", "unauthorized"))
    rows = detect_meter("android")
    assert [(row.name, row.available) for row in rows] == [
        (f"android:{CABLE.serial}", True),
        (f"android:{WIRELESS}", True),
        ("android:A", False),
    ]


@needs_adb
def test_adb_measures_the_phone_without_a_cable(server):
    clock = server.phone.clock
    with clock.drive(make_meter("android")) as meter:
        assert meter.instrument == WIRELESS
        reading = read_through(clock, meter, meter.window_s)
    assert (reading.faults, reading.power_w) == ((), pytest.approx(3.0, rel=0.02))
    assert set(server.commands) == {next(iter(server.commands))}
    assert server.commands[0].startswith("dumpsys battery")


@needs_adb
def test_adb_refuses_a_phone_on_usb_unless_forced(server):
    server.phone.powered = {"USB": True}
    with pytest.raises(UnavailableError, match=r"USB powered.*unplug"):
        make_meter(f"android:{CABLE.serial}").open()
    meter = make_meter(f"android:{CABLE.serial},force")
    assert (meter.covers, meter.is_forced) == ("battery while charging", True)


@needs_adb
def test_adb_reports_a_phone_that_went_away(server):
    meter = make_meter("android")
    server.devices.clear()
    with pytest.raises(MeasurementError, match=f"device '{WIRELESS}' not found"):
        meter.open()


@needs_adb
def test_detecting_starts_no_server(monkeypatch):
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    (row,) = detect_meter("android")
    assert row.reason == "the adb server is not running"


def test_charge_is_used_without_a_current():
    phone = Phone(VirtualClock())
    phone.has_nodes = False
    state = parse_termux(phone.termux())
    assert (state.power_w, state.left, state.voltage_v) == (None, pytest.approx(10800.0), 4.0)


def test_real_program_is_run(monkeypatch, tmp_path):
    phone = Phone(VirtualClock())
    phone.powered = {"USB": True}
    program = tmp_path / "termux-battery-status"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{phone.termux()}\nEOF\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert detect_meter("termux")[0].available
    with pytest.raises(MissingError, match=r"PLUGGED_USB.*unplug"):
        make_meter("termux").open()
    assert make_meter("termux:force").covers == "battery while charging"
