"""Describe a device by the figures that its maker publishes.

A data sheet says what a device could do at best, not what it sustains: estimates that rest on
nothing else have the provenance ``datasheet``. Limits of the fields are far beyond any device of
today, and within physics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from joulecast.records.codec import (
    ByteCount,
    PositiveCount,
    Range,
    Record,
    always_stored,
    check_fields,
    omit_default,
)
from joulecast.records.trial import FLOAT_PRECISIONS
from joulecast.system.errors import InputError

DATASHEET = "datasheet"
"""Provenance of what rests on a data sheet."""
PEAK_PRECISIONS = (*FLOAT_PRECISIONS, "int8")
"""Precisions whose peaks a data sheet may give."""

CLOCK_HZ = Range(1e6, 1e10)
PEAK_FLOPS = Range(1e9, 1e16)
BYTES_PER_S = Range(1e8, 1e14)
POWER_W = Range(0.1, 1e5)

# Above what any unit multiplies and adds in a cycle: a B200's matrix units do 16,384 int8 FLOP.
_MOST_FLOPS_PER_CYCLE = 2**17
# The best accelerators of 2025 reach 5e12 FLOP and 7e9 bytes per joule.
_MOST_FLOPS_PER_J = 1e14
_MOST_BYTES_PER_J = 1e11


@dataclass(frozen=True)
class DataSheet(Record):
    """What the maker of a device says about it.

    Attributes:
        name: How commands call it: ``nvidia-a100-pcie-40gb``.
        title: How people call it: ``NVIDIA A100 PCIe 40 GB``.
        units: Streaming multiprocessors or compute units.
        clock_hz: Boost clock of the units.
        flops_per_s: Dense peak by precision, with sums in fp32 and without sparsity. For AMD's
            CDNA, fp32 is the peak of the matrix units, which rocBLAS uses.
        bytes_per_s: Peak bandwidth of the memory.
        l2_bytes: The last cache that all units share; None where it is unknown, like the following.
        idle_w: Power of a device that sleeps, as makers and reviews quote it.
        process_nm: Name of the process by which the chip is made.
        link_bytes_per_s: Peak bandwidth to other devices of a machine, in one direction, of all
            links together.
        covers: What draws the power, as meters call it: ``gpu``, or ``board`` for a module with its
            processor and memory.
        aliases: Other names, such as the one that the driver reports.
        sources: Where each figure is from, by field; peaks by their precision.
    """

    name: str
    title: str
    units: PositiveCount
    clock_hz: Annotated[float, CLOCK_HZ]
    flops_per_s: Mapping[str, Annotated[float, PEAK_FLOPS]]
    bytes_per_s: Annotated[float, BYTES_PER_S]
    memory_bytes: ByteCount
    power_limit_w: Annotated[float, POWER_W]
    vendor: str = omit_default("")
    architecture: str = omit_default("")
    year: Annotated[int, Range(1990, 2100)] | None = omit_default(None)
    memory_type: str = omit_default("")
    l2_bytes: ByteCount | None = omit_default(None)
    idle_w: Annotated[float, POWER_W] | None = omit_default(None)
    process_nm: PositiveCount | None = omit_default(None)
    link_bytes_per_s: Annotated[float, BYTES_PER_S] | None = omit_default(None)
    covers: str = omit_default("gpu")
    aliases: tuple[str, ...] = omit_default(())
    sources: Mapping[str, str] = always_stored(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        unknown = sorted(set(self.flops_per_s) - set(PEAK_PRECISIONS))
        if unknown or not self.flops_per_s:
            given = f"has the precision {unknown[0]!r}" if unknown else "is empty"
            raise InputError(f"flops_per_s {given}: choose among {', '.join(PEAK_PRECISIONS)}")
        for precision, peak in self.flops_per_s.items():
            self._check_peak(precision, peak)
        if self.bytes_per_s / self.power_limit_w > _MOST_BYTES_PER_J:
            raise InputError(
                f"{self.bytes_per_s / 1e9:g} GB/s at {self.power_limit_w:g} W is more than any "
                "memory can do: check bandwidth and power limit"
            )
        if self.idle_w is not None and self.idle_w >= self.power_limit_w:
            raise InputError(
                f"idle_w is {self.idle_w:g} W: give less than the power limit of "
                f"{self.power_limit_w:g} W"
            )

    def _check_peak(self, precision: str, peak: float) -> None:
        claim = f"the {precision} peak of {peak / 1e12:g} TFLOP/s"
        if not PEAK_FLOPS.least <= peak <= PEAK_FLOPS.most:
            raise InputError(f"{claim}: give {PEAK_FLOPS.least:g} to {PEAK_FLOPS.most:g} FLOP/s")
        if peak / self.power_limit_w > _MOST_FLOPS_PER_J:
            raise InputError(
                f"{claim} at {self.power_limit_w:g} W is more than any chip can do: check peak and "
                "power limit"
            )
        per_cycle = peak / (self.units * self.clock_hz)
        if per_cycle > _MOST_FLOPS_PER_CYCLE:
            raise InputError(
                f"{claim} with {self.units} units at {self.clock_hz / 1e6:g} MHz is "
                f"{per_cycle:,.0f} FLOP per unit and cycle, which no unit can do: check peak, "
                "units and clock"
            )

    def find_peak(self, precision: str) -> float:
        """Return the dense peak in FLOP/s for a precision of ``Setup``.

        Raises:
            InputError: The data sheet gives none.
        """
        key = precision.partition("_")[0]
        # TF32 is a permission: PyTorch computes in fp32 on devices without it.
        for choice in (key, "fp32") if key == "tf32" else (key,):
            if choice in self.flops_per_s:
                return self.flops_per_s[choice]
        known = " or ".join(one for one in FLOAT_PRECISIONS if one in self.flops_per_s)
        raise InputError(
            f"the data sheet of {self.title} has no {key} peak: choose {known}, or describe the "
            f"device in a TOML file with tflops.{key}"
        )
