"""``search`` trains only nets that are estimated to keep a budget, whatever the sampler."""

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

import joulecast
from joulecast.estimators import find_estimator
from joulecast.families import FAMILIES
from joulecast.features.run import RunLength, parse_budget
from joulecast.features.search.screen import make_screener
from joulecast.features.search.space import Choice, NumberRange, make_search_space, parse_dimension
from joulecast.features.search.study import ScreeningSampler, run_study, summarise_study
from joulecast.records import Network, Profile, Setup
from joulecast.system.errors import InputError, MissingError, NetError, StoreError
from joulecast.views.fronts import find_front
from joulecast.views.plots import make_svg

SHAPE, SETUP, LENGTH = (3, 32, 32), Setup(batch=32), RunLength(100)
FAMILY = ("lenet5:4,8,16,16", "--device", "sim", "--batch", "8", "--budget", "105%")
TRAIN = """
import torch

def score(net, trial):
    assert isinstance(net, torch.nn.Module)
    assert trial.user_attrs["within_budget"]
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    return float(sum(p.numel() for p in net.parameters()))

def fails(net, trial):
    raise RuntimeError("no data")

"""
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="session")
def cnn_profile() -> Profile:
    asked = {"input_shape": SHAPE, "batch": 32, "points": 24, "store": ":memory:"}
    return joulecast.profile("cnn5", on="simulated:4", **asked)


@pytest.fixture(scope="session")
def make_cnn_screener(cnn_profile):
    def make(budget, confidence=0.9, length=LENGTH, **vary):
        space = make_search_space("cnn5", SETUP, vary, SHAPE)
        limit = parse_budget(budget, length)
        return make_screener(cnn_profile, space, limit, length, confidence=confidence)

    return make


def width_score(net, trial):
    """Return the sum of widths: the score that conflicts most with the budget."""
    return float(sum(trial.params[name] for name in ("c1", "c2", "c3", "c4")))


# -- spaces -------------------------------------------------------------------------------------


def test_default_space_is_the_whole_family():
    space = make_search_space("cnn5")
    original = FAMILIES["cnn5"].params
    bounds = {name: one.bounds for name, one in space.dimensions.items()}
    assert bounds == {name: (1, most) for name, most in original.items()}
    assert space.original[0].name == "cnn5:64,128,256,512"
    assert make_search_space("transformer").dimensions["width"] == NumberRange(4, 256, 4)


@given(st.integers(0, 2**32), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=20, deadline=None)
def test_every_draw_can_be_built(seed, family):
    rates = NumberRange(1e-4, 1e-1, log=True)
    vary = {"batch": (8, 16), "precision": ("fp32", "bf16"), "lr": rates}
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


@pytest.mark.parametrize(
    "text",
    [
        "c1", "c1=", "=3", "c1=8..x", "c1=8..64/x", "c1=9..3", "c=0..3/log", "lr=nan..1",
        "lr=0.1..inf", "lr=nan,1", "c=" + "9" * 400 + "..1", "a=b/1..2", "c=1..2/²",
    ],
)  # fmt: skip
def test_malformed_dimensions_are_refused(text):
    with pytest.raises(InputError):
        parse_dimension(text)


@pytest.mark.parametrize(
    ("vary", "trains", "named"),
    [
        *[({name: (8, 16)}, True, f"{name}.* did you mean") for name in ("C1", "c5", "batchsize")],
        *[({name: (8, 16)}, False, f"{name} cannot vary") for name in ("threads", "loss")],
        ({"lr": (1, 2)}, False, "'lr' .* would have no effect"),
        ({"c1": (0, 4)}, True, "c1 is 0"),
        ({"c1": NumberRange(0.5, 4)}, True, "c1 is 0.5"),
        ({"precision": ("fp8",)}, True, "fp8"),
        ({"batch": ("x",)}, True, "batch is x"),
    ],
)
def test_names_and_values_without_effect_are_refused(vary, trains, named):
    with pytest.raises(InputError, match=named):
        make_search_space("cnn5", vary=vary, trains=trains)


# -- screening ----------------------------------------------------------------------------------


