"""Steps that were measured are answered with what was measured."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators import find_estimator, fit_profile, update_estimate
from joulecast.estimators.measured import REPEATED, UNIT_VARIATION, combine_steps
from joulecast.records import OWN_NET, Device, Observation, Profile, Setup, StepTotals, Trial
from joulecast.testing.estimators import SETUP, draw_networks, make_observations

NETWORK, OTHER = draw_networks(2, seed=11)
GPU = Observation(
    Trial(NETWORK, SETUP),
    energy_j=4.0,
    duration_s=0.01,
    issue_s=0.004,
    count=3,
    covers="gpu",
    run="a",
    device=Device("board", unit="one"),
)
WAITING = replace(GPU, issue_s=0.01)


@pytest.fixture(scope="module")
def profile():
    seen = make_observations()
    fits = {"additive": find_estimator("additive").fit(seen).to_dict()}
    return Profile(Device("board"), "simulated", "device", "simulated", seen, fits=fits)


def test_measured_step_is_answered_with_its_measurement(profile):
    expected = fit_profile(profile).estimate([NETWORK], SETUP, joint=True)
    step = Observation(
        Trial(NETWORK, replace(SETUP, loss="own")),
        energy_j=1.3 * expected[0].energy_j,
        duration_s=1.2 * expected[0].duration_s,
        issue_s=0.1 * expected[0].duration_s,
        covers="device",
        provenance="simulated",
        source=OWN_NET,
    )
    known = replace(profile, observations=(*profile.observations, step))
    found = fit_profile(known, accepts_old=True).estimate([NETWORK, OTHER], SETUP, joint=True)
    answer, other = found
    assert (answer.is_measured, other.is_measured) == (True, False)
    assert (answer.energy_j, answer.duration_s) == (step.energy_j, step.duration_s)
    assert sum(one.energy_j for one in answer.layers) == pytest.approx(answer.energy_j)
    low_j, high_j = answer.interval_j
    assert low_j < answer.energy_j < high_j < 1.15 * low_j
    assert answer.unseen_share == 0 and set(answer.uncertainty_sources) == {REPEATED}
    assert found.cov[0, 1] == found.cov[1, 0] == 0 and found.cov[0, 0] == found.variance[0]
    # Candidates that are compared have the errors of the model in common.
    compared = fit_profile(known, accepts_old=True).model.estimate([NETWORK, OTHER], SETUP)
    assert compared.energy_j == pytest.approx([expected[0].energy_j, other.energy_j])
    # The fit that was kept does not know the step: it says the same of others.
    assert other.energy_j == fit_profile(profile).estimate([OTHER], SETUP)[0].energy_j


def test_a_step_that_waits_for_its_host_is_less_certain():
    fast, slow = (combine_steps([one], "one") for one in (GPU, WAITING))
    assert slow.duration_sd_share > 10 * fast.duration_sd_share
    # Waiting draws less than working.
    assert fast.energy_sd_j < slow.energy_sd_j < slow.duration_sd_share * slow.energy_j
    unknown = combine_steps([replace(GPU, issue_s=None)], "one")
    assert unknown.energy_sd_j == slow.energy_sd_j


def test_own_unit_counts_alone_and_others_add_their_variation():
    other = replace(GPU, energy_j=5.0, device=Device("board", unit="two"), run="b")
    own = combine_steps([GPU, other], "one")
    assert own.energy_j == 4.0 and UNIT_VARIATION not in own.sources
    shipped = combine_steps([GPU, other], None)
    assert shipped.energy_j == 4.5 and shipped.sources[UNIT_VARIATION] > own.sources[REPEATED]
    # The host of another machine is not this one.
    hosts = [combine_steps([WAITING], unit).duration_sd_share for unit in ("one", None)]
    assert hosts[1] > 2 * hosts[0]


def test_runs_that_disagree_widen_the_interval():
    again = [replace(GPU, run=run) for run in "abcd"]
    apart = [replace(one, energy_j=4.0 + 0.2 * at) for at, one in enumerate(again)]
    steady, unsteady = combine_steps(again, "one"), combine_steps(apart, "one")
    assert steady.energy_sd_j == pytest.approx(combine_steps([GPU], "one").energy_sd_j / 2)
    energies_j = [one.energy_j for one in apart]
    assert unsteady.energy_sd_j == pytest.approx(np.std(energies_j, ddof=1) / 2)
    # Windows of one run share their hour.
    together = combine_steps([GPU, GPU], "one")
    assert together.energy_sd_j == combine_steps([GPU], "one").energy_sd_j


def test_other_setups_of_a_measured_network_are_estimated(profile):
    step = Observation(Trial(NETWORK, SETUP), energy_j=1.0, duration_s=0.1)
    known = replace(profile, observations=(*profile.observations, step))
    fitted = fit_profile(known, accepts_old=True)
    assert not fitted.estimate([NETWORK], Setup(batch=SETUP.batch + 1))[0].is_measured


def test_modules_of_the_same_layers_that_do_other_work_are_other_steps(profile):
    """And of the one that was measured, notes do not say what its layers lack."""
    totals = StepTotals(1e9, 1e9, 10**6, unattributed_flops_share=0.4, notes=("read so",))
    step = replace(GPU, trial=Trial(replace(NETWORK, totals=totals), SETUP), provenance="simulated")
    fitted = fit_profile(
        replace(profile, observations=(*profile.observations, step)), accepts_old=True
    )

    def estimate(**changes):
        return fitted.estimate([replace(NETWORK, totals=replace(totals, **changes))], SETUP)[0]

    same, other = estimate(flops=1.01e9), estimate(flops=5e9)
    assert (same.is_measured, other.is_measured) == (True, False)
    assert same.notes == ("read so",) and any("belong to no layer" in note for note in other.notes)
    # What is added to a measurement, or updates it, is none.
    assert not update_estimate(same, 3.0, 10).is_measured
