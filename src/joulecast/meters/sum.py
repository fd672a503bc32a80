"""Add up several meters: ``nvml+rapl``.

    begin   slowest first, so that the others start close to the load
    end     fastest first, for the same reason

Energies add up and faults are joined. The sum has the weakest provenance and the longest window.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

from joulecast.errors import InputError
from joulecast.meters.base import Meter, Reading
from joulecast.meters.guarded import GuardedMeter
from joulecast.records import weakest_provenance


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
        parts = [part for meter in self.meters for part in meter.covers.split("+")]
        self.covers = "+".join(dict.fromkeys(parts))
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
        return Reading(
            sum(reading.energy_j for reading in readings),
            max(reading.duration_s for reading in readings),
            tuple(fault for reading in readings for fault in reading.faults),
        )

    def _fastest_first(self) -> tuple[Meter, ...]:
        return tuple(sorted(self.meters, key=lambda meter: meter.window_s))


def _list_regions(meter: Meter) -> set[str]:
    """Return the parts that a meter covers: for ``cpu at 10 W a core`` that is ``cpu``."""
    return set(re.findall(r"(?:^|\+)(\w+)", meter.covers))


def _check_distinct(one: Meter, other: Meter) -> None:
    """Raise InputError if two meters cover the same part; ``nvml:0`` and ``nvml:1`` do not."""
    shared = _list_regions(one) & _list_regions(other)
    (instrument, colon, index), other_parts = one.name.partition(":"), other.name.partition(":")
    are_units = (instrument, colon) == other_parts[:2] and colon and index != other_parts[2]
    if shared and not are_units:
        raise InputError(
            f"meters {one.name} and {other.name} both cover {'+'.join(sorted(shared))}: "
            "their sum would count it twice; choose one"
        )