def test_screened_candidates_have_their_estimates(make_cnn_screener):
    screener, rng = make_cnn_screener("50%"), random.Random(1)
    drawn = [screener.space.draw(rng) for _ in range(6)]
    for params, candidate in zip(drawn, screener.screen(drawn), strict=True):
        alone = screener.screen([params])[0]
        assert candidate.energy_j == pytest.approx(alone.energy_j)
        assert candidate.energy_j == pytest.approx(100 * candidate.estimate.energy_j)
        assert candidate.interval_j[0] < candidate.energy_j < candidate.interval_j[1]
        assert candidate.is_within_budget == (candidate.budget_probability >= 0.9)
        assert candidate.budget_probability == pytest.approx(alone.budget_probability, abs=1e-6)
    run, step = make_cnn_screener("20J"), make_cnn_screener("0.2J/step")
    for one, other in zip(run.screen(drawn), step.screen(drawn), strict=True):
        assert one.budget_probability == pytest.approx(other.budget_probability)
    assert run.compute_run_limit_j(100) == pytest.approx(step.compute_run_limit_j(100))
    largest = {name: one.bounds[1] for name, one in screener.space.dimensions.items()}
    assert screener.screen([largest])[0].budget_probability < 1e-6
    network, setup = screener.space.original
    original = screener.fitted_profile.estimate([network], setup)[0]
    assert screener.limit_j == pytest.approx(50 * original.energy_j)


# -- studies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe"])
def test_trained_networks_are_within_the_budget(make_cnn_screener, sampler):
    vary = {"c1": NumberRange(8, 64, 8), "lr": NumberRange(1e-4, 1e-1, log=True)}
    screener, trained, reports = make_cnn_screener("40%", **vary), [], []

    def score(net, trial):
        assert isinstance(net, Network)
        assert trial.user_attrs["within_budget"] and trial.user_attrs["budget_probability"] >= 0.9
        low, high = trial.user_attrs["interval_j"]
        assert low < trial.user_attrs["energy_j"] < high
        assert 0.1 <= trial.suggest_float("momentum", 0.1, 0.9) <= 0.9
        trained.append(net)
        return width_score(net, trial)

    found = run_study(screener, score, trials=12, sampler=sampler, on_progress=reports.append)
    assert len(found.trials) == len(trained) == 12 and found.pruned_count == found.failed_count == 0
    assert all(trial.candidate.is_within_budget for trial in found.trials)
    assert all(trial.candidate.params["c1"] % 8 == 0 for trial in found.trials)
    assert found.screened_count >= 12 + found.ruled_out_count > 12
    assert [trial.candidate.network for trial in found.trials] == trained
    assert [(one.done, one.total) for one in reports] == [(at, 12) for at in range(1, 13)]


def test_front_is_marked_and_shown(make_cnn_screener):
    found, again = (
        run_study(make_cnn_screener("60%"), width_score, trials=15, sampler="random", seed=2)
        for _ in range(2)
    )
    data = json.loads(json.dumps(found.to_dict()))
    assert data == json.loads(json.dumps(again.to_dict())) and len(data["trials"]) == 15
    pairs = [(-trial.score, trial.candidate.energy_j) for trial in found.trials]
    assert tuple(trial.is_on_front for trial in found.trials) == find_front(pairs)
    energies = [one["energy_j"] for one in data["front"]]
    best = max(found.trials, key=lambda trial: trial.score)
    assert energies == sorted(energies) and data["front"][-1]["score"] == best.score
    text, svg = " ".join(str(found).split()), make_svg(found.report().plots[0])
    assert "15 trials trained, sampled by RandomSampler" in text and "P(front)" in text
    assert "(simulated)" in svg and "energy budget" in svg


def test_worse_trial_of_the_same_network_is_not_on_the_front(make_cnn_screener):
    """Only the learning rate varies: the energy is equal, and one score is best."""
    widths = {"c1": (32,), "c2": (64,), "c3": (100,), "c4": (200, 190)}
    screener = make_cnn_screener("90%", **widths, lr=NumberRange(0.001, 0.1))
    found = run_study(screener, lambda net, trial: trial.params["lr"], trials=20, sampler="random")
    best: dict[str, float] = {}
    for trial in found.trials:
        name = trial.candidate.name
        best[name] = max(best.get(name, 0.0), trial.score)
    assert len(best) == 2 and len(found.trials) == 20
    for trial in found.trials:
        if trial.score < best[trial.candidate.name]:
            assert trial.front_probability == 0.0 and not trial.is_on_front
        elif trial.score == max(best.values()):
            assert trial.front_probability == 1.0


def test_enqueued_trial_above_the_budget_is_pruned(make_cnn_screener):
    """It is pruned with the reason before anything is trained."""
    screener = make_cnn_screener("30%")
    stored = {"storage": optuna.storages.InMemoryStorage(), "study": "s"}
    run_study(screener, width_score, trials=1, **stored)
    study = optuna.load_study(study_name="s", storage=stored["storage"])
    study.enqueue_trial({name: one.bounds[1] for name, one in screener.space.dimensions.items()})
    found = run_study(screener, width_score, trials=2, **stored)
    assert found.pruned_count == 1 and len(found.trials) == 2
    pruned = study.get_trials(states=(optuna.trial.TrialState.PRUNED,))[0]
    assert "would need" in pruned.user_attrs["reason"] and not pruned.user_attrs["within_budget"]
    assert study.user_attrs["joulecast"]["device"] == "simulated-4"
    assert summarise_study(study, screener).trials == found.trials


