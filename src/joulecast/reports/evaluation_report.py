"""Report an evaluation: estimated against measured, errors, and what they cost."""

from __future__ import annotations

from joulecast.records import Json
from joulecast.records.codec import load_record
from joulecast.units import format_duration, format_energy
from joulecast.uses.evaluate import EstimatorScore, Evaluation
from joulecast.uses.evaluate.evaluation_plots import plot_evaluation
from joulecast.views.report import Block, Heading, Report, Table, Text, list_facts, make_table
from joulecast.views.words import format_percent, plural

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
    plots = plot_evaluation(result) if any(net.estimates for net in result.nets) else []
    best = min(result.scores, key=lambda one: one.mape_percent, default=None)
    lead = f"{plural(len(result.nets), 'held-out network')} of {result.family}."
    if best is not None:
        lead += f" {best.estimator} has the lowest error: MAPE {format_percent(best.mape_percent)}."
    blocks: tuple[Block, ...] = (
        Text(lead, "lead"),
        Heading("Accuracy"),
        _list_scores(result),
        Text(_LEGEND, "note"),
        Text(_describe_noise(result), "note"),
        *plots[:3],
        Heading("Cost"),
        Text("What accuracy costs in device time."),
        *plots[3:],
        Heading("Networks"),
        _list_nets(result),
        Heading("How it was made"),
        _list_facts(result),
        *(Text(caveat) for caveat in _list_caveats(result)),
    )
    title = f"Evaluation of {result.family} on {result.device.name}"
    return Report(title, blocks, result.provenance, "evaluation")


def _list_scores(result: Evaluation) -> Table:
    columns = (
        "estimator", ">MAPE", ">bias", ">median", ">max", ">within 10 %", ">coverage", ">width",
        ">time MAPE", ">device time", ">points",
    )  # fmt: skip
    return make_table(columns, map(_format_score, result.scores), "Errors by estimator")


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


def _list_nets(result: Evaluation) -> Table:
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
    return make_table(columns, rows, "Measured steps, and the error of each estimator")


def _list_facts(result: Evaluation) -> Table:
    setup = result.setup
    return list_facts(
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
