"""Describe an estimate: energy and duration of a step, with intervals and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecast.records.codec import Record


@dataclass(frozen=True)
class LayerEstimate(Record):
    """The energy of one layer in a step.

    Attributes:
        calls: How often one step calls it.
        seen: Whether its kind was measured on this device.
    """

    name: str
    kind: str
    energy_j: float
    calls: int = 1
    seen: bool = True


@dataclass(frozen=True)
class BlockEstimate(Record):
    """The energy of equal blocks in a step, such as the blocks of a transformer, all together.

    Attributes:
        name: Names of the first and the last one: ``h.0–23``.
        count: Number of equal blocks; 1 for a block that differs from all others.
        layer_count: Number of layers in one of them.
        starts: Index of each one's first layer in ``Estimate.layers``.
    """

    name: str
    count: int
    layer_count: int
    energy_j: float
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Estimate(Record):
    """The energy of one step, with an interval and what it rests on.

    Attributes:
        energy_j: Mean energy.
        interval_j: Credible interval of the energy with probability ``level``.
        duration_s: Mean duration.
        unseen_share: Share of the energy in layers whose kind was never measured.
        provenance: The weakest provenance it rests on (measured, imported, modelled, simulated).
        covers: What the meter behind it covers.
        device_energy_j: Energy of the device alone, the same on every host; None if it cannot be
            separated from waiting for the host.
        host_share: Share of the energy spent waiting for the host; None if it is not known.
        uncertainty_sources: Sources of the energy's variance, with their shares of it.
        duration_interval_s: Credible interval of the duration; None if it is not known.
        blocks: The blocks that ``layers`` form, equal ones together.
        device_memory_bytes: Memory of the device; 0 if it is not known.
        runtime: Framework and version that the profile was made with (``torch-2.11.0``).
        notes: What limits the estimate, in sentences: how the network was read, how far it reaches
            beyond what was measured, whether it fits.
    """

    energy_j: float
    interval_j: tuple[float, float]
    level: float
    duration_s: float
    peak_memory_bytes: int
    layers: tuple[LayerEstimate, ...]
    unseen_share: float
    provenance: str
    covers: str
    device: str
    estimator: str
    device_energy_j: float | None = None
    host_share: float | None = None
    uncertainty_sources: Mapping[str, float] = field(default_factory=dict)
    duration_interval_s: tuple[float, float] | None = None
    blocks: tuple[BlockEstimate, ...] = ()
    device_memory_bytes: int = 0
    runtime: str = ""
    notes: tuple[str, ...] = ()

    @property
    def fits_memory(self) -> bool | None:
        """Whether the step fits the device's memory; None if either size is not known."""
        if not (self.peak_memory_bytes and self.device_memory_bytes):
            return None
        return self.peak_memory_bytes <= self.device_memory_bytes
