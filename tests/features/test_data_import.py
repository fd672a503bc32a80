"""Importing and predicting runs from Python."""

import pytest

import joulecast
from joulecast.errors import InputError, MissingError
from joulecast.families import make_family


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("net,energy_j,duration_s\nlenet5,500,2\nlenet5,510,2.1\n")
    return path


def test_options_fill_in_what_the_log_does_not_say(file, place):
    options = {"device": "board", "batch": 8, "epochs": 2, "samples": 100, "store": place}
    result = joulecast.import_runs(file, **options, source="lab")
    assert (result.runs, result.new, result.source) == (2, 2, "lab")
    profile = joulecast.load_profile("board", store=place)
    assert {one.trial.execution.steps for one in profile.observations} == {2 * 13}
    assert {one.trial.setup.batch for one in profile.observations} == {8}
    run = joulecast.predict_run("lenet5", device="board", steps=26, batch=8, store=place)
    assert run.energy_j == pytest.approx(505, rel=0.2)
    with pytest.raises(MissingError, match="'other'"):
        joulecast.predict_run(
            "lenet5", device="board", steps=26, source="other", batch=8, store=place
        )


def test_net_may_be_a_network(tmp_path, place):
    path = tmp_path / "zeus.csv"
    path.write_text("start_time,window_name,elapsed_time,gpu0_energy\n1,run,5.0,800\n")
    network = make_family("lenet5:3,5,8,8")
    joulecast.import_runs(path, network, device="gpu", steps=10, store=place)
    (one,) = joulecast.load_profile("gpu", store=place).observations
    assert one.trial.network == network


def test_sources_are_not_mixed_up(file, place):
    options = {"device": "board", "steps": 10, "store": place}
    joulecast.import_runs(file, **options)
    joulecast.import_runs(file, **options, source="lab")
    with pytest.raises(InputError, match="lab, runs: give one"):
        joulecast.predict_run("lenet5", device="board", steps=10, store=place)


def test_unknown_tools_and_options_are_refused(file, place):
    with pytest.raises(InputError, match="tool is 'wattson'"):
        joulecast.import_runs(file, tool="wattson", store=place)
    with pytest.raises(InputError, match="did you mean 'source'"):
        joulecast.import_runs(file, sorce="x", store=place)


def test_export_refuses_unknown_forms(tmp_path):
    with pytest.raises(InputError, match="form is 'xml'"):
        joulecast.export_observations("board", tmp_path / "x.csv", form="xml")
