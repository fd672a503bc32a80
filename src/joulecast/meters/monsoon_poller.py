"""Sample a Monsoon power monitor: ``python -m joulecast.meters.monsoon_poller SERIAL``.

Monsoon's library samples the main output 5,000 times a second. Each line is the mean of a block:

    block TIME WATTS DROPPED      the middle of the block; samples that the monitor lost so far

``pollers`` starts it and reads its lines. It never changes the voltage of the output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any, NamedTuple

from joulecast.meters.base import UnavailableError
from joulecast.meters.pollers import make_wait, write_line

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
