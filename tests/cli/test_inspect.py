"""``inspect`` shows layers and work, ``detect`` meters and devices."""

import itertools
from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.features.inspect import add_step_totals
from joulecast.operators import make_layer, network_work
from joulecast.records import Input, Network, Setup, StepTotals
from joulecast.store.files import read_network, write_network
from joulecast.torch_nets.net_reader import count_step_totals

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

def frozen():
    return nn.Linear(8, 2).requires_grad_(False), torch.zeros(4, 8)
"""


def test_detect_describes_every_meter(shell):
    data = shell.json("detect")
    keys = "name available reason covers provenance update_interval_s resolution_j idle_power_w"
    assert all({*keys.split(), "advice"} <= set(meter) for meter in data["meters"])
    modelled = next(meter for meter in data["meters"] if meter["name"] == "modelled")
    assert modelled["available"] and modelled["provenance"] == "modelled"
    assert data["devices"][0]["on"] == "cpu"
    text = shell("detect").stdout
    assert all(meter["name"] in text for meter in data["meters"])


@pytest.mark.parametrize("family", ["lenet5", "lstm", "transformer:16,2"])
def test_totals_are_the_independent_count(shell, family):
    data = shell.json("inspect", family, "--batch", "2")
    totals = count_step_totals(make_family(family), 2)
    assert (data["flops"], data["params"]) == (totals.flops, totals.params)
    # The first count of a recurrence in a process also sees PyTorch set it up.
    assert data["bytes"] == pytest.approx(totals.size_bytes, rel=1e-3)
    shares = {key: share for key, share in totals.to_dict().items() if key.endswith("_share")}
    assert {key: data[key] for key in shares} == pytest.approx(shares, abs=1e-3)
    assert data["counted"] == "independently"
    layers = data["layers"]
    for layer, what in itertools.product(layers, ("flops", "bytes", "launches", "memory_bytes")):
        stages = [layer[what][stage] for stage in ("forward", "backward", "update")]
        assert layer[what]["total"] == sum(stages)
    assert sum(layer["flops"]["total"] for layer in layers) == pytest.approx(data["flops"])
    assert sum(layer["params"] for layer in layers) == data["params"]


@pytest.mark.parametrize("batch", [8, 9])
def test_totals_in_a_file_apply_to_the_batch_they_were_counted_at(shell, batch):
    network = replace(make_family("lenet5"), buildable=False)
    flops = network_work(network, Setup(batch=8)).total.flops
    totals = StepTotals(4 * flops, 123.0, 99, 0.75, 0.5, 0.25, overcounted_bytes_share=0.125)
    write_network(replace(network, totals=totals), "net.json")
    data = shell.json("inspect", "net.json", "--batch", str(batch))
    own = network_work(network, Setup(batch=batch)).total
    known = (4 * flops, 123.0, "independently")
    expected = known if batch == 8 else (own.flops, own.size_bytes, "by layer")
    assert (data["flops"], data["bytes"], data["counted"]) == expected
    assert data["params"] == 99 and data["unattributed_flops_share"] == 0.75
    text = " ".join(shell("inspect", "net.json", "--batch", str(batch)).stdout.split())
    assert "75.0 % of the FLOPs, 50.0 % of the bytes, 25.0 % of the parameters belong to no" in text
    assert batch == 8 or "give 12.5 % more bytes than counted" in text


@pytest.mark.parametrize("words", [("--inference",), ("--precision", "bf16")])
def test_a_count_of_fp32_training_is_not_used_for_other_setups(shell, words):
    data = shell.json("inspect", "lenet5", *words)
    assert data["counted"] == "by layer"
    assert data["bytes"] == sum(layer["bytes"]["total"] for layer in data["layers"])


def test_equal_blocks_are_one_row_of_the_same_work(shell):
    words = ("inspect", "transformer:32,3")
    plain, folded = shell.json(*words), shell.json(*words, "--blocks")
    assert [len(layer["parts"]) for layer in folded["layers"]].count(9) == 3
    for view in (plain, folded):
        assert sum(layer["flops"]["total"] for layer in view["layers"]) == view["flops"]
    texts = [shell(*words).stdout, shell(*words, "--blocks").stdout]
    assert "block of 9 ×3" in texts[1] and "block0–block2" in texts[1]
    totals = [[one for one in text.splitlines() if one.startswith("all ")] for text in texts]
    assert totals[0][0].split() == totals[1][0].split()
    assert "--blocks shows equal blocks as one row" in " ".join(texts[0].split())
    said = " ".join(texts[0].split())
    assert "everything belongs to a layer" in said and "% fewer bytes than counted" in said
    assert max(len(line) for text in texts for line in text.splitlines()) <= 100


def test_without_pytorch_totals_are_sums_of_layers(shell, write, monkeypatch):
    # It is not suggested where it would not help.
    for name, network in (
        ("empty.json", Network()),
        ("read.json", replace(make_family("lenet5"), buildable=False)),
    ):
        write_network(network, name)
        text = shell("inspect", name).stdout
        assert "sums of the layers" in text and "PyTorch" not in text
    monkeypatch.setattr("joulecast.features.nets.has_torch", lambda: False)
    monkeypatch.setattr("joulecast.features.inspect.has_torch", lambda: False)
    data = shell.json("inspect", "cnn5")
    assert data["unattributed_flops_share"] is None and data["counted"] == "by layer"
    assert data["flops"] == network_work(make_family("cnn5"), Setup(batch=32)).total.flops
    text = shell("inspect", "lstm").stdout
    assert "sums of the layers" in text and max(map(len, text.splitlines())) <= 100
    write("net.py", NET)
    monkeypatch.setattr("joulecast.features.nets.find_spec", lambda name: None)
    assert "joulecast[torch]" in shell.fails("inspect", "net.py:make_net")


def test_a_written_network_is_read_back(shell):
    shell("inspect", "har", "--out", "har.json")
    assert read_network("har.json") == make_family("har")
    again = shell.json("inspect", "har.json")
    assert again["flops"] == shell.json("inspect", "har")["flops"]


def test_a_callable_is_read_at_its_own_batch_or_another(shell, write):
    write("net.py", NET)
    assert shell.json("inspect", "net.py:make_net")["setup"]["batch"] == 4
    assert shell.json("inspect", "net.py:make_net", "--inference")["setup"]["batch"] == 4
    data = shell.json("inspect", "net.py:make_net", "--batch", "6")
    assert data["setup"]["batch"] == 6
    assert [layer["kind"] for layer in data["layers"]] == ["conv2d", "linear"]
    assert shell.json("inspect", "net.py:bare", "--input", "5")["params"] == 12
    (note,) = shell.json("inspect", "net.py:frozen")["notes"]
    assert "No weight requires a gradient" in note
    assert note in " ".join(shell("inspect", "net.py:frozen").stdout.split())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nix"], "cnn5"),
        (["cnn5", "--input", "96"], "3x96x96"),
        (["nix.json"], "nix.json"),
        (["nix.py:make_net"], "nix.py"),
        (["net.py"], "net.py:make_net"),
        (["net.py:nix"], "no function 'nix'"),
        (["net.py:bare"], "--input"),
        (["net.py:broken"], "fails on the example input"),
        (["net.py:raises"], "no such luck"),
        (["net.py:nothing"], "must return a module"),
        (["wrong.py:make_net"], "fails to import"),
    ],
)
def test_bad_nets_are_one_line(shell, write, words, part):
    write("net.py", NET)
    write("wrong.py", "import nowhere_at_all")
    assert part in shell.fails("inspect", *words)


# A network of thousands of layers is shown in seconds: the first rows, and all of them as JSON

LAYER = make_layer("linear", cin=8, cout=8)


def test_long_table_shows_its_first_rows(shell):
    layers = tuple(replace(LAYER, name=f"fc{number}") for number in range(1500))
    write_network(Network(layers, Input((8,)), name="deep"), "deep.json")
    text = shell("inspect", "deep.json").stdout
    assert "fc999" in text and "fc1000" not in text
    assert "Only the first 1000 rows are shown: --json lists every layer." in text
    # The totals are those of all layers.
    assert "108 k" in text
    assert len(shell.json("inspect", "deep.json")["layers"]) == 1500


def test_deep_network_is_not_counted_independently(monkeypatch):
    def count(*args):
        raise AssertionError("counting takes a hundredth of a second for each layer")

    monkeypatch.setattr("joulecast.torch_nets.net_reader.count_step_totals", count)
    network = Network((LAYER,) * 1001, Input((8,)))
    assert add_step_totals(network, Setup()) is network
