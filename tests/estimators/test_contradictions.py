"""Of observations that contradict each other, the majority is believed, then the latest."""

from dataclasses import replace

import pytest

from joulecast.estimators.plausibility import agree, drop_contradicted
from joulecast.families import make_family
from joulecast.records import OWN_NET, Network, Observation, Setup, Trial

TRIAL = Trial(make_family("lenet5:4,6,24,16"), Setup(batch=10))
OTHER = Trial(make_family("lenet5:4,6,24,17"), Setup(batch=10))


def observe(duration_s, energy_j=None, trial=TRIAL, **facts):
    return Observation(trial, energy_j=energy_j, duration_s=duration_s, **facts)


@pytest.mark.parametrize(
    ("durations_s", "believed"),
    [
        ([1.0], [1.0]),
        ([1.0, 1.2], [1.0, 1.2]),
        ([4.0, 1.0, 1.1], [1.0, 1.1]),
        ([1.0, 1.1, 4.0], [1.0, 1.1]),
        ([4.0, 1.0], [1.0]),
        ([1.0, 4.0], [4.0]),
        ([4.0, 1.0, 9.0], [9.0]),
        ([4.0, 4.1, 1.0, 1.1], [1.0, 1.1]),
    ],
)
def test_majority_is_believed_then_the_latest(durations_s, believed):
    found = drop_contradicted([observe(duration_s) for duration_s in durations_s])
    assert [one.duration_s for one in found] == believed


def test_energies_are_compared_too():
    found = drop_contradicted([observe(1.0, 5.0), observe(1.0, 50.0), observe(1.1, 5.1)])
    assert [one.energy_j for one in found] == [5.0, 5.1]
    assert agree(observe(1.0), observe(1.0, 50.0))
    assert not agree(observe(1.0, 5.0), observe(1.0, 50.0))


def test_other_trials_sources_and_imported_runs_are_kept():
    kept = [
        observe(1.0),
        observe(9.0, trial=OTHER),
        observe(9.0, trial=replace(TRIAL, setup=Setup(batch=11))),
        observe(9.0, source=OWN_NET),
        observe(9.0, provenance="imported"),
        Observation(Trial(Network(), Setup()), energy_j=1.0, duration_s=1.0),
    ]
    assert drop_contradicted(kept) == tuple(kept)


def test_order_is_kept_and_refused_trials_are_left_out():
    refused = Observation(OTHER, refusal="it does not fit")
    kept = [observe(1.0, trial=OTHER), observe(2.0), observe(2.1)]
    assert drop_contradicted([refused, *kept]) == tuple(kept)


def test_stored_refusal_is_read_back():
    refused = Observation(TRIAL, refusal="it does not fit")
    assert Observation.from_dict(refused.to_dict()) == refused
    assert "refusal" not in observe(1.0).to_dict()