def test_a_study_is_continued_with_other_bounds_and_budget_only(cnn_profile, make_cnn_screener):
    """Otherwise the energies of its earlier trials would change."""
    stored = {"storage": optuna.storages.InMemoryStorage(), "study": "s", "trials": 2}
    flops = find_estimator("flops").fit(cnn_profile.observations).to_dict()
    profile = replace(cnn_profile, fits={**cnn_profile.fits, "flops": flops})

    def go_on(setup=SETUP, estimator="additive", vary=None, length=LENGTH):
        dimensions = {"lr": NumberRange(0.001, 0.1)} if vary is None else vary
        space = make_search_space("cnn5", setup, dimensions, SHAPE)
        budget = parse_budget("90%", length)
        screener = make_screener(profile, space, budget, length, estimator=estimator)
        return run_study(screener, width_score, **stored)

    first = go_on()
    for change, words in (
        ({"setup": Setup(batch=64)}, "batch 32, not 64"),
        ({"setup": replace(SETUP, phase="inference")}, "phase train, not inference"),
        ({"estimator": "flops"}, "estimator additive, not flops"),
        ({"vary": {"batch": (16, 32)}}, "vary lr, not batch"),
        ({"vary": {}}, "vary lr, not none"),
        ({"length": RunLength(7)}, "steps 100, not 7"),
    ):
        with pytest.raises(InputError, match=f"other options .*{words}"):
            go_on(**change)
    narrow = make_cnn_screener("40%", c1=NumberRange(8, 32), lr=NumberRange(0.01, 0.1))
    again = run_study(narrow, width_score, **stored)
    assert len(again.trials) == 4
    assert len({trial.candidate.name for trial in again.trials}) > 2
    for before, after in zip(first.trials, again.trials[:2], strict=True):
        assert after.candidate.params == before.candidate.params
        # Estimated in batches of other sizes, energies may differ by rounding.
        assert after.candidate.energy_j == pytest.approx(before.candidate.energy_j, rel=1e-9)


def test_score_can_be_the_only_objective(make_cnn_screener):
    def score(net, trial):
        trial.report(1.0, 0)
        assert trial.should_prune() in (True, False)
        if trial.number == 1:
            raise optuna.TrialPruned
        return width_score(net, trial)

    found = run_study(make_cnn_screener("50%"), score, trials=4, objective="score")
    assert len(found.trials) == 3 and found.pruned_count == 1 and found.front


def test_a_failure_ends_the_search_without_a_traceback(make_cnn_screener, monkeypatch, caplog):
    """Optuna logs exceptions that it catches with their traceback."""

    def broken(net, trial):
        if trial.number == 2:
            raise RuntimeError("out of\nluck")
        return float("nan") if trial.number else 1.0

    screener, storage = make_cnn_screener("50%"), optuna.storages.InMemoryStorage()
    heard, handler = list[logging.LogRecord](), logging.Handler()
    handler.emit = heard.append
    caplog.set_level(logging.INFO, "optuna")  # commands that ran before lower it
    monkeypatch.setattr(logging.getLogger("optuna"), "handlers", [handler])
    with pytest.raises(NetError, match="failed in trial 2: RuntimeError: out of luck"):
        run_study(screener, broken, trials=9, storage=storage, study="s")
    assert heard and not any(record.exc_info for record in heard)
    study = optuna.load_study(study_name="s", storage=storage)
    assert "out of luck" in study.get_trials()[-1].user_attrs["reason"]
    assert summarise_study(study, screener).failed_count == 2


@pytest.mark.parametrize(
    ("options", "kind", "named"),
    [
        ({"score": lambda net, trial: "good"}, NetError, "returned str"),
        ({"storage": "nowhere://x"}, StoreError, "cannot be used"),
        ({"sampler": "dice"}, InputError, "no sampler"),
        ({"sampler": "GridSampler"}, InputError, "pass an instance"),
        ({"budget": "1nJ/step"}, InputError, r"no candidate meets .* cnn5:.* comes closest"),
        *[
            ({"storage": url}, (StoreError, InputError), r"\*\*\*")
            for url in (
                "postgres://me:s3cret@host:5432/db",
                "nosuch+driver://me:s3cret@host/db",
                "mysql://host/db?password=s3cret",
                "redis://:s3cret@host",
                "postgresql://me:s3cret@host:port/db",
                "postgresql://me:a@b:s3cret@host/db",
            )
        ],
    ],
)
def test_studies_that_cannot_run_are_refused(make_cnn_screener, options, kind, named):
    screener = make_cnn_screener(options.pop("budget", "50%"))
    score = options.pop("score", width_score)
    with pytest.raises(kind, match=named) as caught:
        run_study(screener, score, trials=1, **options)
    assert "s3cret" not in str(caught.value) and "\n" not in str(caught.value)


