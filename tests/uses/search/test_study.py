"""Searches: every trained network is within the budget, with any sampler."""

from __future__ import annotations

import importlib
import json
import logging
import random
import sys
from dataclasses import replace

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.budgets import RunLength, parse_budget
from joulecast.errors import InputError, MissingError, NetError, StoreError
from joulecast.estimators import find_estimator
from joulecast.families import FAMILIES
from joulecast.fronts import find_front
from joulecast.records import Network, Setup
from joulecast.testing.estimators import make_observations
from joulecast.uses.search import (
    Choice,
    NumberRange,
    SearchOptions,
    hide_password,
    make_screener,
    make_search_space,
    parse_dimension,
    screen_randomly,
)
from joulecast.uses.search.screening_sampler import ScreeningSampler
from joulecast.uses.search.search_plot import draw_search
from joulecast.uses.search.study import search, summarise_study

SETUP = Setup(batch=32)
LENGTH = RunLength(100)
PARAMS = ("c1", "c2", "c3", "c4")
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def make_cnn_screener(cnn_profile):
    def make(budget, confidence=0.9, length=LENGTH, **vary):
        space = make_search_space("cnn5", SETUP, vary, (3, 32, 32))
        limit = parse_budget(budget, length)
        return make_screener(cnn_profile, space, limit, length, confidence=confidence)

    return make


def width_score(net: Network, trial: optuna.Trial) -> float:
    """Return the sum of widths: the score that conflicts most with the budget."""
    return float(sum(trial.params[name] for name in PARAMS))


def run_search(screener, score=width_score, **options):
    return search(screener, score, SearchOptions(**options))


# ---------------------------------------------------------------------------------------------
# Spaces


def test_default_space_is_the_whole_family():
    space = make_search_space("cnn5")
    original = FAMILIES["cnn5"].params
    assert {name: one.bounds for name, one in space.dimensions.items()} == {
        name: (1, most) for name, most in original.items()
    }
    assert space.original[0].name == "cnn5:64,128,256,512"
    assert make_search_space("transformer").dimensions["width"] == NumberRange(4, 256, 4)


@given(st.integers(0, 2**32), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=40, deadline=None)
def test_every_draw_can_be_built(seed, family):
    vary = {
        "batch": (8, 16),
        "precision": ("fp32", "bf16"),
        "lr": NumberRange(1e-4, 1e-1, log=True),
    }
    space = make_search_space(family, vary=vary)
    params = space.draw(random.Random(seed))
    network, setup = space.build(params)
    assert network.layers and setup.batch == params["batch"]
    assert setup.precision == params["precision"] and 1e-4 <= params["lr"] <= 1e-1


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9), st.data())
def test_range_respects_bounds_and_step(low, extra, step, data):
    one = NumberRange(low, low + extra, step)
    first, last = one.bounds
    value = one.draw(random.Random(data.draw(st.integers(0, 99))))
    assert low == first <= value <= last <= low + extra < last + step
    assert (value - low) % step == 0
    shrunk = one.shrink(value, data.draw(st.floats(0, 1)))
    assert low <= shrunk <= value and (shrunk - low) % step == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c1=8..64", ("c1", NumberRange(8, 64))),
        ("c1=8..64/8", ("c1", NumberRange(8, 64, 8))),
        (" lr = 1e-4..0.1/log", ("lr", NumberRange(1e-4, 0.1, log=True))),
        ("batch=16,32", ("batch", Choice((16, 32)))),
        ("optimizer=sgd", ("optimizer", Choice(("sgd",)))),
    ],
)
def test_parse_dimension(text, expected):
    assert parse_dimension(text) == expected


@pytest.mark.parametrize("name", ["C1", "c5", "c_1", "batchsize", "Precision", "threads", "loss"])
def test_misspelt_name_is_rejected(name):
    for trains in (True, False):
        with pytest.raises(InputError, match=name):
            make_search_space("cnn5", vary={name: (8, 16)}, trains=trains)


def test_unknown_names_need_a_training_function():
    for name in ("lr", "momentum", "weight_decay", "dropout", "label_smoothing"):
        assert name in make_search_space("cnn5", vary={name: (1, 2)}).dimensions
        with pytest.raises(InputError, match=f"{name!r} is not a parameter of cnn5"):
            make_search_space("cnn5", vary={name: (1, 2)}, trains=False)


