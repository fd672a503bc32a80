"""Measure a device that a Monsoon power monitor supplies instead of its battery.

    monsoon           the only monitor that is connected
    monsoon:60001     one by its serial number

A process samples its main output with Monsoon's own library, which is installed by
``joulecast[monsoon]`` and imported there only (``monsoon_poller``). The voltage of the output is
never changed: a wrong one could destroy the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from joulecast.errors import InputError
from joulecast.meters.base import MeterInfo, Reading, UnavailableError
from joulecast.meters.guarded import GuardedMeter
from joulecast.meters.monsoon_poller import BLOCK_S, PowerBlock, parse_block
from joulecast.meters.pollers import Listener, Poller, PollerProcess
from joulecast.meters.trace import Sample, integrate

# Monsoon Solutions; high and low voltage monitors have the same number (pmapi.py of PyMonsoon).
_VENDOR, _PRODUCT = 0x2AB9, 0x0001
_RESPONSE_S = 10.0
# Calibration alone takes some seconds.
_START_S = 30.0
_CHECK = "check its cable and that no other program uses it"


def start_monsoon_poller(serial: str) -> PollerProcess:
    """Start the poller of a monitor."""
    return PollerProcess("joulecast.meters.monsoon_poller", serial)


class MonsoonMeter(GuardedMeter):
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
        limit_s: float = _RESPONSE_S,
    ) -> None:
        """Make the meter.

        Args:
            serial: Serial number of the monitor.
            now: The clock of the poller's blocks.
            start: Starts a poller.
            limit_s: Longest time without a line from the poller.
        """
        self.instrument = serial
        self._now = now
        self._start_poller = start
        self._limit_s = limit_s
        self._listener: Listener[PowerBlock] | None = None
        self._begun_s = 0.0

    def _connect(self) -> None:
        poller = self._start_poller(self.instrument)
        self._listener = Listener(poller, parse_block, "Monsoon poller", _CHECK)
        try:
            self.update_interval_s = self._listener.wait_ready(max(self._limit_s, _START_S))
        except UnavailableError:
            self._release()
            raise

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def _start(self) -> None:
        assert self._listener is not None, "only called on an open meter"
        self._listener.record()
        self._begun_s = self._now()

    def _stop(self) -> Reading:
        assert self._listener is not None, "only called on an open meter"
        end_s = self._now()
        # A block that began in the window ends a little after it.
        blocks = self._listener.take(end_s, self._limit_s)
        samples = [Sample(block.time_s, block.power_w) for block in blocks]
        reading = integrate(samples, self._begun_s, end_s)
        return replace(reading, faults=(*reading.faults, *_find_dropped(blocks)))


def _find_dropped(blocks: Sequence[PowerBlock]) -> tuple[str, ...]:
    dropped = max(blocks[-1].dropped - blocks[0].dropped, 0) if blocks else 0
    return (f"gap: the monitor lost {dropped} samples",) if dropped else ()


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
