"""Overviews of profiles."""

from __future__ import annotations

from dataclasses import fields, replace

from additive_examples import draw_networks, observe_blocks
from joulecast.features.device_overview import (
    read_profile_details,
    summarise_device,
)
from joulecast.features.evaluate import EstimatorScore, Evaluation
from joulecast.records import Device, Profile, Setup
from joulecast.simulation import make_simulated_device
from joulecast.store import ProfileSummary
from joulecast.store.campaigns import StoredEvaluation

SUMMARY = ProfileSummary(
    "key", "board", "15 W", "torch-2.11.0", "board", "measured", 7, ("additive",), 1_000_000.0
)


def make_score(estimator, mape_percent):
    numbers = dict.fromkeys((field.name for field in fields(EstimatorScore)), 1.0)
    given = {"estimator": estimator, "nets": 3, "points": 9, "mape_percent": mape_percent}
    return EstimatorScore(**{**numbers, **given})


EVALUATION = Evaluation(
    name="lenet5",
    family="lenet5",
    input_shape=(1, 28, 28),
    setup=Setup(batch=8),
    device=Device("board"),
    runtime="torch-2.11.0",
    meter="nvml",
    covers="board",
    provenance="measured",
    seed=1,
    seconds=5.0,
    date="2026-01-02",
    noise_percent=1.0,
    scores=(make_score("flops", 20.0), make_score("additive", 4.0)),
    nets=(),
).to_dict()


def make_profile():
    observations = observe_blocks(make_simulated_device(3), draw_networks(1))
    observations = [replace(one, meter="toy") for one in observations]
    first = observations[0]
    return Profile(first.device, first.runtime, first.covers, first.provenance, tuple(observations))


def test_details_come_from_the_observations():
    profile = make_profile()
    details = read_profile_details(profile)
    assert details.meters == ("toy",)
    assert details.units == 1
    # Nothing was observed of the reference applications.
    assert (details.score_label, details.energy_label, details.iecs) == (None, None, None)


def test_overview_has_age_and_the_best_estimator_of_its_own_evaluations():
    details = read_profile_details(make_profile())
    stored = [
        StoredEvaluation("one", "key", EVALUATION, 0.0),
        StoredEvaluation("two", "another", EVALUATION, 0.0),
    ]
    found = summarise_device(SUMMARY, details, stored, now_s=1_000_000.0 + 3 * 86_400)
    assert found.age_days == 3 and found.device == "board" and not found.is_shipped
    (accuracy,) = found.accuracies
    assert (accuracy.estimator, accuracy.mape_percent, accuracy.nets) == ("additive", 4.0, 3)
