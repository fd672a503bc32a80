"""A Monsoon power monitor: Monsoon's own library on an emulated USB device, and the meter."""

import json
import shutil
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import PropertyMock

import pytest
from virtual_instruments import LinePoller, VirtualContract

from joulecast.meters import make_meter
from joulecast.meters.monsoon import (
    BLOCK_S,
    MonsoonMeter,
    PowerBlock,
    detect_monsoon,
    make_monsoon,
    poll_monitor,
)
from joulecast.meters.pollers import format_event, run_poller
from joulecast.system.errors import InputError, MeasurementError

FAKE = Path(__file__).with_name("fake_usb.py")
UTIL = """
ENDPOINT_IN, ENDPOINT_OUT = 0x80, 0x00
find_descriptor = lambda descriptor, custom_match=None: None
endpoint_direction = lambda address: address & 0x80
dispose_resources = lambda device: None
"""


class VirtualMonsoon(LinePoller):
    """The lines of a poller for a device of constant power on a virtual clock."""

    def __init__(self, clock, power_w=4.0):
        super().__init__(clock, f"{BLOCK_S} samples")
        self.power_w, self.dropped = power_w, 0
        self.update()

    def update(self):
        self.write(format_event(PowerBlock(self.clock.now(), self.power_w, self.dropped)))


class TestMonsoonMeter(VirtualContract):
    step_s = BLOCK_S

    def make_meter(self):
        return MonsoonMeter("60001", now=self.clock.now, start=self.start)

    def start(self, serial):
        assert serial == "60001"
        self.poller = VirtualMonsoon(self.clock)
        return self.poller

    def test_energy_is_that_of_the_power(self):
        with self.make_meter() as meter:
            assert self.read(meter, 2.0).energy_j == pytest.approx(8.0, rel=1e-6)

    def test_lost_samples_are_a_gap(self):
        reading = self.read_through(1.0, lambda: setattr(self.poller, "dropped", 7), 1.0)
        assert reading.faults == ("gap: the monitor lost 7 samples",)

    def test_monitor_that_stops_is_an_error(self):
        with self.make_meter() as meter:
            meter.begin()
            self.poller.lines.put("error USBError: [Errno 19] No such device\n")
            self.poller.lines.put(None)
            self.clock.time_s += 1.0
            with pytest.raises(MeasurementError, match=r"has ended \(USBError: .*No such device"):
                meter.end()

    def test_sum_with_another_meter_is_refused(self, monkeypatch):
        monkeypatch.setattr("joulecast.meters.monsoon._list_serials", lambda: ["60001"])
        with pytest.raises(InputError, match="both cover cpu"):
            make_meter("monsoon+modelled")


# ---------------------------------------------------------------------------------------------
# Monsoon's library on an emulated USB device


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """Return a function that connects a monitor with other values."""
    pytest.importorskip("Monsoon")

    def install(**values):
        folder = tmp_path / "usb"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "util.py").write_text(UTIL)
        shutil.copy(FAKE, folder / "core.py")
        with (folder / "core.py").open("a") as file:
            file.writelines(f"{name} = {value!r}\n" for name, value in values.items())
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in [one for one in sys.modules if one.partition(".")[0] in ("usb", "Monsoon")]:
            monkeypatch.delitem(sys.modules, name)

    return install


def test_library_samples_the_emulated_monitor(connect):
    connect(CURRENT_MA=1500, VOLTAGE_V=3.8)
    with make_monsoon("") as meter:
        meter.begin()
        time.sleep(meter.window_s)
        reading = meter.end()
    assert reading.power_w == pytest.approx(1.5 * 3.8, rel=1e-3)
    # A busy machine may read packets late.
    assert {fault.partition(":")[0] for fault in reading.faults} <= {"gap"}
    assert meter.instrument == "60001"


def poll_here(blocks):
    """Run the poller in this process for some blocks, and return its status and lines."""
    lines = []
    waits = iter([False] * blocks)
    with redirect_stdout(None):
        status = run_poller(poll_monitor, "60001", lines.append, lambda _: next(waits, True))
    return status, lines


@pytest.mark.parametrize(
    ("values", "power_w"),
    [
        # Small currents use the fine range.
        ({"CURRENT_MA": 20.25}, 0.02025 * 4.0),
        # A low voltage monitor has its own scales: of current 3103.4 instead of 6400, of voltage 2
        # instead of 4 (LVPM.py).
        ({"MODEL": 1}, (1.0 * 3103.4 / 6400) * (4.0 * 2 / 4)),
    ],
)
def test_ranges_and_models_have_their_scales(connect, values, power_w):
    connect(**values)
    status, lines = poll_here(2)
    assert (status, lines[0]) == (0, "ready 0.02 samples")
    powers_w = [json.loads(line.removeprefix("event "))[1] for line in lines[1:]]
    assert powers_w == pytest.approx(2 * [power_w], rel=1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"VOLTAGE_V": 0.0}, "error its main output is off; set the voltage"),
        ({"DEVICES": []}, "error there is no Monsoon 60001"),
        ({"PACKETS": 200}, "error USBError: [Errno 19] No such device"),
    ],
)
def test_monitor_that_cannot_measure_says_why(connect, values, message):
    connect(**values)
    status, lines = poll_here(100)
    assert status == 1 and lines[-1].startswith(message)


def test_monitors_are_detected_and_chosen_by_serial_number(connect, monkeypatch):
    connect()
    (row,) = detect_monsoon()
    assert (row.name, row.available) == ("monsoon:60001", True)
    with pytest.raises(InputError, match=r"no Monsoon '7': choose from 60001"):
        make_monsoon("7")
    monkeypatch.setattr("joulecast.meters.monsoon._list_serials", lambda: ["1", "2"])
    with pytest.raises(InputError, match="choose from monsoon:1, monsoon:2"):
        make_monsoon("")
    assert make_monsoon("2").instrument == "2"


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("joulecast.meters.monsoon.find_spec", lambda name: None)
    (row,) = detect_monsoon()
    assert (row.available, row.advice) == (False, "run: pip install 'joulecast[monsoon]'")


def test_missing_permission_says_what_to_do(connect):
    connect()
    import usb.core

    error = ValueError("The device has no langid (permission issue, no string descriptors)")
    locked = type("Locked", (usb.core.Device,), {"__init__": lambda self: None})
    locked.serial_number = PropertyMock(side_effect=error)
    usb.core.DEVICES[:] = [locked()]
    (row,) = detect_monsoon()
    assert row.reason == "no permission to use the Monsoon" and "udev rule" in row.advice
