"""A comparison of devices and setups, and what people see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulecast.features.run import Bill
from joulecast.records import Estimate, Setup, describe_inference, weakest_provenance
from joulecast.runtimes import explain_runtime_difference
from joulecast.system.units import (
    format_duration,
    format_energy,
    format_interval,
    format_kwh,
    format_mass,
    format_money,
    format_share,
)
from joulecast.views.report import Block, Plot, Report, Reportable, Table, Text, make_table
from joulecast.views.words import (
    describe_coverage,
    describe_provenance,
    explain_not_included,
    format_level,
    is_inference,
    label_provenance,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = dict[str, Any]
DISTINGUISHABLE_PROBABILITY = 0.9
"""Below this probability of a lower energy, two rows are reported as indistinguishable."""
# Parts of a setup that may differ between rows.
_SETUP_FIELDS = (
    "batch",
    "optimizer",
    "precision",
    "threads",
    "processor",
    "cuda_graphs",
    "accumulate",
    "compiled",
    "gpus",
)
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


@dataclass(frozen=True)
class ComparisonRow:
    """A device and a setup, with the energy and duration per sample.

    Attributes:
        requested_device: Name by which the device was requested.
        setup: How the network is trained or run.
        device: Device name in the profile; empty without a profile.
        covers: What the device's meter covers.
        estimate: Estimate of one step; None if it could not be made.
        reason: Why the row is not ranked; empty if it is.
        gpus: Number of GPUs that train together.
        rank: Rank among rows whose meters cover the same, 1 for the least energy per sample.
        is_on_front: Whether no row of the same coverage has both less energy and less time.
        probability_below_next: Probability that it uses less energy than the next row.
    """

    requested_device: str
    setup: Setup
    device: str = ""
    covers: str = ""
    estimate: Estimate | None = None
    reason: str = ""
    rank: int | None = None
    is_on_front: bool = False
    probability_below_next: float | None = None
    gpus: int = 1

    @property
    def energy_j(self) -> float:
        """Energy per sample."""
        return 0.0 if self.estimate is None else self._per_sample(self.estimate.energy_j)

    @property
    def duration_s(self) -> float:
        """Duration per sample."""
        return 0.0 if self.estimate is None else self._per_sample(self.estimate.duration_s)

    @property
    def interval_j(self) -> tuple[float, float]:
        """Interval of the energy per sample."""
        low_j, high_j = (0.0, 0.0) if self.estimate is None else self.estimate.interval_j
        return self._per_sample(low_j), self._per_sample(high_j)

    @property
    def duration_interval_s(self) -> tuple[float, float] | None:
        """Interval of the duration per sample; None if the estimator gives none."""
        ends = None if self.estimate is None else self.estimate.duration_interval_s
        return None if ends is None else (self._per_sample(ends[0]), self._per_sample(ends[1]))

    def to_dict(self) -> Json:
        """Return the row as JSON values."""
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
        if self.estimate is None:
            return data
        interval_s = self.duration_interval_s
        return {
            **data,
            "energy_j_per_sample": self.energy_j,
            "interval_j_per_sample": list(self.interval_j),
            "duration_s_per_sample": self.duration_s,
            "duration_interval_s_per_sample": None if interval_s is None else list(interval_s),
            "step": {
                "energy_j": self.estimate.energy_j,
                "interval_j": list(self.estimate.interval_j),
                "duration_s": self.estimate.duration_s,
            },
            **describe_inference(self.setup, self.estimate.energy_j, self.estimate.duration_s),
            "peak_memory_bytes": self.estimate.peak_memory_bytes,
            "device_memory_bytes": self.estimate.device_memory_bytes,
            "fits_memory": self.estimate.fits_memory,
            "runtime": self.estimate.runtime,
            "notes": list(self.estimate.notes),
            "unseen_share": self.estimate.unseen_share,
            "provenance": self.estimate.provenance,
            **self._describe_gpus(self.estimate),
        }

    @property
    def samples_per_step(self) -> int:
        """Samples of all batches of a step, on all GPUs."""
        return self.gpus * self.setup.samples_per_step

    @staticmethod
    def _describe_gpus(estimate: Estimate) -> Json:
        part = estimate.data_parallel
        return {} if part is None else {"data_parallel": part.to_dict()}

    def _per_sample(self, per_step: float) -> float:
        return per_step / self.samples_per_step


@dataclass(frozen=True)
class Comparison(Reportable):
    """Devices and setups, ranked separately for each meter coverage.

    Attributes:
        rows: Ranked rows by coverage and rank, then the rows that are not ranked.
        bill: Samples whose totals are shown, and in which units; None if none are.
    """

    net: str
    estimator: str
    level: float
    rows: tuple[ComparisonRow, ...]
    bill: Bill | None = None

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
        """Rows that could not be ranked."""
        return tuple(row for row in self.rows if row.rank is None)

    def to_dict(self) -> Json:
        """Return the comparison as JSON values."""
        data: Json = {
            "net": self.net,
            "estimator": self.estimator,
            "level": self.level,
            "comparable": len(self.groups) <= 1,
            "rows": [{**row.to_dict(), **self._add_up(row)} for row in self.rows],
        }
        return data if self.bill is None else {**data, "samples": self.bill.count}

    def report(self) -> Report:
        """Return the ranks, what cannot be distinguished, and what was not ranked."""
        labels = RowLabels(self)
        level = f">{format_level(self.level)}"
        columns = ("#", *labels.columns, ">energy", level, *labels.times(level), ">P(less)")
        blocks: list[Block] = []
        for covers, rows in self.groups.items():
            title = labels.describe_group(covers, rows)
            blocks.append(make_table(columns, [_format_row(row, labels) for row in rows], title))
            if self.bill is not None:
                blocks.append(self._tabulate_totals(rows, self.bill, labels))
        blocks += [Text(line) for line in labels.list_unranked()]
        blocks += [Text(note, "note") for note in _list_notes(self)]
        if self.groups:
            blocks.append(self._plot())
        provenance = weakest_provenance(
            row.estimate.provenance for row in self.rows if row.estimate and row.rank
        )
        title = f"{self.net}{labels.common}: {labels.quantity}"
        return Report(title, tuple(blocks), provenance, "comparison")

    def _add_up(self, row: ComparisonRow) -> Json:
        """Return the totals of all samples of a row; empty without a bill or an estimate."""
        if row.estimate is None or self.bill is None:
            return {}
        return self.bill.compute_totals(row.energy_j, row.interval_j, row.duration_s)

    def _tabulate_totals(
        self, rows: Sequence[ComparisonRow], bill: Bill, labels: RowLabels
    ) -> Table:
        columns = ["#", *labels.columns, ">energy", ">kWh", ">time"]
        columns += [">about CO2e"] * (bill.grams_per_kwh is not None)
        columns += [">cost"] * (bill.price is not None)
        cells = []
        for row in rows:
            data = self._add_up(row)
            line = [str(row.rank), *labels.label(row), format_energy(data["total_energy_j"])]
            line += [format_kwh(data["total_energy_j"]), format_duration(data["total_duration_s"])]
            line += [format_mass(data["co2e_g"])] if "co2e_g" in data else []
            line += [format_money(data["cost"], data["currency"])] if "cost" in data else []
            cells.append(line)
        return make_table(columns, cells, f"Totals of {bill.count:,} samples")

    def _list_points(self) -> Table:
        """Return what the plot shows, a row for each point."""
        columns = ("#", "combination", ">time per sample", ">energy per sample", ">interval")
        rows = []
        for row in (one for group in self.groups.values() for one in group):
            words = [part for part in _describe_fields(row).values() if part]
            provenance = row.estimate.provenance if row.estimate else "measured"
            words += [] if provenance == "measured" else [provenance]
            energies = (format_energy(row.energy_j), format_interval(row.interval_j, format_energy))
            name = f"{row.device}: {', '.join(words)}"
            rows.append((str(row.rank), name, format_duration(row.duration_s), *energies))
        return make_table(columns, rows)

    def _plot(self) -> Plot:
        """Plot energy against time per sample, one panel for each meter coverage."""
        level = f"{100 * self.level:g} %"

        def draw(figure: Figure) -> None:
            from joulecast.views.plot_kinds import FrontPoint, draw_front

            panels = figure.subplots(1, len(self.groups), squeeze=False)[0]
            for axes, (covers, rows) in zip(panels, self.groups.items(), strict=True):
                points = [
                    FrontPoint(f"#{row.rank}", row.duration_s, row.energy_j, row.interval_j)
                    for row in rows
                ]
                draw_front(axes, points, value="Time per sample", unit="s", is_higher_better=False)
                provenance = weakest_provenance(
                    row.estimate.provenance for row in rows if row.estimate
                )
                subject = "Joules of the" if provenance == "datasheet" else "Meter covers"
                axes.set_title(f"{subject} {covers}{label_provenance(provenance)}")

        note = " Panels are not comparable." if len(self.groups) > 1 else ""
        return Plot(
            "comparison",
            f"{self.net}: energy and time per sample",
            draw,
            f"Energy against time; numbers are the ranks above, bars {level} intervals.{note}",
            data=self._list_points(),
            size=(6.5 * max(1, len(self.groups)), 4.5),
        )


class RowLabels:
    """What identifies each row, and what all rows have in common."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        rows = comparison.rows
        self.devices = dict.fromkeys(row.device or row.requested_device for row in comparison.rows)
        self.varying = [
            name for name in _SETUP_FIELDS if len({_read_field(row, name) for row in rows}) > 1
        ]
        ranked = [row.estimate.provenance for row in rows if row.estimate and row.rank]
        self.shows_provenance = len(set(ranked)) > 1 or "datasheet" in ranked
        columns = {
            "device": len(self.devices) > 1,
            "provenance": self.shows_provenance,
            "setup": len(self.devices) == 1 or bool(self.varying),
        }
        self.columns = tuple(name for name, is_shown in columns.items() if is_shown)

    @property
    def common(self) -> str:
        """The device and the part of the setup that do not vary: `` on nvidia-h200, sgd``."""
        parts = _describe_fields(self.comparison.rows[0])
        fixed = "".join(
            f", {part}" for name, part in parts.items() if part and name not in self.varying
        )
        device = f" on {next(iter(self.devices))}" if len(self.devices) == 1 else ""
        return device + fixed

    @property
    def quantity(self) -> str:
        """What the tables show: ``energy and time per sample``."""
        if self._is_single:
            return "energy and latency per inference"
        return "energy and time per sample"

    @property
    def _is_single(self) -> bool:
        """Whether every row is inference of one sample, whose time is the latency."""
        setups = [row.setup for row in self.comparison.rows]
        return all(is_inference(setup) and setup.batch == 1 for setup in setups)

    def times(self, level: str) -> tuple[str, ...]:
        """Return the headings of time and, for inference of batches, the latency of a batch."""
        if self._is_single:
            return (">latency", level)
        has_latency = is_inference(self.comparison.rows[0].setup)
        return (">time", level, *([">latency"] if has_latency else []))

    def format_times(self, row: ComparisonRow) -> tuple[str, ...]:
        """Return the cells below ``times``."""
        ends_s = row.duration_interval_s
        cells = (
            format_duration(row.duration_s),
            format_interval(ends_s, format_duration) if ends_s else "-",
        )
        if self._is_single or not is_inference(row.setup) or row.estimate is None:
            return cells
        return (*cells, format_duration(row.estimate.duration_s))

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
        parts = _describe_fields(row)
        names = self.varying or ["batch"]
        return ", ".join(parts[name] or _WITHOUT.get(name, f"any {name}") for name in names)

    def describe_group(self, covers: str, rows: Sequence[ComparisonRow]) -> str:
        """Return the title of a table; empty for the only one that rests on measurements."""
        provenance = weakest_provenance(row.estimate.provenance for row in rows if row.estimate)
        is_labelled = provenance == "measured" or self.shows_provenance
        if is_labelled and len(self.comparison.groups) == 1:
            return ""
        if self.shows_provenance:
            return f"Joules of the {covers}"
        return f"Meters cover {covers}{label_provenance(provenance)}"

    def list_unranked(self) -> list[str]:
        """Return the devices and setups that were not ranked, one line for each reason."""
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in self.comparison.unranked:
            key = (row.device or row.requested_device, row.reason)
            reasons.setdefault(key, []).append(self.describe_setup(row))
        return [
            f"Not ranked: {name} with {'; '.join(setups)}: {reason}"
            for (name, reason), setups in reasons.items()
        ]


