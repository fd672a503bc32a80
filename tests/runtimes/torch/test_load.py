"""Modules are loaded by name, with their example inputs and their loss."""

import pytest
import torch

from joulecast.errors import NetError
from joulecast.runtimes.torch.example_inputs import resize_batch
from joulecast.runtimes.torch.load import load_net, read_named_net

NET_FILE = """
import torch
from torch import nn

def alone(): return nn.Linear(8, 2)
def with_inputs(): return nn.Linear(8, 2), torch.zeros(5, 8)
def with_loss(): return nn.Linear(8, 2), (torch.zeros(5, 8),), lambda out: out.sum()
def broken(): raise ValueError("no such thing")
def wrong(): return 7
class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, int(torch.ones(3).sum().item()))
    def forward(self, x): return self.fc(x)
def data_dependent(): return DataDependent(), torch.zeros(5, 8)
"""


@pytest.fixture
def net_file(tmp_path) -> str:
    path = tmp_path / "my_net.py"
    path.write_text(NET_FILE)
    return str(path)


def test_named_modules_are_read(net_file: str) -> None:
    for name, batch in (("with_inputs", 5), ("with_loss", 5), ("data_dependent", 5)):
        network, found = read_named_net(f"{net_file}:{name}")
        assert found == batch
        assert [layer.kind for layer in network.layers] == ["linear"]
    network, found = read_named_net(f"{net_file}:alone", batch=3, input_shape=(8,))
    assert (found, network.input.shape) == (3, (8,))
    assert load_net(f"{net_file}:with_inputs", batch=7).inputs.shape == (7, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}:alone", "--input"),
        ("{file}:broken", "no such thing"),
        ("{file}:wrong", "int"),
        ("{file}:nothing", "nothing"),
        ("{file}.py:alone", "no file"),
        ("no.such.package:make", "fails to import"),
        ("something", "family"),
    ],
)
def test_wrong_names_raise_a_one_line_error(net_file: str, name: str, message: str) -> None:
    with pytest.raises(NetError, match=message) as caught:
        read_named_net(name.format(file=net_file))
    assert "\n" not in str(caught.value)


def test_only_samples_are_resized_to_another_batch() -> None:
    inputs = {"x": torch.zeros(4, 10, 8), "mask": torch.zeros(10, 10), "at": torch.zeros(1, 10)}
    resized = resize_batch(inputs, 16)
    assert [tuple(value.shape) for value in resized.values()] == [(16, 10, 8), (10, 10), (1, 10)]


def test_weights_that_do_not_fit_are_not_allocated(tmp_path, monkeypatch) -> None:
    """A module that fails on the meta device is loaded with its weights, if memory allows."""
    path = tmp_path / "large.py"
    path.write_text(
        "import torch\n"
        "class Large(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(64, 64)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x) if x.sum() > 0 else x\n"
        "def make_net():\n"
        "    return Large(), torch.zeros(4, 64)\n",
        encoding="utf-8",
    )
    network, batch = read_named_net(f"{path}:make_net")
    assert batch == 4 and network.totals is not None
    monkeypatch.setattr("joulecast.runtimes.torch.load.find_available_bytes", lambda: 100.0)
    with pytest.raises(NetError, match=r"16\.2 KiB of them do not fit in memory"):
        read_named_net(f"{path}:make_net")
