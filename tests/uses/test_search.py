"""Searching under a budget: what is trained keeps it, whoever proposes."""

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

from joulecast.errors import InputError, MissingError, NetError, StoreError
from joulecast.estimators import find_estimator
from joulecast.families import FAMILIES
from joulecast.fronts import find_front
from joulecast.records import Network, Setup
from joulecast.testing.estimators import make_observations
from joulecast.uses.search import (
    Choice,
    RunLength,
    NumberRange,
    hide_password,
    make_search_space,
    make_screener,
    parse_budget,
    parse_dimension,
    survey,
)
from joulecast.uses.search.search_plot import draw_search
from joulecast.uses.search.screening_sampler import ScreeningSampler
from joulecast.uses.search.study import search, summarise_study

SETUP = Setup(batch=32)
LENGTH = RunLength(100)
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def screen_of(cnn_profile):
    def make(budget, confidence=0.9, length=LENGTH, **vary):
        space = make_search_space("cnn5", SETUP, vary, (3, 32, 32))
        limit = parse_budget(budget, length)
        return make_screener(cnn_profile, space, limit, length, confidence=confidence)

    return make


def width_score(net: Network, trial: optuna.Trial) -> float:
    """More parameters, more score: pulls as hard against the budget as can be."""
    return float(sum(trial.params[name] for name in ("c1", "c2", "c3", "c4")))


# ---------------------------------------------------------------------------------------------
# Spaces and budgets


def test_a_space_is_the_family_by_default():
    space = make_search_space("cnn5")
    original = FAMILIES["cnn5"].params
    assert {name: one.ends for name, one in space.dimensions.items()} == {
        name: (1, most) for name, most in original.items()
    }
    assert space.original[0].name == "cnn5:64,128,256,512"
    assert make_search_space("transformer").dimensions["width"] == NumberRange(4, 256, 4)


@given(st.integers(0, 2**32), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=40, deadline=None)
def test_whatever_is_drawn_can_be_built(seed, family):
    vary = {"batch": (8, 16), "precision": ("fp32", "bf16"), "lr": NumberRange(1e-4, 1e-1, log=True)}
    space = make_search_space(family, vary=vary)
    params = space.draw(random.Random(seed))
    network, setup = space.build(params)
    assert network.layers and setup.batch == params["batch"]
    assert setup.precision == params["precision"] and 1e-4 <= params["lr"] <= 1e-1


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9), st.data())
def test_a_range_keeps_its_bounds_and_its_steps(low, extra, step, data):
    one = NumberRange(low, low + extra, step)
    first, last = one.ends
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
def test_dimensions_as_people_type_them(text, expected):
    assert parse_dimension(text) == expected


@pytest.mark.parametrize("name", ["C1", "c5", "c_1", "batchsize", "Precision", "threads", "loss"])
def test_a_misspelt_name_is_refused_and_not_ignored(name):
    for trains in (True, False):
        with pytest.raises(InputError, match=name):
            make_search_space("cnn5", vary={name: (8, 16)}, trains=trains)


def test_names_of_ones_own_are_for_training_functions():
    for name in ("lr", "momentum", "weight_decay", "dropout", "label_smoothing"):
        assert name in make_search_space("cnn5", vary={name: (1, 2)}).dimensions
        with pytest.raises(InputError, match=f"{name!r} is nothing of cnn5"):
            make_search_space("cnn5", vary={name: (1, 2)}, trains=False)


@pytest.mark.parametrize("text", ["lr=nan..1", "lr=0.1..inf", "lr=-inf..1", "lr=nan,1", "lr=inf"])
def test_what_is_not_finite_is_refused(text):
    with pytest.raises(InputError, match="finite"):
        parse_dimension(text)


@pytest.mark.parametrize(
    "text", ["c1", "c1=", "=3", "c1=8..x", "c1=8..64/x", "c1=9..3", "c=0..3/log"]
)
def test_a_dimension_that_says_nothing_is_refused(text):
    with pytest.raises(InputError):
        parse_dimension(text)


@pytest.mark.parametrize(
    "vary", [{"c1": (0, 4)}, {"c1": NumberRange(0.5, 4)}, {"precision": ("fp8",)}, {"batch": ("x",)}]
)
def test_a_dimension_that_cannot_be_is_refused(vary):
    with pytest.raises(InputError):
        make_search_space("cnn5", vary=vary)


