"""Modules are loaded by name; their inputs get another batch or number of tokens."""

import pytest
import torch
from torch import nn

from joulecast.records import Device, Setup
from joulecast.system.errors import InputError, NetError
from joulecast.torch_nets.inputs import resize_batch
from joulecast.torch_nets.load import load_net, make_sequence, read_at_tokens, read_named_net
from joulecast.torch_nets.runtime import TorchRuntime
from torch_nets.made_net import MadeNet

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
class Branching(nn.Linear):
    def forward(self, x): return super().forward(x) if x.sum() > 0 else x
def branching(): return Branching(8, 8), torch.zeros(5, 8)
"""


@pytest.fixture
def net_file(tmp_path) -> str:
    path = tmp_path / "my_net.py"
    path.write_text(NET_FILE)
    return str(path)


def test_named_modules_are_read(net_file: str) -> None:
    for name in ("with_inputs", "with_loss", "data_dependent"):
        network, found = read_named_net(f"{net_file}:{name}")
        assert found == 5
        assert [layer.kind for layer in network.layers] == ["linear"]
    network, found = read_named_net(f"{net_file}:alone", batch=3, input_shape=(8,))
    assert (found, network.input.shape) == (3, (8,))
    assert load_net(f"{net_file}:with_inputs", batch=7).inputs.shape == (7, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}:alone", "give input_shape"),
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


def test_weights_that_do_not_fit_are_not_allocated(net_file: str, monkeypatch) -> None:
    """A module that fails on the meta device is loaded with its weights, if memory allows."""
    network, batch = read_named_net(f"{net_file}:branching")
    assert batch == 5 and network.totals is not None
    monkeypatch.setattr("joulecast.torch_nets.load.find_available_bytes", lambda: 100.0)
    with pytest.raises(NetError, match=r"288 B of them do not fit in memory"):
        read_named_net(f"{net_file}:branching")


FAILING = """
import torch
from torch import nn

class Asserting(nn.Linear):
    def forward(self, x):
        assert x.shape[1] == 3
        return super().forward(x)

class Leaving(nn.Linear):
    def forward(self, x):
        raise SystemExit(3)

class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("gone")

class Tired(nn.Linear):
    calls = 0
    def forward(self, x):
        Tired.calls += 1
        if Tired.calls > 10:
            raise ValueError("too often")
        return super().forward(x)

def make_wrong(): return nn.Linear("wide")
def make_asserting(): return Asserting(8, 2), torch.zeros(5, 8)
def make_leaving(): return Leaving(8, 2), torch.zeros(5, 8)
def make_loss(): return nn.Linear(8, 2), torch.zeros(5, 8), lambda out: out.no_such()
def make_backward(): return nn.Linear(8, 2), torch.ones(5, 8), lambda x: Doubling.apply(x.sum())
def make_tired(): return Tired(8, 2), torch.randn(5, 8)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", r"argument: 'out_features' \(failing.py, line 31, in make_wrong\)"),
        ("asserting", r"assert x.shape\[1\] == 3 \(failing.py, line 7, in forward\)"),
        ("leaving", r"SystemExit: 3 \(failing.py, line 12, in forward\)"),
        ("loss", r"no_such.* \(failing.py, line 34, in <lambda>\)"),
        ("backward", r"KeyError: 'gone' \(failing.py, line 21, in backward\)"),
    ],
)
def test_errors_name_the_line_of_the_users_code(tmp_path, monkeypatch, name, message) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NetError, match=message):
        read_named_net(f"failing.py:make_{name}")


def test_errors_of_an_import_name_their_line(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text("import inner")
    (tmp_path / "inner.py").write_text("\n\nassert False")
    with pytest.raises(NetError, match=r"AssertionError: assert False \(inner.py, line 3\)"):
        read_named_net("failing.py:make")
    (tmp_path / "failing.py").write_text("def make(:")
    with pytest.raises(NetError, match=r"SyntaxError: invalid syntax \(failing.py, line 1\)$"):
        read_named_net("failing.py:make")


def test_errors_of_later_steps_name_their_line(tmp_path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    loaded = load_net(f"{tmp_path}/failing.py:make_tired")
    runtime = TorchRuntime("cpu", Device("toy"))
    step = runtime.prepare_net(loaded.net, loaded.inputs, loaded.loss, Setup(batch=5, threads=1))
    with pytest.raises(NetError, match=r"too often \(.*failing.py, line 28, in forward"):
        step.run(100)
    step.close()


def make_model() -> nn.Module:
    return MadeNet(
        lambda net, ids: net.out(net.embed(ids)), embed=nn.Embedding(50, 8), out=nn.Linear(8, 50)
    )


def test_module_is_read_with_one_sequence_of_any_length():
    network = read_at_tokens(make_model(), torch.zeros(4, 7, dtype=torch.long), 61)
    assert network.input.shape == (61,)


def test_only_tokens_are_kept_of_the_inputs():
    ids, mask = torch.zeros(4, 7, dtype=torch.long), torch.ones(4, 7)
    made = make_sequence({"mask": mask, "input_ids": ids, "labels": ids}, 5)
    assert list(made) == ["input_ids"] and made["input_ids"].shape == (1, 5)
    (positional,) = make_sequence((mask, ids), 5)
    assert positional.shape == (1, 5)


def test_other_modules_are_refused():
    with pytest.raises(NetError, match="no batch of token numbers"):
        make_sequence(torch.randn(2, 3, 8, 8), 5)
    with pytest.raises(InputError, match="example inputs"):
        read_at_tokens(make_model(), None, 5)


def test_only_tensors_with_samples_are_resized() -> None:
    inputs = {"x": torch.arange(6.0).reshape(3, 2), "mask": torch.ones(5), "scale": 2.0}
    resized = resize_batch(inputs, 4)
    assert resized["x"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [0.0, 1.0]]
    assert resized["mask"] is inputs["mask"]
    assert resized["scale"] == 2.0
    assert resize_batch(inputs, 1)["x"].tolist() == [[0.0, 1.0]]
    # Those on the meta device without memory.
    resized = resize_batch(torch.empty(3, 2, device="meta"), 1000)
    assert resized.shape == (1000, 2) and resized.device.type == "meta"
