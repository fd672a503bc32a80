"""Read a pruning from the JSON that ``joulecast prune --out`` wrote, as reports need it."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.records import Json
from joulecast.records.codec import Record, load_partial
from joulecast.uses.prune.pruning_result import LayerChange


@dataclass(frozen=True)
class PrunedEstimate(Record):
    """The estimate of a step before or after pruning.

    Attributes:
        interval_j: Credible interval of the energy with probability ``level``.
        unseen_share: Share of the energy in layers whose kind was never measured.
    """

    energy_j: float
    interval_j: tuple[float, float]
    level: float
    duration_s: float
    peak_memory_bytes: int
    unseen_share: float
    provenance: str
    covers: str
    device: str
    estimator: str


@dataclass(frozen=True)
class MeasuredStep(Record):
    """A measured step of the original or the pruned network."""

    energy_j: float
    duration_s: float
    provenance: str
    meter: str = ""


@dataclass(frozen=True)
class MeasuredPruning(Record):
    """Both networks, measured."""

    before: MeasuredStep
    after: MeasuredStep
    within_budget: bool


@dataclass(frozen=True)
class PruningSummary(Record):
    """A pruning as it was written.

    Attributes:
        before: Estimate of the original network; None without a profile.
        budget_probability: Probability that the energy budget is met; None without a profile.
        importance_share: Share of importance kept, averaged over groups.
    """

    net: str
    budget: str
    strategy: str
    objective: str
    layers: tuple[LayerChange, ...]
    importance_share: float
    budget_probability: float | None = None
    before: PrunedEstimate | None = None
    after: PrunedEstimate | None = None
    measured: MeasuredPruning | None = None
    not_prunable: tuple[str, ...] = ()


def read_pruning(data: Json, what: str = "the pruning") -> PruningSummary:
    """Return the pruning that ``joulecast prune --out`` wrote.

    Raises:
        FileError: The data is something else; ``what`` names it.
    """
    return load_partial(PruningSummary, data, what)
