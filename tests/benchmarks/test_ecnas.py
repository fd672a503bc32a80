"""NAS-Bench-101 cells as networks: parameters, channels, and all published runs if given.

JOULECAST_ECNAS_DATA names a folder with ``rtx6000.csv`` and ``two_gpus.csv``.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from joulecast.estimators import find_estimator
from joulecast.kinds import check_network, network_work

FOLDER = Path(__file__).parents[2] / "benchmarks" / "ecnas"
DATA = os.environ.get("JOULECAST_ECNAS_DATA", "")
# Adjacency row by row, operators of the inner vertices, and published trainable parameters: no
# inner vertex; one; channels that divide unevenly; chains of vertices.
CELLS = [
    ("0100", "", 882570),
    ("011001000", "conv1x1-bn-relu", 2793866),
    ("0101100111000110000100000", "conv1x1-bn-relu,maxpool3x3,conv3x3-bn-relu", 2606755),
    ("0110000101000110000100000", "conv3x3-bn-relu,conv1x1-bn-relu,conv1x1-bn-relu", 1865770),
    ("0100000110000010000100000", "conv1x1-bn-relu,maxpool3x3,maxpool3x3", 706442),
    ("0110100001000100000100000", "maxpool3x3,conv3x3-bn-relu,maxpool3x3", 4081418),
]


def load(file, name):
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{file}.py")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and sibling modules look it up there
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cells():
    return load("cells", "cells")


@pytest.fixture(scope="module")
def bench(cells):
    load("methods", "methods")
    return load("run", "ecnas_run")


def make_cell(cells, adjacency, inner):
    ops = ("input", *(word for word in inner.split(",") if word), "output")
    size = len(ops)
    rows = [adjacency[at : at + size] for at in range(0, size * size, size)]
    return cells.Cell(tuple(tuple(map(int, row)) for row in rows), ops)


@pytest.mark.parametrize(("adjacency", "inner", "params"), CELLS)
def test_cell_has_its_published_parameters(cells, adjacency, inner, params):
    network = cells.make_network(make_cell(cells, adjacency, inner))
    assert network_work(network, cells.SETUP).params == params
    if network.buildable:
        check_network(network)


@pytest.mark.parametrize("channels", [128, 256, 512])
def test_vertices_before_the_output_share_its_channels(cells, channels):
    for adjacency, inner, _ in CELLS[1:]:
        cell = make_cell(cells, adjacency, inner)
        widths = cells.split_channels(cell, 64, channels)
        joined = [widths[at] for at in cell.sources(cell.last)]
        assert sum(joined) == channels
        assert max(joined) - min(joined) <= 1
        assert min(widths) > 0


@pytest.mark.skipif(not DATA, reason="JOULECAST_ECNAS_DATA is not set")
@pytest.mark.parametrize("file", ["rtx6000.csv", "two_gpus.csv"])
def test_every_published_run_has_its_parameters(cells, file):
    runs = {run.net: run for run in cells.read_runs(Path(DATA) / file)}
    for run in runs.values():
        network = cells.make_network(run.cell)
        assert network_work(network, cells.SETUP).params == run.params
        if network.buildable:
            check_network(network)


def make_runs(cells, repeats=2):
    """Return runs of every cell of this file on a synthetic device."""
    runs = []
    for adjacency, inner, params in CELLS:
        cell = make_cell(cells, adjacency, inner)
        flops = network_work(cells.make_network(cell), cells.SETUP).total.flops
        for number in range(repeats):
            seconds = 20 + flops / 2e10
            joules = (200 * seconds + 900) * (1 + 0.02 * number)
            runs.append(
                cells.Run(adjacency + inner, cell, "made up", params, joules, seconds, seconds)
            )
    return runs


def test_splits_keep_repeats_together_and_development_apart(bench):
    names = [f"{number:04d}" for number in range(900)]
    develop, report = bench.split_nets(names)
    assert not set(develop) & set(report)
    assert sorted([*develop, *report]) == names
    for size in bench.SIZES:
        learn, test = bench.draw_nets(report, 3, size)
        assert len(learn) == size
        assert sorted([*learn, *test]) == sorted(report)
        assert set(bench.draw_nets(report, 3, bench.SIZES[0])[0]) <= set(learn)


@pytest.mark.parametrize(
    "method", ["additive", "work-linear", "constant", "quadratic", "nearest", "flops-linear"]
)
def test_methods_predict_runs_from_runs(cells, bench, method):
    run_data = bench.group_runs(make_runs(cells))
    names = sorted(run_data.nets)
    answer = bench.METHODS[method](run_data, names, names)
    measured_j = [run_data.mean_energy_j(name) for name in names]
    assert len(answer.energy_j) == len(names)
    assert all(
        0.3 < predicted_j / was < 3
        for predicted_j, was in zip(answer.energy_j, measured_j, strict=True)
    )


def test_perfect_prediction_has_no_error(cells, bench):
    run_data = bench.group_runs(make_runs(cells, repeats=1))
    names = sorted(run_data.nets)
    measured_j = [run_data.mean_energy_j(name) for name in names]
    score = bench.score_prediction(
        run_data, names, bench.RunPrediction(measured_j, lambda repeats: [1.0] * len(measured_j))
    )
    assert score["mape"] == score["bias"] == score["p90"] == pytest.approx(0.0)
    assert score["inside"] == 100.0


def test_kept_draws_lack_only_what_is_computed_anew(bench, tmp_path):
    file = tmp_path / "draws.json"
    assert bench.read_draws(file) == {}
    scores = {"additive": {"mape": 1.0}, "additive, total seconds": {}, "flops": {"mape": 2.0}}
    draw = {"draw": 3, "sizes": {"10": scores}, "carried": {"3": {"additive learnt": {}}}}
    file.write_text(bench.format_json({"draws": [draw]}))
    assert bench.read_draws(file) == {3: draw}
    (found,) = bench.read_draws(file, "additive").values()
    assert found["sizes"] == {"10": {"flops": {"mape": 2.0}}}
    assert found["carried"] == {"3": {}}
    assert bench.read_draws(file, "all") == {}


@pytest.mark.parametrize("name", ["constant", "work-linear", "flops-linear"])
def test_linear_methods_are_the_baselines_of_their_names(cells, bench, name):
    run_data = bench.group_runs(make_runs(cells))
    names = sorted(run_data.nets)
    fitted = find_estimator(name).fit(run_data.observe(names))
    found = fitted.predict([run_data.nets[net] for net in names], [cells.SETUP] * len(names))
    predicted_j = bench.METHODS[name](run_data, names, names).energy_j
    assert predicted_j == pytest.approx(cells.STEPS * found.energy_j, rel=1e-6)
