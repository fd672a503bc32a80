"""Test plug-ins: what other distributions add through entry points."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from joulecast.estimators import (
    describe_fits,
    estimate_network,
    find_estimator,
    fit_profile,
    list_estimator_names,
)
from joulecast.records import Device, Profile
from joulecast.system.errors import InputError, MissingError
from joulecast.system.plugins import ESTIMATOR_GROUP, load_plugins
from joulecast.testing.estimators import SETUP, EstimatorContract, draw_networks, make_observations
from refusals import refusal
from toy_estimator import SD_SHARE, CallEstimator


class TestCallEstimator(EstimatorContract):
    def make_estimator(self):
        return CallEstimator()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that makes a distribution with entry points for estimators."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(distribution="calls-energy", **points):
        folder = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.2\n")
        rows = "".join(f"{name} = {value}\n" for name, value in points.items())
        (folder / "entry_points.txt").write_text(f"[{ESTIMATOR_GROUP}]\n{rows}")
        load_plugins.cache_clear()
        return tmp_path

    yield write
    load_plugins.cache_clear()


@pytest.fixture(scope="module")
def profile():
    return Profile(Device("board"), "simulated", "device", "simulated", make_observations())


def test_estimator_of_another_distribution_is_found_by_name(install, profile):
    install(calls="toy_estimator:CallEstimator")
    assert list_estimator_names()[-1] == "calls"
    network = draw_networks(1)[0]
    estimate = estimate_network(profile, network, SETUP, "calls")
    fitted = CallEstimator().fit(profile.observations)
    calls = sum(layer.calls for layer in network.layers)
    assert estimate.estimator == "calls"
    assert estimate.energy_j == pytest.approx(calls * fitted.energy_j)
    assert estimate.interval_j[0] < estimate.energy_j < estimate.interval_j[1]
    assert len(estimate.layers) == len(network.layers)


def test_estimators_from_plugins_estimate_jointly_and_store_their_fits(install, profile):
    install(calls="toy_estimator:CallEstimator")
    stored = replace(profile, fits={"calls": CallEstimator().fit(profile.observations).to_dict()})
    assert describe_fits(stored) == {"calls": ()}
    found = fit_profile(stored, "calls").estimate(draw_networks(3), SETUP, joint=True)
    assert found.variance == pytest.approx((SD_SHARE * found.energy_j) ** 2)
    # All errors are common, so ratios are certain.
    assert found.log_ratio_variance(0, [1, 2]) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert fit_profile(stored, "calls").predict_means(draw_networks(3), SETUP) == pytest.approx(
        found.energy_j
    )


def test_command_line_uses_estimators_from_plugins(install):
    """In a process of its own, as a user has it."""
    path = install(calls="toy_estimator:CallEstimator")
    words = ["estimate", "lenet5", "--device", "nvidia-h200", "--estimator", "calls", "--json"]
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (path, tests)))}
    command = [sys.executable, "-c", "from joulecast.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    estimate = json.loads(done.stdout)
    assert estimate["estimator"] == "calls" and estimate["energy_j"] > 0


def test_broken_plugin_is_named_only_if_it_is_used(install, profile):
    install(broken="no_such_module:Estimator", calls="toy_estimator:CallEstimator")
    assert {"broken", "calls"} <= set(list_estimator_names())
    assert find_estimator("calls").name == "calls"
    with refusal(MissingError, r"'broken' of calls-energy 1\.2.*no_such_module"):
        find_estimator("broken")
    assert describe_fits(replace(profile, fits={"broken": {}})) == {"broken": ()}


def test_names_are_those_of_estimators_and_built_in_ones_stay(install):
    install(flops="toy_estimator:CallEstimator", counts="toy_estimator:CallEstimator")
    assert find_estimator("flops").name == "flops"
    assert list_estimator_names().count("flops") == 1
    with pytest.raises(MissingError, match=r"'counts'.*'calls'"):
        find_estimator("counts")
    with pytest.raises(InputError, match=r"additive.*counts"):
        find_estimator("tea leaves")


def test_name_that_two_distributions_offer_is_an_error_unless_it_is_the_same(install):
    install("one", calls="toy_estimator:CallEstimator")
    install("two", calls="toy_estimator:CallEstimator")
    assert find_estimator("calls").name == "calls"
    install("three", calls="toy_estimator:FittedCalls")
    with pytest.raises(MissingError, match=r"^2 plug-ins.*'calls' \(.*three 1\.2"):
        find_estimator("calls")


def test_plugins_are_imported_on_first_use(install, monkeypatch):
    monkeypatch.delitem(sys.modules, "toy_estimator")
    install(calls="toy_estimator:CallEstimator")
    assert "calls" in list_estimator_names()
    assert "toy_estimator" not in sys.modules
    find_estimator("calls")
    assert "toy_estimator" in sys.modules