def _read_field(row: ComparisonRow, name: str) -> object:
    return row.gpus if name == "gpus" else getattr(row.setup, name)


def _describe_fields(row: ComparisonRow) -> dict[str, str]:
    """Return the parts of a setup in words; empty for what the runtime chooses."""
    setup = row.setup
    return {
        "batch": f"batch {setup.batch}",
        "optimizer": "inference" if is_inference(setup) else setup.optimizer,
        "precision": setup.precision,
        "threads": f"{setup.threads} threads" if setup.threads else "",
        "processor": setup.processor,
        "accumulate": f"{setup.accumulate} batches per step" if setup.accumulate > 1 else "",
        "compiled": "compiled" if setup.compiled else "",
        "cuda_graphs": "CUDA graphs" if setup.cuda_graphs else "",
        "gpus": f"{row.gpus} GPUs" if row.gpus > 1 else "",
    }


def _format_row(row: ComparisonRow, labels: RowLabels) -> tuple[str, ...]:
    probability = row.probability_below_next
    return (
        f"{row.rank}{'*' if row.is_on_front else ''}",
        *labels.label(row),
        ("about " if row.estimate and row.estimate.unseen_share > 0 else "")
        + format_energy(row.energy_j),
        format_interval(row.interval_j, format_energy),
        *labels.format_times(row),
        "" if probability is None else format_share(probability),
    )


