"""Report a profile: device, meter, observations over time, fitted curves and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from joulecast.errors import MissingError
from joulecast.estimators import AUTO, choose_estimator, describe_fits, fit_profile
from joulecast.figures import (
    Caption,
    Plot,
    ScoredEstimate,
    StepMeasurement,
    plot_curve,
    plot_energy_by_time,
    plot_error_distribution,
    plot_estimates,
    plot_observations,
    sample_curve,
)
from joulecast.records import Observation, Profile, find_fit_count
from joulecast.reports.report import Report, ReportTable, Section
from joulecast.reports.report_values import count_things, format_time, list_values
from joulecast.units import format_bytes, format_duration

# So many observations are compared with the fit: more would only take longer.
_MOST_COMPARED = 80
_MOST_CURVES = 6
_MOST_POINTS = 1500
_FEWEST_POINTS = 4
_IN_SAMPLE = (
    "These observations were fitted, so the errors show how well the fit describes them. Errors on "
    "networks that were never measured are larger: `joulecast evaluate` measures them."
)

_CURVES = (
    "The energy of one step of a layer that runs alone, over its widths: the layers with the most "
    "measured points, what the fit predicts, and its 95 % interval."
)


def report_profile(
    profile: Profile, estimator: str = AUTO, curves: Mapping[str, Plot] | None = None
) -> Report:
    """Return the report of a profile.

    Args:
        profile: The profile.
        estimator: Name of the estimator whose errors are shown.
        curves: Curves of isolated layers by the name of their file.
    """
    observations = profile.observations
    count = count_things(len(observations), "observation")
    caption = Caption(subtitle=profile.device.name, provenance=profile.provenance)
    sections = [
        Section("Device and meter", (), (_list_facts(profile),)),
        Section(
            "Observations",
            (),
            (_count_observations(observations),),
            _plot_observations(observations, caption),
        ),
        *_report_errors(profile, estimator, caption),
        *([Section("Curves of layers", (_CURVES,), (), curves)] if curves else []),
        *_report_fits(profile, caption),
    ]
    return Report(
        "profile",
        f"Profile of {profile.device.name}",
        f"{count}, {profile.provenance}; the meter covers {profile.covers}.",
        profile.provenance,
        tuple(sections),
        (
            ("Observations", f"{len(observations):,}"),
            ("Provenance", profile.provenance),
            ("Meter covers", profile.covers),
            ("Last observation", _find_last(observations)),
        ),
    )


def _list_facts(profile: Profile) -> ReportTable:
    device = profile.device
    units = {one.device.unit for one in profile.observations if one.device.unit}
    meters = sorted({one.meter for one in profile.observations if one.meter})
    sources = sorted({one.source for one in profile.observations if one.source})
    return list_values(
        "The device, and how it was measured",
        (
            ("Device", device.name),
            ("Processor", device.processor),
            ("Memory", format_bytes(device.memory_bytes) if device.memory_bytes else ""),
            ("Power mode", device.power_mode),
            ("Driver", device.driver),
            ("Units", str(len(units)) if units else ""),
            ("Runtime", profile.runtime),
            ("Meter", ", ".join(meters)),
            ("Meter covers", profile.covers),
            ("Provenance", profile.provenance),
            ("Sources", ", ".join(sources)),
            ("Ships with Joulecast", "yes" if profile.shipped else ""),
            ("Key", profile.key),
        ),
    )


def _count_observations(observations: Sequence[Observation]) -> ReportTable:
    groups = _group(observations)
    rows = [
        (name, f"{len(found):,}", format_duration(sum(one.cost_s for one in found)))
        for name, found in groups.items()
    ]
    refused = sum(bool(one.refusal) for one in observations)
    if refused:
        rows.append(("refused by the device", f"{refused:,}", "–"))
    return ReportTable("What was observed", ("", ">observations", ">device time"), tuple(rows))


def _group(observations: Sequence[Observation]) -> dict[str, list[Observation]]:
    groups: dict[str, list[Observation]] = {}
    for one in observations:
        if not one.refusal:
            groups.setdefault(_name_group(one), []).append(one)
    return groups


def _name_group(one: Observation) -> str:
    if not one.trial.network.layers:
        return "idle device"
    if one.energy_j is None:
        return "duration only"
    return "isolated layer or block" if one.trial.execution.copies > 1 else "energy of a network"


def _plot_observations(observations: Sequence[Observation], caption: Caption) -> dict[str, Plot]:
    groups = _group(observations)
    # Imported observations may have no date.
    times = {
        name: [one.taken_at_s for one in found if one.taken_at_s] for name, found in groups.items()
    }
    plots = {}
    if any(times.values()):
        plots["observations"] = plot_observations(times, caption)
    steps = {
        name: [
            StepMeasurement(one.trial.network.name or name, one.duration_s, one.energy_j)
            for one in found[-_MOST_POINTS:]
            if one.energy_j and one.duration_s
        ]
        for name, found in groups.items()
        if name != "idle device"
    }
    steps = {name: found for name, found in steps.items() if found}
    if steps:
        plots["time-energy"] = plot_energy_by_time(steps, caption)
    return plots


def _report_errors(profile: Profile, estimator: str, caption: Caption) -> list[Section]:
    """Return how far the fit is from what it was fitted to; nothing if it cannot be fitted."""
    chosen: dict[str, Observation] = {}
    for one in reversed(profile.observations):
        if one.energy_j and one.trial.network.layers and one.trial.execution.is_user_step:
            chosen.setdefault(one.trial.key, one)
        if len(chosen) == _MOST_COMPARED:
            break
    if len(chosen) < _FEWEST_POINTS:
        return []
    name = choose_estimator(estimator, profile.runtime)
    networks = [one.trial.network for one in chosen.values()]
    setups = [one.trial.setup for one in chosen.values()]
    try:
        estimates = fit_profile(profile, estimator).estimate(networks, setups, details=False)
    except MissingError:
        return []
    rows = [
        ScoredEstimate(
            one.trial.network.name or "network",
            name,
            (one.energy_j or 0.0) / one.trial.execution.steps,
            estimate.energy_j,
            estimate.interval_j,
        )
        for one, estimate in zip(chosen.values(), estimates, strict=True)
    ]
    plots = {
        "agreement": plot_estimates(rows, caption),
        "error-shares": plot_error_distribution(rows, caption),
    }
    compared = f"The latest {count_things(len(rows), 'step')} whose energy was observed."
    return [Section("Errors of the fit", (compared, _IN_SAMPLE), (), plots)]


def _report_fits(profile: Profile, caption: Caption) -> list[Section]:
    rows = []
    for name, items in describe_fits(profile).items():
        seen = find_fit_count(profile.fits, name)
        made_from = "–" if seen is None else f"{seen:,}"
        rows.append((name, f"{len(items):,}", made_from))
    if not rows:
        return []
    columns = ("estimator", ">components", ">observations")
    table = ReportTable("Fits, and what they were made from", columns, tuple(rows))
    return [Section("Fits", (), (table,), _plot_curves(profile, caption))]


def _plot_curves(profile: Profile, caption: Caption) -> dict[str, Plot]:
    """Return the curves of the subtractive estimator with the most points."""
    from joulecast.gp.regression import GaussianProcess

    fit = profile.fits.get("subtractive")
    if not isinstance(fit, dict):
        return {}
    curves = sorted(
        (one for one in fit.get("curves", {}).values() if "energy" in one),
        key=lambda one: -len(one["energy"]["values"]),
    )
    plots = {}
    for number, curve in enumerate(curves[:_MOST_CURVES], start=1):
        # A curve over more than two widths cannot be drawn.
        with suppress(ValueError):
            if 1 <= len(curve["features"]) <= 2:
                process = GaussianProcess.from_dict(curve["energy"])
                sampled = sample_curve(process, curve["label"], curve["features"])
                plots[f"curve-{number}"] = plot_curve(sampled, caption)
    return plots


def _find_last(observations: Sequence[Observation]) -> str:
    last_s = max((one.taken_at_s for one in observations), default=0.0)
    return format_time(last_s) if last_s else "unknown"
