"""Estimators, meters and runtimes that other distributions add through entry points."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.estimators import (
    describe_fits,
    estimate_network,
    find_estimator,
    fit_profile,
    list_estimator_names,
)
from joulecast.meters import detect_meters, make_meter
from joulecast.records import Device, Profile
from joulecast.runtimes import is_plugin, open_runtime
from joulecast.system.errors import InputError, MissingError
from joulecast.system.plugins import ESTIMATOR_GROUP, METER_GROUP, RUNTIME_GROUP, load_plugins
from joulecast.testing.estimators import SETUP, EstimatorContract, draw_networks, make_observations
from joulecast.testing.meters import MeterContract
from joulecast.testing.runtimes import RuntimeContract
from refusals import refusal
from toy_estimator import SD_SHARE, CallEstimator


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that adds entry points of a group to an installed distribution."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(distribution, group, **points):
        folder = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.2\n")
        with (folder / "entry_points.txt").open("a") as file:
            file.write(f"[{group}]\n")
            file.writelines(f"{name} = {value}\n" for name, value in points.items())
        importlib.invalidate_caches()
        load_plugins.cache_clear()
        return tmp_path

    yield write
    load_plugins.cache_clear()


@pytest.fixture
def toy_energy(install):
    """Install a meter and a runtime."""
    meters = {"toy": "toy_energy:METER", "broken": "toy_energy:MISSING"}
    install("toy-energy", METER_GROUP, **meters)
    install("toy-energy", RUNTIME_GROUP, toy="toy_energy:ToyRuntime")


class TestToyMeter(MeterContract):
    @pytest.fixture(autouse=True)
    def install(self, toy_energy):
        self._now_s = 100.0

    def make_meter(self):
        meter = make_meter("toy")
        meter._now = lambda: self._now_s
        return meter

    def load(self, duration_s):
        self._now_s += duration_s


@pytest.mark.usefixtures("toy_energy")
class TestToyRuntime(RuntimeContract):
    def make_runtime(self):
        return open_runtime("toy")


def test_meter_gets_its_argument(toy_energy):
    assert make_meter("toy:7").name == "toy:7"
    with pytest.raises(InputError, match="toy:x is not a power"):
        make_meter("toy:x")


def test_meter_can_be_added_to_a_built_in_one(toy_energy):
    meter = make_meter("toy+modelled:8W")
    assert meter.name == "toy+modelled:8W"
    assert meter.covers == "toy+cpu at 8 W a core"


def test_detect_lists_plugins_even_if_one_is_broken(toy_energy):
    found = {info.name: info for info in detect_meters()}
    assert found["toy"].available
    assert not found["broken"].available
    assert "toy-energy 1.2" in found["broken"].reason
    with pytest.raises(MissingError, match=r"broken.*toy-energy 1\.2"):
        make_meter("broken")


def test_unknown_meter_error_lists_plugins(toy_energy):
    with pytest.raises(InputError, match=r"there is no meter 'nvm': .*toy"):
        make_meter("nvm")


def test_runtime_gets_the_whole_text_and_a_device_name(toy_energy):
    assert is_plugin("toy:3")
    assert not is_plugin("cpu")
    assert open_runtime("toy:3").device.name == "toy-3"
    assert open_runtime("toy", "mine").device.name == "mine"


def test_names_of_plugins_are_unknown_without_the_distribution():
    load_plugins.cache_clear()
    with pytest.raises(InputError, match="there is no meter 'toy'"):
        make_meter("toy")
    with pytest.raises(InputError, match="there is no device 'toy'"):
        open_runtime("toy")


def test_command_line_measures_with_both(toy_energy, tmp_path):
    store = str(tmp_path / "store.sqlite")
    command = ("measure", "lenet5", "--on", "toy", "--meter", "toy:20", "--store", store, "--json")
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    assert '"runtime": "toy-1.0"' in result.stdout
    assert '"meter": "toy:20"' in result.stdout
    assert '"covers": "toy"' in result.stdout


# -- estimators ---------------------------------------------------------------------------------


CALLS = "toy_estimator:CallEstimator"


class TestCallEstimator(EstimatorContract):
    def make_estimator(self):
        return CallEstimator()


@pytest.fixture(scope="module")
def profile():
    return Profile(Device("board"), "simulated", "device", "simulated", make_observations())


def test_estimator_of_another_distribution_is_found_by_name(install, profile):
    install("calls-energy", ESTIMATOR_GROUP, calls=CALLS)
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
    install("calls-energy", ESTIMATOR_GROUP, calls=CALLS)
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
    path = install("calls-energy", ESTIMATOR_GROUP, calls=CALLS)
    words = ["estimate", "lenet5", "--device", "nvidia-h200", "--estimator", "calls", "--json"]
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (path, tests)))}
    command = [sys.executable, "-c", "from joulecast.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    estimate = json.loads(done.stdout)
    assert estimate["estimator"] == "calls" and estimate["energy_j"] > 0


def test_broken_plugin_is_named_only_if_it_is_used(install, profile):
    install("calls-energy", ESTIMATOR_GROUP, broken="no_such_module:Estimator", calls=CALLS)
    assert {"broken", "calls"} <= set(list_estimator_names())
    assert find_estimator("calls").name == "calls"
    with refusal(MissingError, r"'broken' of calls-energy 1\.2.*no_such_module"):
        find_estimator("broken")
    assert describe_fits(replace(profile, fits={"broken": {}})) == {"broken": ()}


def test_names_are_those_of_estimators_and_built_in_ones_stay(install):
    install(
        "calls-energy",
        ESTIMATOR_GROUP,
        flops="toy_estimator:CallEstimator",
        counts="toy_estimator:CallEstimator",
    )
    assert find_estimator("flops").name == "flops"
    assert list_estimator_names().count("flops") == 1
    with pytest.raises(MissingError, match=r"'counts'.*'calls'"):
        find_estimator("counts")
    with pytest.raises(InputError, match=r"additive.*counts"):
        find_estimator("tea leaves")


def test_name_that_two_distributions_offer_is_an_error_unless_it_is_the_same(install):
    install("one", ESTIMATOR_GROUP, calls=CALLS)
    install("two", ESTIMATOR_GROUP, calls=CALLS)
    assert find_estimator("calls").name == "calls"
    install("three", ESTIMATOR_GROUP, calls="toy_estimator:FittedCalls")
    with pytest.raises(MissingError, match=r"^2 plug-ins.*'calls' \(.*three 1\.2"):
        find_estimator("calls")


def test_plugins_are_imported_on_first_use(install, monkeypatch):
    monkeypatch.delitem(sys.modules, "toy_estimator")
    install("calls-energy", ESTIMATOR_GROUP, calls=CALLS)
    assert "calls" in list_estimator_names()
    assert "toy_estimator" not in sys.modules
    find_estimator("calls")
    assert "toy_estimator" in sys.modules