def _list_notes(comparison: Comparison) -> list[str]:
    not_included = explain_not_included(comparison.rows[0].setup)
    if not comparison.groups:
        return [not_included]
    notes = [
        "*: on the Pareto front, no other combination takes both less energy and less time. "
        "P(less): probability that it takes less energy than the next one.",
        *_list_ties(comparison),
    ]
    if len(comparison.groups) > 1:
        notes.append(
            f"Energies of different tables are not comparable, because they are those of "
            f"{' and '.join(comparison.groups)}."
        )
    ranked = [row for row in comparison.rows if row.estimate and row.rank]
    pairs = dict.fromkeys(
        (_name_source(row.estimate), row.covers) for row in ranked if row.estimate
    )
    text = "; ".join(
        f"{describe_provenance(one)}, {describe_coverage(one, of)}" for one, of in pairs
    )
    notes.append(f"Provenance: {text}. {not_included}")
    if any(row.gpus > 1 for row in ranked):
        notes.append(_MODELLED_GPUS)
    if any(row.estimate and row.estimate.unseen_share > 0 for row in ranked):
        notes.append("about: some of its layers were never measured on the device.")
    return [*notes, *_list_estimate_notes([row.estimate for row in ranked if row.estimate])]


def _name_source(estimate: Estimate) -> str:
    """Return the provenance of a step on one GPU."""
    part = estimate.data_parallel
    return estimate.provenance if part is None else part.step_provenance


