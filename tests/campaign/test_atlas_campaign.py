"""Atlases of simulated devices: they resume, remember refusals, keep their limits and repair."""

import pytest

from campaign_examples import make_simulated_measurer
from joulecast.campaign import find_profile_key
from joulecast.campaign.anchors import MeasuredPeaks
from joulecast.campaign.atlas import AtlasLimits, plan_atlas, run_atlas, summarise_atlas
from joulecast.families import make_family
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import ContaminatedError, DeviceLostError, NotTrainingError

SMALL = {"networks": 3, "most_trials": 40}


@pytest.fixture
def measurer():
    with make_simulated_measurer(rounds=1) as opened:
        yield opened


class RefusingRuntime(SimulatedRuntime):
    """A device that refuses every fifth trial with an error."""

    error: Exception = NotTrainingError("no weight moved")
    count = 0

    def prepare(self, trial):
        type(self).count += 1
        if self.count % 5 == 0:
            raise self.error
        return super().prepare(trial)


class FragileRuntime(RefusingRuntime):
    error = RuntimeError("CUDA error: misaligned address\nCompile with TORCH_USE_CUDA_DSA")


def list_trials_of(store, key, *, refused=False):
    seen = store.load_observations(key)
    return [one.trial for one in seen if one.trial.network.layers and bool(one.refusal) == refused]


def test_every_trial_is_measured_once_and_the_idle_device_too(measurer, store):
    announced = []
    run = run_atlas(measurer, store, AtlasLimits(**SMALL), on_trial=announced.append)
    assert run.stopped == "every trial of the atlas was tried"
    refused = list_trials_of(store, run.profile_key, refused=True)
    assert run.new + len(refused) == SMALL["most_trials"] == len(announced)
    assert all(one.duration_s is None and one.device.name == "simulated-5" for one in announced)
    measured = list_trials_of(store, run.profile_key)
    assert {one.trial for one in announced} >= set(measured)
    seen = store.load_observations(run.profile_key)
    assert any(not one.trial.network.layers for one in seen)
    assert any(one.energy_j for one in seen if one.trial.network.layers)
    assert run_atlas(measurer, store, AtlasLimits(**SMALL)).new == 0


class Killed(BaseException):
    """An interruption that nothing catches."""


def test_atlas_that_was_interrupted_resumes_where_it_stopped(measurer, store):
    after = 7

    def interrupt(progress):
        if progress.points == after:
            raise Killed

    with pytest.raises(Killed):
        run_atlas(measurer, store, AtlasLimits(**SMALL), on_progress=interrupt)
    told = []
    run = run_atlas(measurer, store, AtlasLimits(**SMALL), on_progress=told.append)
    assert told[1].points == after
    planned = [one.trial for one in plan_atlas(measurer, AtlasLimits(**SMALL))]
    measured = list_trials_of(store, run.profile_key)
    assert [planned.count(trial) for trial in measured] == [measured.count(t) for t in measured]


def test_limits_are_kept_and_requests_to_stop_heeded(measurer, store):
    run = run_atlas(measurer, store, AtlasLimits(seconds=10.0, **SMALL))
    assert "10 s" in run.stopped
    # The last trial may take longer than the others did.
    assert 5 < run.elapsed_s <= 12
    asked = iter([False, False, True])
    run = run_atlas(measurer, store, AtlasLimits(**SMALL), is_stop_requested=lambda: next(asked))
    assert (run.stopped, run.new) == ("it was stopped by request", 2)
    run = run_atlas(measurer, store, AtlasLimits(points=30, **SMALL))
    assert run.stopped == "30 trials are done"


def test_progress_counts_trials_and_estimates_the_time_left(measurer, store):
    told = []
    run_atlas(measurer, store, AtlasLimits(seconds=1e6, **SMALL), on_progress=told.append)
    assert told[0].reason == "planning what to measure"
    assert [one.points for one in told[1:]] == list(range(SMALL["most_trials"] + 1))
    assert {one.total for one in told[1:]} == {SMALL["most_trials"]}
    assert told[1].left_s == pytest.approx(1e6)
    assert told[20].left_s < 100
    assert told[-1].left_s == 0.0
    assert all("batch" in one.reason for one in told[1:-1])


