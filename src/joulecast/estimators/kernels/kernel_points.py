"""Read observations as costs of kernels, of whole networks and of an empty run.

    run of n copies of a kernel    T = T₀ + n·t        T₀: overhead of a run, such as its call
    run of a network               T = T₀ + Σ t

The overhead is that of the smallest graph, one ReLU of one number; 0 where none was observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from joulecast.estimators.base import setup_key
from joulecast.fusion import (
    FUSION_TABLES,
    FusedKernel,
    FusionTable,
    list_kernels,
    merge_kernels,
)
from joulecast.kinds import make_layer
from joulecast.records import Input, Network, Observation, Setup, Trial

# Measurements repeat to about this much at best, whatever their rounds say.
_LEAST_SD_SHARE = 0.01
# At least this share of what was measured belongs to the kernels, whatever the overhead.
_LEAST_KERNEL_SHARE = 0.1


@dataclass(frozen=True)
class CostPoint:
    """The cost of kernels that ran together, without the overhead of the run.

    Attributes:
        kernels: Distinct kernels with their counts; one for a kernel that ran alone.
        duration_s: Time of all of them.
        duration_sd_share: Its standard deviation as a share of it.
        power_w: Mean power meanwhile; None if only the time was measured.
        power_sd_share: Its standard deviation as a share of it.
    """

    kernels: tuple[FusedKernel, ...]
    duration_s: float
    duration_sd_share: float
    power_w: float | None = None
    power_sd_share: float = 0.0

    @property
    def is_single(self) -> bool:
        """Whether it shows one kernel alone."""
        return len(self.kernels) == 1


@dataclass(frozen=True)
class RunOverhead:
    """What a run costs before its first kernel."""

    duration_s: float = 0.0
    energy_j: float = 0.0


@dataclass(frozen=True)
class SetupPoints:
    """What was observed under one setup, whatever the batch size."""

    overhead: RunOverhead
    points: tuple[CostPoint, ...]


def is_readable(observation: Observation) -> bool:
    """Return whether an observation is a whole eager step whose duration was measured."""
    trial = observation.trial
    is_step = trial.execution.stage == "step" and trial.execution.mode == "eager"
    return is_step and bool(trial.network.layers and observation.duration_s)


def make_overhead_trial(setup: Setup) -> Trial:
    """Return the trial that shows the overhead of a run: one ReLU of one number."""
    relu = make_layer("elementwise", fn="relu", shape=(1,))
    layer = replace(relu, trains=False, input_grad=False)
    return Trial(Network((layer,), Input((1,))), replace(setup, batch=1))


def group_by_setup(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    """Return readable observations by the key of their setup."""
    groups: dict[str, list[Observation]] = {}
    for seen in observations:
        if is_readable(seen):
            groups.setdefault(name_setup(seen.trial.setup), []).append(seen)
    return groups


def name_setup(setup: Setup) -> str:
    """Return the key of a setup; batch sizes are features, and inference has no loss."""
    default = Setup()
    optimizer = setup.optimizer if setup.phase == "train" else default.optimizer
    return setup_key(replace(setup, batch=1, loss=default.loss, optimizer=optimizer))


def read_points(observations: Sequence[Observation], table: FusionTable) -> SetupPoints:
    """Return the costs of kernels and networks under one setup."""
    overhead = _find_overhead(observations)
    points = (_read_point(seen, table, overhead) for seen in observations)
    return SetupPoints(overhead, tuple(sorted((one for one in points if one), key=_order_point)))


# A campaign reads all of its observations before every proposal.
@lru_cache(maxsize=16384)
def list_distinct_kernels(network: Network, setup: Setup, table: str) -> tuple[FusedKernel, ...]:
    """Return the distinct kernels of a network, with their counts."""
    return merge_kernels(list_kernels(network, setup, FUSION_TABLES[table]))


def _find_overhead(observations: Sequence[Observation]) -> RunOverhead:
    """Return the median overhead of the runs of an empty graph."""
    runs = [seen for seen in observations if _is_empty_graph(seen.trial)]
    if not runs:
        return RunOverhead()
    durations = sorted(_per_step(seen, seen.duration_s) for seen in runs)
    energies = sorted(_per_step(seen, seen.energy_j) for seen in runs if seen.energy_j)
    energy_j = energies[len(energies) // 2] if energies else 0.0
    return RunOverhead(durations[len(durations) // 2], energy_j)


def _is_empty_graph(trial: Trial) -> bool:
    return trial.network == make_overhead_trial(trial.setup).network


def _read_point(seen: Observation, table: FusionTable, overhead: RunOverhead) -> CostPoint | None:
    trial = seen.trial
    if _is_empty_graph(trial):
        return None
    kernels = list_distinct_kernels(trial.network, trial.setup, table.name)
    if not kernels:
        return None
    copies = trial.execution.copies
    kernels = tuple(replace(one, count=one.count * copies) for one in kernels)
    run_s = _per_step(seen, seen.duration_s)
    duration_s = max(run_s - overhead.duration_s, _LEAST_KERNEL_SHARE * run_s)
    # What the overhead takes away leaves the noise as it is.
    duration_sd_share = _sd_share(seen.duration_sd_s, seen.duration_s) * run_s / duration_s
    if not seen.energy_j:
        return CostPoint(kernels, duration_s, duration_sd_share)
    run_j = _per_step(seen, seen.energy_j)
    energy_j = max(run_j - overhead.energy_j, _LEAST_KERNEL_SHARE * run_j)
    power_sd_share = _sd_share(seen.energy_sd_j, seen.energy_j) * run_j / energy_j
    return CostPoint(kernels, duration_s, duration_sd_share, energy_j / duration_s, power_sd_share)


def _per_step(seen: Observation, total: float | None) -> float:
    return (total or 0.0) / seen.trial.execution.steps


def _sd_share(sd: float | None, value: float | None) -> float:
    return max(_LEAST_SD_SHARE, (sd or 0.0) / value) if value else _LEAST_SD_SHARE


def _order_point(point: CostPoint) -> tuple[object, ...]:
    """Return what points are sorted by, so that the order of observations does not matter."""
    kinds = [(one.kind, tuple(one.features.items()), one.count) for one in point.kernels]
    return (repr(kinds), point.duration_s, point.power_w or 0.0)