# ---------------------------------------------------------------------------------------------
# Screening


def test_a_verdict_is_the_estimate(screen_of):
    screen = screen_of("50%")
    rng = random.Random(1)
    drawn = [screen.space.draw(rng) for _ in range(20)]
    verdicts = screen.judge(drawn)
    for params, verdict in zip(drawn, verdicts, strict=True):
        alone = screen.judge([params])[0]
        assert verdict.energy_j == pytest.approx(alone.energy_j)
        assert verdict.energy_j == pytest.approx(100 * verdict.estimate.energy_j)
        assert verdict.interval_j[0] < verdict.energy_j < verdict.interval_j[1]
        assert verdict.within == (verdict.chance >= 0.9)
        assert verdict.chance == pytest.approx(alone.chance, abs=1e-6)


def test_a_budget_of_a_run_is_one_of_its_steps(screen_of):
    rng = random.Random(2)
    run = screen_of("20J")
    drawn = [run.space.draw(rng) for _ in range(20)]
    step = screen_of("0.2J/step")
    assert [one.chance for one in run.judge(drawn)] == pytest.approx(
        [one.chance for one in step.judge(drawn)]
    )
    assert run.limit_total(100) == pytest.approx(step.limit_total(100))


def test_more_confidence_lets_fewer_through(screen_of):
    counts = [
        sum(one.within for one in survey(screen_of("50%", confidence), 200, 3).verdicts)
        for confidence in (0.1, 0.5, 0.99)
    ]
    assert counts[0] >= counts[1] >= counts[2] and counts[0] > counts[2]


def test_a_confidence_is_a_probability(screen_of):
    for confidence in (0.0, 1.0, 90.0):
        with pytest.raises(InputError, match="give a probability"):
            screen_of("50%", confidence)


def test_the_original_is_half_of_itself_never(screen_of):
    screen = screen_of("50%")
    largest = {name: one.ends[1] for name, one in screen.space.dimensions.items()}
    assert screen.judge([largest])[0].chance < 1e-6
    assert screen.limit_j == pytest.approx(
        50 * screen.opened.ask([screen.space.original]).each[0].energy_j
    )


def test_a_survey_ranks_by_size_and_never_by_quality(screen_of):
    found = survey(screen_of("50%"), 100, 5)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["screened"] == 100 and data["basis"] == "simulated"
    assert data["within_budget"] == len(found.fitting)
    assert {"parameters", "chance", "interval_j"} <= set(data["candidates"][0])
    assert not any("score" in one or "quality" in one for one in data["candidates"])
    assert survey(screen_of("50%"), 100, 5).verdicts == found.verdicts


# ---------------------------------------------------------------------------------------------
# Searching


@pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe"])
def test_whatever_is_trained_keeps_the_budget(screen_of, sampler):
    screen = screen_of("40%", lr=NumberRange(1e-4, 1e-1, log=True))
    trained = []

    def score(net, trial):
        assert isinstance(net, Network)
        assert trial.user_attrs["within_budget"] and trial.user_attrs["chance"] >= 0.9
        low, high = trial.user_attrs["interval_j"]
        assert low < trial.user_attrs["energy_j"] < high
        trained.append(net)
        return width_score(net, trial)

    found = search(screen, score, trials=25, sampler=sampler)
    assert len(found.points) == len(trained) == 25 and found.pruned == found.failed == 0
    assert all(point.verdict.within for point in found.points)
    assert found.screened >= 25 + found.ruled_out > 25
    assert [point.verdict.network for point in found.points] == trained


def test_the_front_is_the_front(screen_of):
    found = search(screen_of("60%"), width_score, trials=30, sampler="random", seed=2)
    pairs = [(-point.score, point.verdict.energy_j) for point in found.points]
    assert tuple(point.on_front for point in found.points) == find_front(pairs)
    best = max(found.points, key=lambda point: point.score)
    assert best.on_front and best.front_chance > 0.5
    energies = [point.verdict.energy_j for point in found.front]
    scores = [point.score for point in found.front]
    assert energies == sorted(energies) and scores == sorted(scores)
    assert all(0 <= point.front_chance <= 1 for point in found.points)
    data = json.loads(json.dumps(found.to_dict()))
    assert len(data["trials"]) == 30 and len(data["front"]) == len(found.front)
    picture = draw_search(found)
    assert "simulated" in picture.heading and "budget" in picture.series


