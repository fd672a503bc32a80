"""What ``joulecast compare`` says to people: ranks, ties, and what was not ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulecast.cli.bill import Bill
from joulecast.cli.show import (
    join_ends,
    make_console,
    mark_basis,
    print_notes,
    print_table,
    say_basis,
)
from joulecast.records import Setup, weakest_provenance
from joulecast.units import (
    format_duration,
    format_energy,
    format_kwh,
    format_mass,
    format_money,
    format_share,
)
from joulecast.uses.compare import SURE, Comparison, Row

Json = dict[str, Any]
_NOT_INCLUDED = "Not included: loading data, evaluation and checkpoints."


def describe_bill(row: Row, bill: Bill | None) -> Json:
    """What all samples take, where somebody asks and somebody knows."""
    if row.estimate is None or bill is None:
        return {}
    return bill.describe(row.energy_j, row.interval_j, row.duration_s)


def print_comparison(found: Comparison, bill: Bill | None) -> None:
    """Print the ranks, what cannot be told apart, and what was not ranked."""
    console, words = make_console(), Words(found)
    console.print(f"{found.net}{words.common}: what a sample takes\n")
    level = f">{100 * found.level:g} % interval"
    for covers, rows in found.groups.items():
        columns = ("#", *words.columns, ">energy", level, ">time", level, " ", ">cheaper")
        shown = [_show_row(row, words) for row in rows]
        print_table(console, columns, shown, title=words.say_group(covers, rows))
        if bill is not None:
            _print_totals(console, rows, bill, words)
    for line in words.list_unranked():
        console.print(line)
    if found.unranked:
        console.print()
    print_notes(console, _list_notes(found))


class Words:
    """What is said of each row, and what is said once since all rows share it."""

    def __init__(self, found: Comparison) -> None:
        self.found = found
        setups = [row.setup for row in found.rows]
        self.devices = dict.fromkeys(row.device or row.asked for row in found.rows)
        self.many = [
            name
            for name in ("batch", "optimizer", "precision")
            if len({getattr(setup, name) for setup in setups}) > 1
        ]
        self.columns = ("device", "setup") if len(self.devices) > 1 else ("setup",)

    @property
    def common(self) -> str:
        """`` on nvidia-h200, sgd``: the device and what of the setup does not vary."""
        setup = self.found.rows[0].setup
        kind = "inference" if setup.phase == "inference" else setup.optimizer
        said = {"batch": f"batch {setup.batch}", "optimizer": kind, "precision": setup.precision}
        fixed = "".join(f", {word}" for name, word in said.items() if name not in self.many)
        place = f" on {next(iter(self.devices))}" if len(self.devices) == 1 else ""
        return place + fixed

    def name(self, row: Row) -> tuple[str, ...]:
        """Cells that say which row it is."""
        short = self.shorten(row.setup)
        return (row.device, short) if len(self.devices) > 1 else (short,)

    def shorten(self, setup: Setup) -> str:
        """What of a setup varies: ``batch 32, bf16``."""
        many = self.many or ["batch"]
        words = {"batch": f"batch {setup.batch}"}
        return ", ".join(words.get(name, str(getattr(setup, name))) for name in many)

    def say_group(self, covers: str, rows: Sequence[Row]) -> str:
        """A line above a table, where it has something to say."""
        basis = weakest_provenance(row.estimate.basis for row in rows if row.estimate)
        if basis == "measured" and len(self.found.groups) == 1:
            return ""
        return f"Meters cover {covers}{mark_basis(basis)}"

    def list_unranked(self) -> list[str]:
        """Devices and setups that were not ranked, once for each reason."""
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in self.found.unranked:
            key = (row.device or row.asked, row.why)
            reasons.setdefault(key, []).append(self.shorten(row.setup))
        return [
            f"Not ranked: {name} with {'; '.join(setups)}: {why}"
            for (name, why), setups in reasons.items()
        ]


def _show_row(row: Row, words: Words) -> tuple[str, ...]:
    seconds = row.duration_interval_s
    return (
        str(row.rank),
        *words.name(row),
        ("about " if row.estimate and row.estimate.unseen_share > 0 else "")
        + format_energy(row.energy_j),
        join_ends(*map(format_energy, row.interval_j)),
        format_duration(row.duration_s),
        join_ends(*map(format_duration, seconds)) if seconds else "-",
        "front" if row.on_front else "",
        "" if row.chance_next is None else format_share(row.chance_next),
    )


def _print_totals(console: Any, rows: Sequence[Row], bill: Bill, words: Words) -> None:
    columns = ["#", *words.columns, ">energy", ">kWh", ">time"]
    columns += [">CO2e, about"] * (bill.grams_per_kwh is not None)
    columns += [">price"] * (bill.price is not None)
    shown = []
    for row in rows:
        data = describe_bill(row, bill)
        cells = [str(row.rank), *words.name(row), format_energy(data["total_energy_j"])]
        cells += [format_kwh(data["total_energy_j"]), format_duration(data["total_duration_s"])]
        cells += [format_mass(data["co2e_g"])] if "co2e_g" in data else []
        cells += [format_money(data["cost"], data["currency"])] if "cost" in data else []
        shown.append(cells)
    print_table(console, columns, shown, title=f"{bill.count:,} samples take")


def _list_notes(found: Comparison) -> list[str]:
    if not found.groups:
        return [_NOT_INCLUDED]
    notes = [
        "front: no other one takes both fewer joules and less time; cheaper: chance that it really "
        "takes fewer joules than the next.",
        *_say_ties(found),
    ]
    if len(found.groups) > 1:
        notes.append(
            f"Meters that cover {' and '.join(found.groups)} do not see the same thing: joules of "
            "different tables are not comparable."
        )
    basis = dict.fromkeys(
        (row.estimate.basis, row.covers) for row in found.rows if row.estimate and row.rank
    )
    said = "; ".join(f"{say_basis(word)}, the meter covers {covers}" for word, covers in basis)
    notes.append(f"Basis: {said}. {_NOT_INCLUDED}")
    if any(row.estimate and row.rank and row.estimate.unseen_share > 0 for row in found.rows):
        notes.append("about: some of its layers were never profiled so on the device.")
    return notes


def _say_ties(found: Comparison) -> list[str]:
    """Neighbours that nobody can tell apart."""
    notes = []
    for covers, rows in found.groups.items():
        pairs = [
            f"{row.rank} and {row.rank + 1}"
            for row in rows
            if row.rank and row.chance_next is not None and row.chance_next < SURE
        ]
        of = f" ({covers})" if len(found.groups) > 1 else ""
        if pairs:
            notes.append(
                f"Not distinguishable{of}, the chance is below {format_share(SURE)}: "
                f"{', '.join(pairs)}."
            )
    return notes
