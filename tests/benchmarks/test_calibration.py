"""Calibration benchmark: budgets, coverage and standard errors over devices."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "calibration" / "run.py"
BUDGET_S = 9.0


@pytest.fixture(scope="module")
def bench():
    found = importlib.util.spec_from_file_location("calibration", SCRIPT)
    module = importlib.util.module_from_spec(found)
    sys.modules["calibration"] = module  # dataclasses look up their module there
    found.loader.exec_module(module)
    return module


def run(bench, seconds):
    case = bench.make_case("lenet5", 300)
    with bench.make_simulated_measurer(bench.make_simulated_device(300)) as measurer:
        return bench.run_budget(
            measurer, bench.find_estimator("subtractive"), case.target(case.learn), seconds
        )


def test_first_points_are_the_campaign_of_a_smaller_budget(bench):
    short, long = run(bench, BUDGET_S), run(bench, 3 * BUDGET_S)
    assert len(short) < len(long)
    assert bench.cut_budget(long, BUDGET_S) == short
    assert bench.sum_cost_s(short) <= BUDGET_S
    assert bench.cut_budget(long, 10 * BUDGET_S) == long


def test_targets_and_test_nets_are_distinct(bench):
    for family in bench.DEVICE_COUNTS:
        case = bench.make_case(family, 300)
        assert not set(case.learn) & set(case.test)
        assert (len(case.learn), len(case.test)) == (bench.LEARN_NETS, bench.TEST_NETS)
        assert bench.make_case(family, 300) == case


def test_published_devices_are_not_those_of_development(bench):
    assert bench.FIRST_SEED > 115


def test_coverage_and_standard_errors(bench):
    """Two devices with two nets each: one net of four is missed."""
    rows = [
        {
            "world": world,
            "net": "n",
            "error": error,
            "z": 3.0 if missed else 0.1,
            "held": [not missed] * len(bench.LEVELS),
            "width": 8.0,
            "seconds": 5.0,
            "points": 3,
            "doubts": {"host": 1.0},
        }
        for world, error, missed in (
            (1, 2.0, False),
            (1, -2.0, False),
            (2, 1.0, False),
            (2, 9.0, True),
        )
    ]
    arm = bench.summarise_arm(rows)
    assert arm["mape_percent"] == pytest.approx(3.5)
    assert arm["bias_percent"] == pytest.approx(2.5)
    assert arm["coverage_percent"]["95"] == pytest.approx(75.0)
    assert arm["coverage95_se"] == pytest.approx(25.0)
    assert arm["missed_too_high_percent"] == pytest.approx(100.0)
    assert [(row["world"], row["error"]) for row in bench.list_missed(rows)] == [(2, 9.0)]
    assert bench.list_devices(rows) == [[1, 2.0, 2], [2, 5.0, 1]]


def test_narrow_nets_are_recognised(bench):
    assert bench.is_narrow("cnn5", "cnn5:64,128,4,512")
    assert not bench.is_narrow("cnn5", "cnn5:5,5,5,5")
    assert not bench.is_narrow("transformer", "transformer:16,1")
    seed = 301
    nets = bench.make_case("cnn5", seed).test
    narrow = [net.name for net in nets if bench.is_narrow("cnn5", net.name)]
    assert 0 < len(narrow) < len(nets)
    report = {"family": "cnn5", "worlds": [seed, seed], "missed": {"none": []}}
    report["missed"]["one"] = [{"net": narrow[0]}]
    found = bench.split_narrow(report)
    assert (found["nets"], found["none"]) == (len(narrow), [100.0, 100.0])
    assert found["one"] == [pytest.approx(100 - 100 / len(narrow), abs=0.05), 100.0]
