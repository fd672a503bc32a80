"""Make and detect energy meters.

``make_meter`` parses the value of ``--meter``; ``detect_meters`` lists what this machine has:

    auto                    nvml or amd for a GPU; for a processor rapl, else modelled; hwmon on a
                            Jetson
    nvml, nvml:1            an NVIDIA GPU: the one that runs the load, or one by NVML's index
    rapl                    the energy counters of the processor
    hwmon, hwmon:VDD_IN     the input of a board, or one of its rails; Intel GPUs
    battery                 the battery of this machine, while it discharges
    android, android:SERIAL the battery of a phone, over adb
    termux                  the battery of this phone
    monsoon, monsoon:SERIAL a Monsoon power monitor that supplies the device
    amd, amd:1              an AMD GPU, through Zeus
    apple                   an Apple processor, through Zeus
    modelled, modelled:8W   CPU time x watts of a busy core
    file:PATH               time,watts written by an instrument
    command:PROGRAM ...     a program that prints joules or watts
    later, later:battery    none yet: a power trace is attached afterwards
    NAME, NAME:ARGUMENT     a meter that a plug-in adds (entry points ``joulecast.meters``)
    nvml+rapl               the sum of several

The entry point of a plug-in names a ``MeterSpec``. A simulated device has its own meter. The module
of an instrument is imported when its meter is made or detected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from typing import Any, cast

from joulecast.devices.detect import has_amd_gpus
from joulecast.meters.base import (
    METER_CHECKS,
    GuardedMeter,
    Meter,
    MeterInfo,
    MeterRequest,
    Reading,
    UnavailableError,
    explain_missing,
)
from joulecast.records import weakest_provenance
from joulecast.system.errors import InputError, JoulecastError, MissingError, arg
from joulecast.system.plugins import METER_GROUP, Plugins, load_plugins
from joulecast.system.redaction import redact_url


@dataclass(frozen=True)
class MeterSpec:
    """How a type of meter is written, made and detected.

    Attributes:
        form: How users write it: ``nvml[:INDEX]``.
        make: Returns a meter, or raises UnavailableError.
        detect: Returns one MeterInfo per meter that this machine has, or raises UnavailableError;
            takes at most a fraction of a second.
        covers: What the meters of a machine usually cover.
    """

    form: str
    make: Callable[[MeterRequest], Meter]
    detect: Callable[[], tuple[MeterInfo, ...]] = tuple
    covers: str = ""


def make_meter(text: str, on: str = "cpu", gpu: str | None = None) -> Meter:
    """Return the meter of a text like ``rapl``, ``file:power.csv`` or ``nvml+rapl``.

    Args:
        text: Name of a meter, with its argument after a colon; several joined by ``+``.
        on: The device that runs the load.
        gpu: For a load on a GPU, the GPU as NVML names it: ``devices.find_gpu(on)``.

    Raises:
        InputError: There is no such meter, its argument is invalid, or it reads another GPU than
            that of the load.
        MissingError: The meter is not available; the message says what to do.
    """
    meters = [_make_one(part, on, gpu) for part in _split_sum(text)]
    if len(meters) > 1 and any(meter.is_recorder for meter in meters):
        raise InputError(f"{arg('meter', text)} adds up with energy still to come: give one")
    if gpu is not None:
        from joulecast.meters.nvml import NvmlMeter, find_uuid

        read = [meter.instrument for meter in meters if isinstance(meter, NvmlMeter)]
        if read and find_uuid(gpu) not in read:
            raise InputError(
                f"{arg('meter', text)} does not read the GPU behind {arg('on', on)}: give "
                f"{arg('meter', 'nvml')}, which does"
            )
    return meters[0] if len(meters) == 1 else SumMeter(meters)


def detect_meters() -> tuple[MeterInfo, ...]:
    """Return all meters of this machine, available or not, in well under a second."""
    return tuple(info for name in (*METERS, *_load_plugins()) for info in detect_meter(name))


def detect_meter(name: str) -> tuple[MeterInfo, ...]:
    """Return the meters of one type, or a row that says why there is none."""
    covers = ""
    # A plug-in that cannot be loaded must not hide the others.
    try:
        spec = _find_spec(name)
        covers = spec.covers
        return spec.detect()
    except JoulecastError as error:
        return (explain_missing(name, covers, error),)


def _make_auto(request: MeterRequest) -> Meter:
    """Return the best available meter for the device that runs the load."""
    if request.is_gpu and request.gpu is None and has_amd_gpus():
        return METERS["amd"].make(request)
    names = ["nvml"] if request.is_gpu else ["rapl", "modelled"]
    # The GPU of a Jetson has no counter, and no name in NVML; its board has a sensor.
    if request.gpu is None:
        names.insert(-1, "hwmon")
    for name in names[:-1]:
        with suppress(UnavailableError):
            meter = METERS[name].make(request)
            # What supplies a board that is not known may be any of its sensors.
            if name != "hwmon" or meter.covers_machine:
                return meter
    return METERS[names[-1]].make(request)


def _import_later(form: str, covers: str = "", module: str = "", always: str = "") -> MeterSpec:
    """Return the spec of ``make_NAME`` and ``detect_NAME`` in a module that is not imported yet.

    The module has the meter's name by default; ``always`` is what `joulecast detect` says of a
    meter that every machine has.
    """
    name = re.split(r"\W", form)[0]

    def find(function: str) -> Any:
        return getattr(import_module(f"joulecast.meters.{module or name}"), f"{function}_{name}")

    def make(request: MeterRequest) -> Meter:
        if request.argument and ":" not in form:
            raise InputError(f"{name}:{request.argument} is not a meter: give {form}")
        return cast(Meter, find("make")(request))

    def detect() -> tuple[MeterInfo, ...]:
        if always:
            return (MeterInfo(name, True, always, covers),)
        return cast("tuple[MeterInfo, ...]", find("detect")())

    return MeterSpec(form, make, detect, covers)


_FILE = "give a file of time,watts that an instrument writes: file:power.csv"
_COMMAND = "give a program that prints joules or watts: command:PROGRAM ARGUMENTS"
_LATER = "records windows; `joulecast data attach trace.csv` fills the joules in later"

METERS: dict[str, MeterSpec] = {
    "auto": MeterSpec("auto", _make_auto),
    "nvml": _import_later("nvml[:INDEX]", "gpu"),
    "rapl": _import_later("rapl[:FOLDER]", "cpu"),
    "hwmon": _import_later("hwmon[:RAIL]", "board"),
    "battery": _import_later("battery", "battery"),
    "android": _import_later("android[:SERIAL][,force]", "battery", "phones"),
    "termux": _import_later("termux[:force]", "battery", "phones"),
    "monsoon": _import_later("monsoon[:SERIAL]", "board"),
    "amd": _import_later("amd[:INDEX]", "gpu", "zeus_meters"),
    "apple": _import_later("apple", "cpu+gpu+dram+ane", "zeus_meters"),
    "modelled": _import_later("modelled[:WATTS]", "cpu"),
    "file": _import_later("file:PATH", "board", always=_FILE),
    "command": _import_later("command:PROGRAM ...", "board", always=_COMMAND),
    "later": _import_later("later[:COVERS]", "board", "file", always=_LATER),
}


def _load_plugins() -> Plugins:
    return load_plugins(METER_GROUP, frozenset(METERS))


def _find_spec(name: str) -> MeterSpec:
    plugins = _load_plugins()
    if name not in METERS and name not in plugins:
        unknown = next((one for one in name.split("+") if one not in (*METERS, *plugins)), name)
        forms = ", ".join([*(spec.form for spec in METERS.values()), *plugins])
        raise InputError(f"there is no meter {unknown!r}: choose from {forms}, or join some with +")
    spec: MeterSpec = METERS[name] if name in METERS else plugins[name]
    return spec


def _split_sum(text: str) -> list[str]:
    """Return the parts of a sum; only a plus before the name of a meter separates them."""
    names = "|".join(map(re.escape, (*METERS, *_load_plugins())))
    return re.split(rf"\+(?=(?:{names})(?:[:+]|$))", text.strip())


def _make_one(text: str, on: str, gpu: str | None) -> Meter:
    name, _, argument = text.partition(":")
    try:
        meter = _find_spec(name).make(MeterRequest(argument, on, gpu))
    except UnavailableError as error:
        raise MissingError(f"meter {name} is not available: {error}") from error
    if argument:
        # The name is stored and shown, and a program's arguments may contain a password.
        meter.name = redact_url(text)
    return meter


# ---------------------------------------------------------------------------------------------
# Sums


class SumMeter(GuardedMeter):
    """The sum of meters that cover different parts of a machine.

        begin   slowest first, so that the others start close to the load
        end     fastest first, for the same reason

    Energies add up and faults are joined. The sum has the weakest provenance and the longest
    window; what one of the meters could not check is unchecked. Two GPUs are covered as
    ``gpu+gpu``. What two meters both cover is never counted twice: such a sum is refused.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        for one, other in combinations(meters, 2):
            if shared := _list_shared(one, other):
                raise InputError(
                    f"meters {one.name} and {other.name} both cover {'+'.join(sorted(shared))}: "
                    "their sum would count it twice; choose one"
                )
        self.meters = tuple(meters)
        self.name = "+".join(meter.name for meter in meters)
        self._describe()

    def _describe(self) -> None:
        self.covers = "+".join(meter.covers for meter in self.meters)
        self.provenance = weakest_provenance(meter.provenance for meter in self.meters)
        self.window_s = max(meter.window_s for meter in self.meters)
        self.update_interval_s = max(meter.update_interval_s for meter in self.meters)

    def _connect(self) -> None:
        with ExitStack() as opened:
            for meter in self.meters:
                opened.enter_context(meter)
            opened.pop_all()
        # Some meters know their update interval only after opening.
        self._describe()

    def _release(self) -> None:
        with ExitStack() as closing:
            for meter in self.meters:
                closing.callback(meter.close)

    def _start(self) -> None:
        for meter in self._fastest_first()[::-1]:
            meter.begin()

    def _stop(self) -> Reading:
        readings = [meter.end() for meter in self._fastest_first()]
        busy = [reading.busy_share for reading in readings if reading.busy_share is not None]
        return Reading(
            sum(reading.energy_j for reading in readings),
            max(reading.duration_s for reading in readings),
            tuple(fault for reading in readings for fault in reading.faults),
            max(busy, default=None),
            tuple(c for c in METER_CHECKS if any(c in one.unchecked for one in readings)),
        )

    def _fastest_first(self) -> tuple[Meter, ...]:
        return tuple(sorted(self.meters, key=lambda meter: meter.window_s))


def _list_regions(meter: Meter) -> set[str]:
    """Return the parts that a meter covers: for ``cpu at 10 W a core`` that is ``cpu``."""
    return set(re.findall(r"(?:^|\+)(\w+)", meter.covers))


def _list_shared(one: Meter, other: Meter) -> set[str]:
    """Return the parts that would be counted twice, unless by different instruments.

    Only instruments of one type can be told apart: two GPUs, but not a file and a program.
    """
    shared = _list_regions(one) & _list_regions(other)
    if _get_type(one) == _get_type(other):
        are_known = bool(one.instrument and other.instrument)
        are_distinct = are_known and one.instrument != other.instrument
        return set(one.parts & other.parts) or (set() if are_distinct else shared)
    # Whatever else is read is a part of the machine.
    for whole, part in ((one, other), (other, one)):
        if whole.covers_machine:
            return _list_regions(part)
    return shared


def _get_type(meter: Meter) -> str:
    return meter.name.partition(":")[0]
