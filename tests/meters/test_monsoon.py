"""A Monsoon power monitor: Monsoon's own library on an emulated USB device, and the meter."""

import shutil
import sys
import time
from pathlib import Path
from unittest.mock import PropertyMock

import pytest
from virtual_instruments import VirtualContract, VirtualPoller

from joulecast.meters import detect_meter, make_meter
from joulecast.meters.monsoon import BLOCK_S, MonsoonMeter, PowerBlock, open_monitor
from joulecast.system.errors import InputError, MissingError

FAKE = Path(__file__).with_name("fake_usb.py")
UTIL = """
ENDPOINT_IN, ENDPOINT_OUT = 0x80, 0x00
find_descriptor = lambda descriptor, custom_match=None: None
endpoint_direction = lambda address: address & 0x80
dispose_resources = lambda device: None
"""


class MonsoonPoller(VirtualPoller):
    """The poller of a device of 4 W."""

    dropped = 0

    def update(self):
        self.events.append(PowerBlock(self.clock.now(), 4.0, self.dropped))


class TestMonsoonMeter(VirtualContract):
    step_s, power_w = BLOCK_S, 4.0

    def make(self):
        self.poller = MonsoonPoller(self.clock, BLOCK_S, "samples")
        return self.poller.drive(MonsoonMeter("60001"))

    def test_lost_samples_are_a_gap(self):
        reading = self.read_through(1.0, lambda: setattr(self.poller, "dropped", 7), 1.0)
        assert reading.faults == ("gap: the monitor lost 7 samples",)


# -- Monsoon's library on an emulated USB device ------------------------------------------------


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
    with make_meter("monsoon") as meter:
        meter.begin()
        time.sleep(meter.window_s)
        reading = meter.end()
    assert reading.power_w == pytest.approx(1.5 * 3.8, rel=1e-3)
    # A busy machine may read packets late.
    assert {fault.partition(":")[0] for fault in reading.faults} <= {"gap"}
    assert meter.instrument == "60001"


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
    with open_monitor("60001") as source:
        assert [source.poll().power_w for _ in "12"] == pytest.approx(2 * [power_w], rel=1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"VOLTAGE_V": 0.0}, "its main output is off; set the voltage"),
        ({"DEVICES": []}, "there is no Monsoon 60001"),
        ({"PACKETS": 200}, "No such device"),
    ],
)
def test_monitor_that_cannot_measure_says_why(connect, values, message):
    connect(**values)
    with pytest.raises((MissingError, OSError), match=message), open_monitor("60001") as source:
        for _ in range(100):
            source.poll()


def test_monitors_are_detected_and_chosen_by_serial_number(connect, monkeypatch):
    connect()
    (row,) = detect_meter("monsoon")
    assert (row.name, row.available) == ("monsoon:60001", True)
    with pytest.raises(InputError, match="no Monsoon '7': choose from 60001"):
        make_meter("monsoon:7")
    with pytest.raises(InputError, match="both cover cpu"):
        make_meter("monsoon+modelled")
    monkeypatch.setattr("joulecast.meters.monsoon._list_serials", lambda: ["1", "2"])
    with pytest.raises(InputError, match="choose from monsoon:1, monsoon:2"):
        make_meter("monsoon")
    assert make_meter("monsoon:2").instrument == "2"


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("joulecast.meters.monsoon.find_spec", lambda name: None)
    (row,) = detect_meter("monsoon")
    assert (row.available, row.advice) == (False, "run: pip install 'joulecast[monsoon]'")


def test_missing_permission_says_what_to_do(connect):
    connect()
    import usb.core

    error = ValueError("The device has no langid (permission issue, no string descriptors)")
    locked = type("Locked", (usb.core.Device,), {"__init__": lambda self: None})
    locked.serial_number = PropertyMock(side_effect=error)
    usb.core.DEVICES[:] = [locked()]
    (row,) = detect_meter("monsoon")
    assert row.reason == "no permission to use the Monsoon" and "udev rule" in row.advice
