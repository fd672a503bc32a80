"""Rank devices and setups by the energy per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from joulecast.catalogue import DATASHEET
from joulecast.errors import InputError, JoulecastError
from joulecast.estimators import AUTO, Estimates, fit_profile
from joulecast.estimators.data_parallel import GpuGroup, find_gpu_group, replicate_steps
from joulecast.estimators.fitted_profile import check_sheet_precision
from joulecast.fronts import find_front
from joulecast.records import Estimate, Network, Profile, Setup, summarise_observations
from joulecast.units import format_bytes, format_share
from joulecast.uses.compare.comparison import Comparison, ComparisonRow
from joulecast.uses.parallel_options import GpuCounts, ParallelOptions

DISTINGUISHABLE_PROBABILITY = 0.9
"""Below this probability of a lower energy, two rows are reported as indistinguishable."""
_MAX_UNSEEN_SHARE = 0.5
_COMPARED_FIELDS = ("phase", "precision", "optimizer", "threads", "processor", "batch")


def compare(
    network: Network,
    profiles: Mapping[str, Profile | str],
    setups: Sequence[Setup],
    estimator: str = AUTO,
    level: float = 0.95,
    gpus: GpuCounts | None = None,
) -> Comparison:
    """Rank devices and setups by the energy per sample.

    Args:
        network: The network to train or run.
        profiles: Profile of each device by requested name, or the reason why there is none.
        setups: Ways to train or run the network.
        estimator: Method that estimates energy.
        level: Probability of each interval.
        gpus: Numbers of GPUs that train together; one by default.

    Raises:
        InputError: There is no device or no setup.
    """
    setups = tuple(dict.fromkeys(setups))
    if not (profiles and setups):
        raise InputError("nothing to compare: give at least one device and one setup")
    counts = (gpus or GpuCounts()).list_options()
    unranked: list[ComparisonRow] = []
    groups: dict[str, list[_EstimatedRow]] = {}
    for name, profile in profiles.items():
        if isinstance(profile, str):
            unranked += [
                ComparisonRow(name, setup, reason=profile, gpus=one.gpus)
                for setup, one in product(setups, counts)
            ]
            continue
        planned = _list_rows(name, profile, setups, counts)
        rows, estimates = _estimate_rows(planned, profile, network, estimator, level)
        unranked += [row for row in rows if row.reason]
        group = groups.setdefault(profile.covers, [])
        if estimates is not None:
            group += [
                _EstimatedRow(row, estimates, index)
                for index, row in enumerate(rows)
                if not row.reason
            ]
    ranked = [row for group in groups.values() for row in _rank_rows(group)]
    names = dict.fromkeys(row.estimate.estimator for row in ranked if row.estimate)
    return Comparison(network.name, ", ".join(names) or estimator, level, (*ranked, *unranked))


@dataclass(frozen=True)
class _PlannedRow:
    """A row that is still to be estimated, and its GPUs; None for one GPU."""

    row: ComparisonRow
    group: GpuGroup | None = None


@dataclass(frozen=True)
class _EstimatedRow:
    """A row, the joint estimates of its device, and its index in them."""

    row: ComparisonRow
    estimates: Estimates
    index: int


def _list_rows(
    name: str, profile: Profile, setups: Sequence[Setup], counts: Sequence[ParallelOptions]
) -> list[_PlannedRow]:
    """Return the combinations of one device, without estimates."""
    planned = []
    for setup, one in product(setups, counts):
        row = ComparisonRow(name, setup, profile.device.name, profile.covers, gpus=one.gpus)
        try:
            check_sheet_precision(profile, setup)
            group = find_gpu_group(profile, setup, one.gpus, one.link_bytes_per_s)
        except JoulecastError as error:
            planned.append(_PlannedRow(replace(row, reason=str(error))))
        else:
            planned.append(_PlannedRow(row, group))
    return planned


def _estimate_rows(
    planned: Sequence[_PlannedRow],
    profile: Profile,
    network: Network,
    estimator: str,
    level: float,
) -> tuple[list[ComparisonRow], Estimates | None]:
    """Return the rows of one device with their estimates, which are made jointly."""
    refused = [one.row for one in planned if one.row.reason]
    rows = [one.row for one in planned if not one.row.reason]
    if not rows:
        return refused, None
    try:
        setups, networks = [row.setup for row in rows], [network] * len(rows)
        groups = [one.group for one in planned if not one.row.reason]
        fitted = fit_profile(profile, estimator)
        estimates = fitted.estimate(networks, setups, level, joint=True)
        estimates = replicate_steps(estimates, networks, setups, groups)
    except JoulecastError as error:
        return [*refused, *(replace(row, reason=str(error)) for row in rows)], None
    estimated = [
        replace(row, estimate=one, reason=_find_reason(one, profile, row.setup))
        for row, one in zip(rows, estimates, strict=True)
    ]
    # Estimates have the positions of their rows, so rows without one come last.
    return [*estimated, *refused], estimates


def _find_reason(estimate: Estimate, profile: Profile, setup: Setup) -> str:
    """Return why an estimate must not be ranked, or an empty string."""
    device = profile.device.name
    if estimate.fits_memory is False:
        needed = format_bytes(estimate.peak_memory_bytes)
        available = format_bytes(estimate.device_memory_bytes)
        return f"does not fit: needs about {needed}, but {device} has {available}"
    # Data sheets are compared although nothing was measured: their intervals are wide.
    if estimate.unseen_share <= _MAX_UNSEEN_SHARE or estimate.provenance == DATASHEET:
        return ""
    seen = [one for one, _ in summarise_observations(profile.observations).setups]
    for name in _COMPARED_FIELDS:
        known = dict.fromkeys(_show_field(one, name) for one in seen)
        value = _show_field(setup, name)
        if value not in known:
            return (
                f"a guess: {name} {value} was never profiled on {device} (only {', '.join(known)})"
            )
    share = format_share(estimate.unseen_share)
    return f"a guess: layers with {share} of the energy were never profiled on {device}"


def _show_field(setup: Setup, name: str) -> str:
    """Return a field of a setup; 0 threads and no processor leave the choice to the runtime."""
    return str(getattr(setup, name) or "of the runtime's choice")


def _rank_rows(group: Sequence[_EstimatedRow]) -> list[ComparisonRow]:
    """Return the rows in order of energy, each with the probability of using less than the next."""
    order = sorted(group, key=lambda one: (one.row.energy_j, one.row.duration_s))
    on_front = find_front([(one.row.duration_s, one.row.energy_j) for one in order])
    ranked = []
    for place, one in enumerate(order):
        is_last = place + 1 == len(order)
        probability = None if is_last else _compare_energy(one, order[place + 1])
        ranked.append(
            replace(
                one.row,
                rank=place + 1,
                is_on_front=on_front[place],
                probability_below_next=probability,
            )
        )
    return ranked


def _compare_energy(one: _EstimatedRow, other: _EstimatedRow) -> float:
    """Return the probability that one row uses less energy per sample than another."""
    # Energy per sample is that of a step over its samples.
    ratio = one.row.samples_per_step / other.row.samples_per_step
    return one.estimates.probability_less(one.index, other.estimates, other.index, ratio)
