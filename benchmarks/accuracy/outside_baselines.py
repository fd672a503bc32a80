"""Score baselines of whole nets on the nets outside the families, each fitted to the others.

They need no reader and no device: the kept observations of the nets' two passes have everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joulecast.estimators import find_estimator
from joulecast.features.evaluate import NetEstimate, NetResult
from joulecast.features.evaluation import PASSES, score_estimator
from joulecast.gp.lognormal import lognormal_interval
from joulecast.records import Observation, Profile

Json = dict[str, Any]

WHOLE_NET_BASELINES = ("work-linear", "flops-linear", "flops", "constant")


def add_baselines(outside: Json, profiles: Sequence[Profile]) -> Json:
    """Return the result of outside.py with the scores and estimates of the baselines.

    It is returned unchanged if no profile has all of its nets.
    """
    names = {net["name"] for net in outside["nets"]}
    sources = (list_passes(profile, names) for profile in profiles)
    passes = max(
        sources, key=lambda seen: len({one.trial.network.name for one in seen}), default=[]
    )
    if not names or {one.trial.network.name for one in passes} != names:
        return outside
    nets, scores = outside["nets"], outside["scores"]
    for name in WHOLE_NET_BASELINES:
        results = [estimate_net(name, net, passes) for net in nets]
        spent_s = sum(one.cost_s for one in passes) * (len(nets) - 1) / len(nets)
        score = score_estimator(name, results, device_seconds=spent_s, points=len(passes))
        scores = [*(one for one in scores if one["estimator"] != name), score.to_dict()]
        nets = [
            {**net, "answers": {**net["answers"], name: result.estimates[name].to_dict()}}
            for net, result in zip(nets, results, strict=True)
        ]
    return {**outside, "nets": nets, "scores": scores}


def list_passes(profile: Profile, names: set[str]) -> list[Observation]:
    """Return the windows of whole nets with these names."""
    return [
        one
        for one in profile.observations
        if one.run.rpartition(".")[2] in PASSES and one.trial.network.name in names
    ]


def estimate_net(name: str, net: Json, passes: Sequence[Observation]) -> NetResult:
    """Return a net with the estimate of a baseline that is fitted to all other nets."""
    others = [one for one in passes if one.trial.network.name != net["name"]]
    trial = next(one.trial for one in passes if one.trial.network.name == net["name"])
    prediction = find_estimator(name).fit(others).predict([trial.network], [trial.setup])
    mean_j, variance = float(prediction.energy_j[0]), float(prediction.energy_sd_j[0]) ** 2
    estimate = NetEstimate(
        mean_j,
        lognormal_interval(mean_j, variance, 0.5),
        lognormal_interval(mean_j, variance, 0.95),
        float(prediction.duration_s[0]),
    )
    fields = ("name", "passes_j", "measured_j", "measured_s", "flops")
    result = NetResult(**{field: net[field] for field in fields})
    return replace(result, estimates={name: estimate})
