"""Meters: what passed between two moments, in joules; one file per instrument.

``make_meter`` takes what a person writes after ``--meter``, ``detect_meters`` says what there is:

    auto                    nvml for a GPU; for a processor rapl, else modelled
    nvml, nvml:1            an NVIDIA GPU: the one that runs the load, or NVML's own index
    rapl                    the processor's counters
    modelled, modelled:8W   CPU time x watts of a busy core
    file:PATH               time,watts that an instrument writes
    command:PROGRAM ...     a program that prints joules or watts
    nvml+rapl               added up

A new instrument is a file beside these and a row of METERS. A simulated world brings its own meter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from joulecast.errors import InputError, MissingError
from joulecast.meters.base import Meter, MeterInfo, Reading, UnavailableError
from joulecast.meters.command import detect_command, make_command
from joulecast.meters.file import detect_file, make_file
from joulecast.meters.modelled import detect_modelled, make_modelled
from joulecast.meters.nvml import detect_nvml, make_nvml
from joulecast.meters.rapl import detect_rapl, make_rapl
from joulecast.meters.sum import SumMeter

__all__ = [
    "METERS",
    "Meter",
    "MeterInfo",
    "Reading",
    "UnavailableError",
    "detect_meters",
    "make_meter",
]


@dataclass(frozen=True)
class MeterRequest:
    """What is asked for: the words after the colon, and where the load runs.

    Attributes:
        gpu: The GPU that runs the load, as NVML names it (an index or a uuid); None for no GPU.
    """

    argument: str
    on: str
    gpu: str | None

    @property
    def is_gpu(self) -> bool:
        """Whether the load runs on a GPU."""
        return self.on.partition(":")[0] == "cuda"


@dataclass(frozen=True)
class MeterSpec:
    """One meter: how to write it, how to make it, how to find it."""

    form: str
    make: Callable[[MeterRequest], Meter]
    detect: Callable[[], tuple[MeterInfo, ...]] = tuple


def _make_auto(wanted: MeterRequest) -> Meter:
    """The best meter that is there for where the load runs."""
    *better, last = ("nvml",) if wanted.is_gpu else ("rapl", "modelled")
    for name in better:
        try:
            return METERS[name].make(wanted)
        except UnavailableError:
            continue
    return METERS[last].make(wanted)


def _make_nvml(wanted: MeterRequest) -> Meter:
    # cuda:1 need not be NVML's GPU 1: guessing would measure somebody else's GPU.
    if wanted.is_gpu and wanted.gpu is None and not wanted.argument:
        raise InputError(
            f"which GPU is {wanted.on}? Give gpu=devices.find_gpu({wanted.on!r}), or nvml:INDEX"
        )
    return make_nvml(wanted.argument, wanted.gpu)


METERS: dict[str, MeterSpec] = {
    "auto": MeterSpec("auto", _make_auto),
    "nvml": MeterSpec("nvml[:INDEX]", _make_nvml, detect_nvml),
    "rapl": MeterSpec("rapl", lambda wanted: make_rapl(wanted.argument), detect_rapl),
    "modelled": MeterSpec(
        "modelled[:WATTS]", lambda wanted: make_modelled(wanted.argument), detect_modelled
    ),
    "file": MeterSpec("file:PATH", lambda wanted: make_file(wanted.argument), detect_file),
    "command": MeterSpec(
        "command:PROGRAM ...", lambda wanted: make_command(wanted.argument), detect_command
    ),
}


def make_meter(spec: str, on: str = "cpu", gpu: str | None = None) -> Meter:
    """The meter that a person asks for.

    Args:
        spec: A meter's name with what follows its colon; several joined by ``+``.
        on: Where the load runs: ``cpu`` or ``cuda:0``.
        gpu: For a load on a GPU that GPU as NVML names it: ``devices.find_gpu(on)``.

    Raises:
        InputError: There is no such meter, or what follows its colon cannot be used.
        MissingError: It is not there, or may not be read; the message says what to do.
    """
    meters = [_make_one(part, on, gpu) for part in _split(spec)]
    return meters[0] if len(meters) == 1 else SumMeter(meters)


def detect_meters() -> tuple[MeterInfo, ...]:
    """What there is on this machine, and why not where there is not; takes well under a second."""
    return tuple(info for row in METERS.values() for info in row.detect())


def _split(spec: str) -> list[str]:
    """The parts of a sum. A plus in a path or an argument stays: no meter's name follows it."""
    return re.split(rf"\+(?=(?:{'|'.join(METERS)})(?:[:+]|$))", spec.strip())


def _make_one(part: str, on: str, gpu: str | None) -> Meter:
    name, _, argument = part.partition(":")
    if name not in METERS:
        unknown = next((word for word in name.split("+") if word not in METERS), name)
        forms = ", ".join(row.form for row in METERS.values())
        raise InputError(f"there is no meter {unknown!r}: choose from {forms}, or join some with +")
    try:
        meter = METERS[name].make(MeterRequest(argument, on, gpu))
    except UnavailableError as error:
        raise MissingError(f"meter {name} is not available: {error}") from error
    if argument:
        meter.name = part
    return meter
