"""Report scores of devices: the label, both scores, and what each application took."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.errors import InputError
from joulecast.features.device_score import IECS_CAVEAT, SCALE_NOTE, DeviceScore, draw_label
from joulecast.figures import Plot
from joulecast.records import weakest_provenance
from joulecast.reports.report import Picture, Report, ReportTable, Section
from joulecast.reports.report_values import count_things
from joulecast.reports.score_plot import plot_scores
from joulecast.units import format_duration, format_energy, format_power


def report_scores(scores: Sequence[DeviceScore]) -> Report:
    """Return the report of one or more scores.

    Raises:
        InputError: There is none.
    """
    if not scores:
        raise InputError("there is no score to report: run `joulecast score --out score.json`")
    first = scores[0]
    is_one = len(scores) == 1
    title = (
        f"Score of {first.name}" if is_one else f"Scores of {count_things(len(scores), 'device')}"
    )
    numbered = list(enumerate(scores, start=1))
    return Report(
        "score",
        title,
        _describe_label(first) if is_one else "Labels from A, the best, to G.",
        weakest_provenance(one.provenance for one in scores),
        (
            *([_report_device(first)] if is_one else _compare_devices(numbered)),
            Section("What the scores mean", (IECS_CAVEAT, SCALE_NOTE)),
        ),
        _list_key_figures(first) if is_one else (),
    )


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


def _report_device(score: DeviceScore) -> Section:
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
    table = ReportTable(caption, columns, rows)
    return Section(score.name, tuple(score.list_notes()), (table,), {}, {"label": _draw(score)})


def _compare_devices(scores: Sequence[tuple[int, DeviceScore]]) -> list[Section]:
    own = [one for _, one in scores]
    notes = tuple(f"{one.name}: {note}" for one in own for note in one.list_notes())
    labels = {f"label-{number}": _draw(one) for number, one in scores}
    return [
        Section("Comparison", (), (_list_scores(own),), _plot(own)),
        Section("Labels", notes, (), {}, labels),
    ]


def _draw(score: DeviceScore) -> Picture:
    words = f"{_describe_label(score)} Energies are {score.provenance}."
    return Picture(draw_label(score), words)


def _list_scores(scores: Sequence[DeviceScore]) -> ReportTable:
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
    return ReportTable("Scores by device", columns, rows)


def _plot(scores: Sequence[DeviceScore]) -> dict[str, Plot]:
    try:
        return {f"scores-{name}": plot for name, plot in plot_scores(scores).items()}
    except InputError:
        # Prices in several currencies, or no score at all: the table says what is known.
        return {}


def _format(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