def test_a_worse_trial_of_the_same_net_is_never_on_the_front(screen_of):
    """Only the learning rate varies: all cost the same, and one score is best."""
    fixed = {"c1": (32,), "c2": (64,), "c3": (100,), "c4": (200, 190), "lr": NumberRange(0.001, 0.1)}
    screen = screen_of("90%", **fixed)
    found = search(screen, lambda net, trial: trial.params["lr"], trials=40, sampler="random")
    best = {}
    for point in found.points:
        name = point.verdict.network.name
        best[name] = max(best.get(name, 0.0), point.score)
    assert len(best) == 2 and len(found.points) == 40
    for point in found.points:
        if point.score < best[point.verdict.network.name]:
            assert point.front_chance == 0.0 and not point.on_front
    assert max(found.points, key=lambda point: point.score).front_chance == 1.0


def test_the_same_seed_searches_the_same(screen_of):
    runs = [search(screen_of("50%"), width_score, trials=8, seed=4) for _ in range(2)]
    assert runs[0].to_dict() == runs[1].to_dict()


def test_somebody_else_may_enqueue_what_costs_too_much(screen_of):
    """Then it is pruned with the reason, before anything is trained."""
    screen = screen_of("30%")
    storage = optuna.storages.InMemoryStorage()
    search(screen, width_score, trials=1, storage=storage, study_name="s")
    study = optuna.load_study(study_name="s", storage=storage)
    study.enqueue_trial({name: one.ends[1] for name, one in screen.space.dimensions.items()})
    found = search(screen, width_score, trials=2, storage=storage, study_name="s")
    assert found.pruned == 1 and len(found.points) == 2
    pruned = study.get_trials(states=(optuna.trial.TrialState.PRUNED,))[0]
    assert "would take" in pruned.user_attrs["reason"] and not pruned.user_attrs["within_budget"]
    assert study.user_attrs["joulecast"]["device"] == "test"
    assert summarise_study(study, screen).points == found.points


def test_a_storage_keeps_it_and_goes_on(screen_of, tmp_path):
    url = f"sqlite:///{tmp_path / 'search.db'}"
    for count in (3, 6):
        found = search(screen_of("50%"), width_score, trials=3, storage=url, study_name="mine")
        assert len(found.points) == count
    names = [point.verdict.network.name for point in found.points]
    assert len(set(names)) > 3
    with pytest.raises(InputError, match=r"something else \(steps 100, not 7\)"):
        search(screen_of("50%", length=RunLength(7)), width_score, storage=url, study_name="mine")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setup": Setup(batch=64)}, "batch 32, not 64"),
        ({"setup": replace(SETUP, precision="bf16")}, "precision fp32, not bf16"),
        ({"setup": replace(SETUP, phase="inference")}, "phase train, not inference"),
        ({"estimator": "flops"}, "estimator additive, not flops"),
        ({"vary": {"batch": (16, 32)}}, "vary lr, not batch"),
        ({"vary": {}}, "vary lr, not none"),
    ],
)
def test_what_was_trained_keeps_what_it_was_trained_as(cnn_profile, change, said):
    """Whoever goes on with another setup or estimator would give old trials other joules."""
    storage = optuna.storages.InMemoryStorage()
    flops = find_estimator("flops").fit(make_observations())
    profile = replace(cnn_profile, fits={**cnn_profile.fits, "flops": flops})

    def go_on(setup=SETUP, estimator="additive", vary=None):
        dimensions = {"lr": NumberRange(0.001, 0.1)} if vary is None else vary
        space = make_search_space("cnn5", setup, dimensions, (3, 32, 32))
        budget = parse_budget("50%", LENGTH)
        screen = make_screener(profile, space, budget, LENGTH, estimator=estimator)
        return search(screen, width_score, trials=2, storage=storage, study_name="s")

    first = go_on()
    with pytest.raises(InputError, match=f"something else .*{said}") as caught:
        go_on(**change)
    assert "\n" not in str(caught.value)
    again = go_on()
    kept = [point.verdict.to_dict() for point in again.points[:2]]
    assert kept == [point.verdict.to_dict() for point in first.points]


def test_bounds_and_the_budget_of_a_study_may_change(screen_of):
    storage = optuna.storages.InMemoryStorage()
    words = {"trials": 2, "storage": storage, "study_name": "s"}
    first = search(screen_of("50%"), width_score, **words)
    found = search(screen_of("40%", c1=NumberRange(8, 32)), width_score, **words)
    assert len(found.points) == 4
    old = [point.verdict.energy_j for point in found.points[:2]]
    assert old == pytest.approx([point.verdict.energy_j for point in first.points])


