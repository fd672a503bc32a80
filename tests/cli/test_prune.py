"""``prune`` prunes a net to an energy budget."""

from __future__ import annotations

import json
import runpy
import shutil
from importlib.util import find_spec

import pytest

import joulecast
from cli_stores import run_in_store

SIZES = ("--batch", "512", "--input", "3x32x32")
NET = ("cnn5:32,32,32,32", *SIZES, "--device", "sim")
# The quickest strategy, where any would do.
UNIFORM = (*NET, "--strategy", "uniform")
OWN = """
import torch
from torch import nn

def make_net():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 64, 10),
    )
    return net, torch.randn(4, 3, 32, 32)
"""


@pytest.fixture(scope="module")
def cnn_store(tmp_path_factory):
    """Return a store with a profile of nets wide enough to be worth pruning."""
    path = tmp_path_factory.mktemp("cnn") / "store.sqlite"
    run_in_store(
        path, "profile", "cnn5:32,32,32,32", *SIZES, "--on", "simulated:7", "--points", "14"
    )
    return path


@pytest.fixture
def profiled(shell, cnn_store):
    """Return a command line whose store has that profile."""
    shutil.copy(cnn_store, shell.folder / "store.sqlite")
    return shell


@pytest.fixture(scope="module")
def halved(cnn_store):
    """Return what pruning to half of the energy gives."""
    return json.loads(run_in_store(cnn_store, "prune", *NET, "--budget", "50%", "--json"))


@pytest.fixture(scope="module")
def surely_halved(cnn_store):
    """Return the same for a budget that is kept with 90 %."""
    words = ("--budget", "50%", "--confidence", "0.9", "--json")
    return json.loads(run_in_store(cnn_store, "prune", *NET, *words))


def test_json_has_estimates_and_layers(halved):
    data = halved
    for side in ("before", "after"):
        low, high = data[side]["interval_j"]
        assert low < data[side]["energy_j"] < high
        assert data[side]["provenance"] == "simulated"
    assert data["after"]["energy_j"] <= 0.5 * data["before"]["energy_j"]
    assert 0.4 < data["budget_probability"] <= 1.0
    assert [layer["name"] for layer in data["layers"]][:2] == ["conv1", "conv2"]
    changed = {layer["name"]: layer["channels_after"] for layer in data["layers"]}
    assert all(changed[name] == count for name, count in data["counts"].items())
    assert changed["fc"] == 10


def test_confidence_prunes_further(halved, surely_halved):
    plain, sure = halved, surely_halved
    assert sure["budget_probability"] >= 0.9 > plain["budget_probability"]
    assert sure["after"]["energy_j"] < plain["after"]["energy_j"]


def test_text_shows_layers_interval_and_provenance(profiled):
    out = profiled("prune", *UNIFORM, "--budget", "50%").stdout
    for words in ("(simulated, 95 % interval", "within the budget with", "conv2", "→", "random"):
        assert words in out


@pytest.mark.parametrize("strategy", ["uniform", "random"])
def test_other_strategies_keep_the_budget(profiled, strategy):
    data = profiled.json("prune", *NET, "--budget", "50%", "--strategy", strategy)
    assert data["after"]["energy_j"] <= 0.5 * data["before"]["energy_j"]


def test_the_objective_flops_still_estimates_energy(profiled):
    data = profiled.json("prune", *NET, "--budget", "50%", "--objective", "flops")
    assert data["cost_after"] <= 0.5 * data["cost_before"] and data["unit"] == "FLOP"
    assert data["after"]["energy_j"] > 0.5 * data["before"]["energy_j"]
    assert data["budget_probability"] < 0.05


def test_a_saved_model_is_loaded_again(profiled, write):
    import torch

    write("own.py", OWN)
    words = ("own.py:make_net", "--device", "sim", "--budget", "99%", "--importance", "taylor")
    data = profiled.json("prune", *words, "--save", "small", "--keep", "3")
    original, _ = runpy.run_path("own.py")["make_net"]()
    net = joulecast.load_pruned("small", original)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert net[0].out_channels == data["counts"]["0"] and net[3].out_channels == 32


