"""Measure a device that a Monsoon power monitor supplies instead of its battery.

    monsoon           the only monitor that is connected
    monsoon:60001     one by its serial number

A process, ``python -m joulecast.meters.monsoon SERIAL``, samples the main output 5,000 times a
second with Monsoon's own library, which ``joulecast[monsoon]`` installs. Each of its lines is the
mean of a block of samples; ``pollers`` reads them:

    block TIME WATTS DROPPED      the middle of the block; samples that the monitor lost so far

The voltage of the output is never changed: a wrong one could destroy the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from joulecast.meters.base import MeterInfo, Reading, UnavailableError
from joulecast.meters.pollers import (
    Listener,
    PolledMeter,
    Poller,
    PollerProcess,
    make_wait,
    write_line,
)
from joulecast.meters.sampling import Sample, integrate
from joulecast.system.errors import InputError

# Monsoon Solutions; high and low voltage monitors have the same number (pmapi.py of PyMonsoon).
_VENDOR, _PRODUCT = 0x2AB9, 0x0001
_RESPONSE_S = 10.0
# Calibration alone takes some seconds.
_START_S = 30.0
_CHECK = "check its cable and that no other program uses it"
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


def format_block(block: PowerBlock) -> str:
    """Return a block as one line of text, for ``parse_block``."""
    return f"block {block.time_s!r} {block.power_w!r} {block.dropped}"


def parse_block(line: str) -> PowerBlock:
    """Return the block that ``format_block`` wrote.

    Raises:
        ValueError: The line is not a block.
    """
    word, time_s, power_w, dropped = line.split()
    if word != "block":
        raise ValueError(f"not a block: {line!r}")
    return PowerBlock(float(time_s), float(power_w), int(dropped))


def start_monsoon_poller(serial: str) -> PollerProcess:
    """Start the poller of a monitor."""
    return PollerProcess("joulecast.meters.monsoon", serial)


class MonsoonMeter(PolledMeter[PowerBlock]):
    """The main output of a Monsoon power monitor."""

    name = "monsoon"
    covers = "board"
    covers_machine = True
    window_s = 1.0
    update_interval_s = BLOCK_S

    def __init__(
        self,
        serial: str,
        now: Callable[[], float] = time.monotonic,
        start: Callable[[str], Poller] = start_monsoon_poller,
        limit_s: float = _RESPONSE_S,  # longest time without a line from the poller
    ) -> None:
        super().__init__(
            serial,
            now,
            start,
            lambda poller: Listener(poller, parse_block, "Monsoon poller", _CHECK),
            limit_s,
            _START_S,
        )

    def _read_events(self, events: tuple[PowerBlock, ...], end_s: float, source: str) -> Reading:
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


def make_monsoon(argument: str) -> MonsoonMeter:
    """Return the meter of ``monsoon`` (the only one) or ``monsoon:SERIAL``."""
    serials = _list_serials()
    if argument and argument not in serials:
        raise InputError(f"there is no Monsoon {argument!r}: choose from {', '.join(serials)}")
    if not argument and len(serials) > 1:
        names = ", ".join(f"monsoon:{serial}" for serial in serials)
        raise InputError(f"{len(serials)} Monsoons are connected: choose from {names}")
    return MonsoonMeter(argument or serials[0])


def detect_monsoon() -> tuple[MeterInfo, ...]:
    """Return one row per monitor, or one that says why there is none."""
    try:
        serials = _list_serials()
    except UnavailableError as error:
        return (error.to_info(MonsoonMeter.name, MonsoonMeter.covers),)
    return tuple(
        MeterInfo(
            f"monsoon:{serial}",
            True,
            "power monitor, 5,000 samples a second of its main output",
            covers=MonsoonMeter.covers,
            update_interval_s=BLOCK_S,
        )
        for serial in serials
    )


def _list_serials() -> list[str]:
    """Return the serial numbers of all monitors that are connected.

    Raises:
        UnavailableError: There are none, or they cannot be read.
    """
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
    return [_read_serial(device) for device in found]


def _read_serial(device: Any) -> str:
    import usb.core

    try:
        return str(device.serial_number)
    except (usb.core.USBError, ValueError) as error:
        # pyusb raises ValueError where it may not read the languages of the device's texts.
        raise UnavailableError(
            "no permission to use the Monsoon",
            "ask an administrator for a udev rule: "
            'SUBSYSTEM=="usb", ATTR{idVendor}=="2ab9", MODE="0666"',
        ) from error


# ---------------------------------------------------------------------------------------------
# In the poller's process


def poll(engine: Any, write: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    """Write blocks until ``wait`` returns that the parent has gone.

    Args:
        engine: A ``SampleEngine`` of Monsoon's library.
        write: Writes a line.
        wait: Waits, and returns whether the parent has gone.
    """
    if engine.periodicStartSampling() is False:
        raise UnavailableError("it sent no calibration", "disconnect and connect it again")
    _check_output(engine.periodicCollectSamples(BLOCK_SAMPLES))
    write(f"ready {BLOCK_S!r} samples")
    while not wait(0.0):
        begun_s = time.monotonic()
        samples = engine.periodicCollectSamples(BLOCK_SAMPLES)
        middle_s = (begun_s + time.monotonic()) / 2
        if samples[0]:
            write(format_block(PowerBlock(middle_s, _mean_power_w(samples), int(engine.dropped))))
    engine.periodicStopSampling()


def _check_output(samples: Sequence[Sequence[float]]) -> None:
    """Raise UnavailableError if the main output is off."""
    volts = samples[4]
    if not volts or sum(volts) / len(volts) < _OFF_V:
        raise UnavailableError(
            "its main output is off", "set the voltage of the device with Monsoon's software"
        )


def _mean_power_w(samples: Sequence[Sequence[float]]) -> float:
    """Return the mean power of samples: [times, main mA, USB mA, aux mA, main V, USB V]."""
    products_mw = [current * volts for current, volts in zip(samples[1], samples[4], strict=False)]
    return float(sum(products_mw)) / len(products_mw) / 1e3


def run(serial: str, write: Callable[[str], None], wait: Callable[[float], bool]) -> int:
    """Sample one monitor until the parent has gone; return the exit status."""
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
        poll(engine, write, wait)
    except UnavailableError as error:
        write(f"error {error}")
        return 1
    except Exception as error:
        # Errors of USB, of which the library raises several types.
        write(f"error {type(error).__name__}: {error}")
        return 1
    finally:
        with suppress(Exception):
            monitor.closeDevice()
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the program; its one argument is the serial number of the monitor."""
    arguments = sys.argv[1:] if argv is None else argv
    # The library prints what it finds; ``write_line`` does not use stdout.
    with redirect_stdout(sys.stderr):
        try:
            return run(arguments[0], write_line, make_wait(0))
        except BrokenPipeError:
            return 0


if __name__ == "__main__":
    sys.exit(main())
