"""Rank devices and setups by the energy and duration of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import (
    Argument,
    choose_setup_fields,
    parse_counts,
    parse_list,
    verb,
)
from joulecast.features.budgets import RunLength
from joulecast.features.compare_report import Comparison, ComparisonRow
from joulecast.features.nets import NetRequest
from joulecast.features.parallel import ParallelOptions, make_gpu_group
from joulecast.features.profiles import find_profiles
from joulecast.features.run import make_bill
from joulecast.records import (
    OPTIMIZERS,
    PRECISIONS,
    Estimate,
    Network,
    Profile,
    Setup,
    summarise_observations,
)
from joulecast.system.errors import ArgumentError, InputError, JoulecastError, MissingError, arg
from joulecast.system.units import format_bytes, format_share
from joulecast.views.fronts import find_front

if TYPE_CHECKING:
    from joulecast.estimators import Estimates
    from joulecast.estimators.data_parallel import GpuGroup

# Samples whose totals are shown if a price or grid is given without them.
_DEFAULT_SAMPLES = 1_000_000
_MAX_UNSEEN_SHARE = 0.5
_COMPARED_FIELDS = ("phase", "precision", "optimizer", "threads", "processor", "batch")

Devices = Annotated[
    Any,
    Argument(
        "Devices with profiles, see `joulecast profiles list`, or of `joulecast devices`; all for "
        "every one.",
        metavar="NAME,NAME",
        parse=parse_list,
        default="this machine",
    ),
]
GpuNumbers = Annotated[
    tuple[int, ...] | None,
    Argument(
        "Numbers of GPUs that train together; --batch is per GPU.",
        metavar="1,4,8",
        parse=parse_counts,
        least=1,
        default="1",
    ),
]
Batches = Annotated[
    tuple[int, ...] | None,
    Argument(
        "Batch sizes.",
        metavar="8,16,32",
        parse=parse_counts,
        least=1,
        default="the net's own; 1 with --inference",
    ),
]
Precisions = Annotated[
    tuple[str, ...],
    Argument(
        f"Number formats: {', '.join(PRECISIONS)}.",
        metavar="fp32,bf16",
        parse=parse_list,
        choices=PRECISIONS,
        default="fp32",
    ),
]
Optimizers = Annotated[
    tuple[str, ...] | None,
    Argument(
        f"Optimizers: {', '.join(OPTIMIZERS)}.",
        metavar="sgd,adamw",
        parse=parse_list,
        choices=OPTIMIZERS,
        default="sgd",
    ),
]
ThreadNumbers = Annotated[
    tuple[int, ...] | None,
    Argument("Numbers of CPU threads.", metavar="1,2,4", parse=parse_counts, default="all"),
]
Processors = Annotated[
    tuple[str, ...] | None,
    Argument(
        "Processors of the device, as its runtime names them.",
        metavar="NAME,NAME",
        parse=parse_list,
    ),
]
Accumulations = Annotated[
    tuple[int, ...] | None,
    Argument("Numbers of batches per update.", metavar="1,4", parse=parse_counts, default="1"),
]
CompiledOrNot = Annotated[
    tuple[bool, ...],
    Argument(
        "Compile the net with torch.compile.", option="compile", setting="compiled", flag_value=True
    ),
]
TotalSamples = Annotated[
    int | None,
    Argument("Also print the totals of N samples.", least=1, most=given.MAX_COUNT),
]


@verb
def compare(
    net: given.Net,
    inputs: Any = None,
    *,
    devices: Devices = (),
    gpus: GpuNumbers = None,
    parallel: given.Parallel = "",
    link_gb_s: given.LinkGbS = None,
    setups: Sequence[Setup] = (),
    batch: Batches = None,
    precision: Precisions = ("fp32",),
    optimizer: Optimizers = None,
    loss: given.Loss = None,
    threads: ThreadNumbers = None,
    processor: Processors = None,
    accumulate: Accumulations = None,
    compiled: CompiledOrNot = (False,),
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    input_shape: given.InputShape = None,
    checkpoint: given.Checkpoint = False,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    store: given.Store = None,
    epochs: given.Epochs = None,
    samples: TotalSamples = None,
    grid: given.Grid = None,
    price: given.Price = None,
) -> Comparison:
    """Rank devices, batch sizes, precisions and optimizers by the energy of a sample of NET.

    With --inference NET is run, not trained. Every combination is estimated, none is run.
    Combinations that no other one beats in both energy and time are on the Pareto front. Those that
    cannot be compared are listed with the reason; if that is all of them, the exit code is 1.
    """
    # Parsed first, so that a wrong price or grid is reported before anything is estimated.
    bill = None
    if epochs is not None and samples is None:
        raise ArgumentError(f"{arg('epochs')} needs {arg('samples')}")
    if samples or grid or price:
        length = RunLength(None, epochs or 1, samples or _DEFAULT_SAMPLES)
        bill = make_bill(length.count_steps(batch=1), grid, price)
    groups = [make_gpu_group(one, parallel, link_gb_s) for one in dict.fromkeys(gpus or (None,))]
    fields = choose_setup_fields(phase, None, loss)
    if phase == "inference" and optimizer is not None:
        raise ArgumentError(f"{arg('optimizer')} is for training: leave it out for inference")
    resolved, _ = NetRequest(net, inputs, None, input_shape, fields, checkpoint).resolve()
    if callable(loss):
        fields.pop("loss")
    varied: dict[str, tuple[Any, ...]] = {
        "batch": batch or (resolved.batch,),
        "precision": precision,
        "optimizer": optimizer or ("sgd",),
        "threads": threads or (0,),
        "processor": processor or ("",),
        "accumulate": accumulate or (1,),
        "compiled": compiled,
    }
    wanted = list(setups) or [
        Setup(**fields, cuda_graphs=bool(cuda_graphs), **dict(zip(varied, row, strict=True)))
        for row in product(*varied.values())
    ]
    profiles = find_profiles(devices, store)
    found = rank_setups(resolved.network, profiles, wanted, estimator, level, groups)
    return replace(found, bill=bill)


def check_ranked(comparison: Comparison) -> int:
    """Return the exit code 0, or raise MissingError if nothing could be ranked."""
    if comparison.groups:
        return 0
    reasons = dict.fromkeys(row.reason for row in comparison.unranked)
    raise MissingError(f"nothing could be ranked ({'; '.join(reasons)})")


def rank_setups(
    network: Network,
    profiles: Mapping[str, Profile | str],
    setups: Sequence[Setup],
    estimator: str = "auto",
    level: float = 0.95,
    counts: Sequence[ParallelOptions] = (ParallelOptions(),),
) -> Comparison:
    """Rank devices and setups by the energy per sample.

    Args:
        network: The network to train or run.
        profiles: Profile of each device by requested name, or the reason why there is none.
        setups: Ways to train or run the network.
        estimator: Method that estimates energy.
        level: Probability of each interval.
        counts: Numbers of GPUs that train together.

    Raises:
        InputError: There is no device or no setup.
    """
    setups = tuple(dict.fromkeys(setups))
    if not (profiles and setups):
        raise InputError("nothing to compare: give at least one device and one setup")
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
    from joulecast.estimators.data_parallel import find_gpu_group
    from joulecast.estimators.fitted_profile import check_sheet_precision

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
    from joulecast.estimators import fit_profile
    from joulecast.estimators.data_parallel import replicate_steps

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
    if estimate.unseen_share <= _MAX_UNSEEN_SHARE or estimate.provenance == "datasheet":
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
    return str(getattr(setup, name) or "the runtime's default")


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
