"""From what is kept to scores and residuals, without a device.

Each estimator is fitted once to what it may know, and answers for each net under that net's setup.
Nothing that was seen of a net as a whole is ever learnt for the same net.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from nets import Entry
from reading import Parcel, find_piece

from joulecast.errors import JoulecastError, MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Estimator, Prediction
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import network_work
from joulecast.records import Network, Observation
from joulecast.uses.evaluate.evaluation import EstimatorScore, NetEstimate, NetResult
from joulecast.uses.evaluate.evaluation_log import PASSES, EvaluationLog
from joulecast.uses.evaluate.scores import compute_noise_percent, score_estimator

Json = dict[str, Any]

ESTIMATORS = ("additive", "additive-noprobe", "subtractive", "flops")
LOOKS, PROBES, HOST = "additive", "additive.probe", "additive.host"
# What each of our own ways to learn adds to what was known before. How the host issues a structure
# is nobody's seconds or joules: it stays where probes are left out.
_LESSONS = {
    "additive": (LOOKS, PROBES, HOST),
    "additive-noprobe": (LOOKS, HOST),
}


@dataclass(frozen=True)
class Case:
    """All that judging needs.

    Attributes:
        book: Observations made for this table.
        known: Observations of other nets and layers, made before.
        others: Whole nets of the other table, for methods that learn from those; they may also
            learn from every other net of this one.
    """

    entries: tuple[Entry, ...]
    networks: Mapping[str, Network]
    parcels: Mapping[str, Parcel]
    book: EvaluationLog
    known: tuple[Observation, ...]
    others: tuple[Observation, ...]


def judge_case(case: Case, names: Sequence[str], say: Callable[[str], None]) -> Json:
    """Scores, nets and residuals, as plain values.

    Raises:
        MissingError: No net was measured.
    """
    nets = summarise_test_nets(case)
    if not nets:
        raise MissingError("no net of this table was measured: run it without --offline first")
    scores: list[EstimatorScore] = []
    left_out: list[str] = []
    parts: dict[str, Json] = {net.name: {} for net in nets}
    for name in names:
        say(f"judging {name}")
        try:
            nets, score = _judge_one(case, name, nets, parts, left_out)
            scores.append(score)
        except MissingError as error:
            left_out.append(f"{name}: {error}")
    return {
        "noise_percent": compute_noise_percent(nets),
        "scores": [score.to_dict() for score in scores],
        "nets": [
            {
                **net.to_dict(),
                "setup": _find_entry(case, net.name).setup.to_dict(),
                "parts": parts[net.name],
                "device_seconds": share_seconds(case, net.name),
            }
            for net in nets
        ],
        "device_seconds": {who: _charge(case.book.list_for(who)) for who in (LOOKS, PROBES, HOST)},
        "left_out": left_out,
    }


def summarise_test_nets(case: Case) -> list[NetResult]:
    """What the nets really took: a median for each pass, and the mean of both."""
    found = []
    for entry in case.entries:
        if entry.name not in case.networks:
            continue
        passes = [list_truths(case.book, entry, who) for who in PASSES]
        seen = [windows for windows in passes if windows]
        if not seen:
            continue
        energies_j = tuple(median(one.energy_j or 0.0 for one in windows) for windows in seen)
        work = network_work(case.networks[entry.name], entry.setup)
        found.append(
            NetResult(
                name=entry.name,
                passes_j=energies_j,
                measured_j=fmean(energies_j),
                measured_s=fmean(median(one.duration_s or 0.0 for one in w) for w in seen),
                flops=work.total.flops,
            )
        )
    return found


def list_truths(book: EvaluationLog, entry: Entry, who: str) -> list[Observation]:
    """Windows of a net in a pass, however it was read when they were taken."""
    return [
        one
        for one in book.list_for(who)
        if one.trial.network.name == entry.name
        and replace(one.trial.setup, loss=entry.setup.loss) == entry.setup
    ]


def share_seconds(case: Case, net: str) -> Json:
    """Device seconds of a net: what was run for its pieces, shared with the nets that hold them."""
    found = {}
    for who in (LOOKS, PROBES, HOST):
        total = 0.0
        for seen in case.book.list_for(who):
            piece = find_piece(seen, seen.trial.execution.mode)
            parcel = case.parcels.get(piece.key) if piece is not None else None
            if parcel is not None and net in parcel.nets:
                total += seen.cost_s / len(parcel.nets)
        found[who] = total
    return found


# ---------------------------------------------------------------------------------------------
# One estimator


def _judge_one(
    case: Case, name: str, nets: Sequence[NetResult], parts: dict[str, Json], left_out: list[str]
) -> tuple[list[NetResult], EstimatorScore]:
    method = find_estimator(name.split("-")[0])
    fitted: Json | None = None
    answered, points = list(nets), 0
    own = _list_own(case, name)
    for place, net in enumerate(nets):
        lesson = _list_lesson(case, name, net.name, own)
        entry, network = _find_entry(case, net.name), case.networks[net.name]
        try:
            if fitted is None or name == "flops":
                fitted, points = method.fit(lesson), sum(map(method.uses, lesson))
            said = fitted.predict([network], [entry.setup])
        except MissingError:
            raise
        except (JoulecastError, ArithmeticError, LookupError, ValueError) as error:
            left_out.append(f"{name} of {net.name}: {type(error).__name__}: {error}")
            continue
        answers = {**net.estimates, name: _make_answer(said)}
        answered[place] = replace(net, estimates=answers)
        parts[net.name][name] = _describe(said, answers[name], net)
    judged = [net for net in answered if name in net.estimates]
    if not judged:
        raise MissingError("it answered for no net")
    score = score_estimator(name, judged, device_seconds=_charge(own), points=points)
    return answered, score


def _list_own(case: Case, name: str) -> tuple[Observation, ...]:
    """What the device ran for an estimator."""
    if name in _LESSONS:
        return tuple(seen for who in _LESSONS[name] for seen in case.book.list_for(who))
    tags = [f"{name}.{entry.name}" for entry in case.entries]
    return tuple(seen for tag in tags for seen in case.book.list_for(tag))


def _list_lesson(
    case: Case, name: str, net: str, own: tuple[Observation, ...]
) -> tuple[Observation, ...]:
    """What an estimator may learn from to answer for a net."""
    if name == "flops":
        passed = tuple(seen for who in PASSES for seen in case.book.list_for(who))
        return tuple(seen for seen in (*case.others, *passed) if seen.trial.network.name != net)
    return (*case.known, *own) if name in _LESSONS else own


def _make_answer(said: Prediction) -> NetEstimate:
    mean_j, variance = float(said.energy_j[0]), float(said.energy_sd_j[0]) ** 2
    return NetEstimate(
        mean_j,
        lognormal_interval(mean_j, variance, 0.5),
        lognormal_interval(mean_j, variance, 0.95),
        float(said.duration_s[0]),
    )


def _describe(said: Prediction, answer: NetEstimate, net: NetResult) -> Json:
    """What a developer wants to know of one answer."""
    host = None
    if said.device_energy_j is not None:
        host = max(0.0, 1.0 - float(said.device_energy_j[0] / said.energy_j[0]))
    low, high = answer.interval95_j
    return {
        "error_percent": 100 * (answer.energy_j / net.measured_j - 1),
        "time_error_percent": 100 * (answer.duration_s / net.measured_s - 1),
        "inside95": low <= net.measured_j <= high,
        "width95_percent": 100 * (high - low) / answer.energy_j if answer.energy_j else None,
        "host_share": host,
        "unseen_share": float(said.unseen_share[0]),
        "doubts": dict(said.uncertainty_sources[0]) if said.uncertainty_sources else {},
    }


def _find_entry(case: Case, name: str) -> Entry:
    return next(entry for entry in case.entries if entry.name == name)


def _charge(seen: Iterable[Observation]) -> float:
    return sum(one.cost_s for one in seen)


# ---------------------------------------------------------------------------------------------
# For people


SCORE_COLUMNS = (
    "estimator",
    ">nets",
    ">error",
    ">bias",
    ">median",
    ">p90",
    ">worst",
    ">≤10 %",
    ">in 95 %",
    ">width",
    ">time",
    ">device",
)


def show_score(score: Json) -> list[str]:
    """A row of the table of scores."""
    names = ("mape", "bias", "median", "p90", "max", "within10", "coverage95", "width95")
    numbers = [score[f"{name}_percent"] for name in (*names, "time_mape")]
    words = [f"{number:+.1f}" if at == 1 else f"{number:.1f}" for at, number in enumerate(numbers)]
    return [score["estimator"], str(score["nets"]), *words, f"{score['device_seconds']:,.0f} s"]


def list_net_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Headings of the table of nets."""
    shares = (">time", ">host", ">unseen", ">looks", ">probes", "doubt")
    return ("net", ">J", ">ms", ">noise", *(f">{name}" for name in names), *shares)


