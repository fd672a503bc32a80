"""Experiments of the AMPERE paper run, resume, are drawn again, and refuse in one line."""

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import FileError, InputError, MissingError, OutOfMemoryError
from papers.ampere import experiment, layers, networks, pruning, report
from papers.ampere.__main__ import NOT_COMPLETE, main
from papers.ampere.experiment import (
    AMPERE,
    FLOPS,
    HELD,
    OURS,
    TABLE,
    UNTESTED,
    Findings,
    Result,
    Settings,
)
from papers.ampere.faces import FaceTrainer, draw_faces, read_celeba
from papers.ampere.lab import Folder
from papers.ampere.run import EXPERIMENTS, draw, find_experiments, plan, run

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "paper"
QUICK = {"on": "simulated:7", "quick": True}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the folder of two experiments on a simulated device, and their outcome."""
    folder = tmp_path_factory.mktemp("ampere") / "out"
    return folder, run("fig2", "fig4", **QUICK, out=folder)


@pytest.fixture
def copy(measured, tmp_path):
    return shutil.copytree(measured[0], tmp_path / "copy")


def test_experiments_have_verdicts_pictures_and_a_page(measured):
    folder, outcome = measured
    assert outcome.is_complete and not outcome.failures
    page = (folder / "summary.md").read_text()
    for one in outcome.results:
        assert one.verdict != UNTESTED and one.finding in page and one.statement in page
        assert "(simulated)" in (folder / f"{one.name}.svg").read_text()
        assert Folder(folder).find(Result, one.name) == one


def test_a_killed_run_continues_and_a_complete_one_measures_nothing(measured, copy):
    path, lines = copy / "observations.jsonl", (measured[0] / "observations.jsonl").read_bytes()
    own = [line for line in lines.splitlines(True) if b'"run":"reproduce.fig2' in line]
    # As if the process had been killed while it wrote its fourth observation.
    path.write_bytes(b"".join(own[:3]) + own[3][:100])
    run("fig2", **QUICK, out=copy, measure_only=True)
    kept = path.read_bytes()
    assert kept.startswith(b"".join(own[:3])) and len(kept.splitlines()) == len(own)
    run("fig2", **QUICK, out=copy, measure_only=True)
    assert path.read_bytes() == kept


def test_a_folder_is_drawn_again_without_its_device(measured, copy, monkeypatch):
    folder, outcome = measured
    monkeypatch.delattr(SimulatedRuntime, "prepare")
    path = copy / "observations.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    (copy / "observations.jsonl.xz").write_bytes(lzma.compress(b"".join(lines[:-5])))
    path.write_bytes(b"".join(lines[-5:]))
    (copy / "fig4.svg").unlink()
    assert run("fig2", "fig4", out=copy, redraw=True).results == outcome.results
    assert (copy / "fig4.svg").read_bytes() == (folder / "fig4.svg").read_bytes()


def test_kept_results_can_be_read_and_drawn_beside_others(tmp_path):
    for kept, *names in (("fig13", "fig13"), ("faithful", "fig4"), ("results", "fig2", "fig5")):
        there = shutil.copytree(KEPT / kept, tmp_path / kept)
        for again in run(*names, out=there, redraw=True, beside=[KEPT / "cpu"]).results:
            before = Folder(KEPT / kept).find(Result, again.name)
            assert (again.verdict, again.finding) == (before.verdict, before.finding)
    results = [Folder(KEPT / "results").find(Result, name) for name in ("fig11", "fig12")]
    files = draw(results, Folder(tmp_path), [Folder(KEPT / "cpu")])
    name = Folder(KEPT / "cpu").read_identity().device.name
    assert all(name in path.read_text() for path in files[:2])


def test_spent_time_ends_a_run_and_the_next_one_continues(tmp_path, capsys):
    words = ["fig5", "--on", "simulated:7", "--quick", "--out", str(tmp_path / "out"), "--json"]
    assert main([*words, "--until-s", "4"]) == NOT_COMPLETE
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["verdict"] == UNTESTED and not (tmp_path / "out" / "fig5.svg").exists()
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["is_complete"] and data["results"][0]["verdict"] == HELD
    assert len((tmp_path / "out" / "observations.jsonl").read_bytes().splitlines()) == 12


def test_refused_trials_are_noted_and_not_tried_again(tmp_path, monkeypatch):
    prepare, tried = SimulatedRuntime.prepare, []

    def refuse_deep(self, trial):
        tried.append(len(trial.network.layers))
        if tried[-1] == 6:
            raise OutOfMemoryError("it does not fit")
        return prepare(self, trial)

    monkeypatch.setattr(SimulatedRuntime, "prepare", refuse_deep)
    outcome = run("fig2", **QUICK, out=tmp_path)
    assert outcome.failures == ("input, 4 hidden, output: it does not fit",)
    assert outcome.results[0].numbers["stacks"][0]["counts"] == [0, 1, 2, 3]
    tried.clear()
    assert run("fig2", **QUICK, out=tmp_path).failures == () and 6 not in tried


def test_faithful_points_start_at_both_bounds_with_500_steps(tmp_path):
    (result,) = run("fig4", **QUICK, out=tmp_path, faithful=True).results
    channels = [point["channels"] for point in result.numbers["points"]]
    assert result.numbers["is_faithful"] and sorted(channels[:2]) == [1, 64]
    seen = Folder(tmp_path).observations
    assert all(one.measured_steps >= 500 for one in seen if one.trial.network.layers)
    assert "ampere" in Settings(is_faithful=True).plan_family("cnn5").estimators


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name at least one experiment"),
        (("fig77",), "did you mean fig7"),
        (("everything-else",), "choose from fig2"),
        (("fig5", "--redraw"), "holds no measurements"),
        (("fig5", "--beside", "nothing", "--on", "simulated:7"), "nothing holds no measurements"),
        (("fig5", "--out", "file"), "file is a file"),
        (("fig5", "--redraw", "--measure-only"), "give one of them"),
        (("fig5", "--until-s", "0"), "until_s is 0"),
        (("fig2", "--on", "gpu7", "--dry-run"), "there is no device 'gpu7'"),
        (("fig5", "--on", "simulated:8", "--quick", "--out", "OUT"), "simulated-8"),
        (("fig5", "--on", "simulated:7", "--out", "OUT"), "with --quick, not no --quick"),
        (("fig5", "--on", "simulated:7", "--quick", "--faithful", "--out", "OUT"), "--faithful"),
    ],
)
def test_refusals_are_one_line(measured, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    assert main([str(measured[0]) if word == "OUT" else word for word in words]) == 1
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_dry_run_lists_shared_work_once(capsys):
    assert main(["all", "--on", "cuda:0", "--dry-run", "--json"]) == 0
    works = json.loads(capsys.readouterr().out)
    names = [work["name"] for rows in works.values() for work in rows]
    assert list(works) == list(EXPERIMENTS) and len(names) == len(set(names))
    assert works["fig7"] == works["table1"] == []
    alone = plan(find_experiments(["fig7"]), Settings(is_gpu=True))
    assert "100 test networks, 25 of them twice" in alone["fig7"][0].name


def test_damaged_files_are_named(tmp_path):
    for text in (b'{"trial": 3}\n', b"nonsense\n{}\n"):
        (tmp_path / "observations.jsonl").write_bytes(text)
        with pytest.raises(FileError, match="line 1 of"):
            Folder(tmp_path).load_observations()
    (tmp_path / "fig13-seed-1.json").write_text("{")
    with pytest.raises(FileError, match=r"fig13-seed-1.json is not JSON"):
        Folder(tmp_path).find(pruning.PrunedSeed, "fig13-seed-1")


def make_nets(*errors: tuple[float, float]) -> list[dict]:
    """Return networks of 1 J with the errors of FLOPs and of AMPERE as shares."""
    return [
        {
            "name": f"net {at}",
            "flops": at,
            "depth": 10 * at,
            "duration_s": 1.0 + at,
            "measured_j": 1.0,
            "estimates_j": {FLOPS: 1.0 + flops, AMPERE: 1.0 + ampere, OURS: 1.01},
        }
        for at, (flops, ampere) in enumerate(errors, start=1)
    ]


def make_surface(bend: float, error: float, size_j: float = 1.0) -> dict:
    grid = [(float(a), float(b)) for a in (1, 8, 32, 64) for b in (1, 16, 64, 128)]
    points = [(w, size_j * (1.0 + 0.1 * w[0] + bend * w[0] * w[1])) for w in grid]
    rows = [{"widths": w, "measured_j": j, "predicted_j": j * (1 + error)} for w, j in points]
    return {"label": "surface", "profiled": rows, "tests": rows[::3]}


def make_times(seconds: float) -> dict:
    row = {"profiling_s": seconds, "fitting_s": 0.5, "points": 40, "is_known": True}
    return {name: {AMPERE: row, OURS: row} for name in networks.PAPER_FAMILIES}


FAMILIES = [{n: {"nets": make_nets((0.4, e))} for n in networks.PAPER_FAMILIES} for e in (0.1, 0.2)]
FLAT = (0.05, 0.02, 0.06, 0.01, 0.05, 0.03)
CRITERIA = [
    (networks.judge_fig7, make_nets(*((0.3 - 0.06 * i, 0.05) for i in range(12))), True),
    (networks.judge_fig7, make_nets(*((0.06 * i - 0.3, 0.05) for i in range(12))), False),
    (networks.judge_fig7, make_nets(*((0.3 - 0.06 * i, 0.2) for i in range(12))), False),
    (networks.judge_fig7, make_nets((0.3, 0.1)), None),
    (networks.judge_fig8, FAMILIES[0], True),
    (networks.judge_fig8, FAMILIES[1], False),
    (networks.judge_fig8, {}, None),
    (networks.judge_fig9, make_nets(*[(0.4, 0.1)] * 4), True),
    # A lower mean by one network alone is not consistent.
    (networks.judge_fig9, make_nets(*[(0.1, 0.2)] * 3, (3.0, 0.2)), False),
    (networks.judge_fig9, make_nets((0.4, 0.1)), None),
    (networks.judge_fig10, make_nets(*((0.4, error) for error in FLAT)), True),
    (networks.judge_fig10, make_nets(*((0.4, 0.01 * i) for i in range(6))), False),
    (networks.judge_fig10, make_nets(*((0.01, error) for error in FLAT)), False),
    (networks.judge_fig10, [], None),
    (networks.judge_table1, make_times(900.0), True),
    (networks.judge_table1, make_times(1200.0), False),
    (networks.judge_table1, {}, None),
    (layers.judge_fig11, [make_surface(0.02, 0.05), make_surface(0.02, 0.2)], True),
    (layers.judge_fig11, [make_surface(0.02, 0.2), make_surface(0.02, 0.05)], False),
    (layers.judge_fig11, [make_surface(0.0, 0.05), make_surface(0.02, 0.2)], False),
    (layers.judge_fig12, [make_surface(0.02, 0.05, 10.0), make_surface(0.02, 0.2)], True),
    (layers.judge_fig12, [make_surface(0.02, 0.05, 0.1), make_surface(0.02, 0.2)], False),
]


@pytest.mark.parametrize(("judge", "numbers", "has_held"), CRITERIA)
def test_every_criterion_can_hold_and_can_fail(judge, numbers, has_held):
    if has_held is None:
        with pytest.raises(MissingError):
            judge(numbers)
    else:
        assert judge(numbers).has_held == has_held


def test_budget_accuracy_and_a_miss_of_flops_decide_fig13():
    def judge(paper, flops, lost):
        row = {"mean_share": paper, "mean_accuracy_points_lost": lost}
        return pruning.has_held(row, {"mean_share": flops})

    assert judge(0.49, 0.9, 0.4) and judge(0.49, 0.9, None)
    assert not (judge(0.51, 0.9, 0.4) or judge(0.49, 0.45, 0.4) or judge(0.49, 0.9, 1.5))
    assert Findings(True, {}, measured=(1, 4, "seeds")).judge(TABLE["fig5"])[0] == UNTESTED
    names = ("resnet18", "resnet50", "resnet50:64,3,4,23,3", "resnet34:64,1,1,1,1")
    assert list(map(networks.count_depth, names)) == [18, 50, 101, 10]


def test_a_network_on_faces_is_pruned_by_every_guide(tmp_path, monkeypatch):
    pytest.importorskip("torch_pruning")
    sizes = experiment.SIZES["faces"]
    monkeypatch.setitem(sizes, "small_quick", {**sizes["small_quick"], "seeds": 1})
    (result,) = run("fig13", **QUICK, out=tmp_path).results
    rows = result.numbers["rows"]
    assert list(rows)[1:] == list(pruning.list_guides(Settings()))
    assert all(0.1 < row["mean_share"] <= 1.0 and row["losses"] for row in rows.values())
    before = (tmp_path / "observations.jsonl").read_bytes()
    monkeypatch.setattr(pruning, "prune_seed", lambda *_: pytest.fail("trained again"))
    run("fig13", **QUICK, out=tmp_path)
    assert (tmp_path / "observations.jsonl").read_bytes() == before
    with pytest.raises(InputError, match="trained on drawn faces: give the same --celeba"):
        run("fig13", **QUICK, out=tmp_path, celeba="x")


def test_faces_come_from_a_seed_or_from_celeba(tmp_path):
    images, labels = draw_faces(32)(64, torch.Generator().manual_seed(3))
    again, _ = draw_faces(32)(64, torch.Generator().manual_seed(3))
    assert torch.equal(images, again) and set(labels.tolist()) == {0, 1}
    study = pruning.find_study(Settings(is_quick=True))
    tiny = replace(study, widths=(4, 8, 8, 16), train_batch=32, steps=(40, 10, 20), test_batches=4)
    trained = FaceTrainer(replace(tiny, learning_rate=0.05)).train(1)
    assert [step for step, *_ in trained.tests] == [20, 40]
    assert trained.tests[-1][1] < 0.66, "below that of guessing, 0.69"
    with pytest.raises(FileError, match="give the folder of CelebA"):
        read_celeba(tmp_path, 16)
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "img_align_celeba").mkdir()
    for name, colour in (("1.jpg", "red"), ("2.jpg", "blue")):
        image.new("RGB", (178, 218), colour).save(tmp_path / "img_align_celeba" / name)
    rows = "2\n5_o_Clock_Shadow Male\n1.jpg -1 1\n2.jpg -1 -1\n"
    (tmp_path / "list_attr_celeba.txt").write_text(rows)
    images, labels = read_celeba(tmp_path, 16)(40, torch.Generator().manual_seed(0))
    assert torch.equal((images[:, 0] > images[:, 2]).all(1).all(1).long(), labels)


def test_the_page_of_the_docs_has_all_results(tmp_path):
    page = tmp_path / "paper.md"
    page.write_text(f"before\n{report.BEGIN}\nstale\n{report.END}\nafter\n")
    report.main([str(KEPT / "results"), str(KEPT / "fig13")], page)
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "stale" not in text
    assert all(f"### {'Table 1' if n == 'table1' else f'Fig. {n[3:]}'}: " in text for n in TABLE)
    assert text.count("Measured on another unit") == 1
