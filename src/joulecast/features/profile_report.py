"""How a campaign ended, and what people see of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from joulecast.features.profiles import identify_profile
from joulecast.features.stored_profiles import describe_profile, tabulate_fits
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
    from joulecast.campaign.atlas_campaign import AtlasSummary
    from joulecast.features.atlas import AtlasResult
    from joulecast.features.nets import NetRequest

Json = dict[str, Any]
_MOST_REASONS = 8
_REASON_SIZE = 80
_CAUSES = {
    "other load": "steps were slow at times, as if other programs used the device",
    "throttled": "the device lowered its clocks, because of heat or its power supply",
}


@dataclass(frozen=True)
class NetProfile(Reportable):
    """A campaign for a net: how it ended, the device's profile, and what to do next."""

    result: CampaignResult
    profile: Profile
    command: str

    @classmethod
    def make(
        cls,
        result: CampaignResult,
        profile: Profile,
        request: NetRequest,
        setup: Setup,
        estimator: str,
        store: str | None,
    ) -> NetProfile:
        """Return the outcome with the command that uses the profile."""
        from joulecast.estimators import AUTO, choose_estimator

        name = identify_profile(profile, store)
        if any(one.is_pending for one in profile.observations):
            return cls(result, profile, f"joulecast data attach TRACE.csv --device {name}")
        named = choose_estimator(estimator, profile.runtime)
        # Another estimator was fitted to other measurements, so the command must name it.
        is_usual = named == choose_estimator(AUTO, profile.runtime)
        method = "" if is_usual else f" --estimator {named}"
        shape = f" --input {format_shape(request.input_shape)}" if request.input_shape else ""
        flags = list_setup_options(setup) + (" --checkpoint" if request.checkpoint else "")
        command = f"joulecast estimate {request.name} --device {name} {flags}{shape}{method}"
        return cls(result, profile, command)

    def to_dict(self) -> Json:
        """Return how the campaign ended as JSON values."""
        result = self.result
        data = {key: value for key, value in asdict(result).items() if key != "profile_key"}
        return {
            **data,
            "skipped": list(result.skipped),
            "disturbances": dict(result.disturbances),
            "provenance": self.profile.provenance,
            "profile": describe_profile(self.profile),
        }

    def report(self) -> Report:
        """Return how the campaign ended, the fits, and what was skipped."""
        result, profile = self.result, self.profile
        uncertainty = f", uncertainty ± {format_share(result.uncertainty_share)}"
        title = (
            f"Profile of {profile.device.name}: {plural(result.points, 'point')}"
            f"{label_provenance(profile.provenance)}, {result.new} of them new, in "
            f"{format_duration(result.elapsed_s)}"
            f"{uncertainty if result.uncertainty_share else ''}."
        )
        notes = describe_disturbances(result.repeated, result.disturbances)
        skipped = list_skipped(result.skipped)
        blocks: list[Block] = [*tabulate_fits(profile), *(Text(note, "note") for note in notes)]
        return _finish_report(title, result.stopped, profile, blocks, skipped, self.command)


@dataclass(frozen=True)
class AtlasProfile(Reportable):
    """An atlas: how measuring it ended, the device's profile, and what to do next."""

    result: AtlasResult
    profile: Profile
    command: str

    @classmethod
    def make(
        cls, result: AtlasResult, profile: Profile, phase: str | None, store: str | None
    ) -> AtlasProfile:
        """Return the outcome with the command that uses the profile."""
        command = f"joulecast estimate NET --device {identify_profile(profile, store)}"
        return cls(result, profile, command + (" --inference" if phase == "inference" else ""))

    def to_dict(self) -> Json:
        """Return how the atlas ended and what it knows as JSON values."""
        run = {key: value for key, value in asdict(self.result.run).items() if key != "profile_key"}
        return {
            **run,
            **asdict(self.result.summary),
            "provenance": self.profile.provenance,
            "profile": describe_profile(self.profile),
        }

    def report(self) -> Report:
        """Return how the atlas ended, the peaks of the device, and what it refused."""
        run, summary, profile = self.result.run, self.result.summary, self.profile
        title = (
            f"Atlas of {profile.device.name}: {plural(summary.trials, 'trial')}, "
            f"{summary.with_energy:,} with energy; {run.new:,} of them new, in "
            f"{format_duration(run.elapsed_s)}."
        )
        rates = list_peaks(summary.peaks)
        # A modelled meter counts work only, so it knows nothing about an idle device.
        if summary.idle_power_w is not None and profile.provenance != "modelled":
            rates.append(("idle power", format_power(summary.idle_power_w)))
        notes = [
            *describe_disturbances(run.repeated, run.disturbances),
            *_describe_refusals(summary, run.restarts),
        ]
        blocks: list[Block] = [make_table(("", ""), rates)] if rates else []
        blocks += [Text(note, "note") for note in notes]
        return _finish_report(title, run.stopped, profile, blocks, (), self.command)


