"""Print what ``joulecast compare`` found: ranks, ties, and what was not ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joulecast.cli.setups import explain_not_included, is_inference
from joulecast.cli.terminal import (
    Json,
    describe_coverage,
    describe_provenance,
    format_interval,
    format_level,
    label_provenance,
    make_console,
    print_notes,
    print_table,
)
from joulecast.features.run import Bill
from joulecast.records import Estimate, weakest_provenance
from joulecast.runtimes.installed import explain_runtime_difference
from joulecast.units import (
    format_duration,
    format_energy,
    format_kwh,
    format_mass,
    format_money,
    format_share,
)
from joulecast.uses.compare import DISTINGUISHABLE_PROBABILITY, Comparison, ComparisonRow

if TYPE_CHECKING:
    from rich.console import Console

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
_WITHOUT = {"accumulate": "1 batch a step", "compiled": "eager", "gpus": "1 GPU"}


def compute_row_totals(row: ComparisonRow, bill: Bill | None) -> Json:
    """Return the totals of all samples; empty without a bill or an estimate."""
    if row.estimate is None or bill is None:
        return {}
    return bill.compute_totals(row.energy_j, row.interval_j, row.duration_s)


def print_comparison(comparison: Comparison, bill: Bill | None) -> None:
    """Print the ranks, what cannot be distinguished, and what was not ranked."""
    console, labels = make_console(), RowLabels(comparison)
    console.print(f"{comparison.net}{labels.common}: {labels.quantity}\n")
    level = f">{format_level(comparison.level)}"
    columns = ("#", *labels.columns, ">energy", level, *labels.times(level), ">P(less)")
    for covers, rows in comparison.groups.items():
        cells = [_format_row(row, labels) for row in rows]
        print_table(console, columns, cells, title=labels.describe_group(covers, rows))
        if bill is not None:
            _print_totals(console, rows, bill, labels)
    for line in labels.list_unranked():
        console.print(line)
    if comparison.unranked:
        console.print()
    print_notes(console, _list_notes(comparison))


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
        "accumulate": f"{setup.accumulate} batches a step" if setup.accumulate > 1 else "",
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


def _print_totals(
    console: Console, rows: Sequence[ComparisonRow], bill: Bill, labels: RowLabels
) -> None:
    columns = ["#", *labels.columns, ">energy", ">kWh", ">time"]
    columns += [">about CO2e"] * (bill.grams_per_kwh is not None)
    columns += [">cost"] * (bill.price is not None)
    cells = []
    for row in rows:
        data = compute_row_totals(row, bill)
        line = [str(row.rank), *labels.label(row), format_energy(data["total_energy_j"])]
        line += [format_kwh(data["total_energy_j"]), format_duration(data["total_duration_s"])]
        line += [format_mass(data["co2e_g"])] if "co2e_g" in data else []
        line += [format_money(data["cost"], data["currency"])] if "cost" in data else []
        cells.append(line)
    print_table(console, columns, cells, title=f"Totals of {bill.count:,} samples")


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
