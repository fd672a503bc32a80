"""Searches: every trained network is within the budget, with any sampler."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from dataclasses import replace

import optuna
import pytest

from joulecast.budgets import RunLength, parse_budget
from joulecast.errors import InputError, MissingError, NetError, StoreError
from joulecast.estimators import find_estimator
from joulecast.fronts import find_front
from joulecast.records import Network, Setup
from joulecast.testing.estimators import make_observations
from joulecast.uses.search import (
    NumberRange,
    SearchOptions,
    make_screener,
    make_search_space,
)
from joulecast.uses.search.screening_sampler import ScreeningSampler
from joulecast.uses.search.search_plot import plot_search
from joulecast.uses.search.study import search, summarise_study
from joulecast.views.plots import draw

SETUP = Setup(batch=32)
LENGTH = RunLength(100)
PARAMS = ("c1", "c2", "c3", "c4")
optuna.logging.set_verbosity(optuna.logging.WARNING)


def width_score(net: Network, trial: optuna.Trial) -> float:
    """Return the sum of widths: the score that conflicts most with the budget."""
    return float(sum(trial.params[name] for name in PARAMS))


def run_search(screener, score=width_score, **options):
    return search(screener, score, SearchOptions(**options))


@pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe"])
def test_trained_networks_are_within_the_budget(make_cnn_screener, sampler):
    screener = make_cnn_screener("40%", lr=NumberRange(1e-4, 1e-1, log=True))
    trained = []

    def score(net, trial):
        assert isinstance(net, Network)
        assert trial.user_attrs["within_budget"] and trial.user_attrs["budget_probability"] >= 0.9
        low, high = trial.user_attrs["interval_j"]
        assert low < trial.user_attrs["energy_j"] < high
        trained.append(net)
        return width_score(net, trial)

    found = run_search(screener, score, trials=25, sampler=sampler)
    assert len(found.trials) == len(trained) == 25 and found.pruned_count == found.failed_count == 0
    assert all(trial.candidate.is_within_budget for trial in found.trials)
    assert found.screened_count >= 25 + found.ruled_out_count > 25
    assert [trial.candidate.network for trial in found.trials] == trained


def test_front_is_marked(make_cnn_screener):
    found = run_search(make_cnn_screener("60%"), trials=30, sampler="random", seed=2)
    pairs = [(-trial.score, trial.candidate.energy_j) for trial in found.trials]
    assert tuple(trial.is_on_front for trial in found.trials) == find_front(pairs)
    best = max(found.trials, key=lambda trial: trial.score)
    assert best.is_on_front and best.front_probability > 0.5
    energies = [trial.candidate.energy_j for trial in found.front]
    scores = [trial.score for trial in found.front]
    assert energies == sorted(energies) and scores == sorted(scores)
    assert all(0 <= trial.front_probability <= 1 for trial in found.trials)
    data = json.loads(json.dumps(found.to_dict()))
    assert len(data["trials"]) == 30 and len(data["front"]) == len(found.front)
    plot = plot_search(found)
    labels = [one.get_text() for one in draw(plot).axes[0].get_legend().get_texts()]
    assert "simulated" in plot.title and "energy budget" in labels


def test_worse_trial_of_the_same_network_is_not_on_the_front(make_cnn_screener):
    """Only the learning rate varies: the energy is equal, and one score is best."""
    fixed = {
        "c1": (32,),
        "c2": (64,),
        "c3": (100,),
        "c4": (200, 190),
        "lr": NumberRange(0.001, 0.1),
    }
    screener = make_cnn_screener("90%", **fixed)
    found = run_search(screener, lambda net, trial: trial.params["lr"], trials=40, sampler="random")
    best = {}
    for trial in found.trials:
        name = trial.candidate.network.name
        best[name] = max(best.get(name, 0.0), trial.score)
    assert len(best) == 2 and len(found.trials) == 40
    for trial in found.trials:
        if trial.score < best[trial.candidate.network.name]:
            assert trial.front_probability == 0.0 and not trial.is_on_front
    assert max(found.trials, key=lambda trial: trial.score).front_probability == 1.0


def test_same_seed_gives_the_same_result(make_cnn_screener):
    runs = [run_search(make_cnn_screener("50%"), trials=8, seed=4) for _ in range(2)]
    assert runs[0].to_dict() == runs[1].to_dict()


def test_enqueued_trial_above_the_budget_is_pruned(make_cnn_screener):
    """It is pruned with the reason before anything is trained."""
    screener = make_cnn_screener("30%")
    storage = optuna.storages.InMemoryStorage()
    run_search(screener, trials=1, storage=storage, study="s")
    study = optuna.load_study(study_name="s", storage=storage)
    study.enqueue_trial({name: one.bounds[1] for name, one in screener.space.dimensions.items()})
    found = run_search(screener, trials=2, storage=storage, study="s")
    assert found.pruned_count == 1 and len(found.trials) == 2
    pruned = study.get_trials(states=(optuna.trial.TrialState.PRUNED,))[0]
    assert "would need" in pruned.user_attrs["reason"] and not pruned.user_attrs["within_budget"]
    assert study.user_attrs["joulecast"]["device"] == "test"
    assert summarise_study(study, screener).trials == found.trials


def test_stored_study_is_continued(make_cnn_screener, tmp_path):
    url = f"sqlite:///{tmp_path / 'search.db'}"
    for count in (3, 6):
        found = run_search(make_cnn_screener("50%"), trials=3, storage=url, study="mine")
        assert len(found.trials) == count
    names = [trial.candidate.network.name for trial in found.trials]
    assert len(set(names)) > 3
    with pytest.raises(InputError, match=r"other options \(steps 100, not 7\)"):
        run_search(make_cnn_screener("50%", length=RunLength(7)), storage=url, study="mine")


@pytest.mark.parametrize(
    ("change", "change_text"),
    [
        ({"setup": Setup(batch=64)}, "batch 32, not 64"),
        ({"setup": replace(SETUP, precision="bf16")}, "precision fp32, not bf16"),
        ({"setup": replace(SETUP, phase="inference")}, "phase train, not inference"),
        ({"estimator": "flops"}, "estimator additive, not flops"),
        ({"vary": {"batch": (16, 32)}}, "vary lr, not batch"),
        ({"vary": {}}, "vary lr, not none"),
    ],
)
def test_study_rejects_other_setups_and_estimators(cnn_profile, change, change_text):
    """Otherwise the energies of its earlier trials would change."""
    storage = optuna.storages.InMemoryStorage()
    flops = find_estimator("flops").fit(make_observations()).to_dict()
    profile = replace(cnn_profile, fits={**cnn_profile.fits, "flops": flops})

    def continue_study(setup=SETUP, estimator="additive", vary=None):
        dimensions = {"lr": NumberRange(0.001, 0.1)} if vary is None else vary
        space = make_search_space("cnn5", setup, dimensions, (3, 32, 32))
        budget = parse_budget("90%", LENGTH)
        screener = make_screener(profile, space, budget, LENGTH, estimator=estimator)
        return run_search(screener, trials=2, storage=storage, study="s")

    first = continue_study()
    with pytest.raises(InputError, match=f"other options .*{change_text}") as caught:
        continue_study(**change)
    assert "\n" not in str(caught.value)
    again = continue_study()
    for before, after in zip(first.trials, again.trials[:2], strict=True):
        assert after.candidate.params == before.candidate.params
        assert after.candidate.setup == before.candidate.setup
        # Estimated in batches of other sizes, energies may differ by rounding.
        assert after.candidate.energy_j == pytest.approx(before.candidate.energy_j, rel=1e-9)
        assert after.candidate.interval_j == pytest.approx(before.candidate.interval_j, rel=1e-9)


def test_bounds_and_budget_of_a_study_may_change(make_cnn_screener):
    storage = optuna.storages.InMemoryStorage()
    options = {"trials": 2, "storage": storage, "study": "s"}
    first = run_search(make_cnn_screener("50%"), **options)
    found = run_search(make_cnn_screener("40%", c1=NumberRange(8, 32)), **options)
    assert len(found.trials) == 4
    old = [trial.candidate.energy_j for trial in found.trials[:2]]
    assert old == pytest.approx([trial.candidate.energy_j for trial in first.trials])


def test_score_can_be_the_only_objective(make_cnn_screener):
    storage = optuna.storages.InMemoryStorage()

    def score(net, trial):
        trial.report(1.0, 0)
        assert trial.should_prune() in (True, False)
        if trial.number == 1:
            raise optuna.TrialPruned
        return width_score(net, trial)

    found = run_search(
        make_cnn_screener("50%"), score, trials=4, objective="score", storage=storage, study="s"
    )
    assert len(optuna.load_study(study_name="s", storage=storage).directions) == 1
    assert len(found.trials) == 3 and found.pruned_count == 1 and found.front


def test_training_function_can_suggest_hyper_parameters(make_cnn_screener):
    seen = []

    def score(net, trial):
        seen.append(trial.suggest_float("momentum", 0.1, 0.9))
        return seen[-1]

    found = run_search(make_cnn_screener("50%"), score, trials=6, sampler="tpe")
    assert len(set(seen)) > 3 and all(0.1 <= value <= 0.9 for value in seen)
    assert len(found.trials) == 6


def test_failures_are_reported(make_cnn_screener):
    screener = make_cnn_screener("50%")

    def nothing(net, trial):
        return float("nan") if trial.number else 1.0

    found = run_search(screener, nothing, trials=3)
    assert found.failed_count == 2 and len(found.trials) == 1

    def broken(net, trial):
        raise RuntimeError("out of\nluck")

    with pytest.raises(NetError, match="failed in trial 0: RuntimeError: out of luck"):
        run_search(screener, broken, trials=1)
    with pytest.raises(NetError, match="returned str"):
        run_search(screener, lambda net, trial: "good", trials=1)
    with pytest.raises(StoreError, match="cannot be used"):
        run_search(screener, storage="nowhere://x", trials=1)
    with pytest.raises(InputError, match="no sampler"):
        run_search(screener, sampler="dice", trials=1)
    with pytest.raises(InputError, match="unknown objective"):
        run_search(screener, objective="luck", trials=1)


def test_failure_logs_no_traceback(make_cnn_screener):
    """Optuna logs exceptions that it catches with their traceback."""
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append
    logging.getLogger("optuna").addHandler(handler)

    def broken(net, trial):
        if trial.number == 2:
            raise RuntimeError("out of luck")
        return 1.0

    storage = optuna.storages.InMemoryStorage()
    try:
        with pytest.raises(NetError, match="out of luck"):
            run_search(make_cnn_screener("50%"), broken, trials=9, storage=storage, study="s")
    finally:
        logging.getLogger("optuna").removeHandler(handler)
    assert not any(record.exc_info for record in heard)
    *trained, last = optuna.load_study(study_name="s", storage=storage).get_trials()
    assert len(trained) == 2 and last.state == optuna.trial.TrialState.FAIL
    assert "out of luck" in last.user_attrs["reason"]


def test_unreachable_budget_names_the_closest_network(make_cnn_screener):
    with pytest.raises(InputError, match=r"no candidate meets .* cnn5:.* comes closest"):
        run_search(make_cnn_screener("1nJ/step"), trials=1)


def test_sampler_above_the_budget_is_shrunk_into_it(make_cnn_screener):
    """The sampler always proposes the largest network, which shrinks until it fits."""
    screener = make_cnn_screener("40%")

    class Largest(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return param_distribution.high

    found = run_search(screener, trials=2, sampler=Largest())
    smallest = {name: one.bounds[0] for name, one in screener.space.dimensions.items()}
    assert found.pruned_count == 0 and all(
        trial.candidate.is_within_budget for trial in found.trials
    )
    assert all(dict(trial.candidate.params) != smallest for trial in found.trials)


def test_missing_optuna_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "joulecast.uses.search.screening_sampler")
    with pytest.raises(MissingError, match=r"pip install 'joulecast\[search\]'"):
        importlib.import_module("joulecast.uses.search.screening_sampler")


@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:s3cret@host:5432/db",
        "PostgreSQL://me:s3cret@host/db",
        "nosuch+driver://me:s3cret@host/db",
        "mysql://host/db?password=s3cret",
        "redis://:s3cret@host",
        "postgresql://me:s3cret@host:port/db",
        "postgresql://me:a@b:s3cret@host/db",
    ],
)
def test_errors_of_a_storage_hide_its_password(make_cnn_screener, url):
    with pytest.raises((StoreError, InputError), match=r"\*\*\*") as caught:
        run_search(make_cnn_screener("50%"), storage=url, trials=1)
    assert "s3cret" not in str(caught.value)


def test_calls_are_delegated_to_the_inner_sampler(make_cnn_screener):
    calls = []

    class Spy(optuna.samplers.RandomSampler):
        def before_trial(self, study, trial):
            calls.append("before")

        def after_trial(self, study, trial, state, values):
            calls.append("after")

        def reseed_rng(self):
            calls.append("reseed")

    sampler = Spy()
    run_search(make_cnn_screener("50%"), trials=1, sampler=sampler)
    ScreeningSampler(sampler, make_cnn_screener("50%")).reseed_rng()
    assert calls == ["before", "after", "reseed"]


def test_progress_is_reported_after_every_trial(make_cnn_screener):
    reports = []
    options = SearchOptions(trials=3)
    search(make_cnn_screener("50%"), width_score, options, on_progress=reports.append)
    assert [(report.done, report.total) for report in reports] == [(1, 3), (2, 3), (3, 3)]