def test_the_score_alone_can_be_the_objective(screen_of):
    storage = optuna.storages.InMemoryStorage()

    def score(net, trial):
        trial.report(1.0, 0)
        assert trial.should_prune() in (True, False)
        if trial.number == 1:
            raise optuna.TrialPruned
        return width_score(net, trial)

    found = search(
        screen_of("50%"), score, trials=4, objective="score", storage=storage, study_name="s"
    )
    assert len(optuna.load_study(study_name="s", storage=storage).directions) == 1
    assert len(found.points) == 3 and found.pruned == 1 and found.front


def test_hyper_parameters_of_the_training_function_are_drawn_too(screen_of):
    seen = []

    def score(net, trial):
        seen.append(trial.suggest_float("momentum", 0.1, 0.9))
        return seen[-1]

    found = search(screen_of("50%"), score, trials=6, sampler="tpe")
    assert len(set(seen)) > 3 and all(0.1 <= value <= 0.9 for value in seen)
    assert len(found.points) == 6


def test_failures_are_told(screen_of):
    screen = screen_of("50%")

    def nothing(net, trial):
        return float("nan") if trial.number else 1.0

    found = search(screen, nothing, trials=3)
    assert found.failed == 2 and len(found.points) == 1

    def broken(net, trial):
        raise RuntimeError("out of\nluck")

    with pytest.raises(NetError, match="in trial 0 fails: RuntimeError: out of luck"):
        search(screen, broken, trials=1)
    with pytest.raises(NetError, match="returned str"):
        search(screen, lambda net, trial: "good", trials=1)
    with pytest.raises(StoreError, match="cannot be used"):
        search(screen, width_score, storage="nowhere://x", trials=1)
    with pytest.raises(InputError, match="no sampler"):
        search(screen, width_score, sampler="dice", trials=1)
    with pytest.raises(InputError, match="objective is"):
        search(screen, width_score, objective="luck", trials=1)


def test_a_failure_prints_no_traceback(screen_of):
    """Optuna logs what it catches with its traceback; one line is what the caller raises."""
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
            search(screen_of("50%"), broken, trials=9, storage=storage, study_name="s")
    finally:
        logging.getLogger("optuna").removeHandler(handler)
    assert not any(record.exc_info for record in heard)
    *trained, last = optuna.load_study(study_name="s", storage=storage).get_trials()
    assert len(trained) == 2 and last.state == optuna.trial.TrialState.FAIL
    assert "out of luck" in last.user_attrs["reason"]


def test_an_impossible_budget_says_what_is_nearest(screen_of):
    with pytest.raises(InputError, match=r"nothing in this space keeps .* cnn5:.* is nearest"):
        search(screen_of("1nJ/step"), width_score, trials=1)


def test_a_firm_believer_is_drawn_into_the_budget(screen_of):
    """A sampler that always proposes the largest net: it shrinks until it fits."""
    screen = screen_of("40%")

    class Largest(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return param_distribution.high

    found = search(screen, width_score, trials=2, sampler=Largest())
    smallest = {name: one.ends[0] for name, one in screen.space.dimensions.items()}
    assert found.pruned == 0 and all(point.verdict.within for point in found.points)
    assert all(dict(point.verdict.params) != smallest for point in found.points)


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "joulecast.uses.search.screening_sampler")
    with pytest.raises(MissingError, match=r"pip install 'joulecast\[search\]'"):
        importlib.import_module("joulecast.uses.search.screening_sampler")


def test_a_password_is_not_shown():
    url = "postgresql://me:secret@host:5432/db"
    assert hide_password(url) == "postgresql://me:***@host:5432/db"
    assert hide_password("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"


def test_a_sampler_is_delegated_to(screen_of):
    calls = []

    class Spy(optuna.samplers.RandomSampler):
        def before_trial(self, study, trial):
            calls.append("before")

        def after_trial(self, study, trial, state, values):
            calls.append("after")

        def reseed_rng(self):
            calls.append("reseed")

    sampler = Spy()
    search(screen_of("50%"), width_score, trials=1, sampler=sampler)
    ScreeningSampler(sampler, screen_of("50%")).reseed_rng()
    assert calls == ["before", "after", "reseed"]