def _list_estimate_notes(estimates: Sequence[Estimate]) -> list[str]:
    """Return the notes that all estimates have in common, and on frameworks of other versions."""
    first, *others = (estimate.notes for estimate in estimates)
    common = [note for note in first if all(note in notes for notes in others)]
    runtimes = dict.fromkeys(estimate.runtime for estimate in estimates)
    differences = map(explain_runtime_difference, runtimes)
    return [*common, *filter(None, differences)]


def _list_ties(comparison: Comparison) -> list[str]:
    """Return which neighbouring ranks cannot be distinguished."""
    notes = []
    for covers, rows in comparison.groups.items():
        tied = [
            row.rank
            for row in rows
            if row.rank
            and row.probability_below_next is not None
            and row.probability_below_next < DISTINGUISHABLE_PROBABILITY
        ]
        group = f" ({covers})" if len(comparison.groups) > 1 else ""
        if tied:
            notes.append(
                f"Not distinguishable{group}, with a probability below "
                f"{format_share(DISTINGUISHABLE_PROBABILITY)}: {', '.join(_join_ties(tied))}."
            )
    return notes


def _join_ties(tied: Sequence[int]) -> list[str]:
    """Return ``1 and 2``, ``4 to 9 (each from the next)`` for ranks that tie with the next one."""
    texts: list[str] = []
    first = tied[0]
    for at, rank in enumerate(tied):
        if at + 1 < len(tied) and tied[at + 1] == rank + 1:
            continue
        if rank == first:
            texts.append(f"{first} and {rank + 1}")
        else:
            texts.append(f"{first} to {rank + 1} (each from the next)")
        first = tied[at + 1] if at + 1 < len(tied) else rank
    return texts
