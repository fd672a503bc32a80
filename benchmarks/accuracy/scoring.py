"""Score estimators on nets outside the families, from stored observations.

Each estimator is fitted once and estimates each net under that net's setup. No estimator is fitted
to a whole net that it is scored on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from net_pieces import NetPiece, find_piece
from nets import Entry
from outside_baselines import WHOLE_NET_BASELINES

from joulecast.errors import JoulecastError, MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.base import Fitted, Prediction
from joulecast.features.evaluate import EstimatorScore, NetEstimate, NetResult
from joulecast.features.evaluation import (
    PASSES,
    EvaluationLog,
    compute_noise_percent,
    score_estimator,
    strip_probe,
)
from joulecast.gp.lognormal import lognormal_interval
from joulecast.kinds import network_work
from joulecast.records import Network, Observation

Json = dict[str, Any]

ESTIMATORS = ("additive", "additive-noprobe", "subtractive", *WHOLE_NET_BASELINES)
ENERGY_ROLE, PROBE_ROLE, HOST_ROLE = "additive", "additive.probe", "additive.host"
# Roles that each variant of the additive estimator is fitted to, besides what was known before.
# Issue times of structures are no probes of single layers, so both variants use them.
_ROLES = {
    "additive": (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE),
    "additive-noprobe": (ENERGY_ROLE, HOST_ROLE),
}


@dataclass(frozen=True)
class Case:
    """The inputs of scoring.

    Attributes:
        log: Observations made for this table.
        known: Earlier observations of other nets and layers.
        others: Whole nets of the other table, for estimators that are fitted to whole nets; they
            are also fitted to every other net of this table.
    """

    entries: tuple[Entry, ...]
    networks: Mapping[str, Network]
    pieces_by_key: Mapping[str, NetPiece]
    log: EvaluationLog
    known: tuple[Observation, ...]
    others: tuple[Observation, ...]


def score_case(case: Case, names: Sequence[str], print_progress: Callable[[str], None]) -> Json:
    """Return scores, nets and residuals as JSON values.

    Raises:
        MissingError: No net was measured.
    """
    nets = summarise_test_nets(case)
    if not nets:
        raise MissingError("no net of this table was measured: run without --offline first")
    scores: list[EstimatorScore] = []
    left_out: list[str] = []
    parts: dict[str, Json] = {net.name: {} for net in nets}
    for name in names:
        print_progress(f"scoring {name}")
        try:
            nets, score = _score_estimator(case, name, nets, parts, left_out)
            scores.append(score)
        except MissingError as error:
            left_out.append(f"{name}: {error}")
    return {
        "noise_percent": compute_noise_percent(nets),
        "scores": [score.to_dict() for score in scores],
        "nets": [
            {
                **describe_net(net),
                "setup": _find_entry(case, net.name).setup.to_dict(),
                "parts": parts[net.name],
                "device_seconds": share_device_seconds(case, net.name),
            }
            for net in nets
        ],
        "device_seconds": {
            role: _sum_cost_s(case.log.list_for(role))
            for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE)
        },
        "left_out": left_out,
    }


def describe_net(net: NetResult) -> Json:
    """Return a net as results files hold it, where estimates are called answers."""
    data = net.to_dict()
    return {**data, "answers": data.pop("estimates")}


def summarise_test_nets(case: Case) -> list[NetResult]:
    """Return the measured nets: the median of each pass, and the mean of both passes."""
    found = []
    for entry in case.entries:
        if entry.name not in case.networks:
            continue
        passes = [list_windows(case.log, entry, role) for role in PASSES]
        measured = [windows for windows in passes if windows]
        if not measured:
            continue
        energies_j = tuple(median(one.energy_j or 0.0 for one in windows) for windows in measured)
        work = network_work(case.networks[entry.name], entry.setup)
        found.append(
            NetResult(
                name=entry.name,
                passes_j=energies_j,
                measured_j=fmean(energies_j),
                measured_s=fmean(median(one.duration_s or 0.0 for one in w) for w in measured),
                flops=work.total.flops,
            )
        )
    return found


def list_windows(log: EvaluationLog, entry: Entry, role: str) -> list[Observation]:
    """Return the windows of a net in a pass, by name: the reader may have changed since."""
    return [
        one
        for one in log.list_for(role)
        if one.trial.network.name == entry.name
        and replace(one.trial.setup, loss=entry.setup.loss) == entry.setup
    ]


def share_device_seconds(case: Case, net: str) -> Json:
    """Return the device time of a net's pieces, each divided among the nets that contain it."""
    found = {}
    for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE):
        total = 0.0
        for observation in case.log.list_for(role):
            piece = find_piece(observation, observation.trial.execution.mode)
            net_piece = case.pieces_by_key.get(piece.key) if piece is not None else None
            if net_piece is not None and net in net_piece.nets:
                total += observation.cost_s / len(net_piece.nets)
        found[role] = total
    return found


# ---------------------------------------------------------------------------------------------
# One estimator


