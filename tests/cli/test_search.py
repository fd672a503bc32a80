"""``search`` screens candidates and trains those within a budget."""

from __future__ import annotations

import json

import optuna
import pytest

FAMILY = ("lenet5:4,8,16,16", "--device", "sim", "--batch", "8", "--budget", "105%")
TRAIN = """
import torch

def score(net, trial):
    assert isinstance(net, torch.nn.Module)
    assert trial.user_attrs["within_budget"]
    out = net(torch.zeros(2, 1, 28, 28))
    assert out.shape == (2, 10)
    return float(sum(p.numel() for p in net.parameters()))

def fails(net, trial):
    raise RuntimeError("no data")

number = 3
"""


@pytest.fixture
def train(write) -> str:
    return write("train.py", TRAIN)


def test_without_training_candidates_are_screened(profiled):
    data = profiled.json("search", *FAMILY, "--candidates", "60", "--seed", "3")
    assert data["screened"] == len(data["candidates"]) == 60
    assert 0 < data["within_budget"] == sum(one["within_budget"] for one in data["candidates"])
    assert data["provenance"] == "simulated" and data["budget"]["share"] == pytest.approx(1.05)
    text = profiled("search", *FAMILY, "--candidates", "60").stdout
    assert "accuracy is unknown" in text and "random candidates keep the budget" in text
    assert max(map(len, text.splitlines())) <= 100


def test_training_finds_the_front(profiled, shell, train):
    words = ("--train", f"{train}:score", "--trials", "5", "--vary", "lr=1e-3..1e-1/log")
    words += ("--storage", "sqlite:///search.db", "--study", "mine", "--steps", "50")
    data = profiled.json("search", *FAMILY, *words, "--out", "out.json", "--plot", "front.html")
    assert len(data["trials"]) == 5 and data["front"]
    assert json.loads((shell.folder / "out.json").read_text()) == data
    assert "score against energy" in (shell.folder / "front.html").read_text()
    for one in data["trials"]:
        assert one["within_budget"] and one["steps"] == 50 and "lr" in one["params"]
        assert one["interval_j"][0] < one["energy_j"] < one["interval_j"][1]
    study = optuna.load_study(study_name="mine", storage="sqlite:///search.db")
    assert [trial.user_attrs["energy_j"] for trial in study.trials] == pytest.approx(
        [one["energy_j"] for one in data["trials"]]
    )
    text = profiled("search", *FAMILY, *words).stdout
    assert "10 trials trained" in text and "optuna-dashboard sqlite:///search.db" in text
    assert "simulated, not a real device" in text
    assert max(map(len, text.splitlines())) <= 100


def test_dimensions_stay_within_their_bounds(profiled):
    words = ("--vary", "c1=2..4/2", "--vary", "f1=16", "--vary", "batch=4,8")
    words += ("--epochs", "1", "--samples", "64")
    data = profiled.json("search", *FAMILY, *words, "--candidates", "40")
    for one in data["candidates"]:
        assert one["params"]["c1"] in (2, 4) and one["params"]["f1"] == 16
        assert one["steps"] == 64 / one["setup"]["batch"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--train", "nowhere.py:score"), "there is no file nowhere.py"),
        (("--train", "train.py:nothing"), "has no function 'nothing' that trains a net"),
        (("--train", "train.py:number"), "has no function 'number' that trains a net"),
        (("--train", "score"), "does not name a function that trains a net"),
        (("--train", "train.py:fails", "--trials", "1"), "in trial 0: RuntimeError: no data"),
        (("--train", "train.py:score", "--sampler", "dice"), "no sampler 'dice'"),
        (("--budget", "1nJ"), "no candidate meets"),
        (("--budget", "5"), "is not a budget"),
        (("--budget", "2Wh"), "give --steps"),
        (("--vary", "C1=2..4"), "did you mean c1?"),
        (("--vary", "threads=1,2"), "threads cannot vary"),
        (("--vary", "heads=3"), "would have no effect"),
        (("--estimator", "luck"), "there is no estimator"),
    ],
)
def test_errors_are_one_line(profiled, train, words, said):
    assert said in profiled.fails("search", *FAMILY, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "c1"), "is not a dimension"),
        (("--vary", "lr=nan..1"), "give a finite number"),
        (("--epochs", "2"), "belong together"),
        (("--confidence", "2"), "is not a share"),
        (("--plot", "x.html"), "--plot needs --train"),
        (("--sampler", "nope"), "--sampler needs --train"),
        (("--storage", "sqlite:///x.db"), "--storage needs --train"),
    ],
)
def test_wrong_usage_is_reported(profiled, words, said):
    assert said in profiled.fails("search", *FAMILY, *words, code=2)


def test_only_families_are_searched(profiled):
    words = ("net.py:make", "--device", "sim", "--budget", "50%")
    assert "is not a family" in profiled.fails("search", *words)