def test_measuring_says_whether_the_budget_is_kept(profiled):
    data = profiled.json("prune", *UNIFORM, "--budget", "50%", "--measure", "--on", "simulated:7")
    seen = data["measured"]
    assert seen["before"]["provenance"] == "simulated"
    assert seen["share"] == pytest.approx(seen["after"]["energy_j"] / seen["before"]["energy_j"])
    assert seen["within_budget"] == (seen["share"] <= 0.5)


def test_a_run_has_a_budget_too(profiled):
    before = profiled.json("estimate", *NET)["energy_j"]
    total = f"{0.95 * before * 1000}J"
    data = profiled.json("prune", *UNIFORM, "--budget", total, "--steps", "1000")
    assert data["after"]["energy_j"] <= 0.95 * before
    words = ("--epochs", "10", "--samples", str(512 * 100))
    assert profiled.json("prune", *UNIFORM, "--budget", total, *words)["counts"] == data["counts"]
    step = f"{0.95 * before}J/step"
    assert profiled.json("prune", *UNIFORM, "--budget", step)["counts"] == data["counts"]


def test_refusals_are_one_line(profiled):
    assert "LSTM" in profiled.fails("prune", "lstm:8", "--device", "sim", "--budget", "50%")
    small = profiled.fails("prune", *NET, "--budget", "1%")
    assert "smallest reachable network" in small and "J per step" in small
    assert "not a budget" in profiled.fails("prune", *NET, "--budget", "50")
    assert "give --steps" in profiled.fails("prune", *NET, "--budget", "2Wh")
    assert "no layer" in profiled.fails("prune", *NET, "--budget", "50%", "--keep", "nowhere")
    assert "is not a share" in profiled.fails(
        "prune", *NET, "--budget", "50%", "--floor", "x", code=2
    )


def test_a_probe_measures_remaining_layers(profiled, surely_halved):
    """The result is more certain, so less has to be pruned."""
    words, blind = (*NET[:-2], "--budget", "50%", "--confidence", "0.9"), surely_halved
    seen = profiled.json("prune", *words, "--probe", "--on", "simulated:7")
    assert seen["budget_probability"] >= 0.9

    def width(data):
        low, high = data["after"]["interval_j"]
        return (high - low) / data["after"]["energy_j"]

    assert width(seen) < width(blind)
    share = seen["after"]["energy_j"] / seen["before"]["energy_j"]
    assert blind["after"]["energy_j"] / blind["before"]["energy_j"] < share <= 0.5


def test_a_probe_uses_the_device_itself(profiled):
    words = profiled.fails("prune", *NET, "--budget", "50%", "--probe", code=2)
    assert "leave out --device" in words


def test_extrapolation_is_reported(profiled):
    guessed = profiled("prune", *UNIFORM, "--budget", "90%", "--inference").output
    assert "extrapolated" in guessed
    assert "extrapolated" not in profiled("prune", *UNIFORM, "--budget", "90%").output


def test_only_the_estimated_device_is_measured(profiled):
    words = profiled.fails("prune", *NET, "--budget", "50%", "--measure", "--on", "simulated:8")
    assert "simulated-7" in words and "simulated-8" in words


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--save", "/proc/nowhere"), "another folder to --save", 1),
        (("--floor", "nan%"), "is not a share", 2),
        (("--multiple", "1000"), "give a --multiple of up to 32", 1),
        (("--objective", "flops", "--confidence", "0.9"), "leave --confidence out", 2),
    ],
)
def test_contradictory_options_are_one_line(profiled, words, said, code):
    assert said in profiled.fails("prune", *NET, "--budget", "50%", *words, code=code)


@pytest.mark.parametrize(
    ("missing", "title"),
    [("torch", "PyTorch"), ("torch_pruning", "Torch-Pruning"), ("safetensors", "safetensors")],
)
def test_what_is_missing_is_named_with_its_extra_before_any_work(
    shell, write, monkeypatch, missing, title
):
    write("net.py", "raise AssertionError")
    monkeypatch.setattr(
        "joulecast.features.nets.find_spec",
        lambda name: None if name == missing else find_spec(name),
    )
    line = shell.fails("prune", "net.py:make_net", "--budget", "50%")
    assert f"pruning needs {title}: run pip install 'joulecast[prune]'" in line
