"""Networks pruned by four guides, on a simulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest

import joulecast
from joulecast.errors import FileError, InputError
from joulecast.uses.reproduce import (
    HELD,
    NOT_HELD,
    ObservationFile,
    PaperSettings,
    ResultFolder,
    pruned_networks,
)
from joulecast.uses.reproduce.pruned_seeds import UNPRUNED, find_seed
from uses.reproduce.conftest import DEVICE


@pytest.fixture(scope="module")
def pruned(tiny, tmp_path_factory):
    """Return the folder of the experiment."""
    folder = tmp_path_factory.mktemp("pruned")
    joulecast.reproduce("fig13", on=DEVICE, out=str(folder), quick=True)
    return folder


def read_observations(folder):
    return ObservationFile(folder / "observations.jsonl").list_all()


def count_lines(folder):
    return len((folder / "observations.jsonl").read_bytes().splitlines())


def test_every_guide_has_a_measured_network(pruned):
    result = ResultFolder(pruned).find_result("fig13")
    rows = result.numbers["rows"]
    assert list(rows) == [
        UNPRUNED,
        "random, subtractive",
        "random, additive",
        "marginal, additive",
        "random, FLOPs",
    ]
    seeds = result.numbers["seeds"]
    assert seeds == pruned_networks.find_study(PaperSettings(is_quick=True)).seeds
    assert rows[UNPRUNED]["shares"] == [1.0] * seeds
    for name, row in rows.items():
        assert len(row["shares"]) == seeds and row["losses"]
        assert name == UNPRUNED or 0.1 < row["mean_share"] < 0.95
    assert rows["marginal, additive"]["mean_share"] < rows["random, FLOPs"]["mean_share"]
    assert result.numbers["faces"] == "drawn faces"
    assert any("did not learn" in note for note in result.notes)
    assert (pruned / "fig13.svg").exists()


def test_estimates_meet_the_budget_and_no_estimator_saw_a_measured_network(pruned):
    seen = read_observations(pruned)
    campaigns = [f"reproduce.fig13.{name}" for name in ("subtractive", "additive")]
    known = {one.trial.network for one in seen if one.run in campaigns}
    measured = [one.trial.network for one in seen if one.run == "reproduce.fig13.1"]
    whole, *others = find_seed(pruned, 1).networks.values()
    assert len(known) > 30 and len(measured) == 5 and whole.network in measured
    assert known.isdisjoint(one.network for one in others)
    assert all(one.estimated_share <= 0.5 for one in others)


def test_a_seed_is_trained_once(pruned, monkeypatch):
    before, seed = count_lines(pruned), (pruned / "fig13-seed-1.json").read_bytes()
    monkeypatch.setattr(pruned_networks, "prune_seed", lambda *_: pytest.fail("trained again"))
    joulecast.reproduce("fig13", on=DEVICE, out=str(pruned), quick=True)
    assert count_lines(pruned) == before
    assert (pruned / "fig13-seed-1.json").read_bytes() == seed


def test_a_folder_belongs_to_its_images_and_algorithm(pruned, tmp_path):
    options = {"on": DEVICE, "out": str(pruned), "quick": True}
    with pytest.raises(InputError, match="trained on drawn faces: give the same --celeba"):
        joulecast.reproduce("fig13", celeba=str(tmp_path), **options)
    with pytest.raises(InputError, match="results without --faithful"):
        joulecast.reproduce("fig13", faithful=True, **options)


def test_time_that_is_spent_starts_no_seed(tiny, tmp_path):
    """The campaigns alone take longer; what they measured is kept."""
    options = {"on": DEVICE, "out": str(tmp_path), "quick": True}
    outcome = joulecast.reproduce("fig13", until_s=3.0, **options)
    assert not outcome.is_complete and count_lines(tmp_path) > 0
    assert not list(tmp_path.glob("fig13-seed-*.json"))
    assert "no pruned network was measured" in outcome.results[0].finding


def test_damaged_seeds_are_named(pruned, tmp_path):
    (tmp_path / "fig13-seed-1.json").write_text("{")
    with pytest.raises(FileError, match=r"fig13-seed-1.json is not JSON.*train it again"):
        find_seed(tmp_path, 1)
    assert find_seed(tmp_path, 2) is None


@pytest.mark.parametrize(
    ("paper", "flops", "lost", "verdict"),
    [
        (0.49, 0.9, 0.4, HELD),
        (0.49, 0.9, None, HELD),
        (0.51, 0.9, 0.4, NOT_HELD),
        (0.49, 0.45, 0.4, NOT_HELD),
        (0.49, 0.9, 1.5, NOT_HELD),
    ],
)
def test_the_criterion_needs_budget_accuracy_and_a_miss_of_flops(paper, flops, lost, verdict):
    rows = ({"mean_share": paper, "mean_accuracy_points_lost": lost}, {"mean_share": flops})
    assert pruned_networks.judge(*rows) == verdict


def test_faithful_experiments_use_the_estimator_without_deviations():
    settings = PaperSettings(is_faithful=True)
    assert next(iter(pruned_networks.list_guides(settings))) == "random, ampere"
    plan = settings.get_family("cnn5").make_plan()
    assert "ampere" in plan.estimators and "subtractive" not in plan.estimators
    assert settings.paper_options != replace(settings, is_faithful=False).paper_options


def test_faithful_guided_points_start_at_both_bounds(tiny, tmp_path):
    """One curve after the other: the output layer's points come first."""
    folder = tmp_path / "faithful"
    outcome = joulecast.reproduce("fig4", on=DEVICE, out=str(folder), quick=True, faithful=True)
    (result,) = outcome.results
    assert result.numbers["is_faithful"]
    channels = [point["channels"] for point in result.numbers["points"]]
    assert sorted(channels[:2]) == [min(channels), max(channels)] == [1, 64]
    seen = [one for one in read_observations(folder) if one.trial.network.layers]
    assert seen and all(one.measured_steps >= 500 for one in seen)