@dataclass(frozen=True)
class AnchorProfile(Reportable):
    """Anchors of a GPU: how measuring them ended, its data sheet, profile, and what to do next."""

    run: AnchorRun
    sheet: DataSheet
    profile: Profile
    command: str

    @classmethod
    def make(
        cls, run: AnchorRun, sheet: DataSheet, profile: Profile, store: str | None
    ) -> AnchorProfile:
        """Return the outcome with the command that uses the profile."""
        command = f"joulecast estimate NET --device {identify_profile(profile, store)}"
        return cls(run, sheet, profile, command)

    def to_dict(self) -> Json:
        """Return what was measured as JSON values."""
        values = {key: value for key, value in asdict(self.run).items() if key != "profile_key"}
        return {
            **values,
            "skipped": list(self.run.skipped),
            "data_sheet": self.sheet.name,
            "provenance": self.profile.provenance,
            "profile": describe_profile(self.profile),
        }

    def report(self) -> Report:
        """Return measured rates beside those of the data sheet."""
        run, sheet, profile = self.run, self.sheet, self.profile
        title = (
            f"Anchors of {profile.device.name}: {plural(run.trials, 'trial')}, {run.with_energy} "
            f"with energy; {plural(run.new, 'new measurement')} in "
            f"{format_duration(run.elapsed_s)}."
        )
        shares = _list_shares(run, sheet)
        rows = [(*rate, share) for rate, share in zip(list_peaks(run.peaks), shares, strict=True)]
        notes = describe_disturbances(0, run.disturbances)
        blocks: list[Block] = [
            make_table(("rate", ">measured", f">of {sheet.title}"), rows),
            *(Text(note, "note") for note in notes),
        ]
        skipped = [f"Skipped: {reason}" for reason in dict.fromkeys(run.skipped)]
        return _finish_report(title, run.stopped, profile, blocks, skipped, self.command)


def _finish_report(
    title: str,
    stopped: str,
    profile: Profile,
    blocks: Sequence[Block],
    skipped: Sequence[str],
    command: str,
) -> Report:
    """Return the report of a campaign: why it stopped, what it found, and what to do next."""
    provenance = describe_provenance(profile.provenance)
    return Report(
        title,
        (
            Text(f"Stopped because {stopped}. Provenance: {provenance}."),
            *blocks,
            *(Text(line) for line in skipped),
            # Not wrapped, so that it can be copied.
            Text(f"Next: {command}", "command"),
        ),
        profile.provenance,
        "campaign",
    )


def describe_disturbances(repeated: int, disturbances: Mapping[str, int]) -> Iterator[str]:
    """Yield sentences about what went wrong while a device was measured."""
    if repeated:
        yield f"{plural(repeated, 'doubtful measurement')} repeated."
    for name, count in sorted(disturbances.items(), key=lambda item: -item[1]):
        cause = f" ({_CAUSES[name]})" if name in _CAUSES else ""
        yield f"{plural(count, 'disturbed window')}: {name}{cause}."


def list_skipped(reasons: Sequence[str]) -> list[str]:
    """Return one line for each reason, with how often it was given."""
    counts = Counter(reasons)
    return [
        f"Skipped: {reason}" + (f" ({count} times)" if count > 1 else "")
        for reason, count in counts.items()
    ]


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


def _list_shares(run: AnchorRun, sheet: DataSheet) -> Iterator[str]:
    """Yield the share of the data sheet's figure that each measured rate reaches."""
    for name, rate in run.peaks.flops_per_s.items():
        yield format_share(rate / sheet.find_peak(name))
    if run.peaks.bytes_per_s is not None:
        yield format_share(run.peaks.bytes_per_s / sheet.bytes_per_s)
    if run.peaks.launch_s is not None:
        yield "-"