def show_net(net: Json, names: Sequence[str]) -> list[str]:
    """A row of the table of nets: errors of all estimators, then what the first one says."""
    parts, passes = net["parts"], net["passes_j"]
    noise = f"{100 * (max(passes) / min(passes) - 1):.1f}" if len(passes) > 1 else "-"
    errors = [f"{parts[n]['error_percent']:+.1f}" if n in parts else "-" for n in names]
    first = next((parts[name] for name in names if name in parts), None)
    words = ["-"] * 3 + [""]
    if first is not None:
        host = "-" if first["host_share"] is None else f"{first['host_share']:.0%}"
        doubt = next((f"{k} {v:.0%}" for k, v in first["doubts"].items()), "")
        words = [f"{first['time_error_percent']:+.1f}", host, f"{first['unseen_share']:.0%}", doubt]
    spent = [f"{net['device_seconds'][who]:.0f} s" for who in (LOOKS, PROBES)]
    return [
        net["name"],
        f"{net['measured_j']:.3g}",
        f"{1e3 * net['measured_s']:.1f}",
        noise,
        *errors,
        *words[:3],
        *spent,
        words[3],
    ]


__all__ = [
    "ESTIMATORS",
    "HOST",
    "LOOKS",
    "PROBES",
    "SCORE_COLUMNS",
    "Case",
    "Estimator",
    "judge_case",
    "list_net_columns",
    "list_truths",
    "show_net",
    "show_score",
]
