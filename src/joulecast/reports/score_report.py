"""Report scores of devices: the label, both scores, and what each application took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joulecast.errors import InputError
from joulecast.records import weakest_provenance
from joulecast.units import format_duration, format_energy, format_power
from joulecast.uses.score import IECS_CAVEAT, SCALE_NOTE, DeviceScore, draw_label
from joulecast.uses.score.score_plot import plot_scores
from joulecast.views.report import (
    Block,
    Heading,
    Picture,
    Plot,
    Report,
    Table,
    Text,
    list_facts,
    make_table,
)
from joulecast.views.words import plural


def report_scores(scores: Sequence[DeviceScore]) -> Report:
    """Return the report of one or more scores.

    Raises:
        InputError: There is none.
    """
    if not scores:
        raise InputError("there is no score to report: run `joulecast score --out score.json`")
    first = scores[0]
    is_one = len(scores) == 1
    title = f"Score of {first.name}" if is_one else f"Scores of {plural(len(scores), 'device')}"
    lead = _describe_label(first) if is_one else "Labels from A, the best, to G."
    blocks = (
        Text(lead, "lead"),
        *(_report_device(first) if is_one else _compare_devices(scores)),
        Heading("What the scores mean"),
        Text(IECS_CAVEAT),
        Text(SCALE_NOTE),
    )
    return Report(title, blocks, weakest_provenance(one.provenance for one in scores), "score")


def _describe_label(score: DeviceScore) -> str:
    if score.label is None:
        return f"{score.name} has no label: one of the scores is unknown."
    return f"{score.name} has the label {score.label}, on a scale from A, the best, to G."


def _list_key_figures(score: DeviceScore) -> tuple[tuple[str, str], ...]:
    return (
        ("Label", score.label or "none"),
        ("PCS", _format(score.pcs)),
        ("IECS (our reading)", _format(score.iecs)),
        ("Wh per 1,000 inferences", _format(score.wh_per_1000_inferences)),
    )


def _report_device(score: DeviceScore) -> list[Block]:
    rows = tuple(
        (
            one.application.replace("_", " "),
            one.processor,
            format_energy(one.energy_j) if one.energy_j else "–",
            format_duration(one.duration_s) if one.duration_s else "–",
            format_power(one.power_w) if one.power_w else "–",
            str(one.count),
        )
        for one in score.configurations
    )
    columns = ("application", "processor", ">energy", ">latency", ">power", ">observations")
    origin = f"{score.provenance}; the meter covers {score.covers}"
    caption = f"One inference on {score.name} ({origin})"
    return [
        list_facts(_list_key_figures(score)),
        _draw(score, "label"),
        make_table(columns, rows, caption),
        *(Text(note) for note in score.list_notes()),
    ]


def _compare_devices(scores: Sequence[DeviceScore]) -> list[Block]:
    return [
        _list_scores(scores),
        *_plot(scores),
        Heading("Labels"),
        *(_draw(one, f"label-{number}") for number, one in enumerate(scores, start=1)),
        *(Text(f"{one.name}: {note}") for one in scores for note in one.list_notes()),
    ]


def _draw(score: DeviceScore, name: str) -> Picture:
    words = f"{_describe_label(score)} Energies are {score.provenance}."
    return Picture(name, draw_label(score), words)


def _list_scores(scores: Sequence[DeviceScore]) -> Table:
    rows = tuple(
        (
            one.name,
            one.label or "–",
            _format(one.pcs),
            _format(one.iecs),
            _format(one.wh_per_1000_inferences),
            _format(one.inferences_per_s),
            one.covers,
            one.provenance,
        )
        for one in scores
    )
    columns = (
        "device", "label", ">PCS", ">IECS", ">Wh per 1,000", ">inferences/s", "meter covers",
        "provenance",
    )  # fmt: skip
    return make_table(columns, rows, "Scores by device")


def _plot(scores: Sequence[DeviceScore]) -> list[Plot]:
    try:
        return [replace(plot, name=f"scores-{plot.name}") for plot in plot_scores(scores)]
    except InputError:
        # Prices in several currencies, or no score at all: the table says what is known.
        return []


def _format(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
