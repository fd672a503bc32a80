"""Measure an atlas with a progress bar, and print what is known about the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice

from joulecast.api.atlas import AtlasResult, profile_atlas
from joulecast.api.options import MeasureOptions, ProfileOptions
from joulecast.api.profiles import identify_profile
from joulecast.campaign.anchors import MeasuredPeaks
from joulecast.campaign.atlas_campaign import AtlasSummary
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.profiles import describe_profile
from joulecast.cli.progress import show_atlas
from joulecast.cli.terminal import (
    Json,
    describe_provenance,
    make_console,
    plural,
    print_notes,
    shorten,
)
from joulecast.records import Profile
from joulecast.units import format_count, format_duration, format_power

_MOST_REASONS = 8
_REASON_SIZE = 80
_NAME_SIZE = len("matrix product, fp32")
_CAUSES = {
    "other load": "steps were slow at times, as if other programs used the device",
    "throttled": "the device lowered its clocks, because of heat or its power supply",
}


def print_atlas(
    measuring: MeasureOptions, profiling: ProfileOptions, store: str | None, output: OutputOptions
) -> None:
    """Measure an atlas and print its summary."""
    with report_interruption(MEASUREMENTS_KEPT), show_atlas() as tell:
        result, learnt = profile_atlas(measuring, profiling, store, tell)
    command = f"joulecast estimate NET --device {identify_profile(learnt, store)}"
    command += " --inference" if profiling.phase == "inference" else ""
    data = describe_atlas(result, learnt)
    write_result(output, data, lambda: _print_summary(result, learnt, command))


def describe_atlas(result: AtlasResult, profile: Profile) -> Json:
    """Return how an atlas ended and what it knows as JSON values."""
    run = {key: value for key, value in asdict(result.run).items() if key != "profile_key"}
    return {
        **run,
        **asdict(result.summary),
        "provenance": profile.provenance,
        "profile": describe_profile(profile),
    }


def describe_disturbances(repeated: int, disturbances: Mapping[str, int]) -> Iterator[str]:
    """Yield sentences about what went wrong while a device was measured."""
    if repeated:
        yield f"{plural(repeated, 'doubtful measurement')} repeated."
    for name, count in sorted(disturbances.items(), key=lambda item: -item[1]):
        cause = f" ({_CAUSES[name]})" if name in _CAUSES else ""
        yield f"{plural(count, 'disturbed window')}: {name}{cause}."


def _print_summary(result: AtlasResult, profile: Profile, command: str) -> None:
    console, run, summary = make_console(), result.run, result.summary
    console.print(
        f"Atlas of {profile.device.name}: {plural(summary.trials, 'trial')}, "
        f"{summary.with_energy:,} with energy; {run.new:,} of them new, in "
        f"{format_duration(run.elapsed_s)}."
    )
    provenance = describe_provenance(profile.provenance)
    console.print(f"Stopped because {run.stopped}. Provenance: {provenance}.\n")
    for line in _list_rates(summary, profile.provenance):
        console.print(line)
    print_notes(console, describe_disturbances(run.repeated, run.disturbances))
    print_notes(console, _describe_refusals(summary, run.restarts))
    # Not wrapped, so that it can be copied.
    console.print(f"Next: {command}", soft_wrap=True)


def _list_rates(summary: AtlasSummary, provenance: str) -> Iterator[str]:
    """Yield the measured peaks of the device, one on a line."""
    rows = list_peaks(summary.peaks)
    # A modelled meter counts work only, so it knows nothing about an idle device.
    if summary.idle_power_w is not None and provenance != "modelled":
        rows.append(("idle power", format_power(summary.idle_power_w)))
    for name, value in rows:
        yield f"{name:{_NAME_SIZE}}  {value}"


def list_peaks(peaks: MeasuredPeaks) -> list[tuple[str, str]]:
    """Return names and values of measured peaks."""
    rows = [
        (f"matrix product, {name}", format_count(rate, "FLOP/s"))
        for name, rate in peaks.flops_per_s.items()
    ]
    if peaks.bytes_per_s is not None:
        rows.append(("copy", format_count(peaks.bytes_per_s, "B/s")))
    if peaks.launch_s is not None:
        rows.append(("empty launch", format_duration(peaks.launch_s)))
    return rows


def _describe_refusals(summary: AtlasSummary, restarts: int) -> Iterator[str]:
    count = sum(summary.refused.values())
    if not count:
        return
    again = f", the measuring process was replaced {restarts} times" if restarts else ""
    yield f"{plural(count, 'trial')} refused{again}:"
    for reason, own in islice(summary.refused.items(), _MOST_REASONS):
        yield f"  {own:4}  {shorten(reason, _REASON_SIZE)}"
    if len(summary.refused) > _MOST_REASONS:
        yield f"        and {len(summary.refused) - _MOST_REASONS} other reasons"
