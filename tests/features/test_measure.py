"""The report of a measured step says what its issue time means."""

from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.features.measure import StepMeasurement
from joulecast.features.nets import ResolvedNet
from joulecast.records import Setup, StepTotals, Trial
from joulecast.records.network import WAIT_BINS
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import observe


@pytest.mark.parametrize(
    ("waits", "issue_share", "said", "unsaid"),
    [
        ((), 0.99, "The host limits this step", "waits"),
        ((), 0.5, "meter", "The host limits"),
        ((0, 1), 0.99, "the host waits once per step", "The host limits"),
        ((2, 1), 0.5, "the host waits 3 times per step", "The host limits"),
    ],
)
def test_host_that_waits_does_not_limit_the_step(waits, issue_share, said, unsaid) -> None:
    every = (*waits, *[0] * (2 * WAIT_BINS - len(waits))) if waits else ()
    network = replace(make_family("lenet5"), totals=StepTotals(1.0, 1.0, 1, waits=every))
    one = observe(make_simulated_device(1, noise=0.0), Trial(network, Setup()))
    assert one.duration_s
    one = replace(one, covers="gpu", issue_s=issue_share * one.duration_s)
    report = str(StepMeasurement(ResolvedNet(network, 32), Setup(), one))
    assert said in report and unsaid not in report


@pytest.mark.parametrize(
    ("covers", "is_shown"),
    [
        ("gpu", True),
        ("cpu+gpu", True),
        ("board by jtop", True),
        ("cpu", False),
        ("cpu+dram", False),
    ],
)
def test_issue_time_is_not_shown_for_a_processor(covers, is_shown) -> None:
    network = make_family("lenet5")
    one = observe(make_simulated_device(1, noise=0.0), Trial(network, Setup()))
    one = replace(one, covers=covers, issue_s=1e-4)
    report = str(StepMeasurement(ResolvedNet(network, 32), Setup(), one))
    assert ("issue time" in report) == is_shown