def test_sampler_above_the_budget_is_shrunk_into_it(make_cnn_screener):
    """The sampler always proposes the largest network, which shrinks until it fits."""
    screener, calls = make_cnn_screener("40%"), []

    class Largest(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return param_distribution.high

    for name in ("before_trial", "after_trial", "reseed_rng"):
        setattr(Largest, name, lambda self, *given, name=name: calls.append(name))
    found = run_study(screener, width_score, trials=1, sampler=Largest())
    smallest = {name: one.bounds[0] for name, one in screener.space.dimensions.items()}
    (trial,) = found.trials
    assert found.pruned_count == 0 and trial.candidate.is_within_budget
    assert dict(trial.candidate.params) != smallest
    ScreeningSampler(Largest(), screener).reseed_rng()
    assert calls == ["before_trial", "after_trial", "reseed_rng"]


def test_missing_optuna_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "joulecast.features.search.study")
    with pytest.raises(MissingError, match=r"pip install 'joulecast\[search\]'"):
        importlib.import_module("joulecast.features.search.study")


# -- the command --------------------------------------------------------------------------------


@pytest.fixture
def train(write) -> str:
    return write("train.py", TRAIN)


def test_without_training_candidates_are_screened(profiled):
    words = ("--vary", "c1=2..4/2", "--vary", "f1=16", "--vary", "batch=4,8")
    words += ("--epochs", "1", "--samples", "64", "--candidates", "40", "--out", "found.json")
    text = profiled("search", *FAMILY, *words, "--plot", "found.svg").stdout
    assert "accuracy is unknown" in text and "random candidates keep the budget" in text
    assert max(map(len, text.splitlines())) <= 100
    data = json.loads((profiled.folder / "found.json").read_text())
    assert data["screened"] == len(data["candidates"]) == 40
    assert profiled.json("search", *FAMILY, *words)["candidates"] == data["candidates"]
    assert 0 < data["within_budget"] == sum(one["within_budget"] for one in data["candidates"])
    for one in data["candidates"]:
        assert one["params"]["c1"] in (2, 4) and one["params"]["f1"] == 16
        assert one["steps"] == 64 / one["setup"]["batch"] and "score" not in one
    assert "Parameters" in (profiled.folder / "found.svg").read_text()


def test_training_finds_the_front(profiled, shell, train):
    words = ("--train", f"{train}:score", "--trials", "3", "--vary", "lr=1e-3..1e-1/log")
    words += ("--storage", "sqlite:///search.db", "--study", "mine", "--steps", "50")
    data = profiled.json("search", *FAMILY, *words, "--plot", "front.html")
    assert len(data["trials"]) == 3 and data["front"]
    assert "score against energy" in (shell.folder / "front.html").read_text()
    for one in data["trials"]:
        assert one["within_budget"] and one["steps"] == 50 and "lr" in one["params"]
    study = optuna.load_study(study_name="mine", storage="sqlite:///search.db")
    assert [trial.user_attrs["energy_j"] for trial in study.trials] == pytest.approx(
        [one["energy_j"] for one in data["trials"]]
    )
    text = profiled("search", *FAMILY, *words).stdout
    assert "6 trials trained" in text and "optuna-dashboard sqlite:///search.db" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--train", "nowhere.py:score"), "there is no file nowhere.py", 1),
        (("--train", "train.py:nothing"), "has no function 'nothing' that trains a net", 1),
        (("--train", "train.py:fails", "--trials", "1"), "in trial 0: RuntimeError: no data", 1),
        (("--budget", "1nJ"), "no candidate meets", 1),
        (("--vary", "c1"), "is not a dimension", 2),
        (("--objective", "luck"), "pareto", 2),
        (("--sampler", "nope"), "--sampler needs --train", 2),
        (("--storage", "sqlite:///x.db"), "--storage needs --train", 2),
    ],
)
def test_errors_are_one_line(profiled, train, words, said, code):
    assert said in profiled.fails("search", *FAMILY, *words, code=code)
    assert "is not a family" in profiled.fails("search", "net.py:make", *FAMILY[1:])
