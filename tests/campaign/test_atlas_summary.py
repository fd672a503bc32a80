"""The summary of an atlas counts trials, not observations."""

from joulecast.campaign.anchors import MeasuredPeaks
from joulecast.campaign.atlas_campaign import summarise_atlas
from joulecast.families import make_family
from joulecast.records import Network, Observation, Setup, Trial

TRIALS = [Trial(make_family("lenet5:4,6,24,16"), Setup(batch=batch)) for batch in range(1, 7)]
IDLE = Trial(Network(), Setup())


def test_trials_energies_refusals_and_idle_power_are_counted():
    observations = [
        Observation(TRIALS[0], duration_s=1.0),
        Observation(TRIALS[0], duration_s=1.0, energy_j=5.0),
        Observation(TRIALS[1], duration_s=1.0),
        Observation(TRIALS[2], refusal="cannot be captured (op 7); use eager"),
        Observation(TRIALS[3], refusal="cannot be captured (op 8); use eager"),
        Observation(TRIALS[4], refusal="out of memory"),
        # Refused once, measured later.
        Observation(TRIALS[1], refusal="out of memory"),
        *(Observation(IDLE, energy_j=power_w, duration_s=1.0) for power_w in (30.0, 31.0, 90.0)),
    ]
    found = summarise_atlas(observations, MeasuredPeaks({"fp32": 1e12}))
    assert (found.trials, found.with_energy, found.idle_power_w) == (2, 1, 31.0)
    assert list(found.refused.items()) == [("cannot be captured", 2), ("out of memory", 1)]
    assert found.peaks.flops_per_s == {"fp32": 1e12}


def test_nothing_is_summarised_as_nothing():
    found = summarise_atlas([], MeasuredPeaks({}))
    assert (found.trials, found.refused, found.idle_power_w) == (0, {}, None)
