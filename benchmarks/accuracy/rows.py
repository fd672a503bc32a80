"""Make the rows of the report: one for each setting and estimator, and means over settings.

A mean gives every setting the same weight. ``nets`` is a sum and ``max_percent`` a maximum. Nets
outside the families are a separate group that no mean includes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from settings import BASELINES, OWN, Setting

from joulecast.figures import ScoredEstimate
from joulecast.records import Profile
from joulecast.uses.evaluate import EstimatorScore, Evaluation, NetResult

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
_MEANS = tuple(name for name in FIELDS[5:] if name != "max_percent")
ESTIMATORS = (*OWN, *BASELINES)
OUTSIDE = "outside"
# Names of the rows of means, and the settings that each averages.
GROUPS = {"gpu-bound": ("gpu",), "host-bound": ("host",), "all": ("gpu", "host")}
_RATIO_BASELINES = ("subtractive", "flops")
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
    """Return all rows: settings, nets outside the families, and means."""
    rows = [
        _make_row(one.setting.family, one.setting.name, one.setting.bound, score.to_dict())
        for one in results
        for score in one.scores
    ]
    means = [
        row for group, bounds in GROUPS.items() for row in _average(rows, group, frozenset(bounds))
    ]
    outside_scores = outside["scores"] if outside else ()
    outside_rows = [_make_row(OUTSIDE, OUTSIDE, OUTSIDE, score) for score in outside_scores]
    return [_round(row) for row in (*rows, *outside_rows, *means)]


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


def _average(rows: Sequence[Json], group: str, bounds: frozenset[str]) -> list[Json]:
    """Return the mean rows of a group, one for each estimator."""
    members = [row for row in rows if row["bound"] in bounds]
    bound = next(iter(bounds)) if len(bounds) == 1 else "all"
    found = []
    for name in dict.fromkeys(row["estimator"] for row in members):
        own = [row for row in members if row["estimator"] == name]
        mean = {
            "family": "all",
            "setting": group,
            "bound": bound,
            "estimator": name,
            "nets": sum(row["nets"] for row in own),
            "max_percent": max(row["max_percent"] for row in own),
            **{field: _mean(row[field] for row in own) for field in _MEANS},
        }
        extra = {"ratios": _find_ratios(members)} if name == OWN[0] else {}
        found.append({**{field: mean[field] for field in FIELDS}, **extra})
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _find_ratios(rows: Sequence[Json]) -> dict[str, float]:
    """Return the ratio of the baselines' mean error to ours, over settings that both have."""
    found = {}
    errors = {(row["setting"], row["estimator"]): row["mape_percent"] for row in rows}
    for baseline in _RATIO_BASELINES:
        both = [at for at, name in errors if name == baseline and (at, OWN[0]) in errors]
        if both:
            ours = fmean(errors[at, OWN[0]] for at in both)
            found[baseline] = fmean(errors[at, baseline] for at in both) / ours
    return found


def _round(value: Any) -> Any:
    """Round all floats to four decimals."""
    if isinstance(value, dict):
        return {name: _round(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _describe_net(net: NetResult) -> Json:
    """Return a net as results files hold it, where estimates are called answers."""
    data = net.to_dict()
    return {**data, "answers": data.pop("estimates")}
