"""Experiments of the paper run, resume, and are drawn again, all on a simulated device."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import joulecast
from joulecast.errors import BudgetSpentError, FileError, InputError, MissingError
from joulecast.records import Setup, Trial
from joulecast.uses.reproduce import (
    EXPERIMENTS,
    UNTESTED,
    VERDICTS,
    BudgetedMeasurer,
    ExperimentResult,
    ObservationFile,
    PaperSettings,
    ResultFolder,
    draw_results,
    find_experiments,
    plan_experiments,
)
from joulecast.uses.reproduce.small_networks import make_stack
from joulecast.uses.reproduce.stacked_layers import ROLE, STACKED_LAYERS
from uses.reproduce.conftest import DEVICE


def count_lines(folder: Path) -> int:
    return len((folder / "observations.jsonl").read_bytes().splitlines())


def test_every_experiment_has_a_verdict_numbers_and_a_picture(reproduced):
    folder, outcome = reproduced
    assert outcome.is_complete and not outcome.failures
    assert [one.name for one in outcome.results] == list(EXPERIMENTS)
    for one in outcome.results:
        assert one.verdict in VERDICTS and one.verdict != UNTESTED, one.finding
        assert one.provenance == "simulated" and one.is_quick and one.date
        assert any(letter.isdigit() for letter in one.finding)
        svg = (folder / f"{one.name}.svg").read_text()
        assert "(simulated)" in svg, "the title says that nothing was measured"
    page = (folder / "summary.md").read_text()
    for one in outcome.results:
        assert f"![{one.title}]({one.name}.svg)" in page and one.finding in page
        assert one.statement in page and one.criterion in page


def test_results_are_the_same_after_json(reproduced):
    folder, outcome = reproduced
    for one in outcome.results:
        data = json.loads((folder / f"{one.name}.json").read_text())
        assert ExperimentResult.from_dict(data) == one
        assert ResultFolder(folder).find_result(one.name) == one


def test_the_same_command_measures_nothing_again(reproduced):
    folder, outcome = reproduced
    before = (folder / "observations.jsonl").read_bytes()
    again = joulecast.reproduce(["fig2", "fig4", "fig6"], on=DEVICE, out=str(folder), quick=True)
    assert (folder / "observations.jsonl").read_bytes() == before
    assert {one.name: one.finding for one in again.results}.items() <= {
        one.name: one.finding for one in outcome.results
    }.items()


def test_a_folder_is_drawn_again_without_its_device(reproduced, monkeypatch, tmp_path):
    folder, outcome = reproduced
    copy = shutil.copytree(folder, tmp_path / "copy")
    for path in [*copy.glob("*.svg"), *copy.glob("fig*.json"), copy / "summary.md"]:
        path.unlink()
    monkeypatch.delattr("joulecast.runtimes.simulated.SimulatedRuntime.prepare")
    names = ["fig2", "fig4", "fig5", "fig11"]
    again = joulecast.reproduce(names, out=str(copy), redraw=True)
    assert again.results == tuple(one for one in outcome.results if one.name in names)
    for name in names:
        assert (copy / f"{name}.svg").read_bytes() == (folder / f"{name}.svg").read_bytes()


def test_a_killed_run_continues_after_its_last_observation(reproduced, tmp_path):
    folder, _ = reproduced
    copy = shutil.copytree(folder, tmp_path / "copy")
    lines = (folder / "observations.jsonl").read_bytes().splitlines(keepends=True)
    own = [line for line in lines if b'"run":"reproduce.fig2"' in line]
    # As if the process had been killed while it wrote its fourth observation.
    (copy / "observations.jsonl").write_bytes(b"".join(own[:3]) + own[3][:100])
    joulecast.reproduce("fig2", on=DEVICE, out=str(copy), quick=True, measure_only=True)
    kept = (copy / "observations.jsonl").read_bytes().splitlines(keepends=True)
    assert kept[:3] == own[:3]
    fig2 = [line for line in lines if b'"run":"reproduce.fig2' in line]
    assert len(kept) == len(fig2)
    assert (copy / "fig2.svg").read_bytes() == (folder / "fig2.svg").read_bytes(), "not drawn"


def test_time_that_is_spent_ends_the_run_and_the_next_one_continues(tiny, tmp_path):
    folder = tmp_path / "out"
    options = {"on": DEVICE, "out": str(folder), "quick": True}
    first = joulecast.reproduce("fig5", until_s=4.0, **options)
    assert not first.is_complete
    (result,) = first.results
    assert result.verdict == UNTESTED and result.numbers == {}
    assert 0 < count_lines(folder) < 12 and not (folder / "fig5.svg").exists()
    second = joulecast.reproduce("fig5", **options)
    assert second.is_complete and count_lines(folder) == 12
    assert second.results[0].verdict != UNTESTED


def test_results_of_another_folder_are_drawn_beside(reproduced, tmp_path):
    folder, _ = reproduced
    other = shutil.copytree(folder, tmp_path / "other")
    for name in ("fig8", "fig11", "fig12"):
        result = ResultFolder(other).find_result(name)
        renamed = replace(result, device=replace(result.device, name="another"))
        ResultFolder(other).save_result(renamed)
    mine = shutil.copytree(folder, tmp_path / "mine")
    names = ["fig2", "fig8", "fig11", "fig12"]
    own = ResultFolder(mine)
    draw_results([own.find_result(name) for name in names], own, [ResultFolder(other)])
    for name in names[1:]:
        assert "another" in (mine / f"{name}.svg").read_text(), name
    assert "another" not in (mine / "fig2.svg").read_text()


def test_a_folder_belongs_to_one_device_and_one_size(tiny, tmp_path):
    folder = str(tmp_path / "out")
    joulecast.reproduce("fig5", on=DEVICE, out=folder, quick=True, until_s=1.0, measure_only=True)
    with pytest.raises(InputError, match=r"holds results of simulated-7 .*give another --out"):
        joulecast.reproduce("fig5", on="simulated:8", out=folder, quick=True)
    with pytest.raises(InputError, match="holds results with --quick"):
        joulecast.reproduce("fig5", on=DEVICE, out=folder)


def test_a_folder_of_a_run_that_measured_nothing_is_free(tiny, tmp_path):
    folder = str(tmp_path / "out")
    joulecast.reproduce("fig5", on=DEVICE, out=folder, quick=True, until_s=1e-9, measure_only=True)
    assert not ResultFolder(tmp_path / "out").observations.exists()
    joulecast.reproduce("fig5", on="simulated:8", out=folder, until_s=1.0, measure_only=True)
    assert ResultFolder(tmp_path / "out").read_identity().device.name == "simulated-8"


def test_nothing_is_drawn_from_a_folder_without_measurements(tmp_path):
    with pytest.raises(MissingError, match="holds no measurements: run `joulecast reproduce`"):
        joulecast.reproduce("fig5", out=str(tmp_path), redraw=True)
    with pytest.raises(MissingError, match="holds no measurements"):
        joulecast.reproduce("fig5", on=DEVICE, out=str(tmp_path), beside=(str(tmp_path / "no"),))


def test_compressed_observations_are_read_too(reproduced, tmp_path):
    folder, outcome = reproduced
    copy = shutil.copytree(folder, tmp_path / "copy")
    plain = copy / "observations.jsonl"
    lines = plain.read_bytes().splitlines(keepends=True)
    packed = copy / "observations.jsonl.gz"
    packed.write_bytes(gzip.compress(b"".join(lines[:-5])))
    plain.write_bytes(b"".join(lines[-5:]))
    assert ObservationFile(plain).list_all() == (
        ObservationFile(folder / "observations.jsonl").list_all()
    )
    (again,) = joulecast.reproduce("fig2", out=str(copy), redraw=True).results
    assert again == outcome.results[0]
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(FileError, match="is damaged"):
        ObservationFile(plain)


def test_damaged_lines_are_named(tiny, tmp_path):
    path = tmp_path / "observations.jsonl"
    path.write_bytes(b'{"trial": 3}\n')
    with pytest.raises(FileError, match="line 1 of"):
        ObservationFile(path)
    path.write_bytes(b"nonsense\n{}\n")
    with pytest.raises(FileError, match=r"line 1 of .* is damaged"):
        ObservationFile(path)


def test_refused_trials_are_noted_and_not_tried_again(tiny, tmp_path, monkeypatch):
    from joulecast.errors import OutOfMemoryError
    from joulecast.runtimes.simulated import SimulatedRuntime

    prepare = SimulatedRuntime.prepare
    tried = []

    def refuse_deep(self, trial):
        tried.append(len(trial.network.layers))
        if len(trial.network.layers) == 6:
            raise OutOfMemoryError("it does not fit")
        return prepare(self, trial)

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse_deep)
    options = {"on": DEVICE, "out": str(tmp_path / "out"), "quick": True}
    outcome = joulecast.reproduce("fig2", **options)
    assert outcome.failures == ("input, 4 hidden, output: it does not fit",)
    (stack,) = outcome.results[0].numbers["stacks"]
    assert stack["counts"] == [0, 1, 2, 3]
    tried.clear()
    assert joulecast.reproduce("fig2", **options).failures == ()
    assert 6 not in tried


def test_a_spent_budget_is_an_error_of_its_own():
    class Clock:
        def now(self):
            return 5.0

        def measure(self, trial):
            return trial

    trial = Trial(make_stack(0, 2), Setup())
    assert BudgetedMeasurer(Clock(), 6.0).measure(trial) == trial
    with pytest.raises(BudgetSpentError, match="run the same command"):
        BudgetedMeasurer(Clock(), 5.0).measure(trial)


def test_shared_work_is_planned_once():
    full = plan_experiments(find_experiments(["all"]), PaperSettings(is_gpu=True))
    names = [work.name for works in full.values() for work in works]
    assert len(names) == len(set(names)) and full["fig7"] == () and full["table1"] == ()
    alone = plan_experiments(find_experiments(["fig7"]), PaperSettings(is_gpu=True))
    assert sum(work.trials for work in alone["fig7"] if "test networks" in work.name) == 125
    seconds = {name: sum(work.seconds for work in works) for name, works in full.items()}
    assert seconds.pop("fig13") < 400, "pruning takes some six minutes of a GPU"
    assert sum(seconds.values()) < 1300, "everything else some twenty"


def test_stacks_differ_by_equal_layers():
    two, three = make_stack(2, 16), make_stack(3, 16)
    assert three.layers[1] == three.layers[2] == two.layers[1]
    assert [layer.name for layer in two.layers] == ["input", "hidden1", "hidden2", "output"]
    assert STACKED_LAYERS.name == ROLE
