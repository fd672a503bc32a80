"""Report a profile, or the result of another command, as one HTML file and as SVG files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, MissingError
from joulecast.records import Profile

if TYPE_CHECKING:
    from joulecast.figures import Plot
    from joulecast.reports import Report

# Each takes a second.
_MOST_CURVES = 2


def report(
    what: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    svg: str | os.PathLike[str] | None = None,
    store: str | None = None,
) -> Report:
    """Report a profile or a result, with tables and plots; write it where that is wished.

    Args:
        what: A device with a profile, a profile or its file; the result of ``evaluate``, ``prune``,
            ``plan`` or ``score``, or the JSON file that these commands write with ``--out``.
        out: HTML file to write; it needs no other file and no network.
        svg: Folder that receives every plot as SVG, which needs matplotlib.
        store: Path or URL of the store, if not the usual one.

    Raises:
        FileError: A file is damaged, is something else, or cannot be written.
        MissingError: There is no such profile, or matplotlib is not installed.
    """
    from joulecast.reports.report_page import save_report, save_report_pictures

    made = make_report(what, store)
    if out is not None:
        save_report(made, out)
    if svg is not None:
        save_report_pictures(made, svg)
    return made


def make_report(what: Any, store: str | None = None) -> Report:
    """Return the report of a profile, or of the result of another command."""
    if isinstance(what, (str, os.PathLike)):
        return _report_named(os.fspath(what), store)
    if isinstance(what, Profile):
        return _report_profile(what)
    return _report_object(what)


def _report_named(name: str, store: str | None) -> Report:
    """Return the report of a file, or of a device with a profile."""
    from joulecast.features.profiles import load_observed_profile
    from joulecast.reports.result_files import read_result, recognise_result, report_result

    if not name:
        raise InputError("nothing to report: give a device with a profile, or a file")
    if name.endswith(".json"):
        # A profile may be larger than any result; its own reader knows better.
        head = _read_head(Path(name))
        if b'"joulecast-profile"' not in head and b'"joulecast-network"' not in head:
            data = read_result(Path(name))
            if recognise_result(data) or not isinstance(data, dict) or "format" not in data:
                return report_result(data, name)
    return _report_profile(load_observed_profile(name, store=store))


def _report_profile(profile: Profile) -> Report:
    from joulecast.reports.profile_report import report_profile

    return report_profile(profile, curves=_plot_curves(profile))


def _plot_curves(profile: Profile) -> dict[str, Plot]:
    """Return the curves of isolated layers with the most points; none if it cannot be fitted."""
    from joulecast.estimators import fit_profile
    from joulecast.features.layer_curves import list_layer_curves, sample_layer_curve
    from joulecast.figures import Caption, plot_curve

    caption = Caption(subtitle=profile.device.name, provenance=profile.provenance)
    plots = {}
    with suppress(InputError, MissingError):
        # Estimators of fused kernels do not predict single layers.
        fitted = fit_profile(profile)
        for number, curve in enumerate(list_layer_curves(profile)[:_MOST_CURVES], start=1):
            sampled = sample_layer_curve(fitted, curve)
            plots[f"layer-{number}"] = plot_curve(sampled, caption, with_interval=True)
    return plots


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(200)
    except OSError:
        # The reader of the whole file says what is wrong.
        return b""


def _report_object(what: Any) -> Report:
    from joulecast.features.device_score import DeviceScore, DeviceScores
    from joulecast.reports.result_files import report_result

    found = getattr(what, "pruning", what)
    if isinstance(found, DeviceScore):
        found = (found,)
    if isinstance(found, (list, tuple)) and all(isinstance(one, DeviceScore) for one in found):
        return report_result(DeviceScores(tuple(found)).to_dict(), "the score")
    if hasattr(found, "to_dict"):
        return report_result(found.to_dict(), f"the {type(found).__name__}")
    if isinstance(found, dict):
        return report_result(found, "the result")
    raise InputError(
        f"a {type(what).__name__} cannot be reported: give a profile, or the result of evaluate, "
        "prune, plan or score"
    )
