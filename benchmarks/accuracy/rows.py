"""Make the rows of the report: one for each setting and estimator, and one for each group.

A group scores the nets of all its settings together: its width is the median over nets, not a mean
of medians. ``device_seconds`` is a mean over settings. Nets outside the families are a row of their
own that no group includes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from settings import BASELINES, OWN, Setting

from joulecast.features.evaluate import EstimatorScore, Evaluation, NetResult
from joulecast.features.evaluation import score_estimator
from joulecast.figures import ScoredEstimate
from joulecast.records import Profile

Json = dict[str, Any]

FIELDS = (
    "family",
    "setting",
    "bound",
    "estimator",
    "nets",
    "mape_percent",
    "bias_percent",
    "p90_percent",
    "max_percent",
    "coverage95_percent",
    "interval_width_percent",
    "noise_percent",
    "device_seconds",
)
ESTIMATORS = (*OWN, *BASELINES)
# additive as it was when the test nets were first seen: the only test of it that is clean.
FIRST = "first judged"
OUTSIDE = "outside"
# Names of the rows of groups, and the settings of each.
GROUPS = {"gpu-bound": ("gpu",), "host-bound": ("host",), "all": ("gpu", "host")}
_RATIO_BASELINES = ("subtractive", "work-linear", "flops-linear", "flops")
_NET_FIELDS = ("name", "passes_j", "measured_j", "measured_s", "flops", "answers")


@dataclass(frozen=True)
class SettingResult:
    """The scores of one setting.

    Attributes:
        evaluation: Evaluation of additive, or of the baselines if only those were measured.
        nets: Test nets with the estimates of all estimators.
        missing: What was not measured or could not be scored.
        profile: The observations that it is based on.
    """

    setting: Setting
    evaluation: Evaluation
    scores: tuple[EstimatorScore, ...]
    nets: tuple[NetResult, ...]
    missing: tuple[str, ...]
    profile: Profile


def make_rows(results: Sequence[SettingResult], outside: Json | None = None) -> list[Json]:
    """Return all rows: settings, nets outside the families, and groups."""
    rows = [
        _make_row(one.setting.family, one.setting.name, one.setting.bound, score.to_dict())
        for one in results
        for score in one.scores
    ]
    groups = [row for name, bounds in GROUPS.items() for row in _pool(results, name, bounds)]
    outside_scores = outside["scores"] if outside else ()
    outside_rows = [_make_row(OUTSIDE, OUTSIDE, OUTSIDE, score) for score in outside_scores]
    return [_round(row) for row in (*rows, *outside_rows, *groups)]


def list_first_rows(summary: Json) -> list[Json]:
    """Return the rows of additive in the summary of the first judgement, under their own name."""
    return [{**row, "estimator": FIRST} for row in summary["rows"] if row["estimator"] == OWN[0]]


def find_row(rows: Iterable[Json], setting: str, estimator: str) -> Json | None:
    """Return the row of a setting and an estimator, or None."""
    wanted = (setting, estimator)
    return next((row for row in rows if (row["setting"], row["estimator"]) == wanted), None)


def list_nets(results: Iterable[SettingResult], outside: Json | None = None) -> list[Json]:
    """Return every test net with its measurements and estimates."""
    found = [
        {"family": one.setting.family, "setting": one.setting.name, **_describe_net(net)}
        for one in results
        for net in one.nets
    ]
    outside_nets = outside["nets"] if outside else ()
    return found + [
        {"family": OUTSIDE, "setting": OUTSIDE, **{name: net[name] for name in _NET_FIELDS}}
        for net in outside_nets
    ]


def list_judged(nets: Iterable[Json]) -> list[ScoredEstimate]:
    """Return the nets as rows of plots, with settings in the place of families."""
    return [
        ScoredEstimate(
            net["name"],
            name,
            net["measured_j"],
            net["answers"][name]["energy_j"],
            tuple(net["answers"][name]["interval95_j"]),
            net["setting"],
        )
        for name in ESTIMATORS
        for net in nets
        if name in net["answers"]
    ]


def _make_row(family: str, setting: str, bound: str, score: Json) -> Json:
    named = {"family": family, "setting": setting, "bound": bound}
    score = {**score, "interval_width_percent": score["width95_percent"], **named}
    return {name: score[name] for name in FIELDS}


def _pool(results: Sequence[SettingResult], group: str, bounds: Sequence[str]) -> list[Json]:
    """Return the rows of a group, one for each estimator that all of its settings have."""
    members = [one for one in results if one.setting.bound in bounds]
    bound = bounds[0] if len(bounds) == 1 else "all"
    scores = [{score.estimator: score for score in one.scores} for one in members]
    names = [name for name in ESTIMATORS if members and all(name in own for own in scores)]
    rows = []
    for name in names:
        device_seconds = fmean(own[name].device_seconds for own in scores)
        points = sum(own[name].points for own in scores)
        nets = [net for one in members for net in one.nets]
        pooled = score_estimator(name, nets, device_seconds=device_seconds, points=points)
        rows.append(_make_row("all", group, bound, pooled.to_dict()))
    ratios = _find_ratios(rows)
    return [{**row, "ratios": ratios} if row["estimator"] == OWN[0] else row for row in rows]


def _find_ratios(rows: Sequence[Json]) -> dict[str, float]:
    """Return the ratios of the baselines' mean errors to ours."""
    errors = {row["estimator"]: row["mape_percent"] for row in rows}
    if OWN[0] not in errors:
        return {}
    return {name: errors[name] / errors[OWN[0]] for name in _RATIO_BASELINES if name in errors}


def _round(value: Any) -> Any:
    """Round all floats to four decimals."""
    if isinstance(value, dict):
        return {name: _round(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _describe_net(net: NetResult) -> Json:
    """Return a net as results files hold it, where estimates are called answers."""
    data = net.to_dict()
    return {**data, "answers": data.pop("estimates")}
