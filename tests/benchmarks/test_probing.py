"""Benchmark of probes: its networks and its made-up observations."""

import importlib.util
import json
from pathlib import Path

import pytest

import joulecast
from joulecast.estimators.base import Proposal
from joulecast.records import Trial

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speed"


@pytest.fixture(scope="module")
def script():
    found = importlib.util.spec_from_file_location("probing", FOLDER / "probing.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_layers_of_the_large_network_differ(script):
    network = script.make_distinct_network(script.LAYERS)
    assert len(network.layers) == len(set(network.layers)) == script.LAYERS


def test_observations_are_of_what_was_proposed(script):
    template = joulecast.load_profile(script.DEVICE).observations[-1]
    trial = Trial(script.make_distinct_network(2), script.SETUP)
    (made,) = script.make_observations(Proposal(trial, 1.0, "", with_energy=False), template)
    assert made.trial == trial and made.energy_j is None and made.issue_s == made.duration_s > 0
    (made,) = script.make_observations(Proposal(trial, 1.0, "", with_energy=True), template)
    assert made.energy_j == pytest.approx(script.POWER_W * made.duration_s)


def test_published_results_agree_with_the_page(script):
    report = json.loads((FOLDER / "results" / "probing.json").read_text())
    page = (FOLDER / "README.md").read_text()
    for row in report["networks"].values():
        assert f"{row['cpu_s']:.1f}" in page and f"{row['cpu_s']:.1f}" in script.make_table(report)
    assert f"{report['observations']:,} observations" in page and report["commit"]
