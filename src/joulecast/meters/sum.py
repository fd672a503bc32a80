"""Add up several meters: ``nvml+rapl``.

    begin   slowest first, so that the others start close to the load
    end     fastest first, for the same reason

Energies add up and faults are joined. The sum has the weakest provenance and the longest window;
what one of the meters could not check is unchecked. Two GPUs are covered as ``gpu+gpu``. What two
meters both cover is never counted twice: such a sum is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

from joulecast.meters.base import METER_CHECKS, GuardedMeter, Meter, Reading
from joulecast.records import weakest_provenance
from joulecast.system.errors import InputError


class SumMeter(GuardedMeter):
    """The sum of meters that cover different parts of a machine."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        if len(meters) < 2:
            raise InputError(f"a sum needs two meters or more, found {len(meters)}")
        for one, other in combinations(meters, 2):
            _check_distinct(one, other)
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


def _check_distinct(one: Meter, other: Meter) -> None:
    """Raise InputError if two meters cover the same part, unless they are different instruments.

    Only instruments of one type can be told apart: two GPUs, but not a file and a program.
    """
    shared = _list_shared(one, other)
    if shared:
        raise InputError(
            f"meters {one.name} and {other.name} both cover {'+'.join(sorted(shared))}: "
            "their sum would count it twice; choose one"
        )


def _list_shared(one: Meter, other: Meter) -> set[str]:
    """Return the parts that would be counted twice."""
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
