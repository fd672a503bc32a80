"""Describe an estimate: energy and duration of a step, with intervals and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from joulecast.records.codec import Record, omit_default


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
class DataParallel(Record):
    """What several GPUs that train together add to a step of one of them; modelled.

    Attributes:
        samples_per_step: Samples of all GPUs in one step.
        gradient_bytes: Gradients of one GPU.
        buckets: Number of buckets in which they are summed.
        link_bytes_per_s: Bandwidth between GPUs in one direction.
        link_efficiency_share: Share of it that an all-reduce is assumed to reach.
        all_reduce_s: Duration of the all-reduce.
        exposed_s: The part of it that does not overlap with the backward pass.
        added_s: By how much a step takes longer than on one GPU.
        added_j: Energy that this adds, of all GPUs together.
        waiting_w: Power of a GPU that waits.
        step_provenance: Provenance of the step of one GPU.
        provenance: That of everything above.
    """

    gpus: int
    samples_per_step: int
    gradient_bytes: int
    buckets: int
    link_bytes_per_s: float
    link_efficiency_share: float
    all_reduce_s: float
    exposed_s: float
    added_s: float
    added_j: float
    waiting_w: float
    step_provenance: str
    provenance: str = "modelled"


@dataclass(frozen=True)
class Estimate(Record):
    """The energy of one step, with an interval and what it rests on.

    Attributes:
        energy_j: Mean energy.
        interval_j: Credible interval of the energy with probability ``level``.
        duration_s: Mean duration.
        unseen_share: Share of the energy in layers whose kind was never measured.
        provenance: The weakest provenance it rests on (measured, imported, modelled,
            datasheet, simulated).
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
        is_measured: Whether this step was measured: energy and duration are then the measured ones,
            and the model only divides the energy among the layers.
        data_parallel: What several GPUs add; None for one GPU. Energies are then those of all GPUs
            together, memory that of each.
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
    is_measured: bool = omit_default(False)
    data_parallel: DataParallel | None = omit_default(None)

    @property
    def gpus(self) -> int:
        """Number of GPUs that a step runs on; 1 for any other device."""
        return 1 if self.data_parallel is None else self.data_parallel.gpus

    @property
    def fits_memory(self) -> bool | None:
        """Whether the step fits the device's memory; None if either size is not known."""
        if not (self.peak_memory_bytes and self.device_memory_bytes):
            return None
        return self.peak_memory_bytes <= self.device_memory_bytes

    def report(self) -> Any:
        """Return what people see of it, as a Report."""
        # Records may not import what shows them: a device has neither.
        return import_module("joulecast.features.estimate_report").report_step(self)

    def __str__(self) -> str:
        text: str = import_module("joulecast.views.terminal").format_report(self.report())
        return text

    def _repr_html_(self) -> str:
        text: str = import_module("joulecast.views.html").render_fragment(self.report())
        return text
