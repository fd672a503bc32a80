"""Test where the subtractive estimator measures next."""

from dataclasses import replace

from joulecast.estimators.base import Target
from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.families import make_family
from joulecast.records import Observation
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import FAMILY, SETUP, observe, run_short_campaign
from joulecast.variants import curve_key, part_widths, plan_curves, read_variant

TARGET = Target(make_family(FAMILY), SETUP)


def test_bounds_are_proposed_first_in_the_order_of_subtraction():
    seen = run_short_campaign(SubtractiveEstimator(), TARGET, 30, make_simulated_device(11))
    corners = sum(2 ** len(found.lows) for found in plan_curves(TARGET.network))
    subjects = [read_variant(one.trial.network)[0] for one in seen]
    order = ["output", "input", "hidden"]
    bounds = [order.index(part.role) for part in subjects[:corners]]
    assert bounds == sorted(bounds)
    spans = {curve_key(found.part, SETUP): found for found in plan_curves(TARGET.network)}
    for part in subjects[:corners]:
        found = spans[curve_key(part, SETUP)]
        ends = zip(part_widths(part), found.lows, found.highs, strict=True)
        assert all(width in (low, high) for width, low, high in ends)


def test_nothing_is_proposed_twice_and_uncertainty_decreases(additive):
    keys = [seen.trial.key for seen in additive]
    assert len(set(keys)) == len(keys)
    early, late = (SubtractiveEstimator().propose(TARGET, additive[:n]) for n in (20, None))
    assert late.uncertainty_share < early.uncertainty_share
    assert (early.points, late.points) == (20, len(additive))


def test_campaign_stops_when_every_curve_is_known(additive):
    easy = replace(TARGET, uncertainty_share=0.6)
    proposal = SubtractiveEstimator().propose(easy, additive)
    assert proposal.trial is None
    assert "known within 60 %" in proposal.reason
    assert proposal.uncertainty_share < 0.6


def test_durations_suffice_for_the_acquisition_time():
    by_time = replace(TARGET, acquisition="time", uncertainty_share=0.0)
    seen = []
    for _ in range(24):
        proposal = SubtractiveEstimator().propose(by_time, seen)
        seen.append(observe(make_simulated_device(11), proposal.trial, with_energy=False))
    assert len({one.trial.key for one in seen}) == 24
    assert SubtractiveEstimator().propose(by_time, seen).points == 24
    # A campaign for energy cannot use them.
    assert SubtractiveEstimator().propose(TARGET, seen).points == 0


def test_refused_trials_are_left_out_and_the_bound_decreases():
    estimator, seen = SubtractiveEstimator(), []
    limit = 12  # the device refuses wider layers
    for _ in range(60):
        trial = estimator.propose(TARGET, seen).trial
        if trial is None:
            break
        subject = read_variant(trial.network)[0]
        fits = max(part_widths(subject)) <= limit
        seen.append(observe(make_simulated_device(11), trial) if fits else Observation(trial))
    assert len({one.trial.key for one in seen}) == len(seen)
    measured = [one for one in seen if one.energy_j]
    widest = {}
    for one in measured:
        subject = read_variant(one.trial.network)[0]
        key = curve_key(subject, SETUP)
        widest[key] = max(widest.get(key, 0), *part_widths(subject))
    assert set(widest) == {curve_key(found.part, SETUP) for found in plan_curves(TARGET.network)}
    assert all(width <= limit for width in widest.values())
    assert len(seen) - len(measured) < 40


def test_curve_that_is_always_refused_is_given_up():
    estimator, seen = SubtractiveEstimator(), []
    for _ in range(300):
        trial = estimator.propose(TARGET, seen).trial
        if trial is None:
            break
        seen.append(Observation(trial))
    assert trial is None
    assert len(seen) <= 4 * len(plan_curves(TARGET.network))
