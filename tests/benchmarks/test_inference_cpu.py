"""The latency benchmark: its kernels, its scores, and the figures of its page."""

import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from joulecast.kinds import make_layer
from joulecast.records import Execution, Input, Network, Observation, Setup, Trial

FOLDER = Path(__file__).parents[2] / "benchmarks" / "inference_cpu"
SETUP = Setup(batch=1, phase="inference", threads=1)
JUDGED = "kernel-gp, kernels, onnx"


@pytest.fixture(scope="module")
def report():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("report")
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("report", None)


def observe(width, copies, duration_s):
    network = Network((make_layer("linear", cin=width, cout=width),), Input((width,)))
    trial = Trial(network, SETUP, Execution(copies=copies, upstream="random"))
    return Observation(trial, duration_s=duration_s)


def test_line_over_flops_counts_copies(report):
    rows = [observe(w, c, 2e-9 * 2 * w * w * c + 1e-5) for w, c in ((64, 1), (128, 4), (256, 2))]
    rate, overhead_s = report.fit_flops(rows)
    assert (rate, overhead_s) == (pytest.approx(2e-9), pytest.approx(1e-5))
    (predicted_s,) = report.predict_flops((rate, overhead_s), [rows[1].trial.network], SETUP)
    assert predicted_s == pytest.approx(2e-9 * 2 * 128 * 128 + 1e-5)


def test_score_is_the_mean_of_absolute_errors(report):
    found = report.score([1.1, 0.8], [1.0, 1.0])
    assert found == {"errors_percent": [10.0, -20.0], "mape_percent": 15.0}


def test_value_of_an_item_is_the_median_of_its_visits(report):
    trial = observe(8, 1, 1.0).trial.to_dict()
    items = [{"trial": trial, "visits_s": [3.0, 1.0, 2.0]}, {"trial": trial, "visits_s": []}]
    (seen,) = report.load_observations(items, "onnxruntime-1.31.1")
    assert (seen.duration_s, seen.count, seen.runtime) == (2.0, 3, "onnxruntime-1.31.1")


@pytest.mark.parametrize("precision", ["fp32", "int8_dynamic"])
def test_page_shows_the_kept_figures(precision):
    kept = json.loads((FOLDER / "results" / precision / "report-test.json").read_text())
    page = (FOLDER / "README.md").read_text()
    assert kept["setup"]["precision"] == precision
    for name, row in kept["scores"].items():
        cells = " | ".join(f"{one:+.1f}" for one in row["errors_percent"])
        assert f"| {row['mape_percent']:.1f} | {cells} |" in page, name
    if precision == "fp32":
        assert kept["scores"][JUDGED]["mape_percent"] <= 10.0