@pytest.mark.parametrize("text", ["lr=nan..1", "lr=0.1..inf", "lr=-inf..1", "lr=nan,1", "lr=inf"])
def test_infinite_values_are_rejected(text):
    with pytest.raises(InputError, match="finite"):
        parse_dimension(text)


@pytest.mark.parametrize(
    "text", ["c1", "c1=", "=3", "c1=8..x", "c1=8..64/x", "c1=9..3", "c=0..3/log"]
)
def test_malformed_dimension_is_rejected(text):
    with pytest.raises(InputError):
        parse_dimension(text)


@pytest.mark.parametrize(
    "vary",
    [{"c1": (0, 4)}, {"c1": NumberRange(0.5, 4)}, {"precision": ("fp8",)}, {"batch": ("x",)}],
)
def test_impossible_values_are_rejected(vary):
    with pytest.raises(InputError):
        make_search_space("cnn5", vary=vary)


# ---------------------------------------------------------------------------------------------
# Screening


def test_screened_candidate_has_the_estimate(make_cnn_screener):
    screener = make_cnn_screener("50%")
    rng = random.Random(1)
    drawn = [screener.space.draw(rng) for _ in range(20)]
    candidates = screener.screen(drawn)
    for params, candidate in zip(drawn, candidates, strict=True):
        alone = screener.screen([params])[0]
        assert candidate.energy_j == pytest.approx(alone.energy_j)
        assert candidate.energy_j == pytest.approx(100 * candidate.estimate.energy_j)
        assert candidate.interval_j[0] < candidate.energy_j < candidate.interval_j[1]
        assert candidate.is_within_budget == (candidate.budget_probability >= 0.9)
        assert candidate.budget_probability == pytest.approx(alone.budget_probability, abs=1e-6)


def test_budget_per_run_equals_budget_per_step(make_cnn_screener):
    rng = random.Random(2)
    run = make_cnn_screener("20J")
    drawn = [run.space.draw(rng) for _ in range(20)]
    step = make_cnn_screener("0.2J/step")
    assert [one.budget_probability for one in run.screen(drawn)] == pytest.approx(
        [one.budget_probability for one in step.screen(drawn)]
    )
    assert run.compute_run_limit_j(100) == pytest.approx(step.compute_run_limit_j(100))


def test_higher_confidence_admits_fewer_candidates(make_cnn_screener):
    counts = [
        sum(
            one.is_within_budget
            for one in screen_randomly(make_cnn_screener("50%", confidence), 200, 3).candidates
        )
        for confidence in (0.1, 0.5, 0.99)
    ]
    assert counts[0] >= counts[1] >= counts[2] and counts[0] > counts[2]


def test_confidence_must_be_a_probability(make_cnn_screener):
    for confidence in (0.0, 1.0, 90.0):
        with pytest.raises(InputError, match="give a probability"):
            make_cnn_screener("50%", confidence)


def test_original_exceeds_half_of_itself(make_cnn_screener):
    screener = make_cnn_screener("50%")
    largest = {name: one.bounds[1] for name, one in screener.space.dimensions.items()}
    assert screener.screen([largest])[0].budget_probability < 1e-6
    network, setup = screener.space.original
    original = screener.fitted_profile.estimate([network], setup)[0]
    assert screener.limit_j == pytest.approx(50 * original.energy_j)


def test_random_screening_reports_size_and_not_quality(make_cnn_screener):
    found = screen_randomly(make_cnn_screener("50%"), 100, 5)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["screened"] == 100 and data["provenance"] == "simulated"
    assert data["within_budget"] == len(found.within_budget)
    assert {"parameters", "budget_probability", "interval_j"} <= set(data["candidates"][0])
    assert not any("score" in one or "quality" in one for one in data["candidates"])
    assert screen_randomly(make_cnn_screener("50%"), 100, 5).candidates == found.candidates


# ---------------------------------------------------------------------------------------------
# Searching


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
    picture = draw_search(found)
    assert "simulated" in picture.heading and "budget" in picture.series


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
        budget = parse_budget("50%", LENGTH)
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


def test_password_is_hidden():
    url = "postgresql://me:secret@host:5432/db"
    assert hide_password(url) == "postgresql://me:***@host:5432/db"
    assert hide_password("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"


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
