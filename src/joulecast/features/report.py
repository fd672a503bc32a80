"""Report a profile, or the result of another command, as one HTML file and as SVG files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.records import Json, Observation, Profile, find_fit_count, summarise_observations
from joulecast.records.codec import load_partial
from joulecast.system.errors import ArgumentError, FileError, InputError, MissingError, arg
from joulecast.system.files import first_line, parse_json, read_limited
from joulecast.system.units import format_bytes, format_duration
from joulecast.views.report import (
    Block,
    Heading,
    Report,
    Reportable,
    Table,
    Text,
    list_facts,
    make_table,
)
from joulecast.views.words import format_time, label_provenance, plural

if TYPE_CHECKING:
    from joulecast.views.plot_kinds import SampledCurve

DEFAULT_NAME = "report.html"
MOST_RESULT_BYTES = 16 * 2**20
"""Size of a result file; an evaluation of 100 networks has 200 KiB."""
_COMMANDS = "`joulecast estimate`, `evaluate`, `generate`, `prune`, `plan` or `score` wrote"

What = Annotated[
    Any, Argument("A device with a profile, a profile's file, or the JSON of another command.")
]
Out = Annotated[
    str | None,
    Argument(
        "HTML file to write.",
        metavar="FILE.html",
        default=f"{DEFAULT_NAME}, or none with --svg",
        harm="writes a file",
    ),
]
Svg = Annotated[
    str | None,
    Argument(
        "Write every plot as SVG into a folder, for papers.",
        metavar="FOLDER",
        harm="writes a file",
    ),
]


@verb
def report(what: What, *, out: Out = None, svg: Svg = None, store: given.Store = None) -> Report:
    """Report a profile, or the result of another command, with tables and plots.

    It is written if ``out`` or ``svg`` is given. The HTML file needs no other file and no network.
    """
    made = make_report(what, store)
    _write(made, out, svg)
    return made


@verb
def write_report(
    what: What, *, out: Out = None, svg: Svg = None, store: given.Store = None
) -> WrittenReport:
    """Report a profile or the result of another command, with tables and plots.

    WHAT is a device with a profile, a profile's file, or the JSON that estimate, evaluate,
    generate, prune, plan and score write with --out. The HTML file needs no other file and no
    network.
    """
    path = out or (None if svg else DEFAULT_NAME)
    if path is not None and Path(path).suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"{arg('out')} is {path}: give a file that ends in .html")
    if path is not None and not Path(path).parent.is_dir():
        raise ArgumentError(f"there is no folder {Path(path).parent}: create it, or give another")
    made = make_report(what, store)
    return WrittenReport(made, tuple(_write(made, path, svg)))


@dataclass(frozen=True)
class WrittenReport(Reportable):
    """A report, and the files that it was written to."""

    made: Report
    files: tuple[Path, ...]

    def to_dict(self) -> Json:
        files = list(map(str, self.files))
        return {"title": self.made.title, "provenance": self.made.provenance, "files": files}

    def report(self) -> Report:
        lead = [one for one in self.made.blocks if isinstance(one, Text) and one.role == "lead"]
        files = [Text(f"Wrote {path}", "command") for path in self.files]
        title = self.made.title + label_provenance(self.made.provenance)
        return Report(title, (*lead, *files), self.made.provenance, self.made.kind)


def make_report(what: Any, store: str | None = None) -> Report:
    """Return the report of a profile, or of the result of another command."""
    from joulecast.features.device_score import DeviceScore, DeviceScores

    if isinstance(what, (str, os.PathLike)):
        return _report_named(os.fspath(what), store)
    if isinstance(what, Profile):
        return report_profile(what)
    scores = (what,) if isinstance(what, DeviceScore) else what
    if isinstance(scores, (list, tuple)) and all(isinstance(one, DeviceScore) for one in scores):
        what = DeviceScores(tuple(scores))
    if hasattr(what, "report"):
        found: Report = what.report()
        return found
    data = what.to_dict() if hasattr(what, "to_dict") else what
    if isinstance(data, dict):
        return report_result(data, f"the {type(what).__name__}")
    raise InputError(
        f"a {type(what).__name__} cannot be reported: give a profile, or the result of a command"
    )


def _write(made: Report, out: str | None, svg: str | None) -> list[Path]:
    """Write a report as a page, its plots and pictures as SVG files, or both."""
    from joulecast.views.html import save_page
    from joulecast.views.plots import save_pictures

    written = [] if svg is None else save_pictures(made, Path(svg))
    return written if out is None else [*written, save_page(made, Path(out))]


def _report_named(name: str, store: str | None) -> Report:
    """Return the report of a file, or of a device with a profile."""
    from joulecast.features.profiles import load_observed_profile

    if not name:
        raise InputError("nothing to report: give a device with a profile, or a file")
    if name.endswith(".json"):
        head = b""
        # The reader of the whole file says what is wrong.
        with suppress(OSError), Path(name).open("rb") as file:
            head = file.read(200)
        # A profile may be larger than any result; its own reader knows better.
        if b'"joulecast-profile"' not in head and b'"joulecast-network"' not in head:
            data = read_result(Path(name))
            if recognise_result(data) or not isinstance(data, dict) or "format" not in data:
                return report_result(data, name)
    return report_profile(load_observed_profile(name, store=store))


# ---------------------------------------------------------------------------------------------
# JSON results of commands, which are recognised by their content


# By kind: fields that only it has, and what reads it back: a function, or a record.
_KINDS: dict[str, tuple[set[str], str, str]] = {
    "evaluation": ({"family", "scores", "nets"}, "features.evaluate", "Evaluation"),
    "pruning": ({"budget", "strategy", "layers"}, "features.prune_report", "read_pruning"),
    "plan": ({"devices", "planned_energy_j", "gap_share"}, "features.plan.result", "read_plan"),
    "score": ({"devices", "scale", "notes"}, "features.device_score", "read_scores"),
    "generation": ({"prompt_token_j", "decode"}, "features.generate", "GenerationEstimate"),
    "estimate": ({"energy_j", "layers", "unseen_share"}, "records.estimate", "Estimate"),
}
RESULT_KINDS = tuple(_KINDS)


def recognise_result(data: Any) -> str:
    """Return the kind of a result; empty if it is none of ``RESULT_KINDS``."""
    if not isinstance(data, dict):
        return ""
    return next((name for name, (own, *_) in _KINDS.items() if own <= data.keys()), "")


def report_result(data: Any, what: str) -> Report:
    """Return the report of a result.

    Args:
        data: JSON values.
        what: What messages call it.

    Raises:
        FileError: It is not the result of one of these commands, or damaged.
    """
    kind = recognise_result(data)
    if not kind:
        raise FileError(f"{what} is not a result that can be reported: give one that {_COMMANDS}")
    _, module, name = _KINDS[kind]
    read = getattr(import_module(f"joulecast.{module}"), name)
    result = load_partial(read, data, what) if isinstance(read, type) else read(data, what)
    try:
        found: Report = result.report()
        return found
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Its fields have the right types, and still do not fit together.
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise FileError(f"{what} is damaged ({reason}): make it again") from error


def read_result(path: Path) -> Any:
    """Return the JSON values of a result file.

    Raises:
        FileError: The file cannot be read, is too large or is not JSON.
    """
    try:
        return parse_json(read_limited(path, MOST_RESULT_BYTES))
    except ValueError as error:
        raise FileError(
            f"{path} is not JSON ({first_line(error)}): give one that {_COMMANDS}"
        ) from error


# ---------------------------------------------------------------------------------------------
# Profiles

# So many observations are compared with the fit: more would only take longer.
_MOST_COMPARED = 80
_FEWEST_COMPARED = 4
_MOST_POINTS = 1500
# Each curve of the additive estimator takes a second.
_MOST_LAYER_CURVES, _MOST_CURVES = 2, 6
# Grid points per width of the subtractive estimator's curves, by number of widths.
_GRID_POINTS = {1: 121, 2: 25}
_IN_SAMPLE = (
    "These observations were fitted, so the errors show how well the fit describes them. Errors on "
    "networks that were never measured are larger: `joulecast evaluate` measures them."
)
_CURVES = (
    "The energy of one step of a layer that runs alone, over its widths: the layers with the most "
    "measured points, what the fit predicts, and its 95 % interval."
)


def report_profile(profile: Profile) -> Report:
    """Return the report of a profile: device, meter, observations, curves and errors of its fit."""
    count = plural(len(profile.observations), "observation")
    blocks: list[Block] = [
        Text(f"{count}, {profile.provenance}; the meter covers {profile.covers}.", "lead"),
        Heading("Device and meter"),
        _list_facts(profile),
        Heading("Observations"),
        *_report_observations(profile),
        *_report_errors(profile),
        *_report_layer_curves(profile),
        *_report_fits(profile),
    ]
    title = f"Profile of {profile.device.name}"
    return Report(title, tuple(blocks), profile.provenance, "profile")


def _list_facts(profile: Profile) -> Table:
    device = profile.device
    observed = summarise_observations(profile.observations)
    units = len(set(observed.units) - {""})
    meters = sorted({one.meter for one in profile.observations if one.meter})
    sources = sorted({one.source for one in profile.observations if one.source})
    return list_facts(
        (
            ("Device", device.name),
            ("Processor", device.processor),
            ("Memory", format_bytes(device.memory_bytes) if device.memory_bytes else ""),
            ("Power mode", device.power_mode),
            ("Driver", device.driver),
            ("Units", str(units) if units else ""),
            ("Runtime", profile.runtime),
            ("Meter", ", ".join(meters)),
            ("Meter covers", profile.covers),
            ("Provenance", profile.provenance),
            ("Sources", ", ".join(sources)),
            ("Last observation", format_time(observed.latest_at_s) if observed.latest_at_s else ""),
            ("Ships with Joulecast", "yes" if profile.shipped else ""),
            ("Key", profile.key),
        )
    )


def _report_observations(profile: Profile) -> list[Block]:
    from joulecast.views.plot_kinds import plot_energy_by_time, plot_observations

    groups: dict[str, list[Observation]] = {}
    for one in profile.observations:
        if not one.refusal:
            groups.setdefault(_name_group(one), []).append(one)
    rows = [
        (name, f"{len(found):,}", format_duration(sum(one.cost_s for one in found)))
        for name, found in groups.items()
    ]
    refused = sum(bool(one.refusal) for one in profile.observations)
    if refused:
        rows.append(("refused by the device", f"{refused:,}", "–"))
    blocks: list[Block] = [make_table(("", ">observations", ">device time"), rows)]
    dated: dict[str, list[float]] = {}
    steps: dict[str, list[tuple[str, float, float]]] = {}
    for name, found in groups.items():
        # Imported observations may have no date.
        if times_s := [one.taken_at_s for one in found if one.taken_at_s]:
            dated[name] = times_s
        points = [
            (one.trial.network.name or name, one.duration_s, one.energy_j)
            for one in found[-_MOST_POINTS:]
            if one.energy_j and one.duration_s and one.trial.network.layers
        ]
        if points:
            steps[name] = points
    if dated:
        blocks.append(plot_observations(dated, profile.provenance))
    if steps:
        blocks.append(plot_energy_by_time(steps, profile.provenance))
    return blocks


def _name_group(one: Observation) -> str:
    if not one.trial.network.layers:
        return "idle device"
    if one.energy_j is None:
        return "duration only"
    return "isolated layer or block" if one.trial.execution.copies > 1 else "energy of a network"


def _report_errors(profile: Profile) -> list[Block]:
    """Return how far the fit is from what it was fitted to; nothing if it cannot be fitted."""
    from joulecast.estimators import AUTO, choose_estimator, fit_profile
    from joulecast.views.plot_kinds import ScoredEstimate, plot_error_distribution, plot_estimates

    chosen: dict[str, Observation] = {}
    for one in reversed(profile.observations):
        if one.energy_j and one.trial.network.layers and one.trial.execution.is_user_step:
            chosen.setdefault(one.trial.key, one)
        if len(chosen) == _MOST_COMPARED:
            break
    if len(chosen) < _FEWEST_COMPARED:
        return []
    networks = [one.trial.network for one in chosen.values()]
    setups = [one.trial.setup for one in chosen.values()]
    try:
        estimates = fit_profile(profile, AUTO).model.estimate(networks, setups, details=False)
    except MissingError:
        return []
    rows = [
        ScoredEstimate(
            one.trial.network.name or "network",
            choose_estimator(AUTO, profile.runtime),
            (one.energy_j or 0.0) / one.trial.execution.steps,
            estimate.energy_j,
            estimate.interval_j,
        )
        for one, estimate in zip(chosen.values(), estimates, strict=True)
    ]
    return [
        Heading("Errors of the fit"),
        Text(f"The latest {plural(len(rows), 'step')} whose energy was observed. {_IN_SAMPLE}"),
        plot_estimates(rows, profile.provenance),
        plot_error_distribution(rows, profile.provenance),
    ]


def _report_layer_curves(profile: Profile) -> list[Block]:
    """Return the curves of isolated layers with the most points; none if it cannot be fitted."""
    from joulecast.estimators import fit_profile
    from joulecast.features.layer_curves import list_layer_curves, sample_layer_curve
    from joulecast.views.plot_kinds import plot_curve

    plots: list[Block] = []
    with suppress(InputError, MissingError):
        # Estimators of fused kernels do not predict single layers.
        fitted = fit_profile(profile)
        for number, curve in enumerate(list_layer_curves(profile)[:_MOST_LAYER_CURVES], start=1):
            sampled = sample_layer_curve(fitted, curve)
            plots.append(plot_curve(f"layer-{number}", sampled, profile.provenance))
    return [Heading("Curves of layers"), Text(_CURVES), *plots] if plots else []


def _report_fits(profile: Profile) -> list[Block]:
    """Return what was fitted, and the curves of the subtractive estimator with the most points."""
    from joulecast.estimators import describe_fits
    from joulecast.views.plot_kinds import plot_curve

    rows = []
    for name, items in describe_fits(profile).items():
        seen = find_fit_count(profile.fits, name)
        rows.append((name, f"{len(items):,}", "–" if seen is None else f"{seen:,}"))
    if not rows:
        return []
    table = make_table(("estimator", ">components", ">observations"), rows)
    blocks: list[Block] = [Heading("Fits"), table]
    fit = profile.fits.get("subtractive")
    known = fit.get("curves", {}).values() if isinstance(fit, dict) else ()
    curves = sorted(
        (one for one in known if "energy" in one), key=lambda one: -len(one["energy"]["values"])
    )
    for number, curve in enumerate(curves[:_MOST_CURVES], start=1):
        # A curve over more than two widths cannot be drawn.
        if len(curve["features"]) in _GRID_POINTS:
            with suppress(ValueError):
                sampled = _sample(curve["label"], curve["features"], curve["energy"])
                blocks.append(plot_curve(f"curve-{number}", sampled, profile.provenance))
    return blocks


def _sample(label: str, features: Sequence[str], process: Json) -> SampledCurve:
    """Evaluate a Gaussian process between the smallest and the largest training widths."""
    import numpy as np

    from joulecast.gp.regression import GaussianProcess
    from joulecast.views.plot_kinds import CurvePoint, SampledCurve

    gp = GaussianProcess.from_dict(process)
    count = _GRID_POINTS[len(features)]
    axes = np.linspace(gp.inputs.min(axis=0), gp.inputs.max(axis=0), count, axis=1)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    fitted = gp.predict(gp.inputs)[0]
    return SampledCurve(
        label,
        tuple(features),
        tuple(map(tuple, axes.tolist())),
        tuple(gp.predict(grid)[0].tolist()),
        tuple(gp.standard_deviations(grid).tolist()),
        tuple(map(CurvePoint, map(tuple, gp.inputs.tolist()), gp.values.tolist(), fitted.tolist())),
    )
