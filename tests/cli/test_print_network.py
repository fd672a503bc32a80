"""A network of thousands of layers is shown in seconds: the first rows, and all of them as JSON."""

from dataclasses import replace

import pytest

from joulecast.features.inspect import add_step_totals
from joulecast.operators import make_layer
from joulecast.records import Input, Network, Setup
from joulecast.store.files import write_network


@pytest.fixture
def deep(tmp_path):
    """Return the file of a network of 1,500 layers that could be rebuilt."""
    layer = make_layer("linear", cin=8, cout=8)
    layers = tuple(replace(layer, name=f"fc{number}") for number in range(1500))
    path = tmp_path / "deep.json"
    write_network(Network(layers, Input((8,)), name="deep"), path)
    return str(path)


def test_long_table_shows_its_first_rows(shell, deep):
    text = shell("inspect", deep).stdout
    assert "fc999" in text and "fc1000" not in text
    assert "Only the first 1000 rows are shown: --json lists every layer." in text
    # The totals are those of all layers.
    assert "108 k" in text
    assert len(shell.json("inspect", deep)["layers"]) == 1500


def test_equal_blocks_of_a_long_network_are_one_row(shell, tmp_path):
    layer = make_layer("linear", cin=8, cout=8)
    layers = tuple(replace(layer, name=f"h.{n // 2}.fc{n % 2}") for n in range(3000))
    groups = tuple((start, start + 2) for start in range(0, 3000, 2))
    path = tmp_path / "blocks.json"
    write_network(Network(layers, Input((8,)), groups, buildable=False, name="blocks"), path)
    text = shell("inspect", str(path), "--blocks").stdout
    assert "h.0–1499" in text
    assert "rows are shown" not in text


def test_deep_network_is_not_counted_independently(monkeypatch):
    def count(*args):
        raise AssertionError("counting takes a hundredth of a second for each layer")

    module = "joulecast.torch_nets.net_reader.count_step_totals"
    monkeypatch.setattr(module, count)
    layer = make_layer("linear", cin=8, cout=8)
    network = Network((layer,) * 1001, Input((8,)))
    assert add_step_totals(network, Setup()) is network
