"""Report an evaluation: estimated against measured, errors, and what they cost."""

from __future__ import annotations

from joulecast.features.evaluate import EstimatorScore, Evaluation
from joulecast.records import Json
from joulecast.records.codec import load_record
from joulecast.reports.evaluation_plots import plot_evaluation
from joulecast.reports.report import Report, ReportTable, Section
from joulecast.reports.report_values import count_things, format_percent, list_values
from joulecast.units import format_duration, format_energy

_LEGEND = (
    "MAPE is the mean absolute percentage error of the energy. Coverage is the share of networks "
    "inside their 95 % interval, width its median width. Time MAPE is the error of the duration. "
    "Device time is what the estimator's measurements took."
)


def read_evaluation(data: Json, what: str = "the evaluation") -> Evaluation:
    """Return the evaluation that ``joulecast evaluate --out`` wrote.

    Raises:
        FileError: The data is something else; ``what`` names it.
    """
    # The command adds where observations are stored.
    return load_record(Evaluation, {k: v for k, v in data.items() if k != "store"}, what)


def report_evaluation(result: Evaluation) -> Report:
    """Return the report of an evaluation."""
    plots = plot_evaluation(result) if any(net.estimates for net in result.nets) else {}
    accuracy = {name: plots[name] for name in ("agreement", "errors", "error-shares") if plots}
    cost = {name: plots[name] for name in ("error-time", "profiling-time", "time-energy") if plots}
    best = min(result.scores, key=lambda one: one.mape_percent, default=None)
    lead = f"{count_things(len(result.nets), 'held-out network')} of {result.family}."
    if best is not None:
        lead += f" {best.estimator} has the lowest error: MAPE {format_percent(best.mape_percent)}."
    return Report(
        "evaluation",
        f"Evaluation of {result.family} on {result.device.name}",
        lead,
        result.provenance,
        (
            Section(
                "Accuracy", (_LEGEND, _describe_noise(result)), (_list_scores(result),), accuracy
            ),
            Section("Cost", ("What accuracy costs in device time.",), (), cost),
            Section("Networks", (), (_list_nets(result),)),
            Section("How it was made", _list_caveats(result), (_list_facts(result),)),
        ),
        tuple((one.estimator, format_percent(one.mape_percent)) for one in result.scores[:4]),
    )


def _list_scores(result: Evaluation) -> ReportTable:
    columns = (
        "estimator", ">MAPE", ">bias", ">median", ">max", ">within 10 %", ">coverage", ">width",
        ">time MAPE", ">device time", ">points",
    )  # fmt: skip
    return ReportTable("Errors by estimator", columns, tuple(map(_format_score, result.scores)))


def _format_score(score: EstimatorScore) -> tuple[str, ...]:
    return (
        score.estimator,
        format_percent(score.mape_percent),
        ("+" if score.bias_percent > 0 else "") + format_percent(score.bias_percent),
        format_percent(score.median_percent),
        format_percent(score.max_percent),
        f"{score.within10_percent:.0f} %",
        f"{score.coverage95_percent:.0f} %",
        format_percent(score.width95_percent),
        format_percent(score.time_mape_percent),
        format_duration(score.device_seconds),
        f"{score.points:,}",
    )


def _describe_noise(result: Evaluation) -> str:
    if result.noise_percent is None:
        return "Each network was measured once, so the measurement noise is unknown."
    return (
        f"Two measurements of the same network differ by {format_percent(result.noise_percent)} "
        "(median): smaller errors are within the noise."
    )


def _list_nets(result: Evaluation) -> ReportTable:
    names = [score.estimator for score in result.scores]
    rows = tuple(
        (
            net.name,
            format_energy(net.measured_j),
            format_duration(net.measured_s),
            *(
                f"{100 * (net.estimates[name].energy_j / net.measured_j - 1):+.1f} %"
                if name in net.estimates and net.measured_j
                else "–"
                for name in names
            ),
        )
        for net in result.nets
    )
    columns = ("network", ">measured", ">duration", *(f">{name}" for name in names))
    return ReportTable("Measured steps, and the error of each estimator", columns, rows)


def _list_facts(result: Evaluation) -> ReportTable:
    setup = result.setup
    return list_values(
        "Details of the evaluation",
        (
            ("Device", result.device.name),
            ("Power mode", result.device.power_mode),
            ("Runtime", result.runtime),
            ("Meter", f"{result.meter}, covers {result.covers}"),
            ("Provenance", result.provenance),
            ("Setup", f"batch {setup.batch}, {setup.phase}, {setup.precision}, {setup.optimizer}"),
            ("Input", "×".join(map(str, result.input_shape))),
            ("Seed", str(result.seed)),
            ("Device time of each campaign", format_duration(result.seconds)),
            ("Date of the last observation", result.date),
        ),
    )


def _list_caveats(result: Evaluation) -> tuple[str, ...]:
    left_out = tuple(f"Left out: {reason}" for reason in result.left_out)
    return left_out + tuple(f"Not measured yet: {what}" for what in result.missing)
