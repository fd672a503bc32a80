"""``inspect`` and ``detect``: what people and programs see."""

from __future__ import annotations

import pytest

from joulecast.families import make_family
from joulecast.files import read_network
from joulecast.kinds import network_work
from joulecast.records import Setup

NET = """
import torch
from torch import nn

def make_net():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    return net, torch.zeros(4, 3, 8, 8)

def bare():
    return nn.Linear(5, 2)

def broken():
    return nn.Linear(5, 2), torch.zeros(4, 3)

def raises():
    raise ValueError("no such luck")

def nothing():
    return 42
"""


def test_detect_says_of_each_meter_what_is_promised(shell):
    data = shell.json("detect")
    keys = {"name", "available", "reason", "covers", "provenance", "period_s", "resolution_j"}
    assert all(keys | {"idle_power_w", "advice"} <= set(meter) for meter in data["meters"])
    modelled = next(meter for meter in data["meters"] if meter["name"] == "modelled")
    assert modelled["available"] and modelled["provenance"] == "modelled"
    assert data["devices"][0]["on"] == "cpu"
    text = shell("detect").stdout
    assert all(meter["name"] in text for meter in data["meters"])


@pytest.mark.parametrize("family", ["lenet5", "lstm", "transformer:16,2"])
def test_layers_add_up_to_the_independent_count(shell, family):
    data = shell.json("inspect", family, "--batch", "2")
    for what in ("flops", "bytes", "params"):
        sums = [
            layer[what] if what == "params" else layer[what]["total"] for layer in data["layers"]
        ]
        share = data[f"unattributed_{what}_share"]
        assert 0 <= share < 0.01
        assert sum(sums) == pytest.approx(data[what] * (1 - share), rel=1e-3)
    assert data["counted"] == "independently"


def test_stages_of_a_layer_add_up(shell):
    for layer in shell.json("inspect", "lenet5")["layers"]:
        for what in ("flops", "bytes", "launches", "memory_bytes"):
            stages = [layer[what][stage] for stage in ("forward", "backward", "update")]
            assert layer[what]["total"] == sum(stages)


def test_blocks_hold_the_same_work(shell):
    plain = shell.json("inspect", "transformer:32,3")
    folded = shell.json("inspect", "transformer:32,3", "--blocks")
    assert len(folded["layers"]) < len(plain["layers"])
    assert [len(layer["parts"]) for layer in folded["layers"]].count(9) == 3
    for view in (plain, folded):
        assert sum(layer["flops"]["total"] for layer in view["layers"]) == view["flops"]


def test_without_pytorch_totals_are_the_layers_own(shell, monkeypatch):
    monkeypatch.setattr("joulecast.cli.inspect.has_torch", lambda: False)
    data = shell.json("inspect", "cnn5")
    assert data["unattributed_flops_share"] is None and data["counted"] == "by layer"
    assert data["flops"] == network_work(make_family("cnn5"), Setup(batch=32)).total.flops
    assert "layers' own sums" in shell("inspect", "cnn5").stdout


def test_a_network_written_comes_back(shell):
    shell("inspect", "har", "--out", "har.json")
    assert read_network("har.json") == make_family("har")
    again = shell.json("inspect", "har.json")
    assert again["flops"] == shell.json("inspect", "har")["flops"]


def test_a_callable_is_read_with_its_own_batch_or_another(shell, write):
    write("net.py", NET)
    assert shell.json("inspect", "net.py:make_net")["setup"]["batch"] == 4
    data = shell.json("inspect", "net.py:make_net", "--batch", "6")
    assert data["setup"]["batch"] == 6
    assert [layer["kind"] for layer in data["layers"]] == ["conv2d", "linear"]
    assert shell.json("inspect", "net.py:bare", "--input", "5")["params"] == 12


def test_tables_fit_a_hundred_columns(shell, monkeypatch):
    monkeypatch.setattr("joulecast.cli.inspect.has_torch", lambda: False)
    for words in (["resnet50"], ["transformer"], ["lstm"], ["resnet18", "--blocks"]):
        text = shell("inspect", *words).stdout
        assert max(map(len, text.splitlines())) <= 100


def test_inference_has_no_backward(shell):
    data = shell.json("inspect", "lenet5", "--inference")
    assert all(layer["flops"]["backward"] == 0 for layer in data["layers"])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nix"], "cnn5"),
        (["cnn5:1,2,3,4,5"], "at most 4"),
        (["cnn5:0"], "at least 1"),
        (["cnn5", "--batch", "0"], "batch is 0"),
        (["cnn5", "--threads", "-1"], "threads is -1"),
        (["cnn5", "--input", "96"], "3x96x96"),
        (["cnn5", "--input", "3x2x2"], "larger input"),
        (["nix.json"], "nix.json"),
        (["nix.py:make_net"], "nix.py"),
        (["nix.nix:make_net"], "does not import"),
        (["net.py:nix"], "no function 'nix'"),
        (["net.py:bare"], "--input"),
        (["net.py:broken"], "fails on the example input"),
        (["net.py:bare", "--input", "3x7"], "fails on the example input"),
        (["net.py:raises"], "no such luck"),
        (["net.py:nothing"], "must return a module"),
        (["wrong.py:make_net"], "does not import"),
        (["wrong.json"], "wrong.json"),
        (["net.py"], "file.py:make_net"),
    ],
)
def test_bad_nets_are_one_line(shell, write, words, part):
    write("net.py", NET)
    write("wrong.py", "import nowhere_at_all")
    write("wrong.json", "{")
    assert part in shell.fails("inspect", *words)


def test_pytorch_is_asked_for_where_it_is_needed(shell, write, monkeypatch):
    write("net.py", NET)
    monkeypatch.setattr("joulecast.cli.nets.has_torch", lambda: False)
    assert "joulecast[torch]" in shell.fails("inspect", "net.py:make_net")
