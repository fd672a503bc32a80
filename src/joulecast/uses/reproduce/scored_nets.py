"""Turn an evaluation into numbers of a result, and these into rows of a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joulecast.features.evaluate import Evaluation, NetResult
from joulecast.figures import ScoredEstimate
from joulecast.uses.reproduce.experiment import ExperimentResult
from joulecast.uses.reproduce.paper_settings import AMPERE, FLOPS, OURS
from joulecast.uses.reproduce.statistics import compute_errors_percent, compute_mape

LABELS = {FLOPS: "proportional to FLOPs", AMPERE: "AMPERE", OURS: "ours"}
"""How the sentences of findings name estimators."""

Json = dict[str, Any]


def name_device(result: ExperimentResult) -> str:
    """Return the name of a device, with the provenance of what was not measured."""
    label = "" if result.provenance == "measured" else f" ({result.provenance})"
    return result.device.name + label


def list_nets(nets: Iterable[NetResult]) -> list[Json]:
    """Return networks with their measured energy, FLOPs and estimates, as JSON."""
    return [
        {
            "name": net.name,
            "flops": net.flops,
            "duration_s": net.measured_s,
            "measured_j": net.measured_j,
            "estimates_j": {name: one.energy_j for name, one in net.estimates.items()},
        }
        for net in nets
    ]


def list_scored(
    nets: Iterable[Mapping[str, Any]], estimators: Sequence[str], family: str = ""
) -> list[ScoredEstimate]:
    """Return a row for each network and estimator."""
    return [
        ScoredEstimate(
            net["name"], name, net["measured_j"], net["estimates_j"][name], family=family
        )
        for net in nets
        for name in estimators
        if name in net["estimates_j"]
    ]


def list_net_errors(nets: Sequence[Mapping[str, Any]], estimator: str) -> list[float]:
    """Return an estimator's signed error, in percent, of each network that it estimated."""
    known = [net for net in nets if estimator in net["estimates_j"]]
    return compute_errors_percent(
        [net["estimates_j"][estimator] for net in known], [net["measured_j"] for net in known]
    )


def compute_net_mape(nets: Sequence[Mapping[str, Any]], estimator: str) -> float:
    """Return an estimator's mean absolute error over networks, in percent."""
    return compute_mape(list_net_errors(nets, estimator))


def list_estimators_of(nets: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the estimators that estimated every network."""
    first = nets[0]["estimates_j"] if nets else {}
    return tuple(name for name in first if all(name in net["estimates_j"] for net in nets))


def describe_mapes(nets: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return ``proportional to FLOPs 28.1 %, AMPERE 6.4 %``."""
    return ", ".join(f"{LABELS.get(one, one)} {compute_net_mape(nets, one):.1f} %" for one in names)


LEGEND = f"{AMPERE} is AMPERE's method, {OURS} ours"
"""What the legends of plots call estimators."""


def sum_evaluation_s(evaluation: Evaluation) -> float:
    """Return the device time of the campaigns of an evaluation, each counted once."""
    return sum({one.device_seconds for one in evaluation.scores})


def list_evaluation_notes(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the noise of the measurement, what is missing, and what was left out."""
    notes = []
    if evaluation.noise_percent is not None:
        notes.append(
            f"{evaluation.family}: two measurements of the same network differ by "
            f"{evaluation.noise_percent:.1f} % (median)."
        )
    notes += [f"{evaluation.family}: not measured yet: {what}." for what in evaluation.missing]
    if evaluation.left_out:
        notes.append(f"{evaluation.family}: left out: {'; '.join(evaluation.left_out[:3])}.")
    return tuple(notes)
