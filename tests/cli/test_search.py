"""``search``: a family, a budget, and somebody's training function."""

from __future__ import annotations

import json

import optuna
import pytest

FAMILY = ("lenet5:4,8,16,16", "--device", "sim", "--batch", "8", "--budget", "97%")
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


def test_without_training_it_says_what_fits(profiled):
    data = profiled.json("search", *FAMILY, "--candidates", "60", "--seed", "3")
    assert data["screened"] == len(data["candidates"]) == 60
    assert 0 < data["within_budget"] == sum(one["within_budget"] for one in data["candidates"])
    assert data["basis"] == "simulated" and data["budget"]["share"] == pytest.approx(0.97)
    text = profiled("search", *FAMILY, "--candidates", "60").stdout
    assert "size, not quality" in text and "random candidates keep it" in text
    assert max(map(len, text.splitlines())) <= 100


def test_with_training_it_finds_the_front(profiled, shell, train):
    words = ("--train", f"{train}:score", "--trials", "5", "--vary", "lr=1e-3..1e-1/log")
    words += ("--storage", "sqlite:///search.db", "--study", "mine", "--steps", "50")
    data = profiled.json("search", *FAMILY, *words, "--out", "out.json", "--html", "front.html")
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
    assert "simulated: no real device" in text
    assert max(map(len, text.splitlines())) <= 100


def test_bounds_are_kept(profiled):
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
        (("--train", "score"), "names no function that trains a net"),
        (("--train", "train.py:fails", "--trials", "1"), "fails: RuntimeError: no data"),
        (("--train", "train.py:score", "--sampler", "dice"), "there is no sampler 'dice'"),
        (("--budget", "1nJ"), "nothing in this space keeps"),
        (("--budget", "5"), "is no budget"),
        (("--budget", "2Wh"), "give --steps"),
        (("--vary", "C1=2..4"), "did you mean c1?"),
        (("--vary", "threads=1,2"), "threads cannot vary"),
        (("--vary", "heads=3"), "would change nothing"),
        (("--estimator", "luck"), "there is no estimator"),
    ],
)
def test_what_goes_wrong_is_one_line(profiled, train, words, said):
    assert said in profiled.fails("search", *FAMILY, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "c1"), "says not what may vary"),
        (("--vary", "lr=nan..1"), "two finite ends"),
        (("--epochs", "2"), "belong together"),
        (("--confidence", "2"), "is no share"),
        (("--html", "x.html"), "give --train"),
        (("--sampler", "nope"), "--sampler is for training"),
        (("--storage", "sqlite:///x.db"), "--storage is for training"),
    ],
)
def test_wrong_usage(profiled, words, said):
    assert said in profiled.fails("search", *FAMILY, *words, code=2)


def test_only_families_are_searched(profiled):
    words = ("net.py:make", "--device", "sim", "--budget", "50%")
    assert "is no family to search in" in profiled.fails("search", *words)
