"""Compare the meters ``nvml`` and ``rapl`` with Zeus, an independent program, over the same window.

        Zeus      ├──────────────────────────┤     its counters are read at both ends
        Joulecast  ├────────────────────────┤      powers are compared: their windows differ a bit

Both read the same counters of the hardware, so that a difference means that one of them reads the
wrong device, converts units wrongly or misses a counter that wrapped around.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from joulecast.meters import detect_meter, make_meter
from joulecast.meters.base import Meter, MeterInfo, Reading
from joulecast.meters.zeus_meters import open_nvidia, open_rapl
from joulecast.records.codec import Record
from joulecast.system.errors import MissingError

WINDOW_S = 10.0
"""In 10 s, one update of NVIDIA's counter at each end makes 2 %."""
LIMIT_SHARE = 0.05
"""Relative difference above which the two meters disagree."""


@dataclass(frozen=True)
class CrossCheck(Record):
    """Mean power by a meter and by Zeus over the same window, and what was wrong with either.

    Attributes:
        difference_share: By which share of the meter's power Zeus shows more.
    """

    meter: str
    covers: str
    power_w: float
    zeus_covers: str
    zeus_power_w: float
    difference_share: float
    faults: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the two differ by at most 5 %."""
        return not self.faults and abs(self.difference_share) <= LIMIT_SHARE


@dataclass(frozen=True)
class CrossChecks:
    """All comparisons of a machine, and by name why other meters were not compared."""

    checks: tuple[CrossCheck, ...]
    refused: Mapping[str, str]


# A meter of Joulecast and the one of Zeus that reads the same counters.
MeterPair = tuple[Meter, Meter]


def cross_check_meters(
    duration_s: float = WINDOW_S, sleep: Callable[[float], None] = time.sleep
) -> CrossChecks:
    """Compare every meter of this machine that Zeus reads as well."""
    pairs, refused = find_pairs()
    if not pairs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise MissingError(f"no meter can be compared with Zeus: {reasons}")
    return CrossChecks(compare_pairs(pairs, duration_s, sleep), refused)


def find_pairs() -> tuple[list[MeterPair], dict[str, str]]:
    """Return the meters that Zeus reads as well, and why others cannot be compared."""
    pairs, refused = [], {}
    for info in (*detect_meter("nvml"), *detect_meter("rapl")):
        if not info.available:
            refused[info.name] = info.reason
            continue
        try:
            pairs.append(_open_pair(info))
        except MissingError as error:
            refused[info.name] = str(error)
    return pairs, refused


def compare_pairs(
    pairs: Sequence[MeterPair], duration_s: float, sleep: Callable[[float], None]
) -> tuple[CrossCheck, ...]:
    """Return what the meters of each pair show over the same window."""
    with ExitStack() as opened:
        for ours, zeus in pairs:
            opened.enter_context(zeus)
            opened.enter_context(ours)
        for ours, zeus in pairs:
            zeus.begin()
            ours.begin()
        sleep(duration_s)
        readings = [(ours.end(), zeus.end()) for ours, zeus in pairs]
    return tuple(_compare(pair, *both) for pair, both in zip(pairs, readings, strict=True))


def _open_pair(info: MeterInfo) -> MeterPair:
    ours, index = make_meter(info.name), info.name.partition(":")[2]
    zeus = open_nvidia(int(index)) if index else open_rapl()
    # Zeus starts processes at the first reading, which take longer than a reading.
    with zeus:
        zeus.begin()
        zeus.end()
    return ours, zeus


def _compare(pair: MeterPair, ours: Reading, zeus: Reading) -> CrossCheck:
    named = {"Joulecast": ours, "Zeus": zeus}
    difference_w = zeus.power_w - ours.power_w
    return CrossCheck(
        pair[0].name,
        pair[0].covers,
        ours.power_w,
        pair[1].covers,
        zeus.power_w,
        difference_w / ours.power_w if ours.power_w else float(bool(zeus.power_w)),
        tuple(f"{who}: {fault}" for who, one in named.items() for fault in one.faults),
    )
