"""Print what ``joulecast evaluate`` found."""

from __future__ import annotations

from joulecast.cli.setups import describe_setup
from joulecast.cli.terminal import (
    describe_provenance,
    label_provenance,
    make_console,
    plural,
    print_notes,
    print_table,
)
from joulecast.uses.evaluate import EstimatorScore, Evaluation

_COLUMNS = (
    "estimator",
    ">MAPE",
    ">bias",
    ">median",
    ">max",
    ">≤ 10 %",
    ">coverage",
    ">width",
    ">time MAPE",
    ">device",
)
_LEGEND = (
    "MAPE: mean absolute percentage error of the energy. coverage: nets inside their 95 % "
    "interval. width: its median width. time MAPE: error of the duration. device: measurement time."
)
# From here on a percentage is printed without decimals.
_LARGE_PERCENT = 99.95
_MAX_LEFT_OUT = 8


def print_evaluation(result: Evaluation, place: str, is_offline: bool) -> None:
    """Print the scores of all estimators, and notes."""
    console = make_console()
    console.print(
        f"{plural(len(result.nets), 'held-out net')} of {result.family} on {result.device.name}"
        f"{label_provenance(result.provenance)}: {describe_setup(result.setup)}\n"
    )
    print_table(console, _COLUMNS, map(_format_score, result.scores))
    console.print(_describe_noise(result))
    for reason in result.left_out[:_MAX_LEFT_OUT]:
        console.print(f"Left out: {reason}")
    if len(result.left_out) > _MAX_LEFT_OUT:
        console.print(f"Left out: {len(result.left_out) - _MAX_LEFT_OUT} more, see --json")
    if is_offline:
        for what in result.missing:
            console.print(f"Not measured yet: {what}")
    notes = [
        _LEGEND,
        f"Nets drawn with seed {result.seed}; each campaign had {result.seconds:g} s.",
        f"Provenance: {describe_provenance(result.provenance)}; the meter covers {result.covers}.",
        f"Stored in {place}; the same command with --offline evaluates it again.",
    ]
    print_notes(console, notes)


def _format_score(score: EstimatorScore) -> tuple[str, ...]:
    return (
        score.estimator,
        _format_percent(score.mape_percent),
        ("+" if score.bias_percent > 0 else "") + _format_percent(score.bias_percent),
        _format_percent(score.median_percent),
        _format_percent(score.max_percent),
        f"{score.within10_percent:.0f} %",
        f"{score.coverage95_percent:.0f} %",
        _format_percent(score.width95_percent),
        _format_percent(score.time_mape_percent),
        f"{score.device_seconds:,.0f} s",
    )


def _format_percent(percent: float) -> str:
    return f"{percent:.1f} %" if abs(percent) < _LARGE_PERCENT else f"{percent:,.0f} %"


def _describe_noise(result: Evaluation) -> str:
    if result.noise_percent is None:
        return "Each net was measured once, so the measurement noise is unknown."
    return (
        f"Two measurements of the same net differ by {_format_percent(result.noise_percent)} "
        "(median): smaller errors are within the noise."
    )
