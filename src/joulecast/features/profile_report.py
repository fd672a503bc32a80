"""How a campaign ended, and what people see of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

from joulecast.features.profiles import describe_profile, identify_profile, tabulate_fits
from joulecast.records import DataSheet, Profile, Setup
from joulecast.system.units import (
    format_count,
    format_duration,
    format_power,
    format_shape,
    format_share,
)
from joulecast.views.report import Block, Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_provenance,
    label_provenance,
    list_setup_options,
    plural,
    shorten,
)

if TYPE_CHECKING:
    from joulecast.campaign import CampaignResult
    from joulecast.campaign.anchors import AnchorRun, MeasuredPeaks
    from joulecast.campaign.atlas import AtlasRun, AtlasSummary
    from joulecast.features.nets import NetRequest

Json = dict[str, Any]
_MOST_REASONS = 8
_REASON_SIZE = 80
_CAUSES = {
    "other load": "steps were slow at times, as if other programs used the device",
    "throttled": "the device lowered its clocks, because of heat or its power supply",
}


@dataclass(frozen=True)
class ProfileResult(Reportable):
    """How measuring a device ended, its profile, and the command that uses it.

    Attributes:
        values: What the run did, as JSON values.
        blocks: What it found.
    """

    profile: Profile
    command: str
    values: Json
    title: str
    blocks: tuple[Block, ...]

    def to_dict(self) -> Json:
        return {
            **{key: value for key, value in self.values.items() if key != "profile_key"},
            "provenance": self.profile.provenance,
            "profile": describe_profile(self.profile),
        }

    def report(self) -> Report:
        provenance = describe_provenance(self.profile.provenance)
        lead = Text(f"Stopped because {self.values['stopped']}. Provenance: {provenance}.")
        # Not wrapped, so that it can be copied.
        command = Text(f"Next: {self.command}", "command")
        blocks = (lead, *self.blocks, command)
        return Report(self.title, blocks, self.profile.provenance, "campaign")


def describe_campaign(result: CampaignResult, profile: Profile, command: str) -> ProfileResult:
    """Return the outcome of a campaign for a net."""
    uncertainty = f", uncertainty ± {format_share(result.uncertainty_share)}"
    title = (
        f"Profile of {profile.device.name}: {plural(result.points, 'point')}"
        f"{label_provenance(profile.provenance)}, {result.new} of them new, in "
        f"{format_duration(result.elapsed_s)}"
        f"{uncertainty if result.uncertainty_share else ''}."
    )
    blocks: tuple[Block, ...] = (
        *tabulate_fits(profile),
        *_describe_disturbances(result.repeated, result.disturbances),
        *_describe_skipped(result.skipped),
    )
    values = {**asdict(result), "skipped": list(result.skipped)}
    return ProfileResult(profile, command, values, title, blocks)


def find_next_command(
    profile: Profile, request: NetRequest, setup: Setup, estimator: str, store: str | None
) -> str:
    """Return the command that uses a profile after a campaign for a net."""
    from joulecast.estimators import AUTO, choose_estimator

    name = identify_profile(profile, store)
    if any(one.is_pending for one in profile.observations):
        return f"joulecast data attach TRACE.csv --device {name}"
    named = choose_estimator(estimator, profile.runtime)
    # Another estimator was fitted to other measurements, so the command must name it.
    is_usual = named == choose_estimator(AUTO, profile.runtime)
    method = "" if is_usual else f" --estimator {named}"
    shape = f" --input {format_shape(request.input_shape)}" if request.input_shape else ""
    flags = list_setup_options(setup) + (" --checkpoint" if request.checkpoint else "")
    return f"joulecast estimate {request.name} --device {name} {flags}{shape}{method}"


def describe_atlas(
    run: AtlasRun, summary: AtlasSummary, profile: Profile, command: str
) -> ProfileResult:
    """Return the outcome of an atlas."""
    title = (
        f"Atlas of {profile.device.name}: {plural(summary.trials, 'trial')}, "
        f"{summary.with_energy:,} with energy; {run.new:,} of them new, in "
        f"{format_duration(run.elapsed_s)}."
    )
    rates = _list_peaks(summary.peaks)
    # A modelled meter counts work only, so it knows nothing about an idle device.
    if summary.idle_power_w is not None and profile.provenance != "modelled":
        rates.append(("idle power", format_power(summary.idle_power_w)))
    blocks: tuple[Block, ...] = (
        *([make_table(("", ""), rates)] if rates else []),
        *_describe_disturbances(run.repeated, run.disturbances),
        *(Text(note, "note") for note in _describe_refusals(summary, run.restarts)),
    )
    return ProfileResult(profile, command, {**asdict(run), **asdict(summary)}, title, blocks)


def describe_anchors(
    run: AnchorRun, sheet: DataSheet, profile: Profile, command: str
) -> ProfileResult:
    """Return the outcome of measuring the anchors of a GPU, whose data sheet is known."""
    title = (
        f"Anchors of {profile.device.name}: {plural(run.trials, 'trial')}, "
        f"{run.with_energy} with energy; {plural(run.new, 'new measurement')} in "
        f"{format_duration(run.elapsed_s)}."
    )
    # Measured rates beside those of the data sheet.
    shares = [
        format_share(rate / sheet.find_peak(name)) for name, rate in run.peaks.flops_per_s.items()
    ]
    if run.peaks.bytes_per_s is not None:
        shares.append(format_share(run.peaks.bytes_per_s / sheet.bytes_per_s))
    rows = zip_longest(_list_peaks(run.peaks), shares, fillvalue="-")
    table = make_table(
        ("rate", ">measured", f">of {sheet.title}"), [(*rate, share) for rate, share in rows]
    )
    blocks: tuple[Block, ...] = (
        table,
        *_describe_disturbances(0, run.disturbances),
        *_describe_skipped(dict.fromkeys(run.skipped)),
    )
    values = {**asdict(run), "skipped": list(run.skipped), "data_sheet": sheet.name}
    return ProfileResult(profile, command, values, title, blocks)


def _describe_skipped(reasons: Iterable[str]) -> Iterator[Text]:
    for reason, count in Counter(reasons).items():
        yield Text(f"Skipped: {reason}" + (f" ({count} times)" if count > 1 else ""))


def _describe_disturbances(repeated: int, disturbances: Mapping[str, int]) -> Iterator[Text]:
    """Yield notes about what went wrong while a device was measured."""
    if repeated:
        yield Text(f"{plural(repeated, 'doubtful measurement')} repeated.", "note")
    for name, count in sorted(disturbances.items(), key=lambda item: -item[1]):
        cause = f" ({_CAUSES[name]})" if name in _CAUSES else ""
        yield Text(f"{plural(count, 'disturbed window')}: {name}{cause}.", "note")


def _list_peaks(peaks: MeasuredPeaks) -> list[tuple[str, str]]:
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
