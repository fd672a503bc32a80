"""From judged settings to rows: one for each setting and estimator, then means over settings.

A mean gives every setting the same weight, whatever its nets. Of what is no mean, ``nets`` is the
sum and ``max_percent`` the largest. Nets outside families are a family of their own, which no mean
contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from settings import OWN, RIVALS, Setting

from joulecast.figures import Judged
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
ESTIMATORS = (*OWN, *RIVALS)
OUTSIDE = "outside"
# Names of the rows of means, and which settings each is over.
GROUPS = {"gpu-bound": ("gpu",), "host-bound": ("host",), "all": ("gpu", "host")}
_RATIOS = ("subtractive", "flops")
_NET_FIELDS = ("name", "passes_j", "measured_j", "measured_s", "flops", "answers")


@dataclass(frozen=True)
class ScreenedCandidate:
    """A setting, judged.

    Attributes:
        evaluation: That of our own estimators or, where only those were measured, of rivals.
        nets: Its test nets with the answers of all estimators.
        missing: What was not measured, and what could not be judged, in words.
        kept: What all of it rests on.
    """

    setting: Setting
    evaluation: Evaluation
    scores: tuple[EstimatorScore, ...]
    nets: tuple[NetResult, ...]
    missing: tuple[str, ...]
    kept: Profile


def make_rows(verdicts: Sequence[ScreenedCandidate], outside: Json | None = None) -> list[Json]:
    """All rows: settings, nets outside families, means."""
    rows = [
        _make_row(one.setting.family, one.setting.name, one.setting.bound, score.to_dict())
        for one in verdicts
        for score in one.scores
    ]
    means = [
        row for group, bounds in GROUPS.items() for row in _average(rows, group, frozenset(bounds))
    ]
    strange = outside["scores"] if outside else ()
    beyond = [_make_row(OUTSIDE, OUTSIDE, OUTSIDE, score) for score in strange]
    return [_round(row) for row in (*rows, *beyond, *means)]


def find_row(rows: Iterable[Json], setting: str, estimator: str) -> Json | None:
    """The row of a setting and an estimator; None where it was not judged."""
    wanted = (setting, estimator)
    return next((row for row in rows if (row["setting"], row["estimator"]) == wanted), None)


def list_nets(verdicts: Iterable[ScreenedCandidate], outside: Json | None = None) -> list[Json]:
    """Every test net with what was measured and what each estimator said."""
    found = [
        {"family": one.setting.family, "setting": one.setting.name, **_name_net(net.to_dict())}
        for one in verdicts
        for net in one.nets
    ]
    strange = outside["nets"] if outside else ()
    return found + [{"family": OUTSIDE, "setting": OUTSIDE, **_name_net(net)} for net in strange]


def list_judged(nets: Iterable[Json]) -> list[Judged]:
    """The same for pictures, where settings are what families are elsewhere."""
    return [
        Judged(
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
    """A group's mean rows, one for each estimator that has any."""
    mine = [row for row in rows if row["bound"] in bounds]
    bound = next(iter(bounds)) if len(bounds) == 1 else "all"
    found = []
    for name in dict.fromkeys(row["estimator"] for row in mine):
        own = [row for row in mine if row["estimator"] == name]
        mean = {
            "family": "all",
            "setting": group,
            "bound": bound,
            "estimator": name,
            "nets": sum(row["nets"] for row in own),
            "max_percent": max(row["max_percent"] for row in own),
            **{field: _mean(row[field] for row in own) for field in _MEANS},
        }
        extra = {"ratios": _find_ratios(mine)} if name == OWN[0] else {}
        found.append({**{field: mean[field] for field in FIELDS}, **extra})
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _find_ratios(rows: Sequence[Json]) -> dict[str, float]:
    """How many times larger the mean error of others is, over settings that both answered for."""
    found = {}
    errors = {(row["setting"], row["estimator"]): row["mape_percent"] for row in rows}
    for rival in _RATIOS:
        both = [at for at, name in errors if name == rival and (at, OWN[0]) in errors]
        if both:
            ours = fmean(errors[at, OWN[0]] for at in both)
            found[rival] = fmean(errors[at, rival] for at in both) / ours
    return found


def _round(value: Any) -> Any:
    """Numbers as far as anybody reads them."""
    if isinstance(value, dict):
        return {name: _round(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _name_net(net: Json) -> Json:
    return {name: net[name] for name in _NET_FIELDS}