def test_refused_trials_are_remembered_and_can_be_retried(store):
    with make_simulated_measurer(runtime=RefusingRuntime, rounds=1) as measurer:
        run = run_atlas(measurer, store, AtlasLimits(**SMALL))
        refused = list_trials_of(store, run.profile_key, refused=True)
        assert len(refused) > 4
    with make_simulated_measurer(rounds=1) as measurer:
        assert run_atlas(measurer, store, AtlasLimits(**SMALL)).new == 0
        again = run_atlas(measurer, store, AtlasLimits(retries_refused=True, **SMALL))
    assert again.new > 4


def test_trial_that_loses_the_device_is_remembered(store):
    announced = []
    with make_simulated_measurer(runtime=FragileRuntime, rounds=1) as measurer:
        for _ in range(100):
            try:
                run = run_atlas(measurer, store, AtlasLimits(**SMALL), on_trial=announced.append)
                break
            except DeviceLostError as error:
                assert "misaligned address" in str(error) and "\n" not in str(error)
    refused = list_trials_of(store, run.profile_key, refused=True)
    seen = [one.trial for one in announced]
    assert refused and all(seen.count(trial) == 1 for trial in refused)


def test_disturbed_trial_is_no_refusal_and_constant_disturbance_ends_the_atlas(store):
    with make_simulated_measurer(rounds=1) as measurer:
        measurer.runtime.simulated.disturb("throttled", 1e9, start_s=6.0)
        with pytest.raises(ContaminatedError, match="throttled"):
            run_atlas(measurer, store, AtlasLimits(**SMALL))
        assert measurer.disturbances["throttled"] > 3
    with make_simulated_measurer(rounds=1) as measurer:
        run = run_atlas(measurer, store, AtlasLimits(**SMALL))
    assert run.stopped == "every trial of the atlas was tried"
    refusals = [one.refusal for one in store.load_observations(run.profile_key) if one.refusal]
    assert not any("throttled" in refusal for refusal in refusals)


def test_time_probes_do_not_hide_a_device_that_is_shared(store):
    """Only the meter notices another program, and it is asked for every fifth trial."""
    with make_simulated_measurer(rounds=1) as measurer:
        measurer.runtime.simulated.disturb("other load", 1e9, start_s=12.0)
        with pytest.raises(ContaminatedError, match="close other programs"):
            run_atlas(measurer, store, AtlasLimits(networks=3))
        key = find_profile_key(measurer)
    assert len(list_trials_of(store, key)) > 10


def test_trials_that_would_take_too_long_are_left_out(measurer, store, monkeypatch):
    monkeypatch.setattr("joulecast.campaign.atlas._LONGEST_STEP_S", {True: 0.01, False: 0.01})
    limits = AtlasLimits(networks=6)
    planned = [one for one in plan_atlas(measurer, limits) if one.reason != "anchor"]
    costs_s = {
        one.trial: measurer.runtime.simulated.true_cost(one.trial).duration_s for one in planned
    }
    run = run_atlas(measurer, store, limits)
    measured = [costs_s.get(one, 0.0) for one in list_trials_of(store, run.profile_key)]
    assert max(costs_s.values()) > 0.1
    # Layers do not reach the peaks.
    assert 0.005 < max(measured) < 0.05


def test_atlas_of_inference_trains_nothing(measurer):
    planned = plan_atlas(measurer, AtlasLimits(phase="inference", **SMALL))
    assert {one.trial.setup.phase for one in planned} == {"inference"}
    assert {one.reason for one in planned} >= {"anchor", "block"}


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
    nothing = summarise_atlas([], MeasuredPeaks({}))
    assert (nothing.trials, nothing.refused, nothing.idle_power_w) == (0, {}, None)
