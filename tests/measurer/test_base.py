"""What campaigns need of a measurer."""

from agent_processes import make_trial
from joulecast.local_devices import open_local_measurer
from joulecast.measurer.base import describe_refusal, make_run


def test_refusal_is_that_of_the_measurers_device():
    measurer = open_local_measurer("simulated:3")
    found = describe_refusal(measurer, make_trial(), "too large", 5.0)
    assert (found.device, found.runtime) == (measurer.runtime.device, "simulated")
    assert (found.covers, found.provenance, found.run) == ("device", "simulated", measurer.run)
    assert (found.refusal, found.count, found.taken_at_s) == ("too large", 0, 5.0)
    assert found.energy_j is None and found.duration_s is None
    assert describe_refusal(measurer, make_trial(), "").taken_at_s > 1e9


def test_another_run_keeps_device_and_disturbances():
    measurer = open_local_measurer("simulated:3", rounds=3)
    other = measurer.change_run("other")
    assert (other.run, other.rounds, measurer.change_run("x", 1).rounds) == ("other", 3, 1)
    assert other.runtime is measurer.runtime and other.disturbances is measurer.disturbances


def test_runs_have_names_of_their_own():
    assert make_run() != make_run()
