"""``joulecast score``: PCS, IECS and a label from A to G of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import CountListType, ListType, NumberType, OutputFileType
from joulecast.cli.output import OutputOptions, save_plots, write_result
from joulecast.cli.print_score import print_card, print_phones, print_scores
from joulecast.cli.progress import show_report
from joulecast.errors import FileError, InputError
from joulecast.features.options import MeasureOptions
from joulecast.features.score import ScoreOptions, score_here, score_phones, score_stored
from joulecast.records import PRECISIONS
from joulecast.uses.score import (
    DeviceFacts,
    DeviceScore,
    describe_published,
    describe_scores,
    draw_label,
)

# Options that matter only where something is measured, and only for devices of the store.
_MEASURING = ("on", "meter", "rounds", "offline")
_OBSERVED = ("threads", "processor", "precision", "tdp", "price", "performance")


@dataclass(frozen=True)
class ScoredDevices:
    """Which devices are scored, and where their labels go.

    Attributes:
        devices: Devices with profiles, instead of measuring.
        device_file: TDP, price and performance of devices.
        published: Score the phones of DeepEn2023 instead.
        svg: File that receives the label.
    """

    devices: tuple[str, ...] | None
    device_file: str | None
    published: bool
    svg: str | None

    def read_facts(self) -> dict[str, DeviceFacts]:
        """Return what the file says about devices; empty without one."""
        if self.device_file is None:
            return {}
        from joulecast.uses.score.device_file import read_device_file

        return read_device_file(self.device_file)


def make_score_options(
    threads: Any, processor: Any, performance: float | None, **texts: Any
) -> ScoreOptions:
    """Return the options of scoring from the values of options."""
    given = {key: value for key, value in texts.items() if value is not None}
    return ScoreOptions(threads or (), processor or (), inferences_per_s=performance, **given)


@click.command()
@options.measuring
@collect(
    "wanted",
    ScoredDevices,
    click.option(
        "--devices",
        type=ListType(),
        metavar="NAME,NAME",
        help="Score devices with profiles from what is stored, without measuring.",
    ),
    click.option(
        "--device-file",
        metavar="FILE",
        help="TDP, price and performance of devices: .toml or .csv.",
    ),
    click.option(
        "--published", is_flag=True, help="Score the eight phones that DeepEn2023 published."
    ),
    click.option(
        "--svg", type=OutputFileType(), metavar="FILE.svg", help="Also draw the label as a picture."
    ),
)
@collect(
    "scoring",
    make_score_options,
    click.option(
        "--threads",
        type=CountListType(),
        metavar="1,4",
        help="Numbers of threads.  [default: the runtime's choice]",
    ),
    click.option(
        "--processor",
        type=ListType(),
        metavar="NAME,NAME",
        help="Processors of the device.  [default: the runtime's choice]",
    ),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default="fp32",
        show_default=True,
        help="Number format.",
    ),
    click.option(
        "--tdp", metavar="15W", help="Thermal design power.  [default: power limit of a GPU]"
    ),
    click.option("--price", metavar="599EUR", help="What the device costs, for --plot."),
    click.option(
        "--performance",
        type=NumberType(min=0.0, min_open=True),
        metavar="N",
        help="Inferences per second, for --plot.  [default: as observed]",
    ),
    click.option("--offline", is_flag=True, help="Score what is stored without measuring."),
    options.store,
)
@options.plotted_output
def score(
    measuring: MeasureOptions, wanted: ScoredDevices, scoring: ScoreOptions, output: OutputOptions
) -> None:
    """Score a device by the power and energy of inferences, with a label from A to G.

    Six small reference applications are run one inference at a time; what is stored already is not
    measured again, and estimates take no part. PCS says how far the power stays below the thermal
    design power, IECS how many inferences a joule is enough for.
    """
    _check_options(wanted)
    facts = wanted.read_facts()
    if wanted.published:
        phones = score_phones(wanted.devices or (), facts)
        found: Sequence[DeviceScore] = [one.score for one in phones]
        _check_svg(wanted.svg, found)
        write_result(output, describe_published(phones), lambda: print_phones(phones))
    else:
        found = _score(measuring, wanted, scoring, facts)
        write_result(output, describe_scores(found), lambda: _print(found))
    # Measuring takes a while: what can fail comes after the result is printed.
    _save_label(wanted.svg, found)
    _draw(output.plot, found)


def _check_options(wanted: ScoredDevices) -> None:
    """Raise UsageError for an option that would have no effect."""
    context = click.get_current_context()
    for name in _MEASURING:
        if options.is_typed(name) and (wanted.published or wanted.devices or wanted.device_file):
            raise click.UsageError(
                f"--{name} is for measuring: leave it out, or --published, --devices and "
                "--device-file",
                context,
            )
    for name in _OBSERVED:
        if wanted.published and options.is_typed(name):
            raise click.UsageError(f"--published has no --{name}: leave it out", context)


def _score(
    measuring: MeasureOptions,
    wanted: ScoredDevices,
    scoring: ScoreOptions,
    facts: dict[str, DeviceFacts],
) -> Sequence[DeviceScore]:
    names = wanted.devices or tuple(facts)
    if names:
        _check_svg(wanted.svg, names)
        return score_stored(names, scoring, facts)
    with report_interruption(MEASUREMENTS_KEPT), show_report() as report:
        return (score_here(measuring, scoring, report),)


def _print(scores: Sequence[DeviceScore]) -> None:
    if len(scores) == 1:
        print_card(scores[0])
    else:
        print_scores(scores)


def _check_svg(path: str | None, devices: Sequence[Any]) -> None:
    if path is not None and len(devices) != 1:
        raise InputError(
            f"--svg draws the label of one device, and there are {len(devices)}: name one with "
            "--devices, or leave --svg out"
        )


def _save_label(path: str | None, scores: Sequence[DeviceScore]) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(draw_label(scores[0]), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another --svg") from error


def _draw(path: str | None, scores: Sequence[DeviceScore]) -> None:
    if path is None:
        return
    from joulecast.uses.score.score_plot import plot_scores

    save_plots(path, plot_scores(scores))