def _score_estimator(
    case: Case, name: str, nets: Sequence[NetResult], parts: dict[str, Json], left_out: list[str]
) -> tuple[list[NetResult], EstimatorScore]:
    method = find_estimator(strip_probe(name))
    fitted: Fitted | None = None
    estimated, points = list(nets), 0
    own = list_own_observations(case, name)
    training: tuple[Observation, ...] = ()
    for place, net in enumerate(nets):
        training = _list_training(case, name, net.name, own)
        entry, network = _find_entry(case, net.name), case.networks[net.name]
        try:
            if fitted is None or name in WHOLE_NET_BASELINES:
                fitted, points = method.fit(training), sum(map(method.uses, training))
            prediction = fitted.predict([network], [entry.setup])
        except MissingError:
            raise
        except (JoulecastError, ArithmeticError, LookupError, ValueError) as error:
            left_out.append(f"{name} of {net.name}: {type(error).__name__}: {error}")
            continue
        estimates = {**net.estimates, name: _make_estimate(prediction)}
        estimated[place] = replace(net, estimates=estimates)
        parts[net.name][name] = _describe(prediction, estimates[name], net)
    scored = [net for net in estimated if name in net.estimates]
    if not scored:
        raise MissingError("it estimated no net")
    spent_s = _sum_cost_s(training if name in WHOLE_NET_BASELINES else own)
    score = score_estimator(name, scored, device_seconds=spent_s, points=points)
    return estimated, score


def list_own_observations(case: Case, name: str) -> tuple[Observation, ...]:
    """Return the observations that were made for an estimator."""
    if name in _ROLES:
        return tuple(one for role in _ROLES[name] for one in case.log.list_for(role))
    tags = [f"{name}.{entry.name}" for entry in case.entries]
    return tuple(one for tag in tags for one in case.log.list_for(tag))


def _list_training(
    case: Case, name: str, net: str, own: tuple[Observation, ...]
) -> tuple[Observation, ...]:
    """Return the observations that an estimator is fitted to for a net."""
    if name in WHOLE_NET_BASELINES:
        passed = tuple(one for role in PASSES for one in case.log.list_for(role))
        return tuple(one for one in (*case.others, *passed) if one.trial.network.name != net)
    return (*case.known, *own) if name in _ROLES else own


def _make_estimate(prediction: Prediction) -> NetEstimate:
    mean_j, variance = float(prediction.energy_j[0]), float(prediction.energy_sd_j[0]) ** 2
    return NetEstimate(
        mean_j,
        lognormal_interval(mean_j, variance, 0.5),
        lognormal_interval(mean_j, variance, 0.95),
        float(prediction.duration_s[0]),
    )


def _describe(prediction: Prediction, estimate: NetEstimate, net: NetResult) -> Json:
    """Return the residuals of one estimate and its sources of uncertainty."""
    host = None
    if prediction.device_energy_j is not None:
        host = max(0.0, 1.0 - float(prediction.device_energy_j[0] / prediction.energy_j[0]))
    low, high = estimate.interval95_j
    return {
        "error_percent": 100 * (estimate.energy_j / net.measured_j - 1),
        "time_error_percent": 100 * (estimate.duration_s / net.measured_s - 1),
        "inside95": low <= net.measured_j <= high,
        "width95_percent": 100 * (high - low) / estimate.energy_j if estimate.energy_j else None,
        "host_share": host,
        "unseen_share": float(prediction.unseen_share[0]),
        "doubts": dict(prediction.uncertainty_sources[0]) if prediction.uncertainty_sources else {},
    }


def _find_entry(case: Case, name: str) -> Entry:
    return next(entry for entry in case.entries if entry.name == name)


def _sum_cost_s(observations: Iterable[Observation]) -> float:
    return sum(one.cost_s for one in observations)


# ---------------------------------------------------------------------------------------------
# Tables


SCORE_COLUMNS = (
    "estimator",
    ">nets",
    ">MAPE",
    ">bias",
    ">median",
    ">p90",
    ">worst",
    ">≤10 %",
    ">coverage",
    ">width",
    ">time",
    ">device",
)


def show_score(score: Json) -> list[str]:
    """Return a row of the table of scores."""
    names = ("mape", "bias", "median", "p90", "max", "within10", "coverage95", "width95")
    numbers = [score[f"{name}_percent"] for name in (*names, "time_mape")]
    cells = [f"{number:+.1f}" if at == 1 else f"{number:.1f}" for at, number in enumerate(numbers)]
    return [score["estimator"], str(score["nets"]), *cells, f"{score['device_seconds']:,.0f} s"]


def list_net_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the table of nets."""
    shares = (">time", ">host", ">unseen", ">energy", ">probes", "largest source")
    return ("net", ">J", ">ms", ">noise", *(f">{name}" for name in names), *shares)


def show_net(net: Json, names: Sequence[str]) -> list[str]:
    """Return a row of the table of nets: errors of all, then details of the first estimator."""
    parts, passes = net["parts"], net["passes_j"]
    noise = f"{100 * (max(passes) / min(passes) - 1):.1f}" if len(passes) > 1 else "-"
    errors = [f"{parts[n]['error_percent']:+.1f}" if n in parts else "-" for n in names]
    first = next((parts[name] for name in names if name in parts), None)
    details = ["-"] * 3 + [""]
    if first is not None:
        host = "-" if first["host_share"] is None else f"{first['host_share']:.0%}"
        source = next((f"{k} {v:.0%}" for k, v in first["doubts"].items()), "")
        details = [
            f"{first['time_error_percent']:+.1f}",
            host,
            f"{first['unseen_share']:.0%}",
            source,
        ]
    spent = [f"{net['device_seconds'][role]:.0f} s" for role in (ENERGY_ROLE, PROBE_ROLE)]
    return [
        net["name"],
        f"{net['measured_j']:.3g}",
        f"{1e3 * net['measured_s']:.1f}",
        noise,
        *errors,
        *details[:3],
        *spent,
        details[3],
    ]
