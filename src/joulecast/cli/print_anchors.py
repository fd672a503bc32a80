"""Measure the anchors of a GPU, and print its rates beside those of its data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from joulecast.api.atlas import profile_anchors
from joulecast.api.options import MeasureOptions
from joulecast.api.profiles import identify_profile
from joulecast.campaign.anchors import AnchorRun
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_atlas import describe_disturbances, list_peaks
from joulecast.cli.profiles import describe_profile
from joulecast.cli.progress import show_atlas
from joulecast.cli.terminal import (
    Json,
    describe_provenance,
    make_console,
    plural,
    print_notes,
    print_table,
)
from joulecast.records import DataSheet, Profile
from joulecast.units import format_duration, format_share


def print_anchors(measuring: MeasureOptions, store: str | None, output: OutputOptions) -> None:
    """Measure anchors and print what they show."""
    with report_interruption(MEASUREMENTS_KEPT), show_atlas() as tell:
        run, sheet, learnt = profile_anchors(measuring, store, tell)
    command = f"joulecast estimate NET --device {identify_profile(learnt, store)}"
    data = _describe(run, sheet, learnt)
    write_result(output, data, lambda: _print(run, sheet, learnt, command))


def _describe(run: AnchorRun, sheet: DataSheet, profile: Profile) -> Json:
    values = {key: value for key, value in asdict(run).items() if key != "profile_key"}
    return {
        **values,
        "skipped": list(run.skipped),
        "data_sheet": sheet.name,
        "provenance": profile.provenance,
        "profile": describe_profile(profile),
    }


def _print(run: AnchorRun, sheet: DataSheet, profile: Profile, command: str) -> None:
    console = make_console()
    console.print(
        f"Anchors of {profile.device.name}: {plural(run.trials, 'trial')}, {run.with_energy} with "
        f"energy; {plural(run.new, 'new measurement')} in {format_duration(run.elapsed_s)}."
    )
    provenance = describe_provenance(profile.provenance)
    console.print(f"Stopped because {run.stopped}. Provenance: {provenance}.\n")
    shares = list(_list_shares(run, sheet))
    rows = [
        (name, value, share)
        for (name, value), share in zip(list_peaks(run.peaks), shares, strict=True)
    ]
    print_table(console, ("rate", ">measured", f">of {sheet.title}"), rows)
    print_notes(console, describe_disturbances(0, run.disturbances))
    for reason in dict.fromkeys(run.skipped):
        console.print(f"Skipped: {reason}")
    # Not wrapped, so that it can be copied.
    console.print(f"Next: {command}", soft_wrap=True)


def _list_shares(run: AnchorRun, sheet: DataSheet) -> Iterator[str]:
    """Yield the share of the data sheet's figure that each measured rate reaches."""
    for name, rate in run.peaks.flops_per_s.items():
        yield format_share(rate / sheet.find_peak(name))
    if run.peaks.bytes_per_s is not None:
        yield format_share(run.peaks.bytes_per_s / sheet.bytes_per_s)
    if run.peaks.launch_s is not None:
        yield "-"
