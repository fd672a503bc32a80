"""Rank devices and setups by the energy and duration of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import (
    Argument,
    choose_setup_fields,
    parse_counts,
    parse_list,
    verb,
)
from joulecast.features.nets import NetRequest
from joulecast.features.profiles import find_profiles
from joulecast.features.run import ParallelOptions, RunLength, list_totals
from joulecast.records import (
    OPTIMIZERS,
    PRECISIONS,
    Estimate,
    Json,
    Network,
    Profile,
    Setup,
    describe_inference,
    summarise_observations,
    weakest_provenance,
)
from joulecast.runtimes import explain_runtime_difference
from joulecast.system.errors import ArgumentError, InputError, JoulecastError, MissingError, arg
from joulecast.system.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_interval,
    format_kwh,
    format_mass,
    format_money,
    format_share,
)
from joulecast.views.fronts import find_front
from joulecast.views.report import Block, Plot, Report, Reportable, Table, Text, make_table
from joulecast.views.words import (
    describe_coverage,
    describe_fields,
    describe_provenance,
    explain_not_included,
    format_level,
    is_inference,
    label_provenance,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joulecast.estimators import Estimates
    from joulecast.estimators.data_parallel import GpuGroup

    # A row, the joint estimates of its device, and its index in them.
    _JointRow = tuple["ComparisonRow", Estimates, int]

# Samples whose totals are shown if a price or grid is given without them.
_DEFAULT_SAMPLES = 1_000_000
_MAX_UNSEEN_SHARE = 0.5
_COMPARED_FIELDS = ("phase", "precision", "optimizer", "threads", "processor", "batch")
DISTINGUISHABLE_PROBABILITY = 0.9
"""Below this probability of a lower energy, two rows are reported as indistinguishable."""
_MODELLED_GPUS = (
    "Batch sizes are those of each GPU. What several GPUs add to a step of one, the all-reduce of "
    "gradients and waiting, is modelled, not measured: --json lists its parts."
)
# What a row is called that does not have what others have.
_WITHOUT = {
    "accumulate": "1 batch per step",
    "compiled": "eager",
    "cuda_graphs": "no CUDA graphs",
    "gpus": "1 GPU",
    "processor": "default processor",
    "threads": "default threads",
}

_FORMATS = f"Number formats: {', '.join(PRECISIONS)}."
_OPTIMIZERS = f"Optimizers: {', '.join(OPTIMIZERS)}."
_GPUS = "Numbers of GPUs that train together; --batch is per GPU."
_Names, _Counts = partial(Argument, parse=parse_list), partial(Argument, parse=parse_counts)
Devices = Annotated[
    Any,
    _Names(
        "Devices with profiles, see `joulecast profiles list`, or of `joulecast devices`; all for "
        "every one.",
        metavar="NAME,NAME",
        default="this machine",
    ),
]
GpuNumbers = Annotated[
    tuple[int, ...] | None,
    _Counts(_GPUS, metavar="1,4,8", least=1, default="1"),
]
Batches = Annotated[
    tuple[int, ...] | None,
    _Counts(
        "Batch sizes.", metavar="8,16,32", least=1, default="the net's own; 1 with --inference"
    ),
]
Precisions = Annotated[
    tuple[str, ...],
    _Names(_FORMATS, metavar="fp32,bf16", choices=PRECISIONS, default="fp32"),
]
Optimizers = Annotated[
    tuple[str, ...] | None,
    _Names(_OPTIMIZERS, metavar="sgd,adamw", choices=OPTIMIZERS, default="sgd"),
]
ThreadNumbers = Annotated[
    tuple[int, ...] | None, _Counts("Numbers of CPU threads.", metavar="1,2,4", default="all")
]
Processors = Annotated[
    tuple[str, ...] | None,
    _Names("Processors of the device, as its runtime names them.", metavar="NAME,NAME"),
]
Accumulations = Annotated[
    tuple[int, ...] | None,
    _Counts("Numbers of batches per update.", metavar="1,4", default="1"),
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
    count = None
    if epochs is not None and samples is None:
        raise ArgumentError(f"{arg('epochs')} needs {arg('samples')}")
    if samples or grid or price:
        length = RunLength(None, epochs or 1, samples or _DEFAULT_SAMPLES)
        count = length.count_steps(batch=1)
        # Parses both.
        list_totals(count, 0.0, (0.0, 0.0), 0.0, grid, price)
    counts = dict.fromkeys(gpus or (None,))
    groups = [ParallelOptions.of(one, parallel, link_gb_s) for one in counts]
    fields = choose_setup_fields(phase, optimizer, loss)
    # Varied below.
    fields.pop("optimizer", None)
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
    return replace(found, samples=count, grid=grid, price=price)


def rank_setups(
    network: Network,
    profiles: Mapping[str, Profile | str],
    setups: Sequence[Setup],
    estimator: str = "auto",
    level: float = 0.95,
    groups: Sequence[ParallelOptions] | None = None,
) -> Comparison:
    """Rank devices and setups by the energy per sample.

    ``profiles`` has the profile of each device by requested name, or why there is none.
    """
    setups = tuple(dict.fromkeys(setups))
    if not (profiles and setups):
        raise InputError("nothing to compare: give at least one device and one setup")
    unranked: list[ComparisonRow] = []
    estimated: dict[str, list[_JointRow]] = {}
    pairs = list(product(setups, groups or (ParallelOptions(),)))
    for name, profile in profiles.items():
        rows = [ComparisonRow(name, setup, gpus=group.gpus) for setup, group in pairs]
        if isinstance(profile, str):
            unranked += [replace(row, reason=profile) for row in rows]
            continue
        links = [group.link_bytes_per_s for _, group in pairs]
        found, refused = _estimate_rows(rows, links, profile, network, estimator, level)
        estimated.setdefault(profile.covers, []).extend(found)
        unranked += refused
    ranked = [row for group in estimated.values() for row in _rank_rows(group)]
    names = dict.fromkeys(row.estimate.estimator for row in ranked if row.estimate)
    return Comparison(network.name, ", ".join(names) or estimator, level, (*ranked, *unranked))


def _estimate_rows(
    rows: Sequence[ComparisonRow],
    links_bytes_per_s: Sequence[float | None],
    profile: Profile,
    network: Network,
    estimator: str,
    level: float,
) -> tuple[list[_JointRow], list[ComparisonRow]]:
    """Estimate the rows of one device jointly; return them, and those that cannot be ranked."""
    from joulecast.estimators import fit_profile
    from joulecast.estimators.data_parallel import find_gpu_group, replicate_steps
    from joulecast.estimators.fitted_profile import check_sheet_precision

    planned: list[tuple[ComparisonRow, GpuGroup | None]] = []
    refused = []
    for row, link in zip(rows, links_bytes_per_s, strict=True):
        row = replace(row, device=profile.device.name, covers=profile.covers)
        try:
            check_sheet_precision(profile, row.setup)
            planned.append((row, find_gpu_group(profile, row.setup, row.gpus, link)))
        except JoulecastError as error:
            refused.append(replace(row, reason=str(error)))
    if not planned:
        return [], refused
    try:
        setups, networks = [row.setup for row, _ in planned], [network] * len(planned)
        estimates = fit_profile(profile, estimator).estimate(networks, setups, level, joint=True)
        estimates = replicate_steps(estimates, networks, setups, [group for _, group in planned])
    except JoulecastError as error:
        return [], [*refused, *(replace(row, reason=str(error)) for row, _ in planned)]
    found, unusual = [], []
    for index, ((row, _), one) in enumerate(zip(planned, estimates, strict=True)):
        reason = _find_reason(one, profile, row.setup)
        row = replace(row, estimate=one, reason=reason)
        if reason:
            unusual.append(row)
        else:
            found.append((row, estimates, index))
    return found, [*unusual, *refused]


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


def _rank_rows(group: Sequence[_JointRow]) -> list[ComparisonRow]:
    """Return the rows in order of energy, each with the probability of using less than the next."""
    order = sorted(group, key=lambda one: (one[0].energy_j, one[0].duration_s))
    on_front = find_front([(row.duration_s, row.energy_j) for row, _, _ in order])
    ranked = []
    for place, (row, estimates, index) in enumerate(order):
        probability = None
        if place + 1 < len(order):
            after, others, other = order[place + 1]
            # Energy per sample is that of a step over its samples.
            ratio = row.samples_per_step / after.samples_per_step
            probability = estimates.probability_less(index, others, other, ratio)
        ranked.append(
            replace(
                row,
                rank=place + 1,
                is_on_front=on_front[place],
                probability_below_next=probability,
            )
        )
    return ranked


# ---------------------------------------------------------------------------------------------
# The result


_STEP_FIELDS = (
    "peak_memory_bytes", "device_memory_bytes", "fits_memory", "runtime", "unseen_share",
    "provenance",
)  # fmt: skip


@dataclass(frozen=True)
class ComparisonRow:
    """A device and a setup, with the energy and duration per sample."""

    requested_device: str  # name by which the device was requested
    setup: Setup
    device: str = ""  # name in the profile; empty without a profile
    covers: str = ""  # what the device's meter covers
    estimate: Estimate | None = None  # of one step, if it could be made
    reason: str = ""  # why the row is not ranked; empty if it is
    rank: int | None = None  # among rows of the same coverage, 1 for the least energy per sample
    is_on_front: bool = False  # whether no row of the same coverage has less energy and less time
    probability_below_next: float | None = None  # that it uses less energy than the next row
    gpus: int = 1  # number of GPUs that train together

    @property
    def energy_j(self) -> float:
        """Energy per sample; 0 without an estimate."""
        return self.estimate.energy_j / self.samples_per_step if self.estimate else 0.0

    @property
    def duration_s(self) -> float:
        """Duration per sample; 0 without an estimate."""
        return self.estimate.duration_s / self.samples_per_step if self.estimate else 0.0

    @property
    def interval_j(self) -> tuple[float, float]:
        """Interval of the energy per sample."""
        low_j, high_j = self.estimate.interval_j if self.estimate else (0.0, 0.0)
        return low_j / self.samples_per_step, high_j / self.samples_per_step

    @property
    def duration_interval_s(self) -> tuple[float, float] | None:
        """Interval of the duration per sample; None if the estimator gives none."""
        ends_s = self.estimate.duration_interval_s if self.estimate else None
        if ends_s is None:
            return None
        return ends_s[0] / self.samples_per_step, ends_s[1] / self.samples_per_step

    @property
    def samples_per_step(self) -> int:
        """Samples of all batches of a step, on all GPUs."""
        return self.gpus * self.setup.samples_per_step

    def to_dict(self) -> Json:
        data: Json = {
            "device": self.device or self.requested_device,
            "setup": self.setup.to_dict(),
            "gpus": self.gpus,
            "covers": self.covers,
            "rank": self.rank,
            "on_front": self.is_on_front,
            "probability_below_next": self.probability_below_next,
            "reason_not_ranked": self.reason,
        }
        step = self.estimate
        if step is None:
            return data
        interval_s, part = self.duration_interval_s, step.data_parallel
        return {
            **data,
            "energy_j_per_sample": self.energy_j,
            "interval_j_per_sample": list(self.interval_j),
            "duration_s_per_sample": self.duration_s,
            "duration_interval_s_per_sample": None if interval_s is None else list(interval_s),
            "step": {
                "energy_j": step.energy_j,
                "interval_j": list(step.interval_j),
                "duration_s": step.duration_s,
            },
            **describe_inference(self.setup, step.energy_j, step.duration_s),
            **{name: getattr(step, name) for name in _STEP_FIELDS},
            "notes": list(step.notes),
            **({} if part is None else {"data_parallel": part.to_dict()}),
        }


@dataclass(frozen=True)
class Comparison(Reportable):
    """Devices and setups, ranked separately for each meter coverage."""

    net: str
    estimator: str
    level: float
    rows: tuple[ComparisonRow, ...]  # ranked ones by coverage and rank, then the others
    samples: int | None = None  # samples whose totals are shown
    grid: str | None = None
    price: str | None = None

    def finish_command(self) -> int:
        """Return the exit code 0, or raise MissingError if nothing could be ranked."""
        if self.groups:
            return 0
        reasons = dict.fromkeys(row.reason for row in self.unranked)
        raise MissingError(f"nothing could be ranked ({'; '.join(reasons)})")

    @property
    def groups(self) -> dict[str, tuple[ComparisonRow, ...]]:
        """Ranked rows by meter coverage."""
        found: dict[str, list[ComparisonRow]] = {}
        for row in self.rows:
            if row.rank is not None:
                found.setdefault(row.covers, []).append(row)
        return {covers: tuple(rows) for covers, rows in found.items()}

    @property
    def unranked(self) -> tuple[ComparisonRow, ...]:
        return tuple(row for row in self.rows if row.rank is None)

    def to_dict(self) -> Json:
        data: Json = {
            "net": self.net,
            "estimator": self.estimator,
            "level": self.level,
            "comparable": len(self.groups) <= 1,
            "rows": [{**row.to_dict(), **self._add_up(row)} for row in self.rows],
        }
        return data if self.samples is None else {**data, "samples": self.samples}

    def report(self) -> Report:
        words = _RowWords(self.rows)
        level = f">{format_level(self.level)}"
        columns = ("#", *words.columns, ">energy", level, *words.name_times(level), ">P(less)")
        blocks: list[Block] = []
        for covers, rows in self.groups.items():
            title = self._name_group(covers, rows, words.shows_provenance)
            blocks.append(make_table(columns, map(words.format_row, rows), title))
            if self.samples is not None:
                blocks.append(self._tabulate_totals(rows, words))
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in self.unranked:
            key = (row.device or row.requested_device, row.reason)
            reasons.setdefault(key, []).append(words.describe_setup(row))
        for (name, reason), setups in reasons.items():
            blocks.append(Text(f"Not ranked: {name} with {'; '.join(setups)}: {reason}"))
        blocks += [Text(note, "note") for note in self._list_notes()]
        if self.groups:
            blocks.append(self._plot())
        provenance = _find_provenance([row for row in self.rows if row.rank])
        title = f"{self.net}{words.common}: {words.quantity}"
        return Report(title, tuple(blocks), provenance, "comparison")

    def _name_group(self, covers: str, rows: Sequence[ComparisonRow], is_labelled: bool) -> str:
        """Return the title of a table; empty for the only one that rests on measurements."""
        provenance = _find_provenance(rows)
        if (provenance == "measured" or is_labelled) and len(self.groups) == 1:
            return ""
        meters = f"Meters cover {covers}{label_provenance(provenance)}"
        return f"Joules of the {covers}" if is_labelled else meters

    def _add_up(self, row: ComparisonRow) -> Json:
        """Return the totals of all samples of a row; empty without samples or an estimate."""
        if row.estimate is None or self.samples is None:
            return {}
        one = (row.energy_j, row.interval_j, row.duration_s)
        return list_totals(self.samples, *one, self.grid, self.price)

    def _tabulate_totals(self, rows: Sequence[ComparisonRow], words: _RowWords) -> Table:
        columns = ["#", *words.columns, ">energy", ">kWh", ">time"]
        columns += [">about CO2e"] if self.grid else []
        columns += [">cost"] if self.price else []
        cells = []
        for row in rows:
            data = self._add_up(row)
            line = [str(row.rank), *words.label(row), format_energy(data["total_energy_j"])]
            line += [format_kwh(data["total_energy_j"]), format_duration(data["total_duration_s"])]
            line += [format_mass(data["co2e_g"])] if "co2e_g" in data else []
            line += [format_money(data["cost"], data["currency"])] if "cost" in data else []
            cells.append(line)
        return make_table(columns, cells, f"Totals of {self.samples:,} samples")

    def _plot(self) -> Plot:
        """Plot energy against time per sample, one panel for each meter coverage."""

        def draw(figure: Figure) -> None:
            from joulecast.views.plot_kinds import FrontPoint, draw_front

            panels = figure.subplots(1, len(self.groups), squeeze=False)[0]
            for axes, (covers, rows) in zip(panels, self.groups.items(), strict=True):
                points = [
                    FrontPoint(f"#{row.rank}", row.duration_s, row.energy_j, row.interval_j)
                    for row in rows
                ]
                draw_front(axes, points, value="Time per sample", unit="s", is_higher_better=False)
                provenance = _find_provenance(rows)
                subject = "Joules of the" if provenance == "datasheet" else "Meter covers"
                axes.set_title(f"{subject} {covers}{label_provenance(provenance)}")

        cells = []
        for row in (one for group in self.groups.values() for one in group):
            words = [part for part in _describe_row(row).values() if part]
            provenance = _find_provenance([row])
            words += [] if provenance == "measured" else [provenance]
            energies = (format_energy(row.energy_j), format_interval(row.interval_j, format_energy))
            name = f"{row.device}: {', '.join(words)}"
            cells.append((str(row.rank), name, format_duration(row.duration_s), *energies))
        columns = ("#", "combination", ">time per sample", ">energy per sample", ">interval")
        note = " Panels are not comparable." if len(self.groups) > 1 else ""
        return Plot(
            "comparison",
            f"{self.net}: energy and time per sample",
            draw,
            "Energy against time; numbers are the ranks above, bars "
            f"{100 * self.level:g} % intervals.{note}",
            make_table(columns, cells),
            (6.5 * max(1, len(self.groups)), 4.5),
        )

    def _list_notes(self) -> list[str]:
        not_included = explain_not_included(self.rows[0].setup)
        if not self.groups:
            return [not_included]
        notes = [
            "*: on the Pareto front, no other combination takes both less energy and less time. "
            "P(less): probability that it takes less energy than the next one."
        ]
        for covers, rows in self.groups.items():
            group = f" ({covers})" if len(self.groups) > 1 else ""
            if ties := _list_ties(rows):
                notes.append(
                    f"Not distinguishable{group}, with a probability below "
                    f"{format_share(DISTINGUISHABLE_PROBABILITY)}: {', '.join(ties)}."
                )
        if len(self.groups) > 1:
            notes.append(
                f"Energies of different tables are not comparable, because they are those of "
                f"{' and '.join(self.groups)}."
            )
        ranked = [(row, row.estimate) for row in self.rows if row.estimate and row.rank]
        steps = [step for _, step in ranked]
        # A step of several GPUs rests on that of one.
        sources = dict.fromkeys(
            (getattr(step.data_parallel, "step_provenance", step.provenance), row.covers)
            for row, step in ranked
        )
        said = (f"{describe_provenance(one)}, {describe_coverage(one, of)}" for one, of in sources)
        notes.append(f"Provenance: {'; '.join(said)}. {not_included}")
        if any(row.gpus > 1 for row, _ in ranked):
            notes.append(_MODELLED_GPUS)
        if any(step.unseen_share > 0 for step in steps):
            notes.append("about: some of its layers were never measured on the device.")
        notes += [note for note in steps[0].notes if all(note in one.notes for one in steps)]
        runtimes = dict.fromkeys(step.runtime for step in steps)
        return [*notes, *filter(None, map(explain_runtime_difference, runtimes))]


class _RowWords:
    """What identifies each row, and what all rows have in common."""

    def __init__(self, rows: Sequence[ComparisonRow]) -> None:
        described = [_describe_row(row) for row in rows]
        first, devices = described[0], dict.fromkeys(r.device or r.requested_device for r in rows)
        self.varying = [name for name in first if len({one[name] for one in described}) > 1]
        ranked = {row.estimate.provenance for row in rows if row.estimate and row.rank}
        self.shows_provenance = len(ranked) > 1 or "datasheet" in ranked
        columns = {
            "device": len(devices) > 1,
            "provenance": self.shows_provenance,
            "setup": len(devices) == 1 or bool(self.varying),
        }
        self.columns = tuple(name for name, is_shown in columns.items() if is_shown)
        # The device and the part of the setup that do not vary: `` on nvidia-h200, sgd``.
        fixed = (f", {part}" for name, part in first.items() if part and name not in self.varying)
        self.common = (f" on {next(iter(devices))}" if len(devices) == 1 else "") + "".join(fixed)
        # The time of inference of one sample is the latency; batches of several have both.
        self.is_inference = is_inference(rows[0].setup)
        self.is_single = self.is_inference and all(row.setup.batch == 1 for row in rows)
        self.quantity = (
            "energy and latency per inference" if self.is_single else "energy and time per sample"
        )

    def name_times(self, level: str) -> tuple[str, ...]:
        """Return the headings of time and, for inference of batches, the latency of a batch."""
        if self.is_single:
            return (">latency", level)
        return (">time", level, *([">latency"] if self.is_inference else []))

    def format_row(self, row: ComparisonRow) -> tuple[str, ...]:
        """Return the cells of a ranked row."""
        step, ends_s = row.estimate, row.duration_interval_s
        assert step is not None
        cells = [
            f"{row.rank}{'*' if row.is_on_front else ''}",
            *self.label(row),
            ("about " if step.unseen_share > 0 else "") + format_energy(row.energy_j),
            format_interval(row.interval_j, format_energy),
            format_duration(row.duration_s),
            format_interval(ends_s, format_duration) if ends_s else "-",
        ]
        if self.is_inference and not self.is_single:
            cells.append(format_duration(step.duration_s))
        probability = row.probability_below_next
        return (*cells, "" if probability is None else format_share(probability))

    def label(self, row: ComparisonRow) -> tuple[str, ...]:
        """Return the cells that identify a row."""
        cells = {
            "device": row.device,
            "provenance": row.estimate.provenance if row.estimate else "",
            "setup": self.describe_setup(row),
        }
        return tuple(cells[name] for name in self.columns)

    def describe_setup(self, row: ComparisonRow) -> str:
        """Return the part of a setup that varies: ``batch 32, bf16``."""
        parts = _describe_row(row)
        names = self.varying or ["batch"]
        return ", ".join(parts[name] or _WITHOUT.get(name, f"any {name}") for name in names)


def _describe_row(row: ComparisonRow) -> dict[str, str]:
    return {**describe_fields(row.setup), "gpus": f"{row.gpus} GPUs" if row.gpus > 1 else ""}


def _find_provenance(rows: Sequence[ComparisonRow]) -> str:
    return weakest_provenance(row.estimate.provenance for row in rows if row.estimate)


def _list_ties(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return ``1 and 2``, ``4 to 9 (each from the next)`` for ranks that tie with the next one."""
    texts = []
    for is_tie, found in groupby(rows, _ties_with_next):
        ranks = [row.rank or 0 for row in found]
        first, last = ranks[0], ranks[-1] + 1
        is_pair = len(ranks) == 1
        text = f"{first} and {last}" if is_pair else f"{first} to {last} (each from the next)"
        texts += [text] if is_tie else []
    return texts


def _ties_with_next(row: ComparisonRow) -> bool:
    probability = row.probability_below_next
    return probability is not None and probability < DISTINGUISHABLE_PROBABILITY
