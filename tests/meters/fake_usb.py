"""A fake ``usb.core`` of pyusb with one Monsoon, for Monsoon's own library.

Requests, packets and calibration follow Operations.py, pmapi.py, HVPM.py and sampleEngine.py of
PyMonsoon 0.1.88 (https://github.com/msoon/PyMonsoon). The poller's process imports a copy of it.
"""

import struct
import time
from array import array

SERIAL = "60001"
# 1 for low voltage (LVPM), 2 for high voltage (HVPM).
MODEL = 2
CURRENT_MA = 1000.0
VOLTAGE_V = 4.0
# Packets after which it is disconnected, and samples that it says it lost.
PACKETS = 10**9
DROPPED = 0

_FINE_SCALE, _COARSE_SCALE, _ZERO = 36500, 6400, 1500
# Operation codes: firmware, serial number, calibration.
EEPROM = {
    0xC0: 32,
    0xC1: 1,
    0x42: int(SERIAL),
    0x1A: _FINE_SCALE,
    0x1B: _COARSE_SCALE,
    0x1C: 14000,
    0x1D: 600,
    0x1E: 3100,
    0x1F: 250,
}
_SAMPLE_S = 1 / 5000
_OBSERVATIONS = 3
_ZERO_CAL, _REFERENCE_CAL, _MEASUREMENT = 0x10, 0x30, 0x00


class USBError(OSError):
    pass


class NoBackendError(ValueError):
    pass


class Device:
    """A monitor that supplies a constant load."""

    idVendor, idProduct = 0x2AB9, 0x0001

    def __init__(self):
        self.serial_number = SERIAL
        self.is_sampling = False
        self.sent = 0

    def ctrl_transfer(self, kind, request, value=0, index=0, data=None, timeout=None):
        if kind == 0xC0:
            operation = index & 0xFF
            status = 0x80 if self.is_sampling else 0
            value = {0x45: MODEL, 0xC4: status, **EEPROM}.get(operation, 0)
            return array("B", struct.pack("I", value))
        self.is_sampling = {0x02: True, 0x03: False}.get(request, self.is_sampling)
        if request == 0x02:
            self.sent, self.started_s = 0, time.monotonic()
        return 4

    def read(self, endpoint, size, timeout=None):
        """Return a packet of three samples when it is due: 5,000 samples a second."""
        assert self.is_sampling and endpoint == 0x81 and size == 64
        if self.sent >= PACKETS:
            raise USBError(19, "No such device (it may have been disconnected)")
        self.sent += 1
        due_s = self.started_s + self.sent * _OBSERVATIONS * _SAMPLE_S
        time.sleep(max(due_s - time.monotonic(), 0.0))
        # Calibration comes every so often; here, five of each kind at the start.
        kinds = {range(0, 2): _ZERO_CAL, range(2, 4): _REFERENCE_CAL}
        kind = next((one for span, one in kinds.items() if self.sent - 1 in span), _MEASUREMENT)
        header = struct.pack("<HBB", DROPPED * self.sent, 0, _OBSERVATIONS)
        return array("B", header + _OBSERVATIONS * pack_sample(kind))

    def get_active_configuration(self):
        return {(0, 0): ()}

    def reset(self, interface=None):
        pass

    set_configuration = detach_kernel_driver = reset


def pack_sample(kind):
    """Return coarse and fine current of three channels, two voltages, and the type of sample."""
    volts = round(VOLTAGE_V / (62.5e-6 * 4))
    # The words of a low voltage monitor are signed.
    largest = 0x7FFF if MODEL == 1 else 0xFFFF
    coarse, fine = _ZERO + round(CURRENT_MA), min(_ZERO + round(1000 * CURRENT_MA), largest)
    if kind == _ZERO_CAL:
        coarse = fine = _ZERO
    elif kind == _REFERENCE_CAL:
        coarse, fine = _ZERO + _COARSE_SCALE, _ZERO + _FINE_SCALE
    # Words are big-endian; the type is the second byte of its pair.
    return struct.pack(">8HBB", *3 * (coarse, fine), volts, volts, 0, kind)


DEVICES = [Device()]


def find(find_all=False, backend=None, custom_match=None, **numbers):
    matches = [
        device
        for device in DEVICES
        if all(getattr(device, name) == number for name, number in numbers.items())
        and (custom_match is None or custom_match(device))
    ]
    return iter(matches) if find_all else next(iter(matches), None)
