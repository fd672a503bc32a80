"""Print what ``joulecast score`` found: the card of a device, or a table of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from joulecast.cli.terminal import (
    describe_provenance,
    format_optional,
    label_provenance,
    make_console,
    print_notes,
    print_table,
    shorten,
)
from joulecast.printable import make_printable
from joulecast.units import format_duration, format_energy, format_money, format_power
from joulecast.uses.score import (
    IECS_CAVEAT,
    LETTER_COLOURS,
    LETTERS,
    SCALE_NOTE,
    DeviceScore,
    PublishedScore,
    ScoredConfiguration,
    list_published_notes,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_CARD_WIDTH = 84
_NAME_SIZE = 60
_BAR_START, _BAR_GROWTH = 3, 2


def print_card(score: DeviceScore) -> None:
    """Print the card of one device, what each configuration took, and what limits the scores."""
    from rich.panel import Panel
    from rich.table import Table

    console = make_console()
    grid = Table.grid(padding=(0, 3))
    grid.add_row(_draw_scale(score.label), _write_facts(score))
    title = shorten(make_printable(score.name), _NAME_SIZE) + label_provenance(score.provenance)
    width = min(_CARD_WIDTH, console.width)
    console.print(Panel(grid, title=f"Inference energy: {title}", padding=(1, 2), width=width))
    console.print()
    _print_configurations(console, score.configurations)
    _print_basis(console, score)
    print_notes(console, [*score.list_notes(), IECS_CAVEAT, SCALE_NOTE])


def print_scores(scores: Sequence[DeviceScore]) -> None:
    """Print a table of several devices."""
    console = make_console()
    rows = [
        (
            one.name + label_provenance(one.provenance),
            one.label or "-",
            _format_score(one.pcs, one.pcs_label),
            _format_score(one.iecs, one.iecs_label),
            format_number(one.wh_per_1000_inferences),
            format_number(one.inferences_per_s),
            format_optional(one.facts.tdp_w, format_power),
            _format_price(one),
        )
        for one in scores
    ]
    columns = ("device", "label", ">PCS", ">IECS", ">Wh/1,000", ">inferences/s", ">TDP", ">price")
    print_table(console, columns, rows)
    if len({one.covers for one in scores}) > 1:
        covers = "; ".join(f"{one.name}: {one.covers}" for one in scores)
        console.print(f"Not comparable, because the meters cover different parts ({covers}).")
    if len({_list_pairs(one) for one in scores}) > 1:
        console.print(
            "IECS is not comparable, because devices have different processors or applications."
        )
    # A narrow terminal shortens names, and with them where the joules come from.
    sources = [
        f"{one.name}: joules are {one.provenance}."
        for one in scores
        if label_provenance(one.provenance)
    ]
    notes = [f"{one.name}: {note}" for one in scores for note in one.list_notes()]
    print_notes(console, [*sources, *notes, IECS_CAVEAT, SCALE_NOTE])


def print_phones(phones: Sequence[PublishedScore]) -> None:
    """Print the published phones, with our scores beside the published ones."""
    console = make_console()
    rows = [
        (
            one.score.name,
            one.score.label or "-",
            format_optional(one.score.pcs, str),
            str(one.pcs_published),
            format_optional(one.pcs_printed_tdp, str),
            f"{format_optional(one.score.facts.tdp_w, '{:g}'.format)} / {one.tdp_printed_w:g} W",
            format_number(one.score.iecs),
            str(one.iecs_published),
            format_number(one.score.wh_per_1000_inferences),
            format_number(one.score.inferences_per_s),
        )
        for one in phones
    ]
    columns = (
        "phone", "label", ">PCS", ">published", ">printed TDP", ">TDP", ">IECS", ">published",
        ">Wh/1,000", ">inf./s",
    )  # fmt: skip
    print_table(console, columns, rows, title="DeepEn2023, published tables (imported)")
    console.print(
        "TDP: in the order that reproduces PCS / as printed. PCS is ours with the first, as "
        "published, and ours with the second."
    )
    for one in phones:
        missing = [note for note in one.score.list_notes() if note.startswith("Not scored")]
        print_notes(console, [f"{one.score.name}: {note}" for note in missing])
    print_notes(console, [*list_published_notes(), IECS_CAVEAT, SCALE_NOTE])


def format_number(value: float | None) -> str:
    """Return three significant digits, or a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def _draw_scale(label: str | None) -> Text:
    """Return seven bars from A to G, with a mark at the label."""
    from rich.text import Text

    text = Text()
    widest = _BAR_START + _BAR_GROWTH * len(LETTERS)
    for index, (letter, colour) in enumerate(zip(LETTERS, LETTER_COLOURS, strict=True)):
        width = _BAR_START + _BAR_GROWTH * index
        text.append(f"{letter} ", style="bold")
        text.append("█" * width + "▶", style=colour)
        if letter == label:
            text.append(" " * (widest - width) + f"◀ {letter}", style="bold")
        text.append("\n" if index < len(LETTERS) - 1 else "")
    return text


def _write_facts(score: DeviceScore) -> Text:
    from rich.text import Text

    tdp_w = score.facts.tdp_w
    power = format_optional(score.mean_power_w, format_power)
    tdp = f" of {format_power(tdp_w)} TDP" if tdp_w else ", TDP not known"
    mean = format_number(score.inferences_per_joule)
    wh = format_number(score.wh_per_1000_inferences)
    lines = [
        ("PCS", _format_score(score.pcs, score.pcs_label), f"{power}{tdp}"),
        ("IECS", _format_score(score.iecs, score.iecs_label), f"{mean} inferences/J on average"),
        ("", wh, "Wh per 1,000 inferences"),
        ("", format_number(score.inferences_per_s), "inferences/s"),
        *([("", _format_price(score), "price")] if score.facts.price is not None else []),
    ]
    text = Text("\n")
    for name, value, meaning in lines:
        text.append(f"{name:<5}{value:>10}", style="bold")
        text.append(f"  {meaning}\n")
    return text


def _format_price(score: DeviceScore) -> str:
    price = score.facts.price
    return "-" if price is None else format_money(price, score.facts.currency)


def _format_score(value: float | None, letter: str | None) -> str:
    shown = "-" if value is None else str(value) if isinstance(value, int) else format_number(value)
    return f"{shown} ({letter})" if letter else shown


def _print_configurations(console: Console, configurations: Sequence[ScoredConfiguration]) -> None:
    rows = [
        (
            one.application.replace("_", " "),
            one.processor,
            format_optional(one.energy_j, format_energy),
            format_optional(one.duration_s, format_duration),
            format_optional(one.power_w, format_power),
            format_number(1.0 / one.energy_j if one.energy_j else None),
            format_number(one.energy_j / 3.6 if one.energy_j else None),
        )
        for one in configurations
    ]
    columns = (
        "application", "processor", ">energy", ">latency", ">power", ">inferences/J", ">Wh/1,000",
    )  # fmt: skip
    print_table(console, columns, rows)


def _print_basis(console: Console, score: DeviceScore) -> None:
    how = [score.source or score.runtime, f"the meter covers {score.covers}"]
    how.append(describe_provenance(score.provenance))
    if score.facts.tdp_w is not None:
        how.append(f"TDP {format_power(score.facts.tdp_w)} ({score.facts.tdp_source})")
    console.print("; ".join(filter(None, how)) + ".")


def _list_pairs(score: DeviceScore) -> tuple[tuple[str, str], ...]:
    return tuple((one.application, one.processor) for one in score.configurations if one.energy_j)
