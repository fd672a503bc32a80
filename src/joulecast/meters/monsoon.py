"""Measure a device that a Monsoon power monitor supplies instead of its battery.

    monsoon           the only monitor that is connected
    monsoon:60001     one by its serial number

A process, ``python -m joulecast.meters.monsoon SERIAL``, samples the main output 5,000 times a
second with Monsoon's own library, which ``joulecast[monsoon]`` installs. Each of its events is the
mean of a block of samples (``pollers``).

The voltage of the output is never changed: a wrong one could destroy the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from importlib.util import find_spec
from statistics import fmean
from typing import Any, NamedTuple

from joulecast.meters.base import MeterInfo, MeterRequest, Reading, UnavailableError
from joulecast.meters.pollers import PolledMeter, run_poller
from joulecast.meters.sampling import Sample, integrate
from joulecast.system.errors import InputError

# Monsoon Solutions; high and low voltage monitors have the same number (pmapi.py of PyMonsoon).
_VENDOR, _PRODUCT = 0x2AB9, 0x0001
# 20 ms: fifty blocks in the shortest window.
BLOCK_SAMPLES = 100
BLOCK_S = BLOCK_SAMPLES / 5000
# Below, the output is switched off: no battery has so little.
_OFF_V = 0.5


class PowerBlock(NamedTuple):
    """The mean power of a block of samples.

    Attributes:
        time_s: The middle of the block, by time.monotonic.
        dropped: How many samples the monitor has lost since sampling began.
    """

    time_s: float
    power_w: float
    dropped: int = 0


class MonsoonMeter(PolledMeter[PowerBlock]):
    """The main output of a Monsoon power monitor."""

    name = "monsoon"
    covers = "board"
    covers_machine = True
    window_s = 1.0
    update_interval_s = BLOCK_S
    module = "joulecast.meters.monsoon"
    make_event = PowerBlock
    advice = "check its cable and that no other program uses it"
    # Calibration alone takes some seconds.
    start_limit_s = 30.0

    def _read_events(self, events: tuple[PowerBlock, ...], end_s: float) -> Reading:
        # A block that began in the window ends a little after it.
        samples = [Sample(block.time_s, block.power_w) for block in events]
        reading = integrate(samples, self._begun_s, end_s)
        dropped = events[-1].dropped - events[0].dropped if events else 0
        if dropped <= 0:
            return reading
        fault = f"gap: the monitor lost {dropped} samples"
        return replace(reading, faults=(*reading.faults, fault))


# ---------------------------------------------------------------------------------------------
# Make and detect


def make_monsoon(request: MeterRequest) -> MonsoonMeter:
    """Return the meter of ``monsoon`` (the only one) or ``monsoon:SERIAL``."""
    serials, argument = _list_serials(), request.argument
    if argument and argument not in serials:
        raise InputError(f"there is no Monsoon {argument!r}: choose from {', '.join(serials)}")
    if not argument and len(serials) > 1:
        names = ", ".join(f"monsoon:{serial}" for serial in serials)
        raise InputError(f"{len(serials)} Monsoons are connected: choose from {names}")
    return MonsoonMeter(argument or serials[0])


def detect_monsoon() -> tuple[MeterInfo, ...]:
    """Return one row per monitor."""
    rows = []
    for serial in _list_serials():
        meter = MonsoonMeter(serial)
        meter.name = f"monsoon:{serial}"
        rows.append(meter.to_info("power monitor, 5,000 samples a second of its main output"))
    return tuple(rows)


def _list_serials() -> list[str]:
    """Return the serial numbers of all monitors that are connected."""
    if find_spec("Monsoon") is None or find_spec("usb") is None:
        raise UnavailableError(
            "the package monsoon is not installed", "run: pip install 'joulecast[monsoon]'"
        )
    import usb.core

    try:
        found = list(usb.core.find(find_all=True, idVendor=_VENDOR, idProduct=_PRODUCT))
    except usb.core.NoBackendError as error:
        raise UnavailableError(
            "libusb is not installed", "install libusb-1.0: apt install libusb-1.0-0"
        ) from error
    if not found:
        raise UnavailableError("no Monsoon is connected by USB", "connect it and switch it on")
    try:
        return [str(device.serial_number) for device in found]
    except (usb.core.USBError, ValueError) as error:
        # pyusb raises ValueError where it may not read the languages of the device's texts.
        raise UnavailableError(
            "no permission to use the Monsoon",
            "ask an administrator for a udev rule: "
            'SUBSYSTEM=="usb", ATTR{idVendor}=="2ab9", MODE="0666"',
        ) from error


# ---------------------------------------------------------------------------------------------
# In the poller's process


class MonitorSource:
    """A monitor that samples as long as it is polled.

    Its library returns samples as [times, main mA, USB mA, aux mA, main V, USB V].
    """

    name, poll_s, update_interval_s = "samples", 0.0, BLOCK_S

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        if engine.periodicStartSampling() is False:
            raise UnavailableError("it sent no calibration", "disconnect and connect it again")
        volts = engine.periodicCollectSamples(BLOCK_SAMPLES)[4]
        if not volts or fmean(volts) < _OFF_V:
            raise UnavailableError(
                "its main output is off", "set the voltage of the device with Monsoon's software"
            )

    def poll(self) -> PowerBlock | None:
        """Return the next block of samples; None if none of them arrived."""
        begun_s = time.monotonic()
        samples = self._engine.periodicCollectSamples(BLOCK_SAMPLES)
        middle_s = (begun_s + time.monotonic()) / 2
        if not samples[0]:
            return None
        power_w = fmean(ma * v for ma, v in zip(samples[1], samples[4], strict=False)) / 1e3
        return PowerBlock(middle_s, power_w, int(self._engine.dropped))


@contextmanager
def open_monitor(serial: str) -> Iterator[MonitorSource]:
    """Sample one monitor with Monsoon's library."""
    from Monsoon import HVPM, LVPM, Operations, pmapi, sampleEngine

    protocol = pmapi.USB_protocol()
    monitor = HVPM.Monsoon()
    try:
        monitor.setup_usb(serial, protocol)
        # The library prints that it found none, and continues.
        if protocol.DEVICE is None:
            raise UnavailableError(f"there is no Monsoon {serial}", "check its cable")
        if protocol.getValue(Operations.OpCodes.HardwareModel, 2) == Operations.HardwareModel.LVPM:
            monitor = LVPM.Monsoon()
            monitor.setup_usb(serial, protocol)
        engine = sampleEngine.SampleEngine(monitor)
        engine.ConsoleOutput(False)
        yield MonitorSource(engine)
        engine.periodicStopSampling()
    finally:
        with suppress(Exception):
            monitor.closeDevice()


if __name__ == "__main__":
    # The library prints what it finds; answers of the poller do not use sys.stdout.
    with redirect_stdout(sys.stderr):
        sys.exit(run_poller(open_monitor, sys.argv[1]))
